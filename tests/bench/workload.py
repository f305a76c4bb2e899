"""The data of all rows: 256-byte bodies, a unique key each, one tag; the same for every engine."""

import random
import time
from collections.abc import Iterator
from pathlib import Path

from engine import FileSizes, Message, MessageStore, StoreConfig

TOPIC = "bench"
TAG = "paid"
BODY_BYTES = 256
BATCH = 1_000
LINES_A_PUT = 4_000

SIZES = FileSizes(
    commit_log_bytes=256 << 20, consume_queue_entries=300_000, index_slots=500_000, index_entries=2_000_000
)
"""File sizes of both engines in the engine's rows."""

_POOL_BYTES = 1 << 20
_POOL = bytes(random.Random(6).choices(b"abcdefghijklmnopqrstuvwxyz      ", k=_POOL_BYTES + BODY_BYTES))


def body(number: int) -> bytes:
    """The body of a message: text without a newline."""
    start = number * 37 % _POOL_BYTES
    return _POOL[start : start + BODY_BYTES]


def key(number: int) -> str:
    """The key of a message."""
    return f"K{number:09d}"


def message(number: int, topic: str = TOPIC) -> Message:
    """A message with key and tag."""
    return Message(topic, body(number), keys=(key(number),), tags=TAG)


def batches(first: int, count: int, topic: str = TOPIC) -> Iterator[list[Message]]:
    """Messages `first` … in batches."""
    for begin in range(first, first + count, BATCH):
        yield [message(number, topic) for number in range(begin, min(begin + BATCH, first + count))]


def lines(count: int, line_bytes: int = BODY_BYTES) -> bytes:
    """So many lines of `line_bytes` without their newlines."""
    return b"".join(body(number)[:line_bytes] + b"\n" for number in range(count))


def make_store(path: Path, count: int, sizes: FileSizes | None = None, topic: str = TOPIC) -> None:
    """A closed store of `count` messages in one queue; of the embedded engine's usual sizes unless others are given."""
    with MessageStore.open(path, StoreConfig(sizes=sizes), create=True) as store:
        store.create_topic(topic, 1)
        for batch in batches(0, count, topic):
            store.put_batch(batch, 0)


def an_hour_ago_ms() -> int:
    """A clock for messages that are not new."""
    return int(time.time() * 1000) - 3_600_000


def make_stream_store(path: Path, count: int) -> None:
    """A closed store of `count` messages without keys in one queue, its stream already summed and at rest."""
    buffer = lines(LINES_A_PUT)
    with MessageStore.open(path, StoreConfig(clock=an_hour_ago_ms), create=True) as store:
        store.create_topic(TOPIC, 1)
        for begin in range(0, count, LINES_A_PUT):
            store.put_lines(TOPIC, buffer[: (BODY_BYTES + 1) * min(LINES_A_PUT, count - begin)], 0, tags=TAG)
        assert store.stream(TOPIC, 0).size == count * (BODY_BYTES + 1)


def random_numbers(count: int, below: int, seed: int) -> list[int]:
    """Distinct message numbers in random order."""
    return random.Random(seed).sample(range(below), min(count, below))
