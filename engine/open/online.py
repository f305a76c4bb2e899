"""The online check: of a store that another fsstore process has open and writes.

Data on disk at the start of the check does not change any more. It can only be deleted, with its topic or with the
oldest files of the log. So the check reads up to there, then lists the deletions since, and drops findings about them.
It locks and holds no file, and writes only its progress, for the store's status:

    STORE/fsstore/check.json
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from engine.derived.consume_queues import ConsumeQueues
from engine.derived.deleted_topics import DeletedTopics
from engine.derived.marks import read_recovery_point
from engine.errors import ReadError, RefusedReadError, StoreBusyError
from engine.files.file_queue import FileQueue
from engine.files.file_scan import written_ns
from engine.files.layout import StoreLayout
from engine.files.lock import StoreLock
from engine.files.mapped_file import Access
from engine.files.paths import store_root
from engine.log.entries import is_pre_blank
from engine.open.check import Progress, check_store_files, file_problems, settings_problems
from engine.open.geometry import choose_at, layout_of, read_topics
from engine.open.open import open_store_files
from engine.results import CheckProgress, Problem, ProblemKind
from engine.settings.config import StoreConfig
from engine.settings.notes import MOST_NOTED, CheckNote, write_check_note

TRIES = 4
NOTE_MS = 2_000


@dataclass(frozen=True, slots=True)
class OnlineCheck:
    """The problems, and the physical offsets [begin, end) that were read."""

    problems: tuple[Problem, ...]
    begin: int
    end: int


class _Notes:
    """Notes a check's progress every NOTE_MS, and its end."""

    def __init__(self, layout: StoreLayout, config: StoreConfig) -> None:
        self._path = layout.check_note
        self._config = config
        self._begun_ms = config.clock()
        self._last = CheckNote(self._begun_ms, 0, 0, 0, 0)

    def tell(self, now: CheckProgress) -> None:
        time_ms = self._config.clock()
        if time_ms - self._last.seen_ms >= NOTE_MS:
            self._write(CheckNote(self._begun_ms, time_ms, 0, now.done_bytes, now.total_bytes))

    def end(self, found: OnlineCheck) -> None:
        time_ms, size = self._config.clock(), found.end - found.begin
        first = tuple(map(str, found.problems[:MOST_NOTED]))
        self._write(CheckNote(self._begun_ms, time_ms, time_ms, size, size, len(found.problems), first))

    def give_up(self) -> None:
        """Note that the check was interrupted."""
        if self._last.seen_ms:
            self._write(replace(self._last, seen_ms=0))

    def _write(self, note: CheckNote) -> None:
        self._last = note
        write_check_note(self._path, note, self._config.disk)


def check_online(
    path: Path | str,
    flush: Callable[[], object],
    progress: Progress | None = None,
    config: StoreConfig | None = None,
) -> OnlineCheck:
    """Check the store at `path` beside its writer, an fsstore process.

    `flush` makes the writer flush everything, and returns after that: so the writer has finished its recovery. It is
    called again if another writer has taken over. StoreBusyError: one took over each time; OpenError, OSError.
    """
    config = config or StoreConfig()
    layout = layout_of(store_root(path), config)
    notes = _Notes(layout, config)

    def tell(now: CheckProgress) -> None:
        notes.tell(now)
        if progress is not None:
            progress(now)

    try:
        found = _checked(layout, flush, config, tell)
    except BaseException:  # Ctrl-C, too
        notes.give_up()
        raise
    notes.end(found)
    return found


def _checked(layout: StoreLayout, flush: Callable[[], object], config: StoreConfig, progress: Progress) -> OnlineCheck:
    for _ in range(TRIES):
        writer = StoreLock.holder(layout.lock)
        flush()
        try:
            found = _check(layout, flush, config, progress)
        except RefusedReadError:
            raise
        except (ReadError, FileNotFoundError):  # a file was deleted meanwhile
            continue
        if found is not None and (not found.problems or StoreLock.holder(layout.lock) == writer):
            return found  # another writer would have recovered the store meanwhile
    raise StoreBusyError(layout.root)


def _check(
    layout: StoreLayout, flush: Callable[[], object], config: StoreConfig, progress: Progress
) -> OnlineCheck | None:
    """One check; None while the writer's mark is not current.

    The order matters: first the writer's end, then the deleted topics, then the list of files.
    """
    end = _flushed_end(layout, flush, config)
    if end is None:
        return None
    deleted = DeletedTopics(layout.deleted_topics, config.disk)
    choice = choose_at(layout, config)
    problems = list(settings_problems(layout, read_topics(layout, config), choice))
    with closing(open_store_files(layout, config, choice.sizes, Access.READ)) as parts:
        begin = parts.log.min_offset
        parts.queues.unread = {}
        parts.queues.recover(scan=False)
        parts.queues.expire(begin)
        parts.queues.refresh(end)

        def begins() -> Callable[[str], int]:
            log_begin = _log_files(layout, config, choice.sizes.commit_log_bytes).min_offset
            later = DeletedTopics(layout.deleted_topics, config.disk)
            return lambda topic: max(log_begin, *(one.until(topic) for one in (deleted, parts.deleted, later)))

        problems += check_store_files(parts, end, progress, begins)
    files = _log_files(layout, config, choice.sizes.commit_log_bytes)
    of_files = frozenset(file_problems(layout, files))
    left = [one for one in problems if _is_left(one, layout, files.min_offset, of_files)]
    return OnlineCheck(tuple(left), max(begin, files.min_offset), end)


def _flushed_end(layout: StoreLayout, flush: Callable[[], object], config: StoreConfig) -> int | None:
    """Physical offset up to which the log is on disk; None while the writer's mark is not current. If the mark is
    unreadable, it is the queues' end before another `flush`."""
    point = read_recovery_point(layout.coverage)
    if point is None and layout.coverage.exists():
        end = _queues_end(layout, config)
        flush()
        return end
    return point.physical_end if point is not None and point.lock_mtime_ns == written_ns(layout.lock) else None


def _queues_end(layout: StoreLayout, config: StoreConfig) -> int:
    """Physical offset just past the newest record that a queue leads to; 0 without one."""
    queues = ConsumeQueues(
        layout.consume_queues, choose_at(layout, config).sizes.consume_queue_bytes, Access.READ, disk=config.disk
    )
    with closing(queues):
        queues.load()
        newest = queues.newest_entries(1)
    newest = newest[~is_pre_blank(newest)]
    return int((newest["physical_offset"].astype(np.int64) + newest["size"]).max(initial=0))


def _log_files(layout: StoreLayout, config: StoreConfig, file_bytes: int) -> FileQueue:
    """The log's files as listed now."""
    return FileQueue(layout.commit_log, file_bytes, Access.READ, disk=config.disk)


def _is_left(problem: Problem, layout: StoreLayout, begin: int, of_files: frozenset[Problem]) -> bool:
    """Whether a problem's data still exists, in a log that begins at the physical offset `begin` now."""
    if problem.kind is ProblemKind.BAD_RECORD:
        return int(Path(problem.path).name) + problem.position >= begin
    if problem.kind is ProblemKind.MISSING_FILE:
        return problem in of_files
    return problem.kind not in (ProblemKind.FOREIGN_FILE, ProblemKind.WRONG_SIZE) or os.path.lexists(
        layout.root / problem.path
    )
