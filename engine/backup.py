"""Backup: a copy of a store in a directory, brought up to date by each further run (docs/operations.md, Backup).

    source log   | in the copy | new since then | being written
                               ^ the copy's end ^ the end of this run: on disk, if the writer is fsstore

Derived data is not copied. Opening the copy makes it, and reads and checks every new record, as after a crash of its
writer. So an interrupted run leaves the copy as it was, with some messages more. Settings are copied whole, consumer
offsets first, so that none is ahead of the copied log.

    COPY/fsstore/backup.json    the copied store, the end of the copy, and whether its last run was completed
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path

from engine.derived.consume_queue import ConsumeQueue
from engine.derived.consume_queues import ConsumeQueues
from engine.derived.coverage import shows_multi_dispatch
from engine.derived.deleted_topics import DeletedTopics
from engine.derived.marks import RecoveryPoint, read_recovery_point
from engine.derived.store_files import StoreFiles
from engine.errors import BackupError, MissingLogError, NotAStoreError, ReadError, RefusedReadError, StoreBusyError
from engine.files.disk import TEMPORARY_SUFFIX, make_directory, remove_file, replace_file
from engine.files.file_queue import FileQueue
from engine.files.file_scan import written_ns
from engine.files.layout import StoreLayout
from engine.files.lock import StoreLock
from engine.files.mapped_file import Access, MappedFile
from engine.files.open_files import OpenFiles, files_allowed
from engine.files.paths import is_refused_read, read_file, remove_tree, store_root, unlink
from engine.open.features import features_of
from engine.open.geometry import layout_of, read_topics
from engine.open.open import STORE_MODE, begin_writing, open_store_files
from engine.open.preflight import is_new, refuse_unreadable, refuse_unwritable
from engine.record.kernel.files import refused_end
from engine.results import CheckProgress
from engine.settings.config import FileSizes, OpenMode, RecoveryProgress, Retention, StoreConfig
from engine.settings.notes import BackupNote, read_backup_note, write_backup_note
from engine.settings.shape_files import write_sizes
from engine.store import MessageStore

CHUNK_BYTES = 4 << 20
TRIES = 4
EMPTY = "name an empty directory"
MOST_SETTINGS_BYTES = 256 << 20
NO_RETENTION = Retention(disk_warn_ratio=1.0, clean_interval_ms=3_600_000, delete_pause_ms=0)
"""Deletes no message: the store's own retention settings do not apply to its copy."""

Progress = Callable[[CheckProgress], None]


@dataclass(frozen=True, slots=True)
class BackedUp:
    """Result of a run: the copy holds physical offsets [begin, end) of the store, and had those before `start` already.
    `messages` is the number of its messages, `damaged` that of damaged ranges in the copied part. `left_out`: settings,
    and queues without a message in the log, that the disk refuses; the copy keeps its old ones, if any. `refused`: log
    files with pages that the disk refuses. `missing`: bytes at the log's end that are missing until it reads them."""

    begin: int
    start: int
    end: int
    messages: int
    damaged: int
    left_out: tuple[str, ...] = ()
    refused: tuple[str, ...] = ()
    missing: int = 0


def back_up(
    path: Path | str, target: Path | str, progress: Progress | None = None, config: StoreConfig | None = None
) -> BackedUp:
    """Update the copy of the store at `path` in the directory `target`, or make one in an empty directory.

    `config` is used to find the store's log. The store may be closed, or in use by any writer, and is not changed.
    BackupError: `target` is no copy of it, or can't be updated; StoreBusyError: retention deleted files during the
    copy; OpenError, StoreFullError, OSError. After any of them the copy is as good as before.
    """
    config = config or StoreConfig()
    layout, copy = layout_of(store_root(path), config), StoreLayout(store_root(target))
    for tries_left in reversed(range(TRIES)):
        try:
            return _Run(layout, copy, config, progress or (lambda now: None)).run()
        except RefusedReadError:
            raise
        except (ReadError, FileNotFoundError):
            continue  # retention deleted a file that was being read
        except MissingLogError:  # a listing beside a writer that rolls and deletes may miss each file
            if not tries_left or StoreLock.holder(layout.lock) is None:
                raise
    raise StoreBusyError(layout.root)


def restore(path: Path | str, target: Path | str, progress: Progress | None = None) -> BackedUp:
    """Make a store in the empty directory `target`, or go on with an interrupted run, of the backup at `path`. What is
    copied is checked, as in a backup; the store is none itself.

    BackupError: no run of a backup ended at `path`, or `target` can't be used; other errors as `back_up`.
    """
    source, made = StoreLayout(store_root(path)), StoreLayout(store_root(target))
    note, begun = read_backup_note(source.backup_note), read_backup_note(made.backup_note)
    if note is None or note.end < 0:
        raise BackupError(source.root, "no backup run has finished there", "name a backup; `cp -a` copies a store")
    if begun is not None and begun.store != str(source.root):
        raise BackupError(made.root, "it is a backup of its own", EMPTY)
    done = back_up(source.root, made.root, progress)
    remove_file(made.backup_note, StoreConfig().disk)
    return done


def _chunk(files: FileQueue, start: int, length: int) -> tuple[memoryview, int]:
    """Bytes of a log, and the position after the last one that the disk refuses; 0: it refuses none. Refused bytes are
    zeros, and damage in the copy. ReadError: retention deleted them."""
    try:
        found = files.view(start, length)
    except RefusedReadError:
        return memoryview(bytes(length)), length
    return found, refused_end(found)


class _Run:
    def __init__(self, layout: StoreLayout, copy: StoreLayout, config: StoreConfig, progress: Progress) -> None:
        self._layout = layout
        self._copy = copy
        self._config = config
        self._disk = config.disk
        self._progress = progress
        self._left_out: set[str] = set()
        self._refused: set[str] = set()
        self._refused_end = 0
        """Physical offset after the last byte that the disk refused."""

    def run(self) -> BackedUp:
        layout = self._layout
        if is_new(layout):
            raise NotAStoreError(layout.root, "nothing is there")
        refuse_unreadable(layout)
        refuse_unwritable(layout, features_of(layout, read_topics(layout, self._config)))
        note = self._known_copy()
        deleted = DeletedTopics(layout.deleted_topics, self._disk)
        offsets = self._settings((layout.consumer_offsets, layout.lmq_consumer_offsets))
        sizes, end = self._sizes_and_end()
        with closing(open_store_files(layout, self._config, sizes, Access.READ)) as source:
            begin = source.log.min_offset
            source.queues.unread = {}  # the copy's queues are made from its log
            source.queues.recover(scan=False)
            source.queues.expire(begin)
            source.queues.refresh(end)
            if not self._config.multi_dispatch and shows_multi_dispatch(source.log, source.queues, begin):
                self._config = replace(self._config, multi_dispatch=True)
            if note is None or note.end < 0:
                note = self._make(sizes)
            start = self._require_same(source, note, end)
            write_backup_note(self._copy.backup_note, replace(note, is_complete=False), self._disk)
            self._copy_log(source, start, end)
            self._keep_numbers(source)
            self._copy_settings(offsets, deleted)
            source.queues.close()  # the copy's take as many descriptors
            done = self._derive(begin, start, end, source.queues.unread)
            files = (file for file in source.log.files.files if file.start + file.size <= done.end)
            stamps = {file.start: written_ns(file.path) for file in files}
        store, now_ms = str(layout.root), self._config.clock()
        write_backup_note(
            self._copy.backup_note, BackupNote(store, True, done.begin, done.end, now_ms, stamps), self._disk
        )
        return done

    # store and copy before the run

    def _known_copy(self) -> BackupNote | None:
        """The copy's note; None if there is no copy yet. BackupError: `target` holds other files."""
        root = self._copy.root
        if root == self._layout.root or root in self._layout.root.parents or self._layout.root in root.parents:
            raise BackupError(root, "it lies in the store, or the store in it", "name a directory elsewhere")
        note = read_backup_note(self._copy.backup_note)
        if note is None and not self._is_blank():
            raise BackupError(root, "it is not empty and not a backup", EMPTY)
        return note

    def _is_blank(self) -> bool:
        """Whether the copy's directory is empty, apart from files of an interrupted first run."""
        root, own, note = self._copy.root, self._copy.own, self._copy.backup_note
        left = {own, note.with_name(note.name + TEMPORARY_SUFFIX)}
        return all(path in left for folder in (root, own) if folder.is_dir() for path in folder.iterdir())

    def _sizes_and_end(self) -> tuple[FileSizes, int]:
        """The sizes of the store's files, and the physical offset up to which its log is copied."""
        holder = StoreLock.holder(self._layout.lock)
        mode = OpenMode.READ_ONLY if holder is None else OpenMode.FOLLOW
        with MessageStore.open(self._layout.root, replace(self._config, mode=mode, progress=self._recovering)) as store:
            sizes, end = store.sizes, store.physical_end
        point = read_recovery_point(self._layout.coverage)
        if holder is not None and point is not None and point.lock_mtime_ns == written_ns(self._layout.lock):
            end = point.physical_end  # after a power cut other records may lie behind it
        return sizes, end

    def _require_same(self, source: StoreFiles, note: BackupNote, end: int) -> int:
        """Physical end of the copy. BackupError: it differs from the store before that."""
        root, begin = self._copy.root, source.log.min_offset
        with MessageStore.open(root, self._copy_config()) as copy:  # recovers it after an interrupted run
            have = copy.physical_end
            is_empty = not copy.stats().commit_log_files
        if note.end < 0 and (is_empty or have < begin):  # it never was one
            if not is_empty:
                self._clear()
            return begin
        if note.is_complete and have != note.end:
            raise BackupError(root, "it was written to since it was made", EMPTY)
        if have > end:
            raise BackupError(root, f"it reaches to physical offset {have}, and the store only to {end}", EMPTY)
        if have < begin:
            what = f"the store's log begins at {begin} by now, and what follows on {have} is gone"
            raise BackupError(root, what, f"{EMPTY}, and run backups more often")
        point = read_recovery_point(self._copy.coverage)
        with closing(FileQueue(self._copy.commit_log, source.log.files.file_bytes, Access.READ)) as files:
            if point is not None and not _has_newest(source, files, point):
                raise BackupError(root, "its newest message differs from the store's message there", EMPTY)
            for file in source.log.files.files:
                is_known = note.stamps.get(file.start) == written_ns(file.path)
                if file.start + file.size <= have and not is_known and not _same(file, files.find(file.start)):
                    raise BackupError(root, f"{file.path.name} differs in the store, as after a repair", EMPTY)
        return have

    # copying

    def _make(self, sizes: FileSizes) -> BackupNote:
        """Make an empty store. Its note, which makes it a backup, is written before its folders."""
        copy, made = self._copy, []
        made += make_directory(copy.root, keep_owner=False, mode=STORE_MODE)
        note = BackupNote(str(self._layout.root), False, 0, -1, self._config.clock(), {})
        write_backup_note(copy.backup_note, note, self._disk)
        for folder in (*copy.commit_log.writable, copy.consume_queues, copy.index, copy.config):
            made += make_directory(folder)
        for changed in made:
            self._disk.sync_directory(changed)
        write_sizes(copy.sizes, sizes, self._disk)
        return note

    def _clear(self) -> None:
        """Make the copy an empty store again."""
        begin_writing(self._copy, self._disk)
        for folder in (*self._copy.commit_log.writable, self._copy.consume_queues, self._copy.index):
            remove_tree(folder)
            make_directory(folder)
        for mark in (self._copy.coverage, self._copy.checkpoint):
            remove_file(mark, self._disk)

    def _copy_log(self, source: StoreFiles, start: int, end: int) -> None:
        """Append the physical range [start, end) of the store's log to the copy's, and sync it."""
        begin_writing(self._copy, self._disk)
        file_bytes = source.log.files.file_bytes
        with (
            StoreLock(self._copy.lock),
            closing(FileQueue(self._copy.commit_log, file_bytes, Access.WRITE, disk=self._disk)) as files,
        ):
            files.set_end(start)
            for at, chunk in self._chunks(source, start, end):
                if not files.files:
                    files.roll(at)
                files.append(chunk)
                self._progress(CheckProgress("copying", at + len(chunk) - start, end - start))
            files.flush()

    def _chunks(self, source: StoreFiles, start: int, end: int) -> Iterator[tuple[int, memoryview]]:
        """(physical offset, bytes) of pieces of the log in [start, end), each of one file. ReadError: retention deleted
        a file."""
        file_bytes = source.log.files.file_bytes
        while start < end:
            length = min(CHUNK_BYTES, end - start, file_bytes - start % file_bytes)
            chunk, until = _chunk(source.log.files, start, length)
            if until:
                self._refused_end = start + until
                file = source.log.files.find(start)
                assert file is not None
                self._refused.add(self._layout.shown(file.path))
            yield start, chunk
            start += length

    def _keep_numbers(self, source: StoreFiles) -> None:
        """Copy the newest entry of queues whose messages have all expired: only it holds their next queue offsets."""
        file_bytes, open_files = source.queues.file_bytes, OpenFiles(files_allowed() // 4)
        queues = ConsumeQueues(self._copy.consume_queues, file_bytes, Access.WRITE, self._disk, open_files)
        queues.load()
        made: list[ConsumeQueue] = []
        with closing(queues):
            for queue in source.queues:
                is_empty = 0 <= queue.newest_physical_offset < source.log.min_offset
                if is_empty and queue.queue_id not in queues.queue_ids(queue.topic):
                    newest = queue.entries(queue.max_offset - 1, 1)
                    made.append(queues.get_or_create(queue.topic, queue.queue_id))
                    made[-1].append(queue.max_offset - 1, newest)
                if len(made) == queues.many_open:
                    queues.flush(made)
                    made.clear()
            queues.flush(made)

    def _settings(self, paths: tuple[Path, ...]) -> dict[str, bytes]:
        found = {}
        for path in paths:
            try:
                found[path.name] = read_file(path, MOST_SETTINGS_BYTES)
            except FileNotFoundError:
                continue
            except OSError as error:
                if not is_refused_read(error):
                    raise
                self._left_out.add(self._layout.shown(path))
        return found

    def _copy_settings(self, offsets: dict[str, bytes], deleted: DeletedTopics) -> None:
        """Copy the current settings with the earlier consumer `offsets`. Deleted topics are read first: a topic that is
        deleted meanwhile stays in the copy, without its settings. Topics that were `deleted` before the log was copied
        are deleted in the copy, too, because retention may have dropped their note since."""
        layout, copy = self._layout, self._copy
        own = self._settings((layout.deleted_topics,))
        shape = {layout.sizes.name, layout.used_log_paths.name}
        names = [path for path in sorted(layout.config.iterdir()) if path.is_file() and path.name not in shape]
        known = self._left_out | {f"{layout.config.name}/{name}" for name in offsets}
        settings = self._settings(tuple(path for path in names if layout.shown(path) not in known)) | offsets
        for name, content in settings.items():
            replace_file(copy.config / name, content, self._disk)
        for path in copy.config.iterdir():
            is_left_out = f"{copy.config.name}/{path.name}" in self._left_out  # the copy keeps what it has
            if path.is_file() and path.name not in settings and path.name not in shape and not is_left_out:
                unlink(path)
        for name, content in own.items():
            replace_file(copy.own / name, content, self._disk)
        DeletedTopics(copy.deleted_topics, self._disk).include(deleted)

    # derived data

    def _copy_config(self, max_bytes: int | None = None) -> StoreConfig:
        return StoreConfig(
            retention=replace(NO_RETENTION, max_bytes=max_bytes),
            multi_dispatch=self._config.multi_dispatch,
            delay_levels=self._config.delay_levels,
            preallocate=False,
            progress=self._recovering,
            disk=self._disk,
        )

    def _recovering(self, now: RecoveryProgress) -> None:
        self._progress(CheckProgress(now.stage, now.done_bytes, now.total_bytes))

    def _derive(self, begin: int, start: int, end: int, unread: Collection[tuple[str, int]]) -> BackedUp:
        """Open the copy, which recovers it, delete the log files that the store has deleted, and close it cleanly. The
        disk refused the store's `unread` queues."""
        with MessageStore.open(self._copy.root, self._copy_config(max_bytes=end - begin)) as store:
            copied_end = store.physical_end
            if copied_end != end and not start <= copied_end < self._refused_end:
                what = f"it ends at {copied_end}, not at {end}: what follows there is no record"
                raise BackupError(self._copy.root, what, "mountctl check tells what is wrong with the store")
            while store.clean():
                pass
            stats = store.stats()
            damaged, refused = len(store.recovery.damaged), tuple(sorted(self._refused))
            folders = (Path(topic, str(queue)) for topic, queue in unread)
            without = {folder for folder in folders if not (self._copy.consume_queues / folder).is_dir()}
            queues = {self._layout.shown(self._layout.consume_queues / folder) for folder in without}
            left_out = tuple(sorted(self._left_out | queues))
            return BackedUp(
                stats.min_physical_offset,
                start,
                copied_end,
                stats.messages,
                damaged,
                left_out,
                refused,
                end - copied_end,
            )


def _has_newest(source: StoreFiles, files: FileQueue, point: RecoveryPoint) -> bool:
    """Whether the store has the newest record in the copy's recovery point at the same physical offset."""
    newest = point.newest_record
    if newest is None or newest.physical_offset < source.log.min_offset:
        return True
    where = newest.physical_offset, newest.size
    return bool(source.log.files.view(*where) == files.view(*where))


def _same(file: MappedFile, other: MappedFile | None) -> bool:
    return other is not None and bool(file.pages() == other.pages())
