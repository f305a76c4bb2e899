"""Properties that mean something to a store, with values that nobody should have let in: a store that holds them opens,
is read, checked and made anew."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from msgspec import structs

from engine import Message, MessageStore, OpenMode, StoreConfig, StoreError, check_store
from engine.log.delay import SCHEDULE_TOPIC
from engine.record.kernel.encode import EncodedBatch
from engine.record.record import RecordEncoder
from tests.engine.storetools import SMALL, lose_derived, require_clean

NAMES = [
    "DELAY",
    "KEYS",
    "TAGS",
    "UNIQ_KEY",
    "WAIT",
    "TRAN_MSG",
    "PGROUP",
    "REAL_TOPIC",
    "REAL_QID",
    "INNER_MULTI_DISPATCH",
    "INNER_MULTI_QUEUE_OFFSET",
    "INNER_NUM",
    "INNER_BASE",
    "__CRC32#",
    "TIMER_DELAY_SEC",
    "TIMER_OUT_MS",
    "TRANSACTION_CHECK_TIMES",
    "__transactionId__",
    "ORIGIN_MESSAGE_ID",
    "RETRY_TOPIC",
    "DUP_INFO",
]
VALUES = [
    "",
    " ",
    "  a  b  ",
    "0",
    "-1",
    "+1",
    "1_0",
    "٣",
    "²",
    "NaN",
    "1e9",
    "2147483648",
    str(1 << 63),
    "9" * 19,
    "1" * 5_000,
    "\0",
    "a\0",
    "\n",
    "\ufffd",
    "😀",
    "..",
    "a/b",
    "T,T,T",
    "," * 100,
    "%LMQ%x",
    "x" * 30_000,
]
COUNT = len(VALUES) + 2


class Unchecked(RecordEncoder):
    """A writer without our checks."""

    def encode(self, message: Message, queue_id: int, now_ms: int) -> EncodedBatch:
        text = "\x02".join(f"{name}\x01{text}" for name, text in message.properties.items())
        legal = {name: text.replace("\0", "~") for name, text in message.properties.items()}
        record = super().encode(structs.replace(message, properties=legal), queue_id, now_ms)
        if text:
            record.buffer[-len(text.encode()) :] = text.encode()
        return record


def hostile(path: Path, name: str, topic: str) -> None:
    """A store with each of VALUES as the property `name`, between two good messages of `topic`."""
    more = {"INNER_MULTI_QUEUE_OFFSET": "0"} if name == "INNER_MULTI_DISPATCH" else {}
    more = {"INNER_MULTI_DISPATCH": "other"} if name == "INNER_MULTI_QUEUE_OFFSET" else more
    unchecked = Unchecked(LARGE.store_host, 1 << 20)
    with MessageStore.open(path, LARGE, create=True) as store:
        writer = store._require_write_side().writer
        store.put(Message(topic, b"first"), 0)
        for text in VALUES:
            message = Message(topic, b"body", properties={name: text, **more})
            record = unchecked.encode(message, 0, LARGE.clock())
            writer.put_record(message, record, 0, store._parts.queues.get(topic, 0))
        store.put(Message(topic, b"last"), 0)


LARGE = replace(SMALL, sizes=replace(SMALL.sizes or StoreConfig().sizes, commit_log_bytes=1 << 18))  # type: ignore[type-var]


def read_every_way(store: MessageStore, topic: str) -> None:
    assert store.bounds(topic, 0).max_offset == COUNT
    readable = 0
    for queue_offset in range(COUNT):
        try:
            message = store.get(topic, 0, queue_offset)
        except StoreError:
            continue  # zeros over a whole sector are not told from a lost one
        readable += 1
        assert isinstance(message.properties, dict)
        assert [*message.keys, message.tags, message.unique_key]
    assert readable >= COUNT - 1
    assert len(list(store.read(topic, 0, 0))) == readable
    assert len(store.headers(topic, 0, 0, COUNT)) == COUNT
    store.columns(topic, 0, 0, COUNT)
    for block in store.blocks(topic, 0, 0, COUNT):
        assert len(block.tags()) == len(block)
        block.keys()
    store.newest_keys(topic)
    for key in ("a", "0", "😀", "\ufffd", " "):
        store.query(topic, key)


@pytest.mark.parametrize("topic", ["T", SCHEDULE_TOPIC])
@pytest.mark.parametrize("name", NAMES)
def test_a_store_with_such_a_property_opens_and_is_read(tmp_path: Path, name: str, topic: str) -> None:
    path = tmp_path / "store"
    hostile(path, name, topic)
    lose_derived(path)
    for multi_dispatch in (False, True):
        copy = tmp_path / f"multi-dispatch {multi_dispatch}"
        shutil.copytree(path, copy)
        config = replace(LARGE, multi_dispatch=multi_dispatch)
        for mode in (OpenMode.READ_ONLY, OpenMode.WRITE, OpenMode.WRITE, OpenMode.FOLLOW):
            with MessageStore.open(copy, replace(config, mode=mode)) as store:
                read_every_way(store, topic)
                if mode is OpenMode.WRITE:
                    require_clean(store.check())
                    store.put(Message("U", b"goes on"), 0)
            shutil.rmtree(copy / "fsstore", ignore_errors=True)  # the next opening looks at everything
        require_clean(check_store(copy))
