"""What is known of a stream's size before anybody reads the log for it: noted when messages were dispatched, kept over
an end or a kill, or summed in the background."""

from __future__ import annotations

import random
import shutil
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engine import FileSizes, Message, MessageStore, OpenMode, StoreConfig
from engine.derived.queue_records import QueueRecords
from engine.read.offset_index import BLOCK_MESSAGES
from engine.read.stream_rows import LogPart, RowSource, sizes_of
from engine.record.compression import BodySizes
from tests.engine.light_queues import naming, put_as_broker
from tests.engine.logs import SmallStore

COMPRESSED = 1
SIZES = FileSizes(commit_log_bytes=1 << 20, consume_queue_entries=1024, index_slots=5000, index_entries=20_000)
LINES = b"".join(b"line %d\n" % number for number in range(5 * BLOCK_MESSAGES))


class Reads:
    """Counts the messages that are read to sum them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.messages = 0
        for name in ("rows", "plain_sizes"):
            monkeypatch.setattr(RowSource, name, self._counted(getattr(RowSource, name)))

    def _counted(self, read: Callable[..., Any]) -> Callable[..., Any]:
        def counted(source: RowSource, queue: Any, first: int, count: int, checked_before: int) -> Any:
            self.messages += count
            return read(source, queue, first, count, checked_before)

        return counted


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> Reads:
    return Reads(monkeypatch)


def opened(path: Path, mode: OpenMode = OpenMode.WRITE) -> MessageStore:
    writes = mode is OpenMode.WRITE
    return MessageStore.open(path, StoreConfig(mode=mode, sizes=SIZES if writes else None), create=writes)


def put_singly(store: MessageStore) -> None:
    for line in LINES.splitlines():
        store.put(Message("t", line), 0)


def put_in_batches(store: MessageStore) -> None:
    lines = LINES.splitlines()
    for first in range(0, len(lines), 700):
        store.put_batch([Message("t", line, ["key"]) for line in lines[first : first + 700]], 0)


def put_lines(store: MessageStore) -> None:
    store.put_lines("t", LINES, 0)


def put_to_all_queues(store: MessageStore) -> None:
    for line in LINES.splitlines():
        store.put_lines("t", (line + b"\n") * 4)


def put_long_ones_between(store: MessageStore) -> None:
    lines = LINES.splitlines()
    for row, line in enumerate(lines):
        store.put(Message("t", line if row % 1000 else line * 10_000), 0)


WAYS = [put_singly, put_in_batches, put_lines, put_to_all_queues, put_long_ones_between]


@pytest.mark.parametrize("put", WAYS)
def test_what_was_published_is_not_read_to_know_its_size(
    tmp_path: Path, reads: Reads, put: Callable[[MessageStore], None]
) -> None:
    with opened(tmp_path / "store") as store:
        put(store)
        text = b"".join(bytes(message.body) + b"\n" for message in store.read("t", 0, 0))
        assert store.stream("t", 0).size == len(text) >= len(LINES)
        assert reads.messages < BLOCK_MESSAGES
        assert store.stream("t", 0).read(0, len(text)) == text


def test_what_goes_to_further_queues_is_known_there(tmp_path: Path, reads: Reads) -> None:
    with MessageStore.open(tmp_path / "store", StoreConfig(multi_dispatch=True), create=True) as store:
        store.create_topic("other", 1)
        for _ in range(2 * BLOCK_MESSAGES):
            put_as_broker(store, naming("other", b"body", "t"), 0)
        for topic in ("t", "other"):
            assert store.stream(topic, 0).size == 5 * 2 * BLOCK_MESSAGES
        assert reads.messages == 0


def test_a_compressed_message_makes_its_block_be_read(tmp_path: Path, reads: Reads) -> None:
    with opened(tmp_path / "store") as store:
        for number in range(3 * BLOCK_MESSAGES):
            if number == BLOCK_MESSAGES + 7:
                store.put(Message("t", zlib.compress(b"x" * 999), sys_flag=COMPRESSED), 0)
            else:
                store.put(Message("t", b"body"), 0)
        assert store.stream("t", 0).size == 5 * (3 * BLOCK_MESSAGES - 1) + 1000
        assert reads.messages >= BLOCK_MESSAGES


def test_a_stream_that_was_sized_within_a_block_goes_on_from_there(tmp_path: Path, reads: Reads) -> None:
    with opened(tmp_path / "store") as store:
        for number in range(1, 3 * BLOCK_MESSAGES):
            store.put(Message("t", b"body"), 0)
            if number % 500 == 0:
                assert store.stream("t", 0).size == 5 * number
        assert store.stream("t", 0).size == 5 * number
        assert reads.messages < number


def test_what_a_topic_held_before_it_was_deleted_counts_for_nothing(tmp_path: Path) -> None:
    with opened(tmp_path / "store") as store:
        store.put_lines("t", LINES, 0)
        store.delete_topic("t")
        store.put_lines("t", b"another body\n" * 2 * BLOCK_MESSAGES, 0)
        assert store.stream("t", 0).size == 13 * 2 * BLOCK_MESSAGES


@pytest.mark.parametrize("is_kept", [True, False], ids=["kept", "found by recovery"])
def test_after_a_kill_little_is_read(tmp_path: Path, reads: Reads, is_kept: bool) -> None:
    with opened(tmp_path / "store") as store:
        store.put_lines("t", LINES, 0)
        store.flush()
        assert not is_kept or store.sum_streams(60)
        store.put_lines("t", LINES, 0)
        shutil.copytree(tmp_path / "store", tmp_path / "killed")
    if not is_kept:
        shutil.rmtree(tmp_path / "killed" / "fsstore")
        (tmp_path / "killed" / "checkpoint").unlink()
    reads.messages = 0
    with opened(tmp_path / "killed") as store:
        assert not store.recovery.clean
        assert store.stream("t", 0).size == 2 * len(LINES)
        assert reads.messages <= BLOCK_MESSAGES


def test_sizes_are_known_before_somebody_asks(tmp_path: Path, reads: Reads) -> None:
    with opened(tmp_path / "store") as store:
        for queue in range(2):
            store.put_lines("t", LINES, queue)
        store.put_lines("t", b"short\n", 2)
    shutil.rmtree(tmp_path / "store" / "fsstore" / "sums")
    with opened(tmp_path / "store", OpenMode.READ_ONLY) as store:
        while not store.sum_streams(0):
            pass
        known = reads.messages
        assert known >= 2 * len(LINES.splitlines())
        assert [store.stream("t", queue).size for queue in range(3)] == [len(LINES), len(LINES), 6]
        assert reads.messages <= known + 1


def test_a_body_is_not_decompressed_before_somebody_asks(tmp_path: Path) -> None:
    with opened(tmp_path / "store") as store:
        store.put_batch([Message("t", zlib.compress(b"x" * 999), sys_flag=COMPRESSED)] * 2 * BLOCK_MESSAGES, 0)
        assert store.sum_streams(60)
        assert store.stream("t", 0).unsummed == 2 * BLOCK_MESSAGES


@pytest.mark.parametrize("seed", range(4))
def test_whatever_is_in_the_log_is_summed_as_it_is_read(tmp_path: Path, seed: int) -> None:
    """Blocks of plain messages are summed and copied by loops of the kernel, which agree with reading."""
    dice = random.Random(seed)
    store = SmallStore(tmp_path, log_bytes=1 << 16, queue_entries=4096)
    places = [store.put(Message("t", b"message %d" % row)) for row in range(BLOCK_MESSAGES)]
    source = RowSource(store.log_files, 1 << 20, QueueRecords(store.log, store.queues, 1 << 20).of_entry, BodySizes())
    queue, agreed, copied, text = store.queue("t"), 0, 0, np.zeros(1 << 20, np.uint8)
    for _ in range(300):
        row = dice.randrange(len(places) - 8)
        file = store.log_files.find(places[row])
        assert file is not None
        pages, at = file.writable(), places[row] - file.start + dice.randrange(130)
        before, pages[at] = pages[at], dice.choice([0, 1, 0x7F, 0x80, 0xFF, dice.randrange(256)])
        for checked_before in (0, places[row] + 1, 1 << 62):
            found = source.plain_sizes(queue, row, 8, checked_before)
            if found is not None:
                parts = source.rows(queue, row, 8, checked_before)
                source.measure(parts)
                np.testing.assert_array_equal(found[1], sizes_of(parts))
                agreed += 1
        size = source.put_plain_text(queue, row, 8, text)
        if size is not None:
            parts = source.rows(queue, row, 8, 0)
            source.measure(parts)
            expected = b"".join(_text_of(source, part) for part in parts)
            assert text[:size].tobytes() == expected
            assert source.put_plain_text(queue, row, 8, text[: size - 1]) is None
            copied += 1
        pages[at] = before
    assert agreed > 100
    assert copied > 100


def _text_of(source: RowSource, part: LogPart) -> bytes:
    text = np.zeros(int(part.sizes.sum()), np.uint8)
    return text[: source.put_text(part, text)].tobytes()
