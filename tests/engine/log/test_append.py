"""One record by one call into the kernel: the bytes of the long way, and the long way whenever something is rare."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from engine.derived.consume_queue import ConsumeQueue
from engine.files.file_queue import FileQueue
from engine.files.mapped_file import Access
from engine.log.commit_log import CommitLog
from engine.log.entries import ENTRY
from engine.record.kernel.append import append_one
from engine.record.kernel.encode import EncodedBatch
from engine.record.kernel.keys import KeyMemtable
from engine.record.message import Message, StoredMessage
from engine.record.record import RecordEncoder
from engine.results import PutResult
from tests.engine.records import STORE_HOST

LOG_BYTES, QUEUE_BYTES, NOW_MS = 1 << 17, 160, 1_700_000_000_000
encoder = RecordEncoder(STORE_HOST, LOG_BYTES)


class Parts:
    """A log, a queue with an entry, and keys."""

    def __init__(self, folder: Path) -> None:
        self.in_clock: Callable[[], object] = lambda: None
        self.now_ms = NOW_MS
        files = FileQueue(folder / "commitlog", LOG_BYTES, Access.WRITE)
        files.set_end(0)
        self.log = CommitLog(files, self.clock)
        self.queue = ConsumeQueue("t", 3, FileQueue(folder / "queue", QUEUE_BYTES, Access.WRITE))
        self.queue.recover()
        self.keys = KeyMemtable()
        self.long_way(record())

    def clock(self) -> int:
        self.in_clock()
        return self.now_ms

    def long_way(self, one: EncodedBatch) -> tuple[int, int]:
        queue_offset = self.queue.reserve(1)
        physical_offset, store_time_ms = self.log.append(one, queue_offset)
        self.queue.append_one(queue_offset, physical_offset, one.size, one.tags_code)
        self.keys.add(one, physical_offset, store_time_ms)
        return physical_offset, store_time_ms

    def append(self, one: EncodedBatch) -> PutResult | None:
        return append_one(self.log, one, self.queue, self.keys, PutResult)

    def state(self) -> list[object]:
        log, queue = self.log.files.last, self.queue.files.last
        assert log is not None
        assert queue is not None
        ends = (log.wrote, log.readable, queue.wrote, queue.readable, self.queue.max_offset, self.queue.physical_end)
        raw = bytes(log.view(0, log.readable)), bytes(queue.view(0, queue.readable))
        return [*ends, *raw, len(self.keys), self.keys.last, self.keys.bounds(len(self.keys))]


def record(body: bytes = b"body", keys: tuple[str, ...] = ("k",), sys_flag: int = 0) -> EncodedBatch:
    return encoder.encode(Message("t", body, keys, "tag", sys_flag=sys_flag), 3, 5)


@pytest.fixture
def parts(tmp_path: Path) -> Parts:
    return Parts(tmp_path / "parts")


def test_it_makes_the_bytes_of_the_long_way(parts: Parts, tmp_path: Path) -> None:
    other = Parts(tmp_path / "other")
    for number, (step, keys) in enumerate([(0, ("a", "b")), (-700, ()), (5, ("c",))], 1):
        parts.now_ms = other.now_ms = parts.now_ms + step
        stored = parts.append(record(keys=keys))
        place = other.long_way(record(keys=keys))
        assert parts.state() == other.state()
        host = encoder.encode(Message("t", b""), 0, 0).store_host
        assert stored == PutResult("t", 3, number, place[0], record(keys=keys).size, place[1], host)
        assert isinstance(stored, PutResult)
    assert parts.log.last_store_time_ms == NOW_MS


def evict_log(parts: Parts) -> None:
    assert parts.log.files.last is not None
    parts.log.files.flush()
    assert parts.log.files.last.evict()


def evict_queue(parts: Parts) -> None:
    parts.queue.files.flush()
    assert parts.queue.files.last is not None
    assert parts.queue.files.last.evict()


def write_through_a_buffer(parts: Parts) -> None:
    file = parts.log.files.last
    assert file is not None
    file.attach_buffer(memoryview(bytearray(LOG_BYTES)))


def fill_queue(parts: Parts) -> None:
    start = parts.queue.max_offset
    more = QUEUE_BYTES // ENTRY.itemsize - start
    parts.queue.reserve(more)
    parts.queue.append(start, np.array([(900 + row, 1, 0) for row in range(more)], ENTRY))


def make_stale(parts: Parts) -> None:
    parts.queue.is_stale = True


def hold_back(parts: Parts) -> None:
    parts.queue.pending = 1


def be_behind(parts: Parts) -> None:
    parts.queue._physical_end += 1


def fill_memtable(parts: Parts) -> None:
    parts.keys.settles_at = len(parts.keys) + 1


def use_up_the_log(parts: Parts) -> None:
    file = parts.log.files.last
    assert file is not None
    file.allocated = file.wrote + record().size + 7


def use_up_the_queue(parts: Parts) -> None:
    file = parts.queue.files.last
    assert file is not None
    file.allocated = file.wrote + ENTRY.itemsize - 1


def end_wrongly(parts: Parts) -> None:
    assert parts.log.files.last is not None
    parts.log.files.last.wrote = -1


RARE = [
    evict_log,
    evict_queue,
    write_through_a_buffer,
    fill_queue,
    make_stale,
    hold_back,
    be_behind,
    fill_memtable,
    use_up_the_log,
    use_up_the_queue,
    end_wrongly,
]


@pytest.mark.parametrize("rare", RARE)
@pytest.mark.parametrize("when", ["before", "in the clock"])
def test_what_is_rare_changes_nothing(parts: Parts, rare: Callable[[Parts], None], when: str) -> None:
    """Other threads run while the clock is read: their messages count."""
    assert parts.append(record()) is not None
    file, entries = parts.log.files.last, parts.queue.files.last
    assert file is not None
    assert entries is not None

    def state() -> list[object]:
        return [file.wrote, file.readable, entries.wrote, parts.queue.max_offset, len(parts.keys), parts.keys.last]

    seen: list[list[object]] = []

    def happen() -> None:
        rare(parts)
        seen.append(state())

    if when == "before":
        happen()
    else:
        parts.in_clock = happen
    assert parts.append(record()) is None
    assert state() == seen[0]


@pytest.mark.parametrize(
    "one",
    [
        record(b"x" * (LOG_BYTES - 600)),
        record(b"x" * 70_000),
        record(bytes.fromhex("daa320a7")),
        record(sys_flag=4),
        record(sys_flag=12),
        encoder.encode_batch([Message("t", b"1"), Message("t", b"2")], 0),
    ],
    ids=["no room", "long", "magic", "prepared", "rolled back", "two"],
)
def test_a_record_that_is_rare_changes_nothing(parts: Parts, one: EncodedBatch) -> None:
    parts.append(record(b"x" * 300))
    before = parts.state()
    assert parts.append(one) is None
    assert append_one(parts.log, record(), None, parts.keys, PutResult) is None
    for missing in range(3):
        given: list[Any] = [parts.log, record(), parts.keys]
        given[missing] = None
        with pytest.raises(TypeError):
            append_one(given[0], given[1], parts.queue, given[2], PutResult)
    for kind in (dict, int, StoredMessage):
        with pytest.raises(TypeError):
            append_one(parts.log, record(), parts.queue, parts.keys, cast(Any, kind))
    assert parts.state() == before


def test_a_map_that_is_shorter_than_its_file_is_not_written_past(parts: Parts) -> None:
    file = parts.log.files.last
    assert file is not None
    raw = bytearray(file.wrote + record().size + 7)
    file._target = memoryview(raw)
    assert parts.append(record()) is None
    file._target = memoryview(bytearray(len(raw) + 1))
    assert parts.append(record()) is not None


def test_memory_stays_while_it_is_written_to(parts: Parts) -> None:
    file = parts.log.files.last
    assert file is not None
    memory = bytearray(LOG_BYTES)
    file._target = memoryview(memory)
    with pytest.raises(BufferError):
        memory.clear()
    file._target = None
    memory.clear()
