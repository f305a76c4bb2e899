"""Opening a store in one of three modes (docs/format.md, 8).

WRITE      takes the lock, leaves `abort`, recovers on disk
READ_ONLY  refused beside a writer; recovers in memory
FOLLOW     beside a writer; locks and recovers nothing
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

from engine.deadline import uncollected
from engine.derived.consume_queues import ConsumeQueues
from engine.derived.deleted_topics import DeletedTopics
from engine.derived.index import Index
from engine.derived.index_from_log import IndexFromLog
from engine.derived.queues_from_log import QueuesFromLog
from engine.derived.store_files import StoreFiles
from engine.errors import NotAStoreError, RefusedReadError, StoreLockedError
from engine.files.disk import Disk, make_directory, remove_file, write_durably
from engine.files.file_queue import BufferPool, FileQueue, FileSource
from engine.files.file_scan import written_ns
from engine.files.ignored import IgnoredErrors
from engine.files.layout import StoreLayout
from engine.files.lock import StoreLock
from engine.files.mapped_file import Access
from engine.files.open_files import OpenFiles
from engine.files.paths import hold_folder
from engine.files.preallocate import Preallocator
from engine.log.commit_log import CommitLog
from engine.log.evidence import Extents
from engine.open.features import StoreFeatures, features_of
from engine.open.geometry import ChosenSizes, choose_at, layout_of, read_topics, remembered_sizes
from engine.open.preflight import (
    is_new,
    refuse_folders,
    refuse_obstacles,
    refuse_read_only_end,
    refuse_replica,
    refuse_unreadable,
    refuse_unwritable,
    unreadable,
)
from engine.open.quarantine import quarantine_config, set_aside
from engine.open.recover import LastShutdown, RecoveryResult, read_last_shutdown, recover
from engine.open.remake import LogEntries
from engine.results import RecoveryReport
from engine.settings.config import EMBEDDED_SIZES, FileSizes, OpenMode, StoreConfig, StoreIdentity
from engine.settings.identity import make_identity, read_identity, require_identity
from engine.settings.shape_files import remember_paths, write_sizes
from engine.settings.topics_file import TopicTable

STORE_MODE = 0o700
"""Mode of a new store's directory. Its files are readable by all users, as a broker's are."""


def open_store_files(
    layout: StoreLayout, config: StoreConfig, sizes: FileSizes, access: Access, known: Extents | None = None
) -> StoreFiles:
    """Open the store's files with these sizes, without a change on disk. The ends of log and queues are not known yet.
    With all `known` queues, by a clean mark, their folders are not listed. OSError: no file stays open."""
    writes = access is Access.WRITE
    paths, log_bytes, pool = layout.commit_log, sizes.commit_log_bytes, None
    if writes and config.transient_pool_buffers:
        pool = BufferPool(config.transient_pool_buffers, log_bytes)
    source = FileSource(paths, log_bytes, access, config.disk, pool=pool)
    if writes and config.preallocate:
        source = Preallocator(paths, log_bytes, config.disk, warm=config.warm_files, pool=pool)
    open_files = OpenFiles()
    with ExitStack() as stack:
        stack.callback(source.close)
        files = FileQueue(paths, log_bytes, access, disk=config.disk, source=source, open_files=open_files)
        stack.callback(files.close)
        queues = ConsumeQueues(layout.consume_queues, sizes.consume_queue_bytes, access, config.disk, open_files)
        stack.callback(queues.close)
        queues.load(known)
        ignored = IgnoredErrors()
        index = Index(layout.index, sizes.index_slots, sizes.index_entries, access, config.clock, config.disk, ignored)
        stack.callback(index.close)
        index.load()
        stack.pop_all()
    log, deleted = CommitLog(files, config.clock), DeletedTopics(layout.deleted_topics, config.disk)
    return StoreFiles(
        layout,
        access,
        config.disk,
        log,
        queues,
        index,
        (QueuesFromLog(log, queues, deleted, config.delay_levels), IndexFromLog(log, index)),
        config.delay_levels,
        deleted,
        config.multi_dispatch,
        ignored,
    )


@dataclass(frozen=True, slots=True)
class Opened:
    """A store whose end is known. `lock` is held in WRITE only, unless the disk refused it."""

    parts: StoreFiles
    table: TopicTable
    recovered: RecoveryResult
    lock: StoreLock | None
    choice: ChosenSizes
    kind: StoreFeatures
    identity: StoreIdentity
    let_go: Callable[[], None] = lambda: None
    """Releases the holds on the store's folders."""

    def close(self) -> None:
        """Close all files and release the lock, without writing a mark."""
        self.parts.close()
        if self.lock is not None:
            self.lock.release()
        self.let_go()


def open_store(path: Path, config: StoreConfig, create: bool) -> Opened:
    """Open the store at `path` in `config.mode`. `create` (WRITE only) makes a new store if there is none. OpenError,
    ObstructedError, StoreFullError, OSError; ValueError: `create` with a mode that only reads."""
    if create and config.mode is not OpenMode.WRITE:
        raise ValueError(f"create=True goes with OpenMode.WRITE: {config.mode} makes no store")
    layout = layout_of(path, config)
    if config.identity is not None:
        require_identity(layout, config.identity)
    new = is_new(layout)
    if new and not create:
        raise NotAStoreError(path, "nothing is there: make a store with `mountctl init`, or create=True")
    if new:
        refuse_folders(layout)
    else:
        refuse_unreadable(layout)
    writes = config.mode is OpenMode.WRITE and config.stopped is None
    back = "can't be read: topics that were deleted may be there again"
    notes = [f"{layout.shown(path)} {back}: {why}" for path, why in unreadable([layout.deleted_topics])]
    with uncollected():  # the collector would traverse thousands of queues
        found = (_open_past_refused if writes else _open_reading)(layout, config)
    found.parts.queues.make_refused(LogEntries(found.parts))  # recovery itself makes refused queues again
    return replace(found, recovered=found.recovered.with_notes(notes))


def _open_past_refused(layout: StoreLayout, config: StoreConfig) -> Opened:
    """Open for writing. Files of derived data that the disk refuses are set aside and made again."""
    notes: dict[Path, str] = {}
    while True:
        try:
            opened = _open_writing(layout, config)
        except RefusedReadError as refused:
            if refused.path in notes:  # the disk refuses the new one, too
                raise
            with StoreLock(layout.lock):
                notes[refused.path] = set_aside(layout, refused, config.disk)
        else:
            return replace(opened, recovered=opened.recovered.with_notes(list(notes.values())))


def _open_writing(layout: StoreLayout, config: StoreConfig) -> Opened:
    path = layout.root
    refuse_read_only_end(layout)
    table = read_topics(layout, config)
    refuse_unwritable(layout, features_of(layout, table))
    for changed in make_directory(path, keep_owner=False, mode=STORE_MODE):  # a new store is its maker's
        config.disk.sync_directory(changed)
    refuse_obstacles(layout)
    with ExitStack() as stack:
        lock = stack.enter_context(StoreLock(layout.lock))
        refuse_replica(layout, is_replica=config.is_replica)  # under the lock, so that no other process promotes it
        hold = stack.enter_context(ExitStack())
        hold.callback(hold_folder(path))
        last_shutdown = read_last_shutdown(layout)  # under the lock, so that no other writer interferes
        own = (layout.clean_mark, layout.coverage, layout.checkpoint, layout.sizes)
        unread = [f"{layout.shown(path)} can't be read, and is written anew: {why}" for path, why in unreadable(own)]
        new = is_new(layout)
        _make_directories(
            [*layout.commit_log.writable, layout.consume_queues, layout.index, layout.config], config.disk
        )
        for folder in layout.commit_log.writable:
            hold.callback(hold_folder(folder))
        table, notes = _topics_to_write(layout, config, table)
        kind = features_of(layout, table)
        refuse_unwritable(layout, kind)  # now that no other writer can change it
        choice = ChosenSizes(config.sizes or EMBEDDED_SIZES) if new else choose_at(layout, config)
        remember_paths(layout, config.disk)
        if remembered_sizes(layout) != choice.sizes:
            write_sizes(layout.sizes, choice.sizes, config.disk)
        begin_writing(layout, config.disk)
        identity = make_identity(layout, config.disk)
        lock.sync(config.disk)
        known = last_shutdown.mark.queues if last_shutdown.mark is not None else None
        parts = open_store_files(layout, config, choice.sizes, Access.WRITE, known)
        stack.callback(parts.close)
        topics = frozenset(table.names()) if not notes else frozenset()
        recovered = _recover(parts, last_shutdown, choice, config, topics, table.discard).with_notes(unread + notes)
        stack.pop_all()
    return Opened(parts, table, recovered, lock, choice, kind, identity, hold.pop_all().close)


def _topics_to_write(layout: StoreLayout, config: StoreConfig, table: TopicTable) -> tuple[TopicTable, list[str]]:
    """`table` as it is under the lock, and notes for the report. A malformed topics.json is moved away, because no
    topic could be created with it. Topics with messages are then known from their queues; other topics and permissions
    come from the file's backup, or are lost."""
    notes: list[str] = []
    table.reload()
    while table.problem is not None:
        reason = table.problem.reason
        moved = list(quarantine_config(layout, f"config/{layout.topics.name}", config.disk))
        table = read_topics(layout, config)
        lost = "the last change of topics is lost" if table.names() else "empty topics and permissions are lost"
        notes += [f"config/{layout.topics.name}: {reason}; {lost}", *moved]
    return table, notes


def _open_reading(layout: StoreLayout, config: StoreConfig) -> Opened:
    """Open in READ_ONLY or FOLLOW, or in WRITE if the store is stopped; then take the lock if the disk allows it."""
    with ExitStack() as stack:
        lock = _lock_if_possible(layout) if config.mode is OpenMode.WRITE else None
        if lock is not None:
            stack.enter_context(lock)
        elif config.mode is not OpenMode.FOLLOW and (holder := StoreLock.holder(layout.lock)) is not None:
            raise StoreLockedError(layout.root, holder or None)
        table = read_topics(layout, config)
        kind = features_of(layout, table)
        choice = choose_at(layout, config)
        if kind.has_batches and config.mode is not OpenMode.FOLLOW:
            note = "a broker's index lacks the keys of messages within batches"
            choice = replace(choice, rebuild_index=True, note=note)
        parts = open_store_files(layout, config, choice.sizes, Access.READ)
        stack.callback(parts.close)
        if config.mode is OpenMode.FOLLOW:
            parts.queues.recover(scan=False)
            recovered = RecoveryResult(RecoveryReport(), None, {})
        else:
            is_known = table.problem is None and kind.topics_known
            topics = frozenset(table.names()) if is_known else frozenset()
            recovered = _recover_in_memory(parts, choice, config, topics, is_locked=lock is not None)
        stack.pop_all()
    return Opened(parts, table, recovered, lock, choice, kind, read_identity(layout))


def _lock_if_possible(layout: StoreLayout) -> StoreLock | None:
    try:
        return StoreLock(layout.lock)
    except OSError:
        return None


def _recover_in_memory(
    parts: StoreFiles, choice: ChosenSizes, config: StoreConfig, topics: frozenset[str], *, is_locked: bool
) -> RecoveryResult:
    """Recover a store that no process writes, without a change on disk. StoreLockedError: a writer opened it meanwhile,
    unless `is_locked`."""
    parts.queues.unread = {}
    last_shutdown = read_last_shutdown(parts.layout)
    recovered = _recover(parts, last_shutdown, choice, config, topics, lambda topic: None)
    if not is_locked:
        _require_at_rest(parts.layout, last_shutdown)
    parts.log.files.truncate(parts.log.readable_end)  # later files are not the log's
    parts.index.flush()  # from the memtable to the files, in memory
    notes = [f"made again in memory: {error}" for error in parts.queues.unread.values()]
    parts.queues.unread = None  # later ones raise their error: nothing makes them again
    return recovered.with_notes(notes)


def _require_at_rest(layout: StoreLayout, last_shutdown: LastShutdown) -> None:
    """StoreLockedError if a writer has opened the store since `last_shutdown` was read: no lock prevented it."""
    holder = StoreLock.holder(layout.lock)
    reopened = last_shutdown.clean and layout.abort.exists()
    if holder is not None or reopened or written_ns(layout.lock) != last_shutdown.lock_mtime_ns:
        raise StoreLockedError(layout.root, holder or None)


def _recover(
    parts: StoreFiles,
    last_shutdown: LastShutdown,
    choice: ChosenSizes,
    config: StoreConfig,
    topics: frozenset[str],
    forget: Callable[[str], None],
) -> RecoveryResult:
    found = recover(
        parts,
        last_shutdown,
        topics,
        forget,
        rebuild_index=choice.rebuild_index,
        is_replica=config.is_replica,
        progress=config.progress,
    )
    return found.with_notes([choice.note] if choice.note else [])


def _make_directories(paths: Sequence[Path], disk: Disk) -> None:
    for path in paths:
        for changed in make_directory(path):
            disk.sync_directory(changed)


def begin_writing(layout: StoreLayout, disk: Disk) -> None:
    """Mark the store as not closed, before a byte of it changes. OSError."""
    if not os.path.lexists(layout.abort):
        write_durably(layout.abort, b"", disk)
        disk.sync_directory(layout.root)
    if layout.clean_mark.exists():
        remove_file(layout.clean_mark, disk)
