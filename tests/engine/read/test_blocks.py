"""Blocks: columns against the messages one by one."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import lz4.frame
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from engine.derived.consume_queue import ConsumeQueue
from engine.derived.consume_queues import ConsumeQueues
from engine.derived.queue_records import QueueRecords
from engine.errors import DamagedRecordError, ExpiredMessageError
from engine.files.file_queue import FileQueue
from engine.files.mapped_file import Access
from engine.log.commit_log import CommitLog
from engine.read import blocks as blocks_module
from engine.read.blocks import Block, BlockReader, Lists, Outline
from engine.record.byte_columns import ByteColumn, CodedColumn, SliceColumn
from engine.record.kernel.encode import encode_properties
from engine.record.message import Host, Message, StoredMessage
from engine.record.properties import UNIQUE_KEY
from engine.record.record import decode_record
from tests.engine.logs import SmallStore
from tests.golden import NAMES, golden


@pytest.fixture(params=[2, 8192], autouse=True)
def rows_together(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """However few rows are read together, a block is the same."""
    monkeypatch.setattr(blocks_module, "_ROWS_TOGETHER", request.param)


LIMIT = 1 << 20
LZ4 = 0x101
NUMBERS = (
    "physical_offset",
    "flag",
    "sys_flag",
    "reconsume_times",
    "born_time_ms",
    "store_time_ms",
)


def reader_of(store: SmallStore) -> BlockReader:
    return BlockReader(store.log, LIMIT, QueueRecords(store.log, store.queues, LIMIT))


def texts(column: ByteColumn | CodedColumn | SliceColumn) -> list[str]:
    return [column[row].decode() for row in range(len(column))]


def lists(starts: np.ndarray, *columns: list[str]) -> list[list[tuple[str, ...]]]:
    """The columns' values for each row."""
    items = list(zip(*columns, strict=True))
    assert starts[-1] == len(items)
    return [items[begin:end] for begin, end in pairwise(starts.tolist())]


def bodies_of(reader: BlockReader, block: Block) -> list[bytes]:
    bodies = reader.bodies(block.bodies)
    return [bodies[row] for row in range(len(bodies))]


def rows_of(reader: BlockReader, block: Block) -> list[dict[str, object]]:
    """The columns' values of each message."""
    properties, (key_starts, keys) = block.properties, block.keys()
    columns: dict[str, list[Any]] = {
        **{name: getattr(block, name).tolist() for name in (*NUMBERS, "queue_offset")},
        "body": bodies_of(reader, block),
        "tags": texts(block.tags()),
        "unique_key": texts(properties.value(UNIQUE_KEY)),
        "born_host": texts(block.born_host),
        "store_host": texts(block.store_host),
        "keys": [[key for (key,) in found] for found in lists(key_starts, texts(keys))],
        "properties": lists(properties.row_starts, texts(properties.names), texts(properties.values)),
    }
    assert {len(column) for column in columns.values()} == {len(block)}
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


def facts_of(message: StoredMessage, queue_offset: int) -> dict[str, object]:
    """The message's own values."""
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


def same(reader: BlockReader, blocks: list[Block], expected: list[dict[str, object]]) -> None:
    found = [row for block in blocks for row in rows_of(reader, block)]
    for facts in (*found, *expected):
        facts["properties"] = sorted(facts["properties"])  # type: ignore[call-overload]
    assert found == expected


@pytest.mark.parametrize("name", NAMES)
def test_columns_of_a_store_that_rocketmq_wrote_are_those_of_its_messages(name: str, tmp_path: Path) -> None:
    store = golden(name, tmp_path)
    log = FileQueue(store.path / "commitlog", store.sizes.commit_log_bytes, Access.READ)
    for directory in sorted((store.path / "consumequeue").glob("*/*")):
        files = FileQueue(directory, store.sizes.consume_queue_bytes, Access.READ)
        queue = ConsumeQueue(directory.parent.name, int(directory.name), files)
        queue.recover()
        queue.begin_at(log.min_offset)
        queues = ConsumeQueues(store.path / "consumequeue", store.sizes.consume_queue_bytes, Access.READ)
        commit_log = CommitLog(log, lambda: 0)
        reader = BlockReader(commit_log, LIMIT, QueueRecords(commit_log, queues, LIMIT))
        blocks = reader.read(queue, queue.min_offset, queue.max_offset)
        places = queue.entries(queue.min_offset, queue.max_offset)["physical_offset"].tolist()
        expected = [facts_of(message_at(log, place), queue.min_offset + row) for row, place in enumerate(places)]
        same(reader, blocks, expected)
        assert not any(block.damaged for block in blocks)


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
    store = SmallStore(tmp_path_factory.mktemp("block"), access=Access.READ)
    places = []
    for body, items, ipv6 in wanted:
        host = Host(bytes(range(16)), 7) if ipv6 else Host(b"\x01\x02\x03\x04", 80)
        raw = "\x02".join(f"{name}\x01{value}" for name, value in items).encode()
        places.append(put_raw(store, Message("t", body, flag=7, born_host=host, reconsume_times=3), raw))
    blocks = reader_of(store).read(store.queue("t"), 0, 100)
    same(reader_of(store), blocks, [facts_of(message_at(store.log_files, at), row) for row, at in enumerate(places)])
    store.close()


def put_raw(store: SmallStore, message: Message, properties: bytes) -> int:
    """Store a message whose properties are these bytes."""
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
    blocks = reader_of(store).read(store.queue("t"), 0, 10)
    same(reader_of(store), blocks, [facts_of(message_at(store.log_files, at), row) for row, at in enumerate(places)])


def test_damaged_messages_are_left_out_and_counted(tmp_path: Path) -> None:
    store = SmallStore(tmp_path, log_bytes=1 << 14)
    places = [store.put(Message("t", b"body %d" % number, ["k"])) for number in range(60)]
    store.damage(places[0], 88)
    store.damage(places[30], 5)
    store.damage(places[31], 27)
    [block] = reader_of(store).read(store.queue("t"), 0, 100)
    good = [number for number in range(60) if number not in (0, 30, 31)]
    assert block.damaged == 3
    assert block.queue_offset.tolist() == good
    assert bodies_of(reader_of(store), block) == [b"body %d" % number for number in good]


@pytest.mark.parametrize(("first", "count"), [(0, 100), (20, 30), (34, 1), (59, 9)])
def test_each_file_of_the_log_has_a_block(tmp_path: Path, first: int, count: int) -> None:
    store = SmallStore(tmp_path, log_bytes=4096)
    places = [store.put(Message("t", b"body %d" % number, ["k"])) for number in range(60)]
    store.damage(places[40], 88)
    wanted = [row for row in range(first, min(first + count, 60)) if row != 40]
    blocks = reader_of(store).read(store.queue("t"), first, count)
    files = [block.bodies.log_file for block in blocks]
    assert files == sorted({places[row] // 4096 * 4096 for row in wanted})
    for block in blocks:
        assert set(block.physical_offset // 4096 * 4096) == {block.bodies.log_file}
    assert sum(block.damaged for block in blocks) == (first <= 40 < first + count)
    same(reader_of(store), blocks, [facts_of(message_at(store.log_files, places[row]), row) for row in wanted])


def test_a_range_without_messages_has_no_block(tmp_path: Path) -> None:
    store = SmallStore(tmp_path)
    assert reader_of(store).read(store.queue("t"), 0, 100) == []


# outlines


def outlined(block: Block) -> Outline:
    """What an outline of the block must say, from its columns."""
    properties, (key_starts, keys), tags = block.properties, block.keys(), block.tags()
    numbers = [getattr(block, name) for name in ("physical_offset", "born_time_ms", "store_time_ms")]
    numbers += [block.flag, block.sys_flag, block.reconsume_times]

    def lists(starts: np.ndarray, values: ByteColumn | SliceColumn) -> Lists:
        sizes = map(len, (values[row] for row in range(len(values))))
        return Lists(len(values), sum(sizes), int(np.count_nonzero(np.diff(starts) == 0)))

    def times(column: CodedColumn) -> list[tuple[bytes, int]]:
        return [(column.texts[code], int(np.count_nonzero(column.codes == code))) for code in range(len(column.texts))]

    return Outline(
        blocks_module.Numbers(*((int(column.min()), int(column.max())) for column in numbers)),
        int(block.bodies.sizes.sum()),
        lists(key_starts, keys),
        sum(len(tags[row]) for row in range(len(tags))),
        int(properties.value(UNIQUE_KEY).sizes.sum()),
        lists(properties.row_starts, properties.values),
        times(properties.names),
        times(tags) if isinstance(tags, CodedColumn) else None,
        times(block.born_host),
        times(block.store_host),
    )


@settings(max_examples=60)
@given(
    st.lists(
        st.tuples(
            st.binary(max_size=30),
            st.dictionaries(
                st.sampled_from(["a", "KEYS", "TAGS", "UNIQ_KEY", *ALIKE]), st.sampled_from(["x", "x  y", " ", ""])
            ),
            st.booleans(),
        ),
        min_size=1,
        max_size=70,
    )
)
def test_an_outline_says_how_much_is_in_a_block(
    tmp_path_factory: pytest.TempPathFactory, wanted: list[tuple[bytes, dict[str, str], bool]]
) -> None:
    store = SmallStore(tmp_path_factory.mktemp("outline"), log_bytes=1 << 16)
    for body, items, ipv6 in wanted:
        host = Host(bytes(range(16)), 7) if ipv6 else Host(b"\x01\x02\x03\x04", 80)
        raw = "\x02".join(f"{name}\x01{value}" for name, value in items.items()).encode()
        put_raw(store, Message("t", body, flag=-len(body), born_host=host, reconsume_times=3), raw)
    reader = reader_of(store)
    [block] = reader.read(store.queue("t"), 0, len(wanted))
    assert reader.outline(store.queue("t"), 0, len(wanted)) == outlined(block)
    store.close()


UNUSUAL = {
    "compressed": (Message("t", lz4.frame.compress(b"a" * 500), sys_flag=LZ4), b""),
    "perhaps a batch": (Message("t", b"x", sys_flag=0xC0), b""),
    "no ASCII": (Message("t", b"x"), "TAGS\x01метка".encode()),
    "a name twice": (Message("t", b"x"), b"a\x011\x02a\x012"),
    "many names": (Message("t", b"x"), b"\x02".join(b"%d\x01v" % number for number in range(65))),
}


@pytest.mark.parametrize("kind", UNUSUAL)
def test_of_unusual_messages_there_is_no_outline(tmp_path: Path, kind: str) -> None:
    store = SmallStore(tmp_path)
    store.put(Message("t", b"usual"))
    put_raw(store, *UNUSUAL[kind])
    assert reader_of(store).outline(store.queue("t"), 0, 2) is None
    assert reader_of(store).outline(store.queue("t"), 0, 1) is not None


def test_where_a_message_is_damaged_elsewhere_or_missing_there_is_no_outline(tmp_path: Path) -> None:
    store = SmallStore(tmp_path, log_bytes=4096)
    places = [store.put(Message("t", b"body %d" % number, ["k"])) for number in range(60)]
    queue, in_first = store.queue("t"), sum(place < 4096 for place in places)
    assert reader_of(store).outline(queue, 0, in_first) is not None
    assert reader_of(store).outline(queue, 0, in_first + 1) is None, "in two files"
    assert reader_of(store).outline(queue, 59, 2) is None, "past the end"
    store.damage(places[7], 88)
    store.damage(places[9], 27)
    for first in (7, 9):
        assert reader_of(store).outline(queue, first, 1) is None
    assert reader_of(store).outline(queue, 8, 1) is not None


# bodies


def two_files(store: SmallStore, *messages: Message) -> list[Block]:
    """Blocks of two files of the log; these messages are in the first."""
    for message in messages:
        store.put(message)
    while store.log_files.max_offset <= store.log_files.file_bytes:
        store.put(Message("other", b"x" * 500))
    store.put(Message("t", b"in the second"))
    return reader_of(store).read(store.queue("t"), 0, 100)


def test_bodies_stay_in_the_log_if_none_is_compressed(tmp_path: Path) -> None:
    store = SmallStore(tmp_path)
    block, second = two_files(store, Message("t", b"one"), Message("t", b""), Message("t", b"three"))
    column = reader_of(store).bodies(block.bodies)
    assert np.shares_memory(column.data, np.frombuffer(store.log_files.view(0, 4096), np.uint8))
    assert block.bodies.copied is None
    assert block.bodies.nbytes == 3 * (2 * 8 + 4)
    assert bodies_of(reader_of(store), block) == [b"one", b"", b"three"]
    assert bodies_of(reader_of(store), second) == [b"in the second"]


def test_compressed_bodies_and_those_beside_them_are_kept(tmp_path: Path) -> None:
    store = SmallStore(tmp_path)
    compressed = Message("t", lz4.frame.compress(b"a" * 500), sys_flag=LZ4)
    block, second = two_files(store, Message("t", b"plain"), compressed, Message("t", b"not lz4", sys_flag=LZ4))
    assert (block.damaged, block.bodies.nbytes) == (1, 2 * (2 * 8 + 4) + 505)
    assert second.bodies.copied is None
    store.log_files.retire_first(0)
    assert bodies_of(reader_of(store), block) == [b"plain", b"a" * 500]


def test_bodies_that_have_changed_since_the_block_was_read_are_damaged(tmp_path: Path) -> None:
    store = SmallStore(tmp_path)
    block, _ = two_files(store, Message("t", b"one"), Message("t", b""), Message("t", b"three"))
    place = int(block.physical_offset[2])
    store.damage(place, 88)
    with pytest.raises(DamagedRecordError) as damaged:
        reader_of(store).bodies(block.bodies)
    assert damaged.value.physical_offset == place + 88


def test_bodies_of_a_file_that_retention_took_have_expired(tmp_path: Path) -> None:
    store = SmallStore(tmp_path)
    first, second = two_files(store, Message("t", b"one"))
    store.log_files.retire_first(0)
    with pytest.raises(ExpiredMessageError) as expired:
        reader_of(store).bodies(first.bodies)
    assert (expired.value.offset, expired.value.min_offset) == (0, 4096)
    assert texts(first.tags()) == [""]
    assert bodies_of(reader_of(store), second) == [b"in the second"]


def test_a_block_without_good_messages_needs_no_file_for_its_bodies(tmp_path: Path) -> None:
    store = SmallStore(tmp_path)
    two_files(store, Message("t", b"one"))
    store.damage(0, 5)
    block, _ = reader_of(store).read(store.queue("t"), 0, 100)
    store.log_files.retire_first(0)
    assert (len(block), block.damaged, bodies_of(reader_of(store), block)) == (0, 1, [])
    assert rows_of(reader_of(store), block) == []
