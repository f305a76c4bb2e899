"""Blocks: columns against the messages one by one."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from engine.block import Block, BlockReader
from engine.bytecolumns import ByteColumn, CodedColumn
from engine.consumequeue import ConsumeQueue
from engine.filequeue import FileQueue
from engine.hosts import Host
from engine.mappedfile import Access
from engine.message import Message, StoredMessage
from engine.properties import encode_properties
from engine.record import decode_record
from tests.engine.logs import SmallStore
from tests.golden import NAMES, golden

LIMIT = 1 << 20
NUMBERS = (
    "physical_offset",
    "store_size",
    "flag",
    "sys_flag",
    "reconsume_times",
    "born_time_ms",
    "store_time_ms",
)


def never(queue: ConsumeQueue, queue_offset: int, physical_offset: int) -> bool:
    return False


def texts(column: ByteColumn | CodedColumn, first: int = 0, end: int | None = None) -> list[str]:
    return [column[row].decode() for row in range(first, len(column) if end is None else end)]


def row_of(block: Block, row: int) -> dict[str, object]:
    """What the columns say of one message."""
    keys, properties = block.key_starts[row : row + 2].tolist(), block.property_starts[row : row + 2].tolist()
    numbers = {name: int(getattr(block, name)[row]) for name in (*NUMBERS, "queue_offset")}
    return {
        **numbers,
        "body": block.body[row],
        "tags": block.tags[row].decode(),
        "unique_key": block.unique_key[row].decode(),
        "born_host": block.born_host[row].decode(),
        "store_host": block.store_host[row].decode(),
        "keys": texts(block.keys, *keys),
        "properties": list(
            zip(texts(block.property_names, *properties), texts(block.property_values, *properties), strict=True)
        ),
    }


def facts_of(message: StoredMessage, queue_offset: int) -> dict[str, object]:
    """What the message itself says."""
    return {
        **{name: getattr(message, name) for name in (*NUMBERS, "tags", "unique_key")},
        "queue_offset": queue_offset,
        "body": bytes(message.body),
        "born_host": str(message.born_host),
        "store_host": str(message.store_host),
        "keys": list(message.keys),
        "properties": list(message.properties.items()),
    }


def message_at(log: FileQueue, physical_offset: int) -> StoredMessage:
    file = log.find(physical_offset)
    assert file is not None
    return decode_record(file.pages()[physical_offset - file.start :], physical_offset)


def same(block: Block, expected: list[dict[str, object]]) -> None:
    assert len(block) == len(expected)
    for row, facts in enumerate(expected):
        found = row_of(block, row)
        assert sorted(found.pop("properties")) == sorted(facts.pop("properties"))  # type: ignore[call-overload]
        assert found == facts


@pytest.mark.parametrize("name", NAMES)
def test_columns_of_a_store_that_rocketmq_wrote_are_those_of_its_messages(name: str, tmp_path: Path) -> None:
    store = golden(name, tmp_path)
    log = FileQueue.open(store.path / "commitlog", store.sizes.commit_log_bytes, Access.READ)
    for directory in sorted((store.path / "consumequeue").glob("*/*")):
        files = FileQueue.open(directory, store.sizes.consume_queue_bytes, Access.READ)
        queue = ConsumeQueue(directory.parent.name, int(directory.name), files)
        queue.recover()
        queue.begin_at(log.min_offset)
        block = BlockReader(log, LIMIT, never).read(queue, queue.min_offset, queue.max_offset)
        places = queue.entries(queue.min_offset, queue.max_offset)["physical_offset"].tolist()
        expected = [facts_of(message_at(log, place), queue.min_offset + row) for row, place in enumerate(places)]
        same(block, expected)
        assert block.damaged == 0


ALIKE = ["beginning-A-the-end", "beginning-B-the-end"]  # but for what a fingerprint does not look at
names = st.sampled_from(["a", "b", "KEYS", "TAGS", "UNIQ_KEY", "ключ", *ALIKE])
values = st.sampled_from(["x", "x y", " ", "TagA", "значение", "", "v\x01w"])


@settings(max_examples=60)
@given(
    st.lists(
        st.tuples(st.binary(max_size=30), st.lists(st.tuples(names, values), max_size=12), st.booleans()), max_size=25
    )
)
def test_columns_read_whatever_properties_there_are(
    tmp_path_factory: pytest.TempPathFactory, wanted: list[tuple[bytes, list[tuple[str, str]], bool]]
) -> None:
    store = SmallStore(tmp_path_factory.mktemp("block"), access=Access.PRIVATE)
    places = []
    for body, items, ipv6 in wanted:
        host = Host(bytes(range(16)), 7) if ipv6 else Host(b"\x01\x02\x03\x04", 80)
        raw = "\x02".join(f"{name}\x01{value}" for name, value in items).encode()
        places.append(put_raw(store, Message("t", body, flag=7, born_host=host, reconsume_times=3), raw))
    block = BlockReader(store.log_files, LIMIT, never).read(store.queue("t"), 0, 100)
    same(block, [facts_of(message_at(store.log_files, place), row) for row, place in enumerate(places)])
    store.close()


def put_raw(store: SmallStore, message: Message, properties: bytes) -> int:
    """Store a message whose properties are these bytes, whatever they are."""
    filler = {"p": "x" * (len(properties) - 2)} if len(properties) > 2 else {}
    place = store.put(replace(message, properties=filler))
    if filler:
        file = store.log_files.find(place)
        assert file is not None
        entry = store.queue("t").entry(store.queue("t").max_offset - 1)
        assert entry is not None
        end = place - file.start + entry[1]
        assert len(encode_properties((), "", filler)) == len(properties)
        file.writable()[end - len(properties) : end] = properties
    return place


def test_text_that_is_no_utf8_is_replaced_as_in_a_message(tmp_path: Path) -> None:
    store = SmallStore(tmp_path)
    places = [
        put_raw(store, Message("t", b"1"), b"TAGS\x01a\xffb\x02KEYS\x01k\xc3"),
        put_raw(store, Message("t", b"2"), b"\xa9name\x01value\x02TAGS\x01ok"),
    ]
    block = BlockReader(store.log_files, LIMIT, never).read(store.queue("t"), 0, 10)
    same(block, [facts_of(message_at(store.log_files, place), row) for row, place in enumerate(places)])


def test_damaged_messages_are_left_out_and_counted(tmp_path: Path) -> None:
    store = SmallStore(tmp_path)
    places = [store.put(Message("t", b"body %d" % number, ["k"])) for number in range(60)]
    store.damage(places[0], 88)
    store.damage(places[30], 5)
    store.damage(places[31], 27)
    block = BlockReader(store.log_files, LIMIT, never).read(store.queue("t"), 0, 100)
    good = [number for number in range(60) if number not in (0, 30, 31)]
    assert block.damaged == 3
    assert block.queue_offset.tolist() == good
    assert [block.body[row] for row in range(len(block))] == [b"body %d" % number for number in good]


def test_a_range_without_messages_is_an_empty_block(tmp_path: Path) -> None:
    store = SmallStore(tmp_path)
    block = BlockReader(store.log_files, LIMIT, never).read(store.queue("t"), 0, 100)
    assert (len(block), block.damaged, block.key_starts.tolist()) == (0, 0, [0])
    assert block.body.starts.dtype == np.int64
