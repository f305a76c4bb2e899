"""Where the files of a queue begin and end."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from engine import MessageStore, OpenMode, Retention, StoreConfig
from fsstore.parquet.names import SEGMENT_MESSAGES
from fsstore.parquet.segments import QueueSegments, Segment
from tests.fsstore.parquetfiles import SMALL_SIZES, small_files

KEEP_ONE_FILE = Retention(max_bytes=1)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[MessageStore]:
    with MessageStore.open(tmp_path / "store", small_files(retention=KEEP_ONE_FILE), create=True) as store:
        store.create_topic("orders", 2)
        yield store


def publish(store: MessageStore, count: int, body_bytes: int = 100, queue: int = 0) -> None:
    store.put_lines("orders", (b"x" * body_bytes + b"\n") * count, queue)


def by_neighbours(store: MessageStore, queue: int = 0) -> tuple[Segment, ...]:
    """What the rule says, entry by entry."""
    bounds = store.bounds("orders", queue)
    entries = store.entries("orders", queue, bounds.min_offset, bounds.max_offset - bounds.min_offset)
    files = entries["physical_offset"].astype(np.int64) // store.sizes.commit_log_bytes
    offsets = np.arange(bounds.min_offset, bounds.max_offset)
    starts = [
        int(offset)
        for row, offset in enumerate(offsets)
        if row == 0 or offset % SEGMENT_MESSAGES == 0 or files[row] != files[row - 1]
    ]
    ends = [*starts[1:], bounds.max_offset]
    return tuple(
        Segment(begin, end, is_tail=end == bounds.max_offset and end % SEGMENT_MESSAGES != 0)
        for begin, end in zip(starts, ends, strict=True)
    )


def test_a_segment_ends_where_the_log_rolls_and_at_each_multiple(store: MessageStore) -> None:
    segments = QueueSegments(store, "orders", 0)
    assert segments.now() == ()
    for count, body_bytes in ((1, 1), (3_000, 300), (9_000, 200), (60_000, 1), (5, 400_000), (70_000, 2)):
        publish(store, count, body_bytes)
        publish(store, 50, 1_000, queue=1)
        found = segments.now()
        assert found == by_neighbours(store)
        assert found == QueueSegments(store, "orders", 0).now()
    assert SEGMENT_MESSAGES in {segment.begin for segment in found}
    assert len(found) > 10


def test_a_segment_that_is_full_is_no_tail(store: MessageStore) -> None:
    large = replace(SMALL_SIZES, commit_log_bytes=64 << 20)
    with MessageStore.open(store.path.parent / "large", StoreConfig(sizes=large), create=True) as one_file:
        one_file.create_topic("orders", 1)
        publish(one_file, SEGMENT_MESSAGES - 1, 1)
        segments = QueueSegments(one_file, "orders", 0)
        assert segments.now() == (Segment(0, SEGMENT_MESSAGES - 1, True),)
        publish(one_file, 1, 1)
        assert segments.now() == (Segment(0, SEGMENT_MESSAGES, False),)
        publish(one_file, 1, 1)
        assert segments.now() == (
            Segment(0, SEGMENT_MESSAGES, False),
            Segment(SEGMENT_MESSAGES, SEGMENT_MESSAGES + 1, True),
        )


def test_names_agree_after_a_restart_and_for_a_reader(store: MessageStore) -> None:
    publish(store, 20_000)
    before = QueueSegments(store, "orders", 0).now()
    store.close()
    with MessageStore.open(store.path, StoreConfig(mode=OpenMode.READ_ONLY)) as reader:
        assert QueueSegments(reader, "orders", 0).now() == before


def test_retention_removes_whole_segments(store: MessageStore) -> None:
    publish(store, 30_000)
    segments = QueueSegments(store, "orders", 0)
    before = segments.now()
    assert store.clean() > 0
    after = segments.now()
    assert 0 < len(after) < len(before)
    assert after == before[-len(after) :]
    assert after == by_neighbours(store)


def test_a_topic_made_anew_has_its_own_segments(store: MessageStore) -> None:
    publish(store, 12_000)
    segments = QueueSegments(store, "orders", 0)
    segments.now()
    store.delete_topic("orders")
    store.create_topic("orders", 1)
    publish(store, 20_000, 37)
    assert segments.now() == by_neighbours(store)


def test_a_topic_made_anew_is_found_out_though_the_one_before_had_no_tail(store: MessageStore) -> None:
    segments = QueueSegments(store, "orders", 0)
    for body_bytes in (1, 30):
        store.delete_topic("orders")
        store.create_topic("orders", 1)
        publish(store, SEGMENT_MESSAGES, body_bytes)
        assert segments.now() == by_neighbours(store)
        assert not segments.now()[-1].is_tail


def test_segments_are_the_same_object_until_something_changes(store: MessageStore) -> None:
    segments = QueueSegments(store, "orders", 0)
    assert segments.unchanged() is None
    publish(store, 3_000)
    before = segments.now()
    assert segments.unchanged() is segments.now() is before
    publish(store, 1)
    assert segments.unchanged() is None
    assert segments.now() != before
