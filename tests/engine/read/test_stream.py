"""A queue as one text: against the bodies joined, damage, compression, retention, growth, and sums kept on disk."""

from __future__ import annotations

import errno
import threading
import tracemalloc
import zlib
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.derived.consume_queue import ConsumeQueue
from engine.derived.queue_records import QueueRecords
from engine.errors import DamagedRecordError, ExpiredMessageError, RetiredFileError, StoreError
from engine.files.mapped_file import Access
from engine.read.offset_index import BLOCK_MESSAGES, OffsetIndexes, decode_rows
from engine.read.stream import QueueStream
from engine.read.stream_rows import RowSource
from engine.record.compression import BodySizes
from engine.record.message import Message
from engine.store import MessageStore
from tests.engine.logs import SmallStore

BODY_POSITION = 88


def sums_of(
    store: SmallStore, folder: Path, *, trusted_end: int = 1 << 62, checked_before: int = 0, writable: bool = True
) -> OffsetIndexes:
    """Those of another process than the one that wrote the store: it noted nothing."""
    for queue in store.queues:
        queue.forget_texts()
    alone = QueueRecords(store.log, store.queues, 1 << 20).alone
    source = RowSource(store.log_files, 1 << 20, alone, BodySizes())
    return OffsetIndexes(folder, source, trusted_end=trusted_end, checked_before=checked_before, writable=writable)


def stream_of(sums: OffsetIndexes, queue: ConsumeQueue) -> QueueStream:
    return QueueStream(queue, sums.of(queue))


def joined(bodies: list[bytes]) -> bytes:
    return b"".join(body + b"\n" for body in bodies)


def many(count: int, start: int = 0) -> list[bytes]:
    return [b"message %d %s" % (number, b"x" * (number % 7)) for number in range(start, start + count)]


def put_all(store: SmallStore, bodies: list[bytes]) -> list[int]:
    return [store.put(Message("t", body)) for body in bodies]


@settings(max_examples=60)
@given(
    st.lists(st.binary(max_size=40) | st.binary(min_size=200, max_size=700), max_size=30),
    st.lists(st.booleans(), max_size=30),
    st.lists(st.tuples(st.integers(0, 6000), st.integers(0, 3000)), max_size=6),
)
def test_any_range_of_the_stream_is_that_of_the_bodies_joined(
    tmp_path_factory: pytest.TempPathFactory,
    bodies: list[bytes],
    compressed: list[bool],
    ranges: list[tuple[int, int]],
) -> None:
    folder = tmp_path_factory.mktemp("stream")
    store = SmallStore(folder, access=Access.READ)
    stream = stream_of(sums_of(store, folder), store.queue("t"))
    assert stream.size == 0
    for number, body in enumerate(bodies):
        packs = number < len(compressed) and compressed[number]
        store.put(Message("t", zlib.compress(body) if packs else body, sys_flag=packs))
        store.put(Message("other", b"not in this stream"))
    expected = joined(bodies)
    assert stream.unsummed == len(bodies)
    assert stream.size == len(expected)
    assert stream.unsummed == 0
    assert stream.read(0, 1 << 20) == expected
    for position, length in ranges:
        assert stream.read(position, length) == expected[position : position + length]
    reader = stream.reader()
    straight = [bytes(reader.read(position, 100)) for position in range(0, len(expected) + 100, 100)]
    assert b"".join(straight) == expected
    store.close()


def test_size_and_bytes_follow_the_queue_over_many_blocks(tmp_path: Path) -> None:
    store = SmallStore(tmp_path, log_bytes=1 << 16, access=Access.READ)
    stream = stream_of(sums_of(store, tmp_path), store.queue("t"))
    bodies: list[bytes] = []
    for count in (1, BLOCK_MESSAGES - 2, 1, 1, 2 * BLOCK_MESSAGES + 5, 3):
        put_all(store, many(count, len(bodies)))
        bodies += many(count, len(bodies))
        assert stream.size == len(joined(bodies))
    text = joined(bodies)
    for position in range(0, len(text), 4999):
        assert stream.read(position, 6000) == text[position : position + 6000]


def test_a_reader_goes_straight_on_or_anywhere_and_what_it_was_given_stays(tmp_path: Path) -> None:
    store = SmallStore(tmp_path, log_bytes=1 << 16, access=Access.READ)
    stream = stream_of(sums_of(store, tmp_path), store.queue("t"))
    reader = stream.reader()
    bodies: list[bytes] = []
    given: list[tuple[bytes, memoryview]] = []
    for count in (3 * BLOCK_MESSAGES, 700, 2 * BLOCK_MESSAGES):
        put_all(store, many(count, len(bodies)))
        begin = len(joined(bodies))
        bodies += many(count, len(bodies))
        text = joined(bodies)
        positions = (*range(max(begin - 3000, 0), len(text), 7001), 20_000, 3, 27_001)
        given += [(text[position : position + 7001], reader.read(position, 7001)) for position in positions]
    for expected, found in given:
        assert found == expected


def test_a_reader_goes_straight_on_over_what_is_compressed_or_left_out(tmp_path: Path) -> None:
    store = SmallStore(tmp_path, log_bytes=1 << 18, access=Access.READ)
    bodies = many(5 * BLOCK_MESSAGES + 50)
    packed, damaged = BLOCK_MESSAGES + 7, 3 * BLOCK_MESSAGES + 5
    for number, body in enumerate(bodies):
        packs = number == packed
        store.put(Message("t", zlib.compress(body) if packs else body, sys_flag=packs))
    store.damage(int(store.queue("t").read(damaged, 1)[0]["physical_offset"]), BODY_POSITION)
    text = joined(bodies[:damaged] + bodies[damaged + 1 :])
    stream = stream_of(sums_of(store, tmp_path / "sums", checked_before=1 << 62), store.queue("t"))
    for step in (3_000, 70_000):
        reader = stream.reader()
        for position in range(0, len(text) + step, step):
            assert reader.read(position, step) == text[position : position + step]


def test_a_reader_of_long_messages_keeps_a_few_of_them_in_memory_not_a_block(tmp_path: Path) -> None:
    bodies = [bytes([number]) * 500_000 for number in range(40)]
    store = SmallStore(tmp_path, log_bytes=1 << 24, access=Access.READ)
    put_all(store, bodies)
    stream = stream_of(sums_of(store, tmp_path), store.queue("t"))
    reader, text = stream.reader(), joined(bodies)
    assert stream.size == len(text)
    tracemalloc.start()
    try:
        for position in range(0, len(text), 1 << 17):
            assert reader.read(position, 1 << 17) == text[position : position + (1 << 17)]
        assert tracemalloc.get_traced_memory()[1] < 10 << 20
    finally:
        tracemalloc.stop()


class Background(Executor):
    """Runs work immediately, or when it is asked for; counts it."""

    def __init__(self, *, is_late: bool = False) -> None:
        self.asked = 0
        self._is_late = is_late

    def submit(self, work: Callable[..., Any], /, *arguments: Any, **named: Any) -> Future[Any]:
        self.asked += 1
        future: Future[Any] = Future()
        if self._is_late or not future.set_running_or_notify_cancel():
            return future
        try:
            future.set_result(work(*arguments, **named))
        except StoreError as error:
            future.set_exception(error)
        return future


@pytest.fixture
def long_store(tmp_path: Path) -> Iterator[SmallStore]:
    store = SmallStore(tmp_path, log_bytes=1 << 20, access=Access.READ)
    put_all(store, LONG_BODIES)
    yield store
    store.close()


LONG_BODIES = [b"%d %s" % (number, b"x" * (1_800 + number % 600)) for number in range(2 * BLOCK_MESSAGES + 100)]
STEP = 1 << 20


@pytest.mark.parametrize("is_late", [False, True])
def test_what_is_made_ready_in_the_background_is_what_comes_next(
    long_store: SmallStore, tmp_path: Path, is_late: bool
) -> None:
    stream = stream_of(sums_of(long_store, tmp_path / "sums"), long_store.queue("t"))
    background, bodies = Background(is_late=is_late), list(LONG_BODIES)
    reader, text = stream.reader(background), joined(bodies)
    given: list[tuple[bytes, memoryview]] = []
    for positions in (range(0, len(text) + STEP, STEP), range(STEP, len(text), STEP), (5, 4 * STEP)):
        given += [(text[position : position + STEP], reader.read(position, STEP)) for position in positions]
    begin, more = len(text), [b"more" * 100_000] * 8
    put_all(long_store, more)
    text = joined(bodies + more)
    positions = range(begin - begin % STEP, len(text), STEP)
    given += [(text[position : position + STEP], reader.read(position, STEP)) for position in positions]
    for expected, found in given:
        assert found == expected
    assert background.asked > 2


def test_a_real_thread_makes_ready_what_comes_next(long_store: SmallStore, tmp_path: Path) -> None:
    stream = stream_of(sums_of(long_store, tmp_path / "sums"), long_store.queue("t"))
    text = joined(LONG_BODIES)
    with ThreadPoolExecutor(1) as background:
        readers = [stream.reader(background) for _ in range(3)]
        for position in range(0, len(text), STEP):
            for reader in readers:
                assert reader.read(position, STEP) == text[position : position + STEP]


def test_who_reads_little_at_a_time_is_spared_the_background(long_store: SmallStore, tmp_path: Path) -> None:
    stream, background = stream_of(sums_of(long_store, tmp_path / "sums"), long_store.queue("t")), Background()
    reader, text = stream.reader(background), joined(LONG_BODIES)
    for position in range(0, len(text), 1 << 16):
        assert reader.read(position, 1 << 16) == text[position : position + (1 << 16)]
    assert background.asked == 0


def test_damage_met_in_the_background_is_told_to_who_reads_there(long_store: SmallStore, tmp_path: Path) -> None:
    stream, background = stream_of(sums_of(long_store, tmp_path / "sums"), long_store.queue("t")), Background()
    reader, text = stream.reader(background), joined(LONG_BODIES)
    first_block = len(joined(LONG_BODIES[:BLOCK_MESSAGES]))
    assert stream.size == len(text)
    long_store.damage(int(long_store.queue("t").read(BLOCK_MESSAGES + 5, 1)[0]["physical_offset"]), 5)
    for position in range(0, first_block - STEP, STEP):
        assert reader.read(position, STEP) == text[position : position + STEP]
    assert background.asked
    with pytest.raises(DamagedRecordError):
        reader.read(position + STEP, STEP)


def test_damage_behind_what_is_asked_for_harms_no_reader(tmp_path: Path) -> None:
    store = SmallStore(tmp_path, log_bytes=1 << 16)
    bodies = many(2 * BLOCK_MESSAGES)
    places = put_all(store, bodies)
    stream = stream_of(sums_of(store, tmp_path / "sums"), store.queue("t"))
    text, first_block = joined(bodies), len(joined(bodies[:BLOCK_MESSAGES]))
    assert stream.size == len(text)
    store.damage(places[BLOCK_MESSAGES + 5], 5)
    reader = stream.reader()
    for position in range(0, first_block - 1000, 1000):
        assert reader.read(position, 1000) == text[position : position + 1000]
    with pytest.raises(DamagedRecordError):
        reader.read(first_block, 1000)


def test_damaged_messages_are_left_out_when_they_are_summed(tmp_path: Path) -> None:
    store = SmallStore(tmp_path)
    bodies = many(40)
    places = put_all(store, bodies)
    store.damage(places[3], BODY_POSITION)  # body
    store.damage(places[17], 5)  # magic
    store.damage(places[18], 22)  # queue offset
    store.damage(places[39], 30)  # physical offset
    good = [body for number, body in enumerate(bodies) if number not in (3, 17, 18, 39)]
    sums = sums_of(store, tmp_path / "sums", checked_before=1 << 62)
    stream = stream_of(sums, store.queue("t"))
    assert stream.size == len(joined(good))
    assert stream.read(0, 1 << 20) == joined(good)


def test_damage_after_summing_is_an_error_of_its_block_not_other_bytes(tmp_path: Path) -> None:
    store = SmallStore(tmp_path, log_bytes=1 << 16)
    bodies = many(BLOCK_MESSAGES + 10)
    places = put_all(store, bodies)
    stream = stream_of(sums_of(store, tmp_path / "sums"), store.queue("t"))
    size = stream.size
    store.damage(places[5], 5)
    with pytest.raises(DamagedRecordError):
        stream.read(0, 100)
    rest = len(joined(bodies[BLOCK_MESSAGES:]))
    assert stream.size == size
    assert stream.read(size - rest, rest) == joined(bodies[BLOCK_MESSAGES:])


def test_positions_stay_when_retention_moves_the_queues_beginning(tmp_path: Path) -> None:
    store = SmallStore(tmp_path)
    bodies = many(200)
    put_all(store, bodies)
    sums = sums_of(store, tmp_path / "sums")
    queue = store.queue("t")
    before = stream_of(sums, queue)
    text = joined(bodies)
    assert before.size == len(text)
    store.log_files.retire_first(0)
    store.log_files.retire_first(0)
    first = queue.expire(store.log_files.min_offset)
    assert 0 < first < 200
    gone = len(joined(bodies[:first]))
    assert (before.first_offset, before.size) == (0, len(text))
    assert before.read(gone, 5000) == text[gone : gone + 5000]
    for position in (0, gone - 1):
        with pytest.raises(ExpiredMessageError):
            before.read(position, 10)
    after = stream_of(sums, queue)
    assert (after.first_offset, after.size) == (first, len(text) - gone)
    assert after.read(0, 1 << 20) == text[gone:]


def test_retention_between_two_looks_costs_what_expired_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = SmallStore(tmp_path, queue_entries=32)
    bodies = many(200)
    put_all(store, bodies)
    queue = store.queue("t")
    stream = stream_of(sums_of(store, tmp_path / "sums"), queue)
    look = queue.entries

    def retired_before_the_look(first: int, count: int) -> np.ndarray:
        if queue.min_offset == 0:
            for _ in range(4):
                store.log_files.retire_first(0)
            queue.expire(store.log_files.min_offset)
            assert queue.delete_expired(0)
            raise RetiredFileError(tmp_path)
        return look(first, count)

    monkeypatch.setattr(queue, "entries", retired_before_the_look)
    size = stream.size
    assert queue.min_offset > 32
    text = joined(bodies[queue.min_offset :])
    assert size == len(text)
    assert stream.read(0, 1 << 20) == text


def test_a_file_that_goes_while_its_rows_are_read_has_expired_and_is_not_damaged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = SmallStore(tmp_path)
    bodies = many(200)
    put_all(store, bodies)
    queue = store.queue("t")
    stream = stream_of(sums_of(store, tmp_path / "sums"), queue)
    assert stream.size == len(joined(bodies))
    look = queue.entries

    def retired_after_the_look(first: int, count: int) -> np.ndarray:
        found = look(first, count)
        if queue.min_offset == 0:
            queue.expire(store.log_files.files[1].start)
            store.log_files.retire_first(0)
        return found

    monkeypatch.setattr(queue, "entries", retired_after_the_look)
    with pytest.raises(ExpiredMessageError):
        stream.read(0, 10)


def test_sums_go_on_where_a_look_at_the_queue_failed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = SmallStore(tmp_path, log_bytes=1 << 18)
    bodies = many(2 * BLOCK_MESSAGES + 300)
    places = put_all(store, bodies)
    queue = store.queue("t")
    store.damage(places[7], BODY_POSITION)
    stream = stream_of(sums_of(store, tmp_path / "sums", checked_before=1 << 62), queue)
    look, text = queue.read, joined(bodies[:7] + bodies[8:])

    def no_descriptor(queue_offset: int, count: int) -> np.ndarray:
        if (queue_offset, count) == (BLOCK_MESSAGES - 1, 1):
            raise OSError(errno.EMFILE, "none left")
        return look(queue_offset, count)

    with monkeypatch.context() as patch:
        patch.setattr(queue, "read", no_descriptor)
        for _ in range(2):
            with pytest.raises(OSError, match="none left"):
                assert stream.size
    assert stream.size == len(text)
    assert stream.read(0, len(text)) == text


def test_a_queue_that_was_cut_is_summed_anew_from_there(tmp_path: Path) -> None:
    store = SmallStore(tmp_path, log_bytes=1 << 18)
    places = put_all(store, many(BLOCK_MESSAGES + 300))
    stream = stream_of(sums_of(store, tmp_path / "sums"), store.queue("t"))
    assert stream.unsummed == BLOCK_MESSAGES + 300
    assert stream.size > 0
    store.queue("t").truncate(places[BLOCK_MESSAGES + 100])
    assert stream.read(0, 1 << 20) == joined(many(BLOCK_MESSAGES + 100))
    store.queue("t").truncate(places[100])
    assert stream.read(0, 1 << 20) == joined(many(100))


def test_what_was_summed_before_stays_an_answer_while_more_is_summed(tmp_path: Path) -> None:
    store = SmallStore(tmp_path, log_bytes=1 << 18, access=Access.READ)
    sums = sums_of(store, tmp_path).of(store.queue("t"))
    put_all(store, many(10))
    before = sums.grow()
    put_all(store, many(BLOCK_MESSAGES, 10))
    after = sums.grow()
    assert sums.block_end(3, before) == before == (10, len(joined(many(10))))
    assert sums.block_end(3, after) == (BLOCK_MESSAGES, len(joined(many(BLOCK_MESSAGES))))
    assert sums.position_of(4, before) == sums.position_of(4, after) == len(joined(many(4)))


# sums kept on disk


@pytest.fixture
def store(tmp_path: Path) -> SmallStore:
    """Two and a half blocks of messages, one of them damaged."""
    store = SmallStore(tmp_path / "store", log_bytes=1 << 16)
    places = put_all(store, many(2 * BLOCK_MESSAGES + 500))
    store.damage(places[7], BODY_POSITION)
    return store


def kept_text(store: SmallStore) -> bytes:
    bodies = many(store.queue("t").max_offset)
    return joined(bodies[:7] + bodies[8:])


def test_kept_sums_are_not_summed_again(store: SmallStore, tmp_path: Path) -> None:
    sums = sums_of(store, tmp_path / "sums", checked_before=1 << 62)
    size = stream_of(sums, store.queue("t")).size
    sums.keep(sums.in_use, 60)
    again = sums_of(store, tmp_path / "sums", checked_before=1 << 62)
    stream = stream_of(again, store.queue("t"))
    assert stream.unsummed == 500
    assert stream.size == size == len(kept_text(store))
    assert stream.read(0, 1 << 20) == kept_text(store)
    put_all(store, many(2000, 2 * BLOCK_MESSAGES + 500))
    assert stream.size == len(kept_text(store))
    again.keep(again.in_use, 60)
    last = stream_of(sums_of(store, tmp_path / "sums", checked_before=1 << 62, writable=False), store.queue("t"))
    assert last.unsummed < BLOCK_MESSAGES
    assert last.read(0, 1 << 20) == kept_text(store)


@pytest.mark.parametrize("position", [0, 9, 16, 24, 32, 41, 45, 52, 84])
def test_kept_sums_with_a_flipped_bit_are_not_believed(store: SmallStore, tmp_path: Path, position: int) -> None:
    sums = sums_of(store, tmp_path / "sums", checked_before=1 << 62)
    assert stream_of(sums, store.queue("t")).size
    sums.keep(sums.in_use, 60)
    path = tmp_path / "sums" / "t" / "0"
    raw = bytearray(path.read_bytes())
    assert len(decode_rows(raw)) == 2
    raw[position] ^= 1
    path.write_bytes(raw)
    again = sums_of(store, tmp_path / "sums", checked_before=1 << 62)
    stream = stream_of(again, store.queue("t"))
    assert stream.unsummed >= 500 + BLOCK_MESSAGES
    assert stream.read(0, 1 << 20) == kept_text(store)
    again.keep(again.in_use, 60)
    assert path.stat().st_size == 8 + 2 * 40
    assert len(decode_rows(path.read_bytes())) == 2


def test_kept_sums_of_a_log_that_is_not_trusted_so_far_are_not_believed(store: SmallStore, tmp_path: Path) -> None:
    sums = sums_of(store, tmp_path / "sums")
    assert stream_of(sums, store.queue("t")).size
    sums.keep(sums.in_use, 60)
    entry = store.queue("t").entry(2 * BLOCK_MESSAGES - 1)
    assert entry is not None
    for trusted_end, unsummed in ((entry[0], 500 + BLOCK_MESSAGES), (entry[0] + 1, 500)):
        assert sums_of(store, tmp_path / "sums", trusted_end=trusted_end).of(store.queue("t")).unsummed == unsummed


def test_kept_sums_of_another_queue_under_the_same_name_are_not_believed(store: SmallStore, tmp_path: Path) -> None:
    sums = sums_of(store, tmp_path / "sums")
    assert stream_of(sums, store.queue("t")).size
    sums.keep(sums.in_use, 60)
    other = SmallStore(tmp_path / "other", log_bytes=1 << 16)
    put_all(other, [b"longer bodies than before"] * (3 * BLOCK_MESSAGES))
    assert sums_of(other, tmp_path / "sums").of(other.queue("t")).unsummed == 3 * BLOCK_MESSAGES


def test_nothing_is_written_for_a_store_that_is_only_read(store: SmallStore, tmp_path: Path) -> None:
    sums = sums_of(store, tmp_path / "sums", writable=False)
    assert stream_of(sums, store.queue("t")).size
    sums.keep(sums.in_use, 60)
    assert not (tmp_path / "sums").exists()


def test_sums_of_a_deleted_topic_go(store: SmallStore, tmp_path: Path) -> None:
    sums = sums_of(store, tmp_path / "sums")
    assert stream_of(sums, store.queue("t")).size
    sums.keep(sums.in_use, 60)
    sums.forget_topic("t")
    assert not (tmp_path / "sums" / "t").exists()


def test_what_the_background_makes_is_counted_and_goes_with_the_rest(tmp_path: Path) -> None:
    with MessageStore.open(tmp_path / "store", create=True) as store, ThreadPoolExecutor(1) as background:
        store.put_lines("orders", (b"x" * 999 + b"\n") * 20_000, 0)
        reader = store.stream("orders", 0).reader(background)
        busy = threading.Event()
        background.submit(busy.wait)
        for position in range(0, 8 << 20, 1 << 20):
            assert len(reader.read(position, 1 << 20)) == 1 << 20
            if reader._next is not None:
                break
        assert reader._next is not None
        coming = reader._next
        assert reader.kept_bytes > len(reader._window.text) + reader._buffers.kept_bytes
        reader.let_go()
        busy.set()
        assert coming.cancelled()
        assert reader.kept_bytes == 0
        assert bytes(reader.read(5_000, 1000)) == b"x" * 999 + b"\n"
