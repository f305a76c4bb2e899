"""Preflight: refuses folders that are no store, stores that fsstore can't read or write, and obstacles in a store.

It also refuses a store with an incomplete log, whose other files are on other paths or on disks that are not mounted.
Only the broker's broker.conf names a log's folders. A store itself shows:

    config/commitlog.json       the folders to which fsstore wrote the log
    consume queues, checkpoint  that a log exists, and its least end
    the names of its files      that other files lie between them: several paths take turns

The store is refused before any change, because its queues would be cut to the rest of the log.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from itertools import islice, pairwise
from pathlib import Path
from typing import TYPE_CHECKING

from engine.derived.checkpoint import read_checkpoint
from engine.derived.marks import read_recovery_point
from engine.errors import (
    ConfigFileError,
    DamagedRecordError,
    DuplicateLogFileError,
    MissingLogError,
    NotAReplicaError,
    NotAStoreError,
    ObstructedError,
    OptionError,
    ReplicaStoreError,
    UnsupportedStoreError,
)
from engine.files.file_scan import SAMPLED_QUEUES, FoundFile, numbered_files, queue_folders, written_ns
from engine.files.layout import StoreLayout, log_files
from engine.files.mapped_file import Access, MappedFile, next_data, next_hole, used_end
from engine.files.paths import is_refused_read, open_file, open_folder, read_file, require_file
from engine.log.entries import ENTRY_STRUCT
from engine.record.record import read_header
from engine.record.scan import ScanStop, scan_records
from engine.settings.config_file import MOST_BYTES, backup_of
from engine.settings.notes import read_replica_note
from engine.settings.shape_files import read_sizes, read_used_paths

if TYPE_CHECKING:
    from engine.open.features import StoreFeatures

OWN_NAMES = ("commitlog", "consumequeue", "index", "config", "checkpoint", "abort", "lock", "fsstore", "lost+found")
BROKER_NAMES = (
    "abort.bak",
    "brokerIdentity",
    "compaction",
    "consumequeue_rocksdb",
    "epochFileCheckpoint",
    "rocksdbstore",
    "timerlog",
    "timerwheel",
)
KNOWN_NAMES = frozenset((*OWN_NAMES, *BROKER_NAMES, "batchconsumequeue", "consumequeue_ext", "transaction"))
"""Names in a store. A folder with any other name and without a commit log is no store."""

NEWEST_ENTRIES = 2
"""Number of a queue's newest entries that must lead past the log's end. A single one may be damaged."""
_TOO_FEW_TO_TELL = 2
"""With this few files, gaps between names can't distinguish a truncated log from one of several striped paths."""
MOST_RECORD_BYTES = 1 << 28
MOST_OFFSET = 1 << 62


def is_new(layout: StoreLayout) -> bool:
    """Whether there is no store yet: no folder, or an empty one apart from a lock, and no log elsewhere."""
    return _names(layout.root) <= {"lock", "lost+found"} and not log_files(layout.commit_log)


def _names(root: Path) -> set[str]:
    try:
        return {member.name for member in root.iterdir()}
    except FileNotFoundError:
        return set()
    except NotADirectoryError:
        raise NotAStoreError(root, "it is a file, not a folder") from None


def refuse_unreadable(layout: StoreLayout) -> None:
    """NotAStoreError, ObstructedError, MissingLogError, DuplicateLogFileError, OptionError or UnsupportedStoreError if
    fsstore can't read the store."""
    path, names, ledgers = layout.root, _names(layout.root), layout.ledgers()
    if "commitlog" not in names and not ledgers and not names <= KNOWN_NAMES:
        if "@store" in names:
            raise NotAStoreError(path, "it is a mount point: name the directory of the store that is mounted there")
        raise NotAStoreError(path, f"there is no commitlog folder, but {min(names - KNOWN_NAMES)!r}")
    _refuse_ledgers(layout, ledgers)
    refuse_folders(layout)
    _refuse_duplicates(layout)
    refuse_missing_log(layout)


def unreadable(paths: Iterable[Path]) -> Iterator[tuple[Path, str]]:
    """The existing files of these that the disk refuses to read, each with its error in words. OSError."""
    for path in paths:
        try:
            with suppress(FileNotFoundError, NotADirectoryError, IsADirectoryError, ObstructedError, ValueError):
                read_file(path, MOST_BYTES)
        except OSError as error:
            if not is_refused_read(error):
                raise
            yield path, str(error.strerror)


def refuse_folders(layout: StoreLayout) -> None:
    """ObstructedError if a folder of the store is no folder, or a link that may not be followed; OptionError if a
    folder of the log can't be made. OSError."""
    logs = (*layout.ledgers(), *layout.commit_log.folders)
    for folder in (*logs, layout.consume_queues, layout.index, layout.config, layout.own):
        if os.path.lexists(folder) and not folder.is_dir():
            raise ObstructedError(folder, "folder")
        if folder.is_dir():
            os.close(open_folder(folder))  # raises, before any change, if it may not be followed
        elif not folder.is_relative_to(layout.root) and not folder.parent.is_dir():
            raise OptionError("storePathCommitLog", f"{folder.parent} does not exist")


def refuse_unwritable(layout: StoreLayout, kind: StoreFeatures) -> None:
    """UnsupportedStoreError if the store can only be read: a writer could not update all of its data."""
    for ledger in layout.ledgers():
        raise UnsupportedStoreError(
            layout.root,
            f"writing a DLedger commit log ({ledger.name}), which belongs to its group of brokers,",
            "mount it with --read-only, or with --follow beside its broker; publish through the broker",
        )
    refuse_features(layout, kind)


def refuse_features(layout: StoreLayout, kind: StoreFeatures) -> None:
    """UnsupportedStoreError if fsstore can't read all derived data of a store with these features."""
    if kind.unwritable is not None:
        instead = "it can be read all the same: mount it with --read-only or --follow"
        raise UnsupportedStoreError(layout.root, kind.unwritable, instead)


def _refuse_ledgers(layout: StoreLayout, ledgers: Sequence[Path]) -> None:
    if len(ledgers) > 1:
        raise UnsupportedStoreError(layout.root, f"more than one DLedger log ({ledgers[0].name}, {ledgers[1].name})")
    older = log_files(layout.log_before_ledger) if ledgers else []
    if older:
        where = layout.shown(older[0].parent)
        raise UnsupportedStoreError(layout.root, f"a commit log ({where}) from before DLedger's ({ledgers[0].name})")


def obstacles(layout: StoreLayout) -> Iterator[ObstructedError]:
    """Paths of a writer's files that are no files: folders, links of other users, FIFOs. OSError."""
    settings = (layout.topics, backup_of(layout.topics), layout.sizes, layout.retention, layout.used_log_paths)
    marks = (layout.clean_mark, layout.coverage, layout.deleted_topics)
    for path in (layout.lock, layout.abort, layout.checkpoint, *settings, *marks):
        try:
            require_file(path)
        except ObstructedError as error:
            yield error


def refuse_obstacles(layout: StoreLayout) -> None:
    """ObstructedError if the path of a writer's file is no file. OSError."""
    for found in obstacles(layout):
        raise found


def _refuse_duplicates(layout: StoreLayout) -> None:
    """DuplicateLogFileError if two files with one name both hold records: either may be the log's."""
    for file, other in pairwise(log_files(layout.commit_log)):
        both = file.name == other.name and all(FoundFile(one, 0).has_data for one in (file, other))
        if both:
            raise DuplicateLogFileError(file, other)


def refuse_missing_log(layout: StoreLayout) -> None:
    """MissingLogError, with the option that helps, if files of the log are evidently elsewhere."""
    used = _used_paths(layout)
    if used and not layout.names_log_paths:
        folders = [str(path) for paths in used.values() for path in paths]
        raise MissingLogError(
            layout.root,
            layout.shown(layout.used_log_paths),
            f"its log was written to {', '.join(folders)}",
            f"if it is in {layout.default_commit_log} again, remove config/{layout.used_log_paths.name}",
            " ".join(f"-o {name}={','.join(map(str, paths))}" for name, paths in used.items() if paths),
        )
    if not any(file.stat().st_size for file in log_files(layout.commit_log)):
        _refuse_no_log(layout)
    elif layout.names_log_paths:
        _refuse_absent_folders(layout, [path for paths in used.values() for path in paths])
    else:
        _refuse_half_a_log(layout)


def refuse_replica(layout: StoreLayout, *, is_replica: bool) -> None:
    """ReplicaStoreError if a writer other than its replication opens a replica; NotAReplicaError if replication opens a
    store that is none, and holds a log."""
    is_marked = os.path.lexists(layout.replica_note)
    if is_marked and not is_replica:
        note = read_replica_note(layout.replica_note)
        raise ReplicaStoreError(layout.root, note.master if note is not None else "a broker")
    if is_replica and not is_marked and log_files(layout.commit_log):
        raise NotAReplicaError(layout.root, "it has messages of its own", "name an empty directory for the copy")


def refuse_read_only_end(layout: StoreLayout) -> None:
    """OptionError if the log's newest file is in a folder that is only read."""
    paths = layout.commit_log
    last = next((file for file in reversed(log_files(paths)) if FoundFile(file, 0).has_data), None)
    if last is not None and last.parent in paths.read_only:
        reason = f"{last} is the newest file of the log, which is written on: name its folder in storePathCommitLog"
        raise OptionError("readOnlyCommitLogStorePaths", reason)


def _used_paths(layout: StoreLayout) -> dict[str, tuple[Path, ...]]:
    try:
        return read_used_paths(layout.used_log_paths) or {}
    except ConfigFileError:
        return {}  # check reports it


def _refuse_no_log(layout: StoreLayout) -> None:
    """Refuse queues or a checkpoint without a log: the log is elsewhere. If the log's first file had not reached the
    disk at a power cut, the recovery point shows that no byte had."""
    queues = queue_folders(layout.consume_queues) if not _never_reached_disk(layout) else ()
    evidence = next((layout.shown(queue) for queue in queues if _newest_entries(queue)), None)
    if evidence is None and layout.checkpoint.is_file() and read_checkpoint(layout.checkpoint).physic_ms:
        evidence = "checkpoint"
    if evidence is not None and layout.ledgers():
        folder = layout.commit_log.folders[0]
        raise UnsupportedStoreError(
            layout.root,
            f"a DLedger log that has no file in {layout.shown(folder)}, though {evidence} speaks of one,",
            f"if its broker keeps the files elsewhere (storePathDLedgerCommitLog), bind-mount that folder at {folder}",
        )
    if evidence is not None:
        folders = ", ".join(str(folder) for folder in layout.commit_log.folders)
        what = f"no file of the commit log is in {folders}, but {evidence} speaks of one"
        otherwise = "if the log is lost, remove consumequeue, index and checkpoint to begin a new one"
        raise MissingLogError(layout.root, evidence, what, otherwise)


def _never_reached_disk(layout: StoreLayout) -> bool:
    """Whether no byte of the log was surely on disk at fsstore's last flush, and no other program wrote since."""
    point = read_recovery_point(layout.coverage)
    return point is not None and point.physical_end == 0 and point.lock_mtime_ns == written_ns(layout.lock)


def _refuse_absent_folders(layout: StoreLayout, used: list[Path]) -> None:
    """Refuse a missing folder, or one without files if files of the log are missing: its disk is not mounted."""
    folders = layout.commit_log.folders
    for folder in folders:
        if not folder.is_dir():
            what = f"{folder} does not exist, and other folders hold files of the log"
            otherwise = f"mount its disk, or make {folder} if it is a new one"
            raise MissingLogError(layout.root, layout.shown(folder), what, otherwise)
    bare = [folder for folder in folders if not any(file.stat().st_size for file in numbered_files(folder))]
    bare += [folder for folder in used if folder not in folders]
    found = _missing_between(layout) or _missing_after(layout)
    if bare and found:
        evidence, physical_offset = found
        what = f"no file holds physical offset {physical_offset} of the log, as {evidence} shows"
        if bare[0] in folders:
            otherwise = f"{bare[0]} is empty: mount its disk, or leave it out if its files are lost"
        else:
            otherwise = f"it was written to {bare[0]}, too; if its files are lost, remove config/commitlog.json"
        raise MissingLogError(layout.root, evidence, what, otherwise)


def _refuse_half_a_log(layout: StoreLayout) -> None:
    """Without named folders: refuse a log with only every n-th file, or with queues that lead past its end."""
    found = _every_other(layout)
    is_ours = layout.sizes.exists()  # then other paths would be known: the newest files were lost
    if found is None and not is_ours and len(log_files(layout.commit_log)) <= _TOO_FEW_TO_TELL:
        found = _missing_after(layout)
    if found is not None:
        evidence, physical_offset = found
        what = (
            f"no file holds physical offset {physical_offset} of a commit log over several paths, as {evidence} shows"
        )
        otherwise = f"if these files are lost, name {layout.default_commit_log} alone"
        raise MissingLogError(layout.root, evidence, what, otherwise)


def _every_other(layout: StoreLayout) -> tuple[str, int] | None:
    """The first missing physical offset, and a folder as evidence, if the folder has only every n-th file: several
    paths take files in turn."""
    files = log_files(layout.commit_log)
    starts = [int(file.name) for file in files]
    steps = {after - before for before, after in pairwise(starts)}
    length = max(file.stat().st_size for file in files)
    if len(starts) > 2 and length and len(steps) == 1 and min(steps) >= 2 * length:
        return layout.shown(files[0].parent), starts[0] + length
    return None


def _missing_between(layout: StoreLayout) -> tuple[str, int] | None:
    """The first missing physical offset between two files, and the file after it as evidence."""
    files = log_files(layout.commit_log)
    length = max(file.stat().st_size for file in files)
    for file, following in pairwise(files):
        if length and int(following.name) > int(file.name) + length:
            return layout.shown(following), int(file.name) + length
    return None


def _missing_after(layout: StoreLayout) -> tuple[str, int] | None:
    """A physical offset after the last file that a queue leads to, and the queue. None if that file is not full: then
    it was cut, or another program's, and the log continued in it."""
    found, end = None, 0
    for queue in islice(queue_folders(layout.consume_queues), SAMPLED_QUEUES):
        newest = [start for start, size, _ in _newest_entries(queue) if 0 < size < MOST_RECORD_BYTES]
        if newest:
            end = end or _end(layout)  # read after the queue: a live writer's log is ahead of it
            if len(newest) == NEWEST_ENTRIES and end <= newest[0] < newest[1] < MOST_OFFSET:
                found = found or (layout.shown(queue), newest[0])
    return found if found is not None and _is_full(layout) else None


def _end(layout: StoreLayout) -> int:
    """Physical end of the log's last file if it is as long as the others."""
    files = log_files(layout.commit_log)
    try:
        sizes = read_sizes(layout.sizes)
    except ConfigFileError:
        sizes = None
    lengths = [file.stat().st_size for file in files] + [sizes.commit_log_bytes if sizes else 0]
    return int(files[-1].name) + max(lengths) if files else 0


def _is_full(layout: StoreLayout) -> bool:
    """Whether a blank ends the log's newest used file, so that a later file must exist. If queues lead to no record in
    it, it is damaged and proves nothing: False."""
    for path in reversed(log_files(layout.commit_log)):
        start, size = int(path.name), path.stat().st_size
        if size:
            with closing(MappedFile(path, size, Access.READ, start=start)) as file:
                led = list(_led_into(layout, file))
                if led and not any(_is_record(file, *one) for one in led):
                    return False
                if used_end(file):
                    return _ends_in_blank(layout, file, max(map(sum, led), default=start) - start)
    return True  # made ahead and never used: the log continues in another path


def _ends_in_blank(layout: StoreLayout, file: MappedFile, position: int) -> bool:
    """Whether records follow each other from `position` to a blank."""
    scan = scan_records(file.whole(), position, file.start, file.size, framing=layout.commit_log.framing, verify=False)
    return any(found.stop is ScanStop.BLANK for found in scan)


def _is_record(file: MappedFile, physical_offset: int, size: int) -> bool:
    """Whether a record header with that physical offset and size is there."""
    try:
        header = read_header(file.whole()[physical_offset - file.start :], physical_offset)
    except DamagedRecordError:
        return False
    return header.store_size == size and header.physical_offset == physical_offset


def _led_into(layout: StoreLayout, file: MappedFile) -> Iterator[tuple[int, int]]:
    """Physical offset and size of the newest record in a file that each queue leads to, if any."""
    end = file.start + file.size
    for queue in islice(queue_folders(layout.consume_queues), SAMPLED_QUEUES):
        start, size = _newest_before(end, queue)
        if file.start <= start and 0 < size <= end - start:
            yield start, size


def _newest_before(end: int, queue: Path) -> tuple[int, int]:
    """Physical offset and size in the queue's newest entry for a record before `end`; (-1, -1) without one."""
    for file in reversed(numbered_files(queue)):
        with _opened(file) as descriptor:
            before = _first(_entry_count(descriptor), lambda number: _entry(descriptor, number)[0] >= end)
            if before:
                start, size, _ = _entry(descriptor, before - 1)
                return start, size
    return -1, -1


def _newest_entries(queue: Path) -> list[tuple[int, int, int]]:
    """A queue's newest entries, oldest first: (physical offset, size, tags code)."""
    for file in reversed(numbered_files(queue)):
        with _opened(file) as descriptor:
            count = _entry_count(descriptor)
            if count:
                return [_entry(descriptor, number) for number in range(max(count - NEWEST_ENTRIES, 0), count)]
    return []


@contextmanager
def _opened(file: Path) -> Iterator[int]:
    descriptor = open_file(file)
    try:
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_RANDOM)
        yield descriptor
    finally:
        os.close(descriptor)


def _entry_count(descriptor: int) -> int:
    """Number of entries before the first that is all zeros; only zeros may follow it. Unwritten parts are not read,
    because that would fill the kernel's cache with zeros."""
    size = os.fstat(descriptor).st_size
    end = position = 0
    while (start := next_data(descriptor, position, size)) < size:
        end = position = min(next_hole(descriptor, start, size), size)
    return _first(end // ENTRY_STRUCT.size, lambda number: not any(_entry(descriptor, number)))


def _first(count: int, holds: Callable[[int], bool]) -> int:
    """The first of `count` numbers for which `holds` is true, if it is true for all later ones; else `count`."""
    low, high = 0, count
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if holds(middle) else (middle + 1, high)
    return low


def _entry(descriptor: int, number: int) -> tuple[int, int, int]:
    entry = os.pread(descriptor, ENTRY_STRUCT.size, number * ENTRY_STRUCT.size)
    physical_offset, size, tags_code = ENTRY_STRUCT.unpack(entry.ljust(ENTRY_STRUCT.size, b"\0"))
    return physical_offset, size, tags_code
