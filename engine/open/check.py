"""check: derive every consume-queue and index byte of a store again from its commit log, and report differences."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from engine.derived.checkpoint import CHECKPOINT_BYTES, read_checkpoint
from engine.derived.compare_index import CheckedIndex
from engine.derived.compare_queues import CheckedQueues
from engine.derived.coverage import shows_multi_dispatch
from engine.derived.derived import Comparison, Extent
from engine.derived.known_ranges import range_problems
from engine.derived.marks import read_recovery_point
from engine.errors import ConfigFileError, ReadError
from engine.files.file_queue import FileQueue
from engine.files.file_scan import file_name
from engine.files.layout import StoreLayout
from engine.files.mapped_file import used_end
from engine.log.evidence import Evidence
from engine.log.scan import Known, LogScan
from engine.log.sequence import Seed, Suspect
from engine.open.features import has_extensions
from engine.open.geometry import ChosenSizes
from engine.open.preflight import obstacles, unreadable
from engine.open.recover import evidence_at_rest, files_end
from engine.results import CheckProgress, DamagedRange, Problem, ProblemKind
from engine.settings.notes import read_backup_note
from engine.settings.shape_files import read_sizes, read_used_paths
from engine.settings.topics_file import TopicTable

if TYPE_CHECKING:
    from engine.derived.store_files import StoreFiles

Progress = Callable[[CheckProgress], None]


def settings_problems(layout: StoreLayout, topics: TopicTable, choice: ChosenSizes) -> Iterator[Problem]:
    """Problems outside of the log and its derived data: settings, obstacles and backups."""
    if topics.problem is not None:
        yield Problem(ProblemKind.CONFIG, "config/topics.json", -1, topics.problem.reason)
    if choice.rebuild_index:
        yield Problem(ProblemKind.INDEX, "index", -1, "no number of slots and entries can be proved from its files")
    for found in obstacles(layout):
        text = f"{found.found} stands where the store needs a file"
        yield Problem(ProblemKind.FOREIGN_FILE, str(found.path.relative_to(layout.root)), -1, text)
    yield from _config_problems(layout)
    note = read_backup_note(layout.backup_note)
    if note is not None and not note.is_complete:
        text = f"the last run of a backup of {note.store} did not come to its end: run it again"
        yield Problem(ProblemKind.BACKUP, f"fsstore/{layout.backup_note.name}", -1, text)


Begins = Callable[[], Callable[[str], int]]
"""Returns a function from a topic to the physical offset at which its records begin now; "" is the log itself."""


def check_store_files(
    parts: StoreFiles, end: int, progress: Progress | None = None, begins: Begins | None = None
) -> Iterator[Problem]:
    """Check an open store up to the physical offset `end`. `begins`: another process has it open, and records that it
    deletes meanwhile are no problem. The caller must handle deleted files of the log."""
    evidence = evidence_at_rest(parts.log, parts.queues, parts.deleted, None, clean=False, end=end)
    return Check(parts, end, progress, evidence, begins).problems()


class Check:
    """One check. `end` None: the store is closed, and the check finds the log's end as an opening would."""

    def __init__(
        self,
        parts: StoreFiles,
        end: int | None,
        progress: Progress | None,
        evidence: Evidence,
        begins: Begins | None = None,
    ) -> None:
        self._parts = parts
        self._log = parts.log
        self._end = end
        self._progress = progress
        self._evidence = evidence
        self._begins = begins
        self._stage = "reading records"
        self._done = 0

    def problems(self) -> Iterator[Problem]:
        """All problems."""
        parts = self._parts
        begin = self._log.min_offset
        compared: tuple[Comparison, ...] = (
            CheckedQueues(parts.queues, parts.levels, are_extended=has_extensions(parts.layout)),
            CheckedIndex(parts.index, begin, is_settled=self._evidence.is_clean or self._end is not None),
        )

        def take_back(suspect: Suspect) -> None:
            for kind in compared:
                kind.take_back(suspect)

        yield from file_problems(parts.layout, parts.log.files)
        multi_dispatch = parts.multi_dispatch or shows_multi_dispatch(self._log, parts.queues, begin)
        known = Known(self._seed(), self._evidence, multi_dispatch=multi_dispatch)
        scan = LogScan(self._log.files, begin, known, end=self._end, disproved=take_back, progress=self._tell)
        reported = 0
        for found in scan:
            queued = parts.deleted.without_queues(found)
            for kind in compared:
                kind.put_scanned(queued)
            yield from self._damage_problems(scan.damaged[reported:])
            reported = len(scan.damaged)
        yield from self._damage_problems(scan.damaged[reported:])
        end = scan.end if self._end is None else self._end
        if self._end is None:
            yield from self._tail_problems(end)
        elif scan.end < end:
            yield self._at(ProblemKind.BAD_RECORD, scan.end, f"no record from there on, to the log's end at {end}")
        extent = Extent(
            self._begins() if self._begins is not None else lambda topic: begin,
            end,
            scan.end,
            scan.damaged,
            scan.is_moved,
            is_open=self._end is not None,
            is_written=self._begins is not None,
        )
        self._stage = "comparing queues and index"
        for kind in compared:
            yield from kind.problems(extent, lambda: self._tell(self._done))
        yield from range_problems(parts.layout, parts.log.files, parts.queues, scan.damaged)
        if self._end is None:
            yield from self._checkpoint_problems(scan.newest.store_time_ms if scan.newest else 0)

    def _seed(self) -> Seed:
        """After the first records have expired, a queue may begin at any queue offset."""
        first = 0 if self._log.min_offset == 0 else None
        return lambda topic, queue_id: first

    def _tell(self, physical_offset: int) -> None:
        self._done = physical_offset
        if self._progress is not None:
            begin = self._log.min_offset
            total = (self._end or files_end(self._log.files)) - begin
            self._progress(CheckProgress(self._stage, max(physical_offset - begin, 0), max(total, 0)))

    def _damage_problems(self, damaged: Sequence[DamagedRange]) -> Iterator[Problem]:
        """Ranges of the log without a good record, except those that a repair has framed."""
        for damage in damaged:
            if damage.is_new:
                text = f"{damage.end - damage.start:,} bytes hold no good record: {damage.reason}"
                yield self._at(ProblemKind.BAD_RECORD, damage.start, text)

    def _tail_problems(self, end: int) -> Iterator[Problem]:
        """Bytes after the log's end: records that are torn, damaged, or left from before a truncation."""
        for file in self._log.files.files:
            if file.start + file.size <= end:
                continue
            start = max(end - file.start, 0)
            try:
                is_used = used_end(file, start) > start
                rest = file.whole()[start:]
            except ReadError:
                continue  # its size was reported
            if is_used and not self._log.framing.is_blank(rest):
                begin = max(end, file.start)
                yield self._at(ProblemKind.STALE_TAIL, begin, "no record follows here, but bytes that an opening cuts")

    def _checkpoint_problems(self, newest_ms: int) -> Iterator[Problem]:
        layout = self._parts.layout
        if not layout.checkpoint.exists():
            return
        size = layout.checkpoint.stat().st_size
        if size != CHECKPOINT_BYTES:
            yield Problem(ProblemKind.CHECKPOINT, "checkpoint", -1, f"it has {size:,} bytes, not {CHECKPOINT_BYTES:,}")
        found = read_checkpoint(layout.checkpoint)
        for position, name in enumerate(("physic_ms", "logics_ms", "index_ms")):
            time_ms = getattr(found, name)
            if time_ms > newest_ms:
                text = f"{name} {time_ms} is later than the newest record, stored at {newest_ms}"
                yield Problem(ProblemKind.CHECKPOINT, "checkpoint", 8 * position, text)

    def _at(self, kind: ProblemKind, physical_offset: int, text: str) -> Problem:
        position = physical_offset % self._log.files.file_bytes
        file = self._log.files.find(physical_offset)
        path = file.path if file else self._log.files.directory / file_name(physical_offset - position)
        return Problem(kind, self._parts.layout.shown(path), position, text)


def file_problems(layout: StoreLayout, files: FileQueue) -> Iterator[Problem]:
    """Problems of the log's files, apart from their contents."""
    kinds = {"foreign": ProblemKind.FOREIGN_FILE, "twice": ProblemKind.FOREIGN_FILE}
    for one in files.problems:
        kind = kinds.get(one.kind, ProblemKind.WRONG_SIZE)
        what = f"a {one.kind} file of {one.found_bytes:,} bytes" if one.found_bytes >= 0 else "no file"
        text = f"{what}; the log's have {one.expected_bytes:,} bytes"
        if one.kind == "twice":
            text = "another folder of the log holds a file of that name, and this one has no record"
        yield Problem(kind, layout.shown(one.path), -1, text)
    for start, end in files.missing_ranges():
        text = f"the files for physical offsets {start} to {end} are missing"
        yield Problem(ProblemKind.MISSING_FILE, layout.shown(files.directory), -1, text)


def _config_problems(layout: StoreLayout) -> Iterator[Problem]:
    for path, read in ((layout.sizes, read_sizes), (layout.used_log_paths, read_used_paths)):
        try:
            read(path)
        except ConfigFileError as error:
            yield Problem(ProblemKind.CONFIG, layout.shown(path), -1, error.reason)
    yield from _refused_files(layout)
    if layout.coverage.exists() and read_recovery_point(layout.coverage) is None:
        text = "it can't be read or understood; the next opening does without it"
        yield Problem(ProblemKind.DERIVED, f"fsstore/{layout.coverage.name}", -1, text)


def _refused_files(layout: StoreLayout) -> Iterator[Problem]:
    """Small files that the disk can't read. Reading any other one reports its own problem."""
    kinds = {
        layout.checkpoint: ProblemKind.CHECKPOINT,
        layout.consumer_offsets: ProblemKind.CONFIG,
        layout.lmq_consumer_offsets: ProblemKind.CONFIG,
        layout.deleted_topics: ProblemKind.CONFIG,
        layout.identity: ProblemKind.CONFIG,
        layout.clean_mark: ProblemKind.DERIVED,
    }
    for path, why in unreadable(kinds):
        yield Problem(kinds[path], layout.shown(path), -1, f"it can't be read: {why}")
