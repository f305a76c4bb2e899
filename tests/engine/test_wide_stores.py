"""Stores of many queues: what is done for the queues that changed, and for all of them."""

from __future__ import annotations

import errno
import gc
import json
import os
import shutil
import struct
import threading
import tracemalloc
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from engine import (
    FlushFailedError,
    Message,
    MessageStore,
    OpenMode,
    QueueBounds,
    Retention,
    RetiredFileError,
    check_store,
)
from engine.derived.consume_queues import MANY_FILES, ConsumeQueues
from engine.derived.marks import RecoveryPoint, RecoveryPointFile, read_clean_mark, read_recovery_point
from engine.files import paths
from engine.files.disk import Disk
from engine.files.file_queue import FileQueue, Unflushed
from engine.files.file_scan import SAMPLED_QUEUES
from engine.files.mapped_file import MappedFile, WriteDescriptor
from engine.log.evidence import Extents
from engine.open.geometry import layout_of
from tests.engine.storetools import SMALL, HastyDisk, bodies, killed, opened, require_clean

WIDTHS = (10, 1_000)


class CountingDisk(HastyDisk):
    """Counts the syncs of the files and folders of consume queues, and those of the whole filesystem."""

    def __init__(self, *, syncs_all: bool = True) -> None:
        self.calls = Counter[str]()
        self.refused: set[str] = set()
        """What fails: a name of `calls`, or the topic of a queue."""
        self._syncs_all = syncs_all

    def sync(self, descriptor: int, path: Path) -> None:
        if "consumequeue" in path.parts:
            self._call("file", path)

    def sync_directory(self, path: Path) -> None:
        if "consumequeue" in path.parts:
            self._call("folder", path)

    def sync_filesystem(self, descriptor: int, path: Path) -> bool:
        self._call("filesystem", path)
        return self._syncs_all

    def _call(self, what: str, path: Path) -> None:
        self.calls[what] += 1
        if self.refused.intersection((what, *path.parts)):
            raise OSError(errno.EIO, "input/output error", str(path))


def fill(store: MessageStore, queues: int, topic: str = "T") -> None:
    """A message in each queue of a new topic."""
    store.create_topic(topic, queues)
    for queue in range(queues):
        store.put(Message(topic, b"%d" % queue), queue)


@pytest.fixture
def looked_at(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often a flush looked at the files of each queue, by its folder's name."""
    calls = Counter[str]()
    unflushed = FileQueue.unflushed

    def counting(files: FileQueue, least_pages: int = 0) -> Unflushed | None:
        calls[files.directory.name] += 1
        return unflushed(files, least_pages)

    monkeypatch.setattr(FileQueue, "unflushed", counting)
    return calls


@pytest.mark.parametrize("queues", WIDTHS)
def test_a_flush_looks_at_the_queues_that_changed(tmp_path: Path, queues: int, looked_at: Counter[str]) -> None:
    with MessageStore.open(tmp_path, SMALL, create=True) as store:
        fill(store, queues)
        store.flush()
        looked_at.clear()
        store.put(Message("T", b"more"), 7)
        store.flush()
        store.flush()
        assert looked_at == {"7": 1}


def test_a_queue_that_a_short_flush_passed_over_is_flushed_by_the_next_thorough_one(tmp_path: Path) -> None:
    with MessageStore.open(tmp_path, SMALL, create=True) as store:
        fill(store, 3)
        assert store._write_side is not None
        store._write_side.durability._flush_queues(least_pages=2)
        store.put(Message("T", b"more"), 1)
        assert {queue.files.flushed_offset for queue in store._parts.queues.opened()} == {0}
        store.flush()
        assert [queue.files.flushed_offset for queue in store._parts.queues] == [20, 40, 20]


@pytest.mark.parametrize(("queues", "flushed"), [(10, {0}), (11, {20})])
def test_files_that_may_soon_be_evicted_are_flushed_before(
    tmp_path: Path, queues: int, flushed: set[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("engine.files.open_files.files_allowed", lambda: 20)
    with MessageStore.open(tmp_path, SMALL, create=True) as store:
        fill(store, queues)
        assert store._write_side is not None
        store._write_side.durability._flush_queues(least_pages=2)
        assert {queue.files.flushed_offset for queue in store._parts.queues.opened()} == flushed
        point = read_recovery_point(tmp_path / "fsstore/coverage.json")
        assert point is not None
        assert point.queues == {}


@pytest.mark.parametrize("queues", WIDTHS)
def test_new_files_of_many_queues_are_brought_to_disk_at_once(tmp_path: Path, queues: int) -> None:
    disk = CountingDisk()
    with MessageStore.open(tmp_path, replace(SMALL, disk=disk), create=True) as store:
        fill(store, queues)
        disk.calls.clear()
        store.flush()
        found = {queue.files.flushed_offset for queue in store._parts.queues.opened()}
        assert found == {20}
    one_by_one = {"file": queues, "folder": 2 * queues + 1}
    assert disk.calls == ({"filesystem": 1} if queues > MANY_FILES else one_by_one)


@pytest.mark.parametrize("why", ["unable", "failing"])
def test_many_files_are_synced_one_by_one_where_no_sync_of_all_tells_enough(tmp_path: Path, why: str) -> None:
    disk, queues = CountingDisk(syncs_all=why == "failing"), MANY_FILES + 1
    with MessageStore.open(tmp_path, replace(SMALL, disk=disk), create=True) as store:
        fill(store, queues)
        disk.calls.clear()
        disk.refused = {"filesystem"}
        store.flush()
        assert (disk.calls["filesystem"], disk.calls["file"]) == (1, queues)
        assert store.flush_failure is None  # another program's file failed


def test_a_write_that_failed_is_told_though_all_files_were_synced_at_once(tmp_path: Path) -> None:
    disk = CountingDisk()
    store = MessageStore.open(tmp_path, replace(SMALL, disk=disk), create=True)
    fill(store, MANY_FILES + 1)
    fill(store, 1, "bad")
    disk.refused = {"filesystem", "bad"}
    with pytest.raises(FlushFailedError):
        store.flush()
    disk.refused = set()
    with pytest.raises(FlushFailedError):
        store.flush()
    with pytest.raises(FlushFailedError):
        store.close()


def test_a_file_whose_sync_failed_is_not_healed_by_a_sync_of_all(tmp_path: Path) -> None:
    disk = CountingDisk()
    store = MessageStore.open(tmp_path, replace(SMALL, disk=disk), create=True)
    fill(store, 1, "bad")
    (queue,) = store._parts.queues.opened()
    disk.refused = {"bad"}
    assert queue.files.last is not None
    assert not queue.files.last.evict()  # it syncs first
    disk.refused = set()
    fill(store, MANY_FILES + 1)
    with pytest.raises(FlushFailedError):
        store.flush()
    assert disk.calls["filesystem"] == 1
    with pytest.raises(FlushFailedError):
        store.close()


def test_the_filesystem_of_a_store_is_synced_or_known_to_be_unable(tmp_path: Path) -> None:
    with opened(tmp_path, replace(SMALL, disk=Disk())) as store:
        fill(store, MANY_FILES + 1)
        store.flush()
        assert {queue.files.flushed_offset for queue in store._parts.queues.opened()} == {20}
    with opened(tmp_path) as store:
        assert bodies(store, "T", MANY_FILES) == [b"%d" % MANY_FILES]


# the recovery point


def lines(store: Path) -> list[dict[str, Any]]:
    """The recovery points in a store's file."""
    return [json.loads(line) for line in (store / "fsstore/coverage.json").read_text().splitlines()]


@pytest.mark.parametrize("queues", WIDTHS)
def test_a_recovery_point_is_stored_with_the_queues_that_changed(tmp_path: Path, queues: int) -> None:
    with MessageStore.open(tmp_path, SMALL, create=True) as store:
        fill(store, queues)
        store.flush()
        store.put(Message("T", b"more"), 7)
        store.flush()
        newest = lines(tmp_path)[-1]
        assert (newest["queues"], newest["gone"]) == ({"T": {"7": [0, 2]}}, [])
        assert newest["physical_end"] == store.physical_end
        point = read_recovery_point(tmp_path / "fsstore/coverage.json")
        assert point is not None
        assert point.queues == {"T": {one: (0, 2 if one == 7 else 1) for one in range(queues)}}


def test_a_deleted_topic_leaves_the_recovery_point_and_may_come_back_in_it(tmp_path: Path) -> None:
    with MessageStore.open(tmp_path, SMALL, create=True) as store:
        fill(store, 3, "gone")
        fill(store, 1)
        store.flush()
        store.delete_topic("gone")
        point = read_recovery_point(tmp_path / "fsstore/coverage.json")
        assert point is not None
        assert point.queues == {"T": {0: (0, 1)}}
        store.put(Message("gone", b"again"), 0)
        store.flush()
        point = read_recovery_point(tmp_path / "fsstore/coverage.json")
        assert point is not None
        assert point.queues == {"T": {0: (0, 1)}, "gone": {0: (0, 1)}}


def point_of(number: int, **changes: Any) -> RecoveryPoint:
    """A recovery point that knows one queue of a topic of its own."""
    return RecoveryPoint(number, queues={f"T{number}": {0: (0, number)}}, **changes)


class PointFile:
    """A file of recovery points, and the queues that it should have."""

    def __init__(self, folder: Path, disk: Disk) -> None:
        self.path = folder / "coverage.json"
        self.queues: Extents = {}
        self._file = RecoveryPointFile(self.path, disk)

    def write(self, number: int) -> None:
        point = point_of(number)
        self.queues.update(point.queues)
        self._file.write(point, lambda: self.queues)

    @property
    def count(self) -> int:
        return len(self.path.read_bytes().splitlines())

    def require(self, number: int) -> None:
        point = read_recovery_point(self.path)
        assert point is not None
        assert point.physical_end == number
        assert point.queues == {f"T{one}": {0: (0, one)} for one in range(1, number + 1)}


def test_lines_are_added_until_they_are_as_long_as_a_whole_point(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("engine.derived.marks.LEAST_LINES_BYTES", 1_000)
    file, counts = PointFile(tmp_path, HastyDisk()), []
    for number in range(1, 60):
        file.write(number)
        file.require(number)
        counts.append(file.count)
    whole = [number for number, count in enumerate(counts) if count == 1]
    assert counts[:2] == [1, 2]
    assert 3 <= len(whole) < 20
    steps = [after - before for before, after in pairwise(whole)]
    assert steps == sorted(steps), "more and more lines fit between two whole points"


@pytest.mark.parametrize("torn", [b"", b"\0" * 10, b'{"version":1,"physical', b"[]\n", b"\n"])
def test_a_torn_line_leaves_the_points_before_it(tmp_path: Path, torn: bytes) -> None:
    file = PointFile(tmp_path, HastyDisk())
    for number in (1, 2, 3):
        file.write(number)
    first, second, _ = file.path.read_bytes().splitlines(keepends=True)
    file.path.write_bytes(first + second + torn)
    file.require(2)


def test_after_a_write_that_failed_the_next_point_is_whole(tmp_path: Path) -> None:
    disk = RefusingDisk()
    file = PointFile(tmp_path, disk)
    file.write(1)
    file.write(2)
    disk.refuses = True
    with pytest.raises(OSError, match="input"):
        file.write(3)
    with pytest.raises(OSError, match="input"):
        file.write(4)
    disk.refuses = False
    file.write(5)
    assert file.count == 1
    file.require(5)
    file.write(6)
    assert file.count == 2
    file.require(6)


class RefusingDisk(HastyDisk):
    """Refuses syncs while it is told to."""

    refuses = False

    def sync(self, descriptor: int, path: Path) -> None:
        if self.refuses:
            raise OSError(errno.EIO, "input/output error", str(path))


# opening after a kill


def age(store: Path) -> None:
    """Make the files of the queues an hour older."""
    for file in (store / "consumequeue").rglob("*"):
        if file.is_file():
            times = file.stat()
            os.utime(file, ns=(times.st_atime_ns, times.st_mtime_ns - 3_600 * 10**9))


def left_by_a_kill(folder: Path, queues: int) -> Path:
    """A store whose queues have not changed since a recovery point; then one got a message, and its process died."""
    with killed(folder / "living", folder / "left") as store:
        fill(store, queues)
        store.flush()
        age(folder / "living")
        store.put(Message("T", b"more"), 7)
    return folder / "left"


def opened_ids(store: MessageStore) -> set[int]:
    """Ids of the queues that have an object."""
    return {queue.queue_id for queue in store._parts.queues.opened()}


@pytest.mark.parametrize("mode", [OpenMode.WRITE, OpenMode.READ_ONLY])
@pytest.mark.parametrize("queues", WIDTHS)
def test_an_opening_after_a_kill_opens_the_queues_that_changed(tmp_path: Path, queues: int, mode: OpenMode) -> None:
    left = left_by_a_kill(tmp_path, queues)
    with MessageStore.open(left, replace(SMALL, mode=mode)) as store:
        assert opened_ids(store) == {7}
        assert [store.bounds("T", one).max_offset for one in range(queues)] == [1 + (one == 7) for one in range(queues)]
        assert bodies(store, "T", 7) == [b"7", b"more"]
        assert bodies(store, "T", 8) == [b"8"]
        if mode is OpenMode.WRITE:
            assert [store.put(Message("T", b"next"), one).queue_offset for one in (7, 8)] == [2, 1]
            require_clean(store.check())
    require_clean(check_store(left)) if mode is OpenMode.WRITE else None


def test_a_queue_that_nobody_asked_for_since_a_kill_is_known_to_the_next_opening(tmp_path: Path) -> None:
    left = left_by_a_kill(tmp_path, 10)
    with MessageStore.open(left, SMALL) as store:
        store.put(Message("T", b"next"), 3)
    point = read_recovery_point(left / "fsstore/coverage.json")
    assert point is not None
    assert point.queues["T"] == {one: (0, 1 + (one in (3, 7))) for one in range(10)}
    with MessageStore.open(left, SMALL) as store:
        assert store.recovery.clean
        assert opened_ids(store) == set()
        assert [store.put(Message("T", b"next"), one).queue_offset for one in (3, 7, 9)] == [2, 2, 1]


QUEUE = "consumequeue/T/3"
FILE = f"{QUEUE}/{0:020d}"


def write_at(store: Path, position: int, content: bytes) -> None:
    """Change a queue's file, and none of its times."""
    times = (store / FILE).stat()
    with (store / FILE).open("r+b") as file:
        file.seek(position)
        file.write(content)
    os.utime(store / FILE, ns=(times.st_atime_ns, times.st_mtime_ns))


CHANGES: dict[str, Callable[[Path], object]] = {
    "a newer time": lambda store: os.utime(store / FILE),
    "an entry behind": lambda store: write_at(store, 20, struct.pack(">qiq", 1 << 30, 100, 0)),
    "bytes far behind": lambda store: write_at(store, (store / FILE).stat().st_size - 3, b"\1"),
    "no entry": lambda store: write_at(store, 0, bytes(20)),
    "a short file": lambda store: os.truncate(store / FILE, 20),
    "an empty file": lambda store: os.truncate(store / FILE, 0),
    "no file": lambda store: (store / FILE).unlink(),
    "no folder": lambda store: shutil.rmtree(store / QUEUE),
    "another file": lambda store: (store / QUEUE / "foreign").write_bytes(b"x"),
    "a later file": lambda store: (store / QUEUE / f"{(store / FILE).stat().st_size:020d}").write_bytes(b""),
}


@pytest.mark.parametrize("what", CHANGES)
def test_a_queue_with_any_change_is_opened_and_loses_nothing(tmp_path: Path, what: str) -> None:
    left = left_by_a_kill(tmp_path, 10)
    CHANGES[what](left)
    with MessageStore.open(left, SMALL) as store:
        assert 3 in opened_ids(store)
        assert [bodies(store, "T", one) for one in range(10)] == [
            [b"%d" % one, *([b"more"] if one == 7 else [])] for one in range(10)
        ]
        assert store.put(Message("T", b"next"), 3).queue_offset == 1


def test_a_recovery_point_of_an_earlier_version_opens_all_queues(tmp_path: Path) -> None:
    left = left_by_a_kill(tmp_path, 10)
    mark = left / "fsstore/coverage.json"
    point = {**lines(left)[-1], "queues": {"T": {str(one): [0, 1] for one in range(10)}}}
    mark.write_text(json.dumps({name: point[name] for name in point if name not in NEW_FIELDS}))
    with MessageStore.open(left, SMALL) as store:
        assert opened_ids(store) == set(range(10))
        assert store.recovery.rebuilt == ()
        assert bodies(store, "T", 7) == [b"7", b"more"]


NEW_FIELDS = ("time_ns", "multi_dispatch", "gone")


def test_a_clean_mark_of_an_earlier_version_is_not_believed(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        fill(store, 10)
    mark = tmp_path / "fsstore/clean.json"
    content = json.loads(mark.read_text())
    mark.write_text(json.dumps({**content, "files": {"checkpoint": [4096, 1]}}))
    with opened(tmp_path) as store:
        assert bodies(store, "T", 9) == [b"9"]


def test_the_first_message_of_a_queue_enters_each_of_its_folders_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    entered = Counter[str]()
    enter = paths._enter
    with opened(tmp_path) as store:
        store.create_topic("T", 2)
        with monkeypatch.context() as patched:
            patched.setattr(paths, "_enter", lambda folder: entered.update([str(folder)]) or enter(folder))
            store.put(Message("T", b"first"), 1)
    queues = tmp_path / "consumequeue"
    counts = {Path(folder): count for folder, count in entered.items() if Path(folder).is_relative_to(queues)}
    assert counts == {queues: 1, queues / "T": 1, queues / "T/1": 1}


LOOKING_CALLS = ("stat", "lstat", "fstat", "readlink", "scandir")
CHANGING_CALLS = ("open", "close", "mkdir", "link", "ftruncate", "posix_fallocate", "fdatasync", "fsync")


def test_the_first_message_of_a_queue_takes_few_system_calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = Counter[str]()
    ours = threading.get_ident()

    def counting(name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*given: Any, **named: Any) -> Any:
            calls[name] += threading.get_ident() == ours
            return call(*given, **named)

        return counted

    with opened(tmp_path) as store:
        store.create_topics({"T": 2, "U": 2})
        store.put(Message("T", b"of another queue"), 0)
        for name in (*LOOKING_CALLS, *CHANGING_CALLS):
            monkeypatch.setattr(os, name, counting(name, getattr(os, name)))
        store.put(Message("U", b"first"), 0)
        monkeypatch.undo()
    assert (calls["mkdir"], calls["link"], calls["posix_fallocate"], calls["fdatasync"], calls["fsync"]) == (
        2,
        1,
        1,
        0,
        0,
    )
    assert calls.total() <= 27


# opening after a clean end, and closing


@pytest.fixture
def listed(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often each folder was listed, by its path."""
    calls = Counter[str]()
    scandir, listdir = os.scandir, os.listdir
    monkeypatch.setattr(os, "scandir", lambda path=".": calls.update([str(path)]) or scandir(path))
    monkeypatch.setattr(os, "listdir", lambda path=".": calls.update([str(path)]) or listdir(path))
    return calls


def test_opening_and_closing_list_as_many_folders_at_any_number_of_topics(tmp_path: Path, listed: Counter[str]) -> None:
    counts = set()
    for topics in (SAMPLED_QUEUES, 2 * SAMPLED_QUEUES):
        with opened(tmp_path / str(topics)) as store:
            store.create_topics({f"T{number}": 2 for number in range(topics)})
            for number in range(topics):
                store.put(Message(f"T{number}", b"first"), 1)
        listed.clear()
        with MessageStore.open(tmp_path / str(topics), SMALL) as store:
            assert store.recovery.clean
            assert store._parts.queues.topics() == sorted(f"T{number}" for number in range(topics))
        counts.add(listed.total())
        assert bodies_of_all(tmp_path / str(topics), "T7", 2) == [[], [b"first"]]
    assert len(counts) == 1


def bodies_of_all(path: Path, topic: str, queues: int) -> list[list[bytes]]:
    with MessageStore.open(path, SMALL) as store:
        return [bodies(store, topic, queue) for queue in range(queues)]


SEEN: dict[str, Callable[[Path], object]] = {
    **{name: change for name, change in CHANGES.items() if name.endswith((" time", " file", " folder"))},
    "another queue": lambda store: (store / "consumequeue/T/77").mkdir(),
    "another topic": lambda store: (store / "consumequeue/other").mkdir(),
    "no topic": lambda store: shutil.rmtree(store / "consumequeue/T"),
    "no queues": lambda store: shutil.rmtree(store / "consumequeue"),
}


@pytest.mark.parametrize("what", SEEN)
def test_a_clean_mark_is_not_believed_after_a_change_of_a_queues_files(tmp_path: Path, what: str) -> None:
    with opened(tmp_path) as store:
        fill(store, 10)
    layout = layout_of(tmp_path, SMALL)
    assert read_clean_mark(layout) is not None
    SEEN[what](tmp_path)
    assert read_clean_mark(layout) is None
    assert bodies_of_all(tmp_path, "T", 10) == [[b"%d" % one] for one in range(10)]


def test_a_queue_whose_file_is_lost_while_its_store_is_open_has_its_messages_at_the_next_opening(
    tmp_path: Path,
) -> None:
    with MessageStore.open(tmp_path, SMALL, create=True) as store:
        fill(store, 10)
        (tmp_path / FILE).unlink()
    assert read_clean_mark(layout_of(tmp_path, SMALL)) is None
    assert bodies_of_all(tmp_path, "T", 10) == [[b"%d" % one] for one in range(10)]


def test_a_copy_with_its_times_is_believed(tmp_path: Path) -> None:
    with opened(tmp_path / "store") as store:
        fill(store, 10)
    shutil.copytree(tmp_path / "store", tmp_path / "copy")
    assert read_clean_mark(layout_of(tmp_path / "copy", SMALL)) is not None


def test_whether_records_may_have_secondary_slots_is_remembered(tmp_path: Path) -> None:
    with killed(tmp_path / "living", tmp_path / "left", replace(SMALL, multi_dispatch=True)) as store:
        fill(store, 2)
        store.flush()
    for _ in range(2):
        with MessageStore.open(tmp_path / "left", SMALL) as store:
            assert store._parts.queues.multi_dispatch
            store.put(Message("T", b"x"), 0)
            store.flush()


# memory


@pytest.mark.parametrize("end", ["closed", "killed"])
def test_a_queue_that_nobody_asked_for_takes_little_memory(tmp_path: Path, end: str) -> None:
    def held(queues: int) -> int:
        folder = tmp_path / f"{end}-{queues}"
        left = left_by_a_kill(folder, queues)
        if end == "closed":
            MessageStore.open(left, SMALL).close()
        gc.collect()
        tracemalloc.start()
        try:
            with MessageStore.open(left, SMALL):
                gc.collect()
                return tracemalloc.get_traced_memory()[0]
        finally:
            tracemalloc.stop()

    few, many = (held(queues) for queues in (10, 510))
    assert many - few < 500 * 600


def test_closing_unmaps_the_files_that_are_mapped_and_leaves_none_to_be_mapped_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("engine.files.open_files.files_allowed", lambda: 4)
    closed = Counter[str]()
    close = WriteDescriptor.close
    monkeypatch.setattr(WriteDescriptor, "close", lambda one: closed.update([one._path.parts[-3]]) or close(one))
    with MessageStore.open(tmp_path, SMALL, create=True) as store:
        fill(store, 40)
        queues = store._parts.queues.opened()
        store.flush()
        closed.clear()
        store.close()
        assert 0 < closed["T"] <= 4
        for queue in queues:
            with pytest.raises(RetiredFileError):
                queue.read(0, 1)


# look-ups of keys


@pytest.fixture
def mapped(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often files of queues were mapped, by topic."""
    calls = Counter[str]()
    open_map = MappedFile._open_map

    def counting(file: MappedFile) -> None:
        if "consumequeue" in file.path.parts:
            calls[file.path.parts[-3]] += 1
        open_map(file)

    monkeypatch.setattr(MappedFile, "_open_map", counting)
    return calls


@pytest.fixture
def of_keys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A store with a key in each queue of a topic, of which four are kept mapped."""
    monkeypatch.setattr("engine.files.open_files.files_allowed", lambda: 4)
    with opened(tmp_path / "store") as store:
        store.create_topic("T", 40)
        for number in range(120):
            store.put(Message("T", b"%d" % number, keys=(f"k{number}",)), number % 40)
    return tmp_path / "store"


def found_bodies(store: MessageStore) -> list[bytes | None]:
    """The newest message of each key."""
    found = [store.newest_with_key("T", f"k{number}") for number in range(120)]
    return [None if one is None else bytes(one.body) for one in found]


@pytest.mark.parametrize("mode", [OpenMode.WRITE, OpenMode.READ_ONLY, OpenMode.FOLLOW])
@pytest.mark.parametrize("before", ["closed", "evicted"])
def test_a_look_up_of_a_key_opens_no_queue_and_maps_no_file_of_one(
    of_keys: Path, mode: OpenMode, before: str, mapped: Counter[str]
) -> None:
    with opened(of_keys, replace(SMALL, mode=mode)) as store:
        if before == "evicted":
            assert len(list(store._parts.queues)) == 40
        were_open = keys(store)
        mapped.clear()
        assert found_bodies(store) == [b"%d" % number for number in range(120)]
        assert keys(store) == were_open
        assert mapped == {}


def test_a_look_up_of_a_key_finds_no_message_whose_entry_leads_to_another(of_keys: Path) -> None:
    with opened(of_keys) as store:
        other = store.get("T", 7, 2).physical_offset
    file = of_keys / f"consumequeue/T/7/{0:020d}"
    before = file.stat()
    with file.open("r+b") as written:
        written.seek(20)
        written.write(struct.pack(">q", other))
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))  # so the clean mark is believed
    with MessageStore.open(of_keys, SMALL) as store:
        assert keys(store) == set()
        assert [store.newest_with_key("T", f"k{number}") is None for number in (7, 47, 87)] == [False, True, False]


# retention


def keys(store: MessageStore) -> set[tuple[str, int]]:
    """Topic and id of the queues that have an object."""
    return set(store._parts.queues.by_key)


@pytest.mark.parametrize("queues", [10, 200])
def test_retention_opens_the_queues_of_several_files_alone(
    tmp_path: Path, queues: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    with MessageStore.open(tmp_path / "store", SMALL, create=True) as store:
        fill(store, queues)
        fill(store, 1, "long")
        for _ in range(299):
            store.put(Message("long", bytes(200)), 0)
    keeping = Retention(max_bytes=1, clean_interval_ms=3_600_000, delete_pause_ms=0)
    with MessageStore.open(tmp_path / "store", replace(SMALL, retention=keeping)) as store:
        looked_into = Counter[tuple[str, int]]()
        found = ConsumeQueues._found
        monkeypatch.setattr(ConsumeQueues, "_found", lambda all, key: looked_into.update([key]) or found(all, key))
        while store.clean():
            pass
        assert keys(store) == {("long", 0)}
        assert {count for (topic, _), count in looked_into.items() if topic == "T"} == {1}, "for the file of its entry"
        point = read_recovery_point(tmp_path / "store/fsstore/coverage.json")
        assert point is not None
        assert point.log_begin == store.log_begin > 0
        assert point.queues["long"][0][0] > 0
        assert point.queues["T"] == dict.fromkeys(range(queues), (0, 1))
        shutil.copytree(tmp_path / "store", tmp_path / "left")
        gone = sum(store.bounds("T", one).min_offset for one in range(queues)) + store.bounds("long", 0).min_offset
        assert store.stats().expired_messages == gone
    age(tmp_path / "left")
    with MessageStore.open(tmp_path / "left", SMALL) as store:
        assert keys(store) == set()
        assert store.bounds("T", 3) == QueueBounds(1, 1)
