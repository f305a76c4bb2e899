"""Which listings of `@parquet` the kernel may cache: how a queue's directory is opened, and what is listed then."""

from __future__ import annotations

import errno
import itertools
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from engine import (
    Expired,
    ExpiredMessageError,
    MessageNotFoundError,
    MessageStore,
    OpenMode,
    Retention,
    StoreConfig,
    TruncatedFileError,
    WouldBlock,
    nonblocking,
)
from fsstore.interface import OpenedDirectory
from fsstore.options import ParquetOptions
from fsstore.parquet import dataset
from fsstore.parquet.dataset import Dataset
from fsstore.parquet.layout import Layout, RangeKey, measure, range_key
from tests.fsstore.conftest import patiently, refused_with
from tests.fsstore.parquetfiles import small_files
from tests.fsstore.test_parquet_tree import QUEUE, ParquetMount

FILLS, REUSES, BESIDE, UNCACHED = (True, False), (True, True), (False, True), (False, False)
"""What is said of a listing: whether it uses the kernel's cache, and whether that is kept."""


def publish(store: MessageStore, count: int = 100) -> None:
    store.put_lines("orders", b"".join(b"%0100d\n" % number for number in range(count)), 0)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[MessageStore]:
    with MessageStore.open(
        tmp_path / "store", small_files(retention=Retention(max_bytes=1, clean_interval_ms=3_600_000)), create=True
    ) as store:
        store.create_topic("orders", 1)
        publish(store, 12_000)
        yield store


@pytest.fixture
def mount(store: MessageStore) -> Iterator[ParquetMount]:
    mount = ParquetMount(store)
    yield mount
    assert mount.fs.close() == 0


def opened(mount: ParquetMount, path: str = QUEUE) -> OpenedDirectory:
    return mount.fs.opendir(mount.stat(path).inode)


def said(directory: OpenedDirectory) -> tuple[bool, bool]:
    return directory.uses_cache, directory.keep_cache


def listed(mount: ParquetMount, directory: OpenedDirectory) -> list[str]:
    """All names, from the beginning, as the kernel takes them with their attributes."""
    names, position = [], 0
    while batch := patiently(mount.fs.readdir, directory.handle, position, 5):
        assert isinstance(batch, list)
        for entry in batch:
            mount.fs.listed(entry.attributes.inode)
            names.append(os.fsdecode(entry.name))
            position = entry.next_position
    return names


def once(mount: ParquetMount) -> tuple[tuple[bool, bool], list[str]]:
    """Open, list, close: what was said, and the names."""
    directory = opened(mount)
    names = listed(mount, directory)
    mount.fs.handles.release_directory(directory.handle)
    return said(directory), names


def expire(store: MessageStore) -> None:
    assert store.clean()


def make_anew(store: MessageStore) -> None:
    store.delete_topic("orders")
    store.create_topic("orders", 1)
    publish(store, 12_000)


def publish_one(store: MessageStore) -> None:
    publish(store, 1)


def test_what_did_not_change_is_kept(mount: ParquetMount) -> None:
    filled, names = once(mount)
    assert filled == FILLS
    first, second = opened(mount), opened(mount)
    assert said(first) == said(second) == REUSES
    assert listed(mount, first) == listed(mount, second) == names  # what the kernel dropped it asks for


@pytest.mark.parametrize("change", [publish_one, expire, make_anew])
def test_every_change_is_seen_by_the_next_open(
    mount: ParquetMount, store: MessageStore, change: Callable[[MessageStore], None]
) -> None:
    once(mount)
    change(store)
    assert once(mount) == (FILLS, ParquetMount(store).ls(QUEUE))
    assert once(mount)[0] == REUSES


def test_a_topic_of_the_same_names_is_another_one(tmp_path: Path) -> None:
    with MessageStore.open(tmp_path / "again", small_files(), create=True) as store:
        mount = ParquetMount(store)
        found = []
        for _ in range(2):
            store.create_topic("orders", 1)
            publish(store)
            found.append(once(mount))
            store.delete_topic("orders")
        assert found[0] == found[1]
        assert found[0][0] == FILLS
        mount.fs.close()


def test_a_newer_listing_stays_beside_the_cache_while_an_older_one_is_open(
    mount: ParquetMount, store: MessageStore
) -> None:
    _, before = once(mount)
    older = opened(mount)
    publish_one(store)
    (how, after), again = once(mount), once(mount)
    assert how == again[0] == BESIDE
    assert before[:-1] == after[:-1]
    assert before[-1] != after[-1]
    assert listed(mount, older) == before
    mount.fs.handles.release_directory(older.handle)
    assert once(mount) == (FILLS, after)
    assert once(mount) == (REUSES, after)


def test_nobody_uses_the_cache_before_the_first_has_dropped_what_is_in_it(
    mount: ParquetMount, store: MessageStore
) -> None:
    once(mount)
    publish_one(store)
    first = opened(mount)
    assert said(first) == FILLS
    assert said(opened(mount)) == BESIDE
    listed(mount, first)
    assert said(opened(mount)) == REUSES


def test_a_rewound_listing_shows_the_names_of_its_open_if_the_kernel_caches_them(
    mount: ParquetMount, store: MessageStore
) -> None:
    cached = opened(mount)
    beside = opened(mount)
    names = listed(mount, cached)
    assert listed(mount, beside) == names
    publish_one(store)
    assert listed(mount, cached) == names
    assert listed(mount, beside) == ParquetMount(store).ls(QUEUE) != names


def test_a_listing_that_was_not_read_to_its_end_is_filled_up(mount: ParquetMount) -> None:
    directory = opened(mount)
    mount.fs.readdir(directory.handle, 0, 1)
    mount.fs.handles.release_directory(directory.handle)
    assert once(mount)[0] == REUSES


def test_files_that_the_kernel_forgot_are_listed_anew(mount: ParquetMount) -> None:
    _, names = once(mount)
    mount.fs.forget(mount.stat(f"{QUEUE}/{names[0]}").inode, 2)  # the listing's, and this look-up's
    assert once(mount) == (FILLS, names)
    assert once(mount) == (REUSES, names)


def test_what_was_left_out_for_a_moment_is_not_left_out_for_ever(mount: ParquetMount) -> None:
    find = Dataset.listed_layout

    def find_but_the_first(self: Dataset, topic: str, queue: int, begin: int, end: int) -> Layout:
        if begin == 0:
            raise MessageNotFoundError(topic, queue, begin)
        return find(self, topic, queue, begin, end)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Dataset, "listed_layout", find_but_the_first)
        _, some = once(mount)
    how, names = once(mount)
    assert how == FILLS
    assert names[1:] == some


@pytest.mark.parametrize("is_listed", [False, True])
def test_an_older_listing_shows_the_kernel_nothing_that_has_expired(
    mount: ParquetMount, store: MessageStore, is_listed: bool
) -> None:
    older = opened(mount)
    names = listed(mount, older) if is_listed else []
    old_min = store.bounds("orders", 0).min_offset
    expire(store)
    new_min = store.bounds("orders", 0).min_offset
    told = list(mount.fs.expired(Expired("orders", 0, old_min, new_min, np.empty(0, np.int64))))
    assert len(told) == sum(int(name[:20]) < new_min for name in names)
    assert listed(mount, older) == mount.ls(QUEUE)


def test_a_listing_of_which_nothing_is_left_is_refused(mount: ParquetMount, store: MessageStore) -> None:
    directory = opened(mount)
    store.delete_topic("orders")
    assert refused_with(lambda: listed(mount, directory)) == errno.ENOENT


def test_an_empty_queue_is_not_cached(mount: ParquetMount, store: MessageStore) -> None:
    store.create_topic("empty", 1)
    assert said(opened(mount, "@parquet/topic=empty/queue=0")) == BESIDE
    store.put_lines("empty", b"x\n", 0)
    assert said(opened(mount, "@parquet/topic=empty/queue=0")) == FILLS


def test_what_takes_a_thread_to_list_is_cached_when_it_is_known(
    mount: ParquetMount, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dataset, "QUICK_MESSAGES", 10)
    assert [once(mount)[0] for _ in range(3)] == [BESIDE, FILLS, REUSES]
    assert mount.slow == 0  # nor did `stat` find anything to measure


@pytest.mark.parametrize("path", ["", "@parquet", "@parquet/topic=orders", "orders", "orders/0"])
def test_other_directories_are_not_cached(mount: ParquetMount, path: str) -> None:
    assert said(opened(mount, path)) == UNCACHED


@pytest.mark.parametrize(("mode", "how"), [(OpenMode.READ_ONLY, REUSES), (OpenMode.FOLLOW, UNCACHED)])
def test_nothing_is_cached_where_another_process_writes(
    store: MessageStore, mode: OpenMode, how: tuple[bool, bool]
) -> None:
    store.close()
    with MessageStore.open(store.path, StoreConfig(mode=mode)) as reader:
        mount = ParquetMount(reader)
        once(mount)
        assert once(mount)[0] == how
        mount.fs.close()


# files of many messages


@pytest.fixture
def dataset_of_much(store: MessageStore, monkeypatch: pytest.MonkeyPatch) -> Dataset:
    publish(store, 12_000)
    monkeypatch.setattr(dataset, "QUICK_MESSAGES", 3_000)  # the tail has fewer
    return Dataset(store, ParquetOptions())


def test_files_of_many_messages_are_measured_as_those_of_few(store: MessageStore, dataset_of_much: Dataset) -> None:
    segments = dataset_of_much.segments("orders", 0)
    whole = [segment for segment in segments if not segment.is_tail]
    assert len(whole) > 2
    assert dataset_of_much.layouts("orders", 0) == {
        (begin, end): measure(store, range_key(store, "orders", 0, begin, end)) for begin, end, _ in whole
    }


def test_two_files_are_measured_at_a_time(dataset_of_much: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    both, calls = threading.Barrier(2, timeout=30), itertools.count()

    def measure_beside_another(store: MessageStore, key: RangeKey) -> Layout:
        if next(calls) < both.parties:
            both.wait()
        return measure(store, key)

    monkeypatch.setattr(dataset, "measure", measure_beside_another)
    assert dataset_of_much.segments("orders", 0)


def test_a_file_that_goes_while_others_are_measured_is_left_out(
    dataset_of_much: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    def gone(store: MessageStore, key: RangeKey) -> Layout:
        if key.begin == 0:
            raise ExpiredMessageError(key.topic, key.queue, key.begin, key.end)
        return measure(store, key)

    monkeypatch.setattr(dataset, "measure", gone)
    whole = [segment[:2] for segment in dataset_of_much.segments("orders", 0) if not segment.is_tail]
    assert list(dataset_of_much.layouts("orders", 0)) == whole[1:]


def test_what_cannot_be_measured_is_said(dataset_of_much: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    def unreadable(store: MessageStore, key: RangeKey) -> Layout:
        raise TruncatedFileError(store.path, 1, 0)

    monkeypatch.setattr(dataset, "measure", unreadable)
    with pytest.raises(TruncatedFileError):
        dataset_of_much.segments("orders", 0)


def test_a_long_listing_gives_up_when_the_mount_ends(dataset_of_much: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    measured = []

    def ends_meanwhile(store: MessageStore, key: RangeKey) -> Layout:
        dataset_of_much.ending()
        measured.append(key)
        return measure(store, key)

    monkeypatch.setattr(dataset, "measure", ends_meanwhile)
    assert refused_with(lambda: dataset_of_much.segments("orders", 0)) == errno.ENOTCONN
    assert len(measured) <= 2, "no more than those that were being measured"


def test_what_is_not_measured_yet_takes_long_whoever_else_lists_it(
    dataset_of_much: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    refused = []

    def asked_by_another(store: MessageStore, key: RangeKey) -> Layout:
        if key.begin == 0:  # layouts are kept in order, so none is kept yet; later the rest may be little
            with pytest.raises(WouldBlock), nonblocking():
                dataset_of_much.segments("orders", 0)
            refused.append(key)
        return measure(store, key)

    with monkeypatch.context() as patch:
        patch.setattr(dataset, "measure", asked_by_another)
        segments = dataset_of_much.segments("orders", 0)
    assert len(refused) == 1
    with nonblocking():  # but for the tail everything is measured
        assert dataset_of_much.segments("orders", 0) == segments
