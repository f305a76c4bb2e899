"""repair: rebuilds derived data, and cuts or frames damaged bytes. Good records are never changed.

Stopping is safe at any point. The marks that make an opening trust the store are removed first, damaged bytes are
copied before they are framed, and derived data is made again by an opening, as by any later one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path

from engine.derived.checkpoint import Checkpoint, write_checkpoint
from engine.derived.consume_queues import ConsumeQueues
from engine.derived.coverage import shows_multi_dispatch
from engine.derived.store_files import StoreFiles
from engine.errors import REFUSED_FILE, REFUSED_PAGE, NotAStoreError, ReadError, RefusedReadError
from engine.files.disk import remove_file
from engine.files.file_queue import FileQueue
from engine.files.file_scan import file_name
from engine.files.layout import StoreLayout
from engine.files.lock import StoreLock
from engine.files.mapped_file import Access, MappedFile, unread_end
from engine.files.paths import remove_tree, store_root, unlink
from engine.log.evidence import Evidence
from engine.log.scan import Known, LogScan
from engine.log.tombstone import fits_tombstone, keep_bytes, write_tombstone
from engine.open.features import features_of
from engine.open.geometry import choose_at, index_paths, layout_of, read_topics
from engine.open.offline import check_at_rest, check_store, opened_at_rest
from engine.open.open import begin_writing
from engine.open.preflight import is_new, refuse_obstacles, refuse_read_only_end, refuse_unreadable, refuse_unwritable
from engine.open.quarantine import (
    cut_long_files,
    keep_records,
    quarantine_config,
    quarantine_foreign,
    set_aside,
    written_after,
)
from engine.results import CheckProgress, DamagedRange, Problem, ProblemKind
from engine.settings.config import OpenMode, StoreConfig
from engine.store import MessageStore


def repair_store(
    path: Path | str, progress: Callable[[CheckProgress], None] | None = None, config: StoreConfig | None = None
) -> Iterator[str]:
    """Repair an unmounted store; yield a sentence for each change, none for a good store.

    `config` is used to find the log and to open the store afterwards; its mode is ignored. OpenError, ObstructedError,
    StoreFullError, OSError. It is safe to stop and to run again.
    """
    config = replace(config or StoreConfig(), mode=OpenMode.WRITE, multi_dispatch=False)
    layout = layout_of(store_root(path), config)
    path = layout.root
    if is_new(layout):
        raise NotAStoreError(path, "nothing is there")
    refuse_unreadable(layout)
    refuse_unwritable(layout, features_of(layout, read_topics(layout, config)))
    refuse_read_only_end(layout)
    refuse_obstacles(layout)
    with StoreLock(layout.lock):
        problems = list(check_at_rest(layout, config, progress))
        if not problems and not layout.abort.exists():
            return
        topics, sizes = read_topics(layout, config), choose_at(layout, config).sizes
        with opened_at_rest(layout, config, topics, sizes) as (parts, evidence):  # before a queue is removed
            filled = shows_multi_dispatch(parts.log, parts.queues, parts.log.min_offset)
            config = replace(config, multi_dispatch=filled)
            if problems:
                yield from _note_deleted(parts, config, evidence)
        if problems:
            _distrust(layout, config)
            if layout.check_note.exists():  # it describes the store before the repair
                remove_file(layout.check_note, config.disk)
            for problem in problems:
                if problem.kind is ProblemKind.CONFIG:
                    yield from quarantine_config(layout, problem.path, config.disk)
            yield from quarantine_foreign(layout, problems, config.disk)
            yield from _frame_damage(layout, config, evidence)
            yield from _drop_derived(layout, config, problems)
    with MessageStore.open(path, config):
        pass  # the opening makes removed derived data again
    yield from (f"not repaired: {problem}" for problem in check_store(path, progress, config))


def _scan(files: FileQueue, config: StoreConfig, evidence: Evidence) -> LogScan:
    """A scan of the whole log."""
    first = 0 if files.min_offset == 0 else None
    known = Known(lambda topic, queue_id: first, evidence, multi_dispatch=config.multi_dispatch)
    return LogScan(files, files.min_offset, known)


def _note_deleted(parts: StoreFiles, config: StoreConfig, evidence: Evidence) -> Iterator[str]:
    """Note the topics that their broker deleted, while the store is still marked as closed."""
    scan = _scan(parts.log.files, config, evidence)
    for found in scan:
        parts.deleted.without_queues(found)
    for topic in parts.deleted.keep_left_out(scan.end, durably=True):
        yield f"noted that topic {topic} was deleted: neither config/topics.json nor a consume queue knows it"


def _distrust(layout: StoreLayout, config: StoreConfig) -> None:
    """Make every later opening check the whole store, RocketMQ's too."""
    begin_writing(layout, config.disk)
    if layout.coverage.exists():
        remove_file(layout.coverage, config.disk)
    remove_file(layout.checkpoint, config.disk)  # it may have any length
    write_checkpoint(layout.checkpoint, Checkpoint(), config.disk)


def _frame_damage(layout: StoreLayout, config: StoreConfig, evidence: Evidence) -> Iterator[str]:
    """Frame the damaged ranges of the log, so that readers skip them."""
    sizes = choose_at(layout, config).sizes
    file_bytes = sizes.commit_log_bytes
    yield from cut_long_files(layout, file_bytes, config.disk)
    with closing(FileQueue(layout.commit_log, file_bytes, Access.WRITE, disk=config.disk)) as files:
        scan = _scan(files, config, evidence)
        for _ in scan:
            continue
        for damage in scan.damaged:
            if damage.is_new:
                for start, end in _by_file(damage, file_bytes):
                    yield _frame(layout, config, files, start, end, damage.since_ms)
        yield from _cut_tail(layout, config, files, scan.end)


def _cut_tail(layout: StoreLayout, config: StoreConfig, files: FileQueue, end: int) -> Iterator[str]:
    """Cut the bytes after the log's last record, after a copy of whole records. The queues, which are the evidence, are
    still there."""
    cut_bytes = written_after(files, end)
    if cut_bytes:
        yield from keep_records(layout, files, end, config.disk)
        files.truncate(end)
        yield f"cut {cut_bytes:,} bytes of a torn or stale tail off the log"


def _by_file(damage: DamagedRange, file_bytes: int) -> Iterator[tuple[int, int]]:
    start = damage.start
    while start < damage.end:
        end = min(damage.end, start - start % file_bytes + file_bytes)
        yield start, end
        start = end


def _frame(layout: StoreLayout, config: StoreConfig, files: FileQueue, start: int, end: int, time_ms: int) -> str:
    """Frame physical offsets [start, end), which lie in one file; return a sentence about it."""
    what = f"{end - start:,} damaged bytes at physical offset {start}"
    file = files.find(start)
    if file is None:
        _fill_in(layout, config, files.file_bytes, start, end)
        return f"made the missing file of the log at physical offset {start}, with nothing in it that is read"
    first, last = start - file.start, end - file.start
    if not fits_tombstone(first, last, file.size):
        return f"left {what} as they are: too few to be framed"
    if file.access is Access.READ:
        return f"left {what} as they are: {file.path.parent} is only read"
    if unread_end(file, first, last) > first:  # the bytes may be good, and readable again once the disk recovers
        return f"left {what} as they are: the disk refuses to read them, and readers pass them"
    kept = keep_bytes(layout.quarantine, file, first, last, config.disk)
    write_tombstone(file, first, last, time_ms)
    file.sync()
    kept_in = kept.relative_to(layout.root)
    return f"framed {what}: that message stays unreadable, its neighbours are not touched; a copy is in {kept_in}"


def _fill_in(layout: StoreLayout, config: StoreConfig, file_bytes: int, start: int, end: int) -> None:
    """Make a missing log file: a blank, or a frame up to `end` if the log ended in it."""
    path = layout.commit_log.in_turn(start // file_bytes)[0] / file_name(start)
    file = MappedFile.create(path, file_bytes, Access.WRITE, start=start, disk=config.disk, sync=True)
    write_tombstone(file, 0, end - start, 0)
    file.publish(file_bytes)
    file.sync()
    file.close()
    config.disk.sync_directory(path.parent)


def _drop_derived(layout: StoreLayout, config: StoreConfig, problems: Sequence[Problem]) -> Iterator[str]:
    """Remove derived data that does not agree with the log. The next opening makes it again."""
    entry_bytes = choose_at(layout, config).sizes.consume_queue_bytes
    yield from _set_aside(layout, config, problems)
    queues = {Path(problem.path).parts[1:3] for problem in problems if problem.kind is ProblemKind.CONSUME_QUEUE}
    for topic, queue_id in sorted(queues):
        _drop_queue(layout, config, entry_bytes, topic, int(queue_id))
        yield f"removed the consume queue {topic}/{queue_id}, to make it again from the log"
    if any(problem.path.startswith("index") for problem in problems):
        for file in index_paths(layout.index):
            unlink(file)
        yield "removed the index, to make it again from the log"
    ranges = {path for problem in problems if (path := layout.root / problem.path).parent == layout.ranges}
    for path in sorted(ranges):
        unlink(path)
        yield f"removed {layout.shown(path)}, which readers of the messages make again"


def _set_aside(layout: StoreLayout, config: StoreConfig, problems: Sequence[Problem]) -> Iterator[str]:
    """Quarantine the files of queues and index that the disk refuses, because it may read them later."""
    reasons = (REFUSED_PAGE, REFUSED_FILE)
    found = {one.path: (one.position, reason) for reason in reasons for one in problems if one.text.endswith(reason)}
    for path, (position, reason) in sorted(found.items()):
        with suppress(RefusedReadError):  # it is not derived data
            refused = RefusedReadError(-1, reason, layout.root / path, position)
            yield set_aside(layout, refused, config.disk)


def _drop_queue(layout: StoreLayout, config: StoreConfig, file_bytes: int, topic: str, queue_id: int) -> None:
    """Remove a queue's entries except the newest, which keeps older queue offsets from being given again."""
    newest = _newest_entry(layout, file_bytes, topic, queue_id)
    with suppress(OSError):
        remove_tree(layout.consume_queues / topic / str(queue_id))
    if newest is not None:
        queues = ConsumeQueues(layout.consume_queues, file_bytes, Access.WRITE, config.disk)
        with closing(queues):
            queues.get_or_create(topic, queue_id).append_one(*newest)
            queues.flush(queues.opened())


def _newest_entry(layout: StoreLayout, file_bytes: int, topic: str, queue_id: int) -> tuple[int, int, int, int] | None:
    """(queue offset, physical offset, size, tags code) of a queue's newest entry; None without one."""
    queues = ConsumeQueues(layout.consume_queues, file_bytes, Access.READ)
    queues.load()
    with closing(queues):
        try:
            queue = queues.get(topic, queue_id)
            if queue is None or queue.physical_end < 0:
                return None
            entry = queue.entries(queue.max_offset - 1, 1)[0].item()
        except ReadError:
            return None
    return queue.max_offset - 1, *entry
