"""Recovery: find the log's end, and make the derived data agree with the log (docs/format.md, 8).

    clean mark      no file has changed since the last close: no record is read
    recovery point  fsstore's writer died: the log is read from there on, derived data is cut to it and rebuilt
    neither         another program wrote the store: the log is read from RocketMQ's own starting point, and consume
                    queues and index are checked; if they do not cover every record, the whole log is read

Good records are never changed. A torn or stale tail is zeroed, after a copy is made if it has a whole record. A damaged
range stays and reads as damaged, also at the log's end if mark or queues are evidence that it was written. The queue
offsets of its messages are not given again.
"""

from __future__ import annotations

import errno
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from engine.derived.checkpoint import read_checkpoint, read_committed_entry
from engine.derived.coverage import shows_multi_dispatch
from engine.derived.deleted_topics import DeletedTopics
from engine.derived.derived import Basis, Derived, Losses
from engine.derived.marks import RecoveryPoint, read_clean_mark, read_recovery_point
from engine.derived.queues_at_rest import queues_at_rest
from engine.errors import ReadError
from engine.files.file_queue import FileQueue
from engine.files.file_scan import written_ns
from engine.files.layout import StoreLayout
from engine.files.mapped_file import Access, MappedFile
from engine.log.commit_log import CommitLog
from engine.log.entries import ENTRY, Entries
from engine.log.evidence import Evidence, Extents, QueueEvidence, read_evidence, with_entries
from engine.log.scan import Known, LogScan
from engine.log.sequence import SPARE, Seed, Suspect
from engine.log.tombstone import fits_tombstone, keep_bytes, write_tombstone
from engine.log.unread import Range, UnreadRanges, keep_entries, parts_of
from engine.open.quarantine import keep_records, quarantine, written_after
from engine.record.header import MIN_RECORD_BYTES
from engine.record.log_framing import Framing
from engine.record.record import decode_record
from engine.results import DamagedRange, DamageKind, NewestRecord, RecoveryReport
from engine.settings.config import RecoveryProgress

if TYPE_CHECKING:
    from engine.derived.consume_queues import ConsumeQueues
    from engine.derived.store_files import StoreFiles

REWRITTEN_ZEROS = 16 << 20
"""Bytes behind the log's end in which zeros are written again. A writer never has more than these unpublished."""
TRUSTED_FILES = 3
"""Number of the newest files that are read after a clean close by RocketMQ, as RocketMQ reads them."""

Progress = Callable[[RecoveryProgress], None]


@dataclass(frozen=True, slots=True)
class LastShutdown:
    """The state that the last writer left, read before any change. `clean`: it closed the store. `mark`: the clean mark
    if no file has changed since. `lock_mtime_ns`: the time of the file `lock`, which every writer touches."""

    clean: bool
    mark: RecoveryPoint | None
    lock_mtime_ns: int


def read_last_shutdown(layout: StoreLayout) -> LastShutdown:
    """Read the state that the last writer of the store left."""
    clean = not layout.abort.exists()
    mark = read_clean_mark(layout) if clean else None
    return LastShutdown(clean, mark.point if mark else None, written_ns(layout.lock))


@dataclass(frozen=True, slots=True)
class RecoveryResult:
    """The report for users, the log's newest record, and every queue's extent. `was_clean`: no record was read. The log
    before the physical offset `trusted_end` is as fsstore's last writer left it; 0: unknown. The disk refused the
    `unread` ranges while derived data was made."""

    report: RecoveryReport
    newest: NewestRecord | None
    queues: Extents
    trusted_end: int = 0
    was_clean: bool = False
    unread: tuple[Range, ...] = ()

    def with_notes(self, notes: Sequence[str]) -> RecoveryResult:
        """This result with more sentences in the report."""
        return replace(self, report=replace(self.report, notes=(*self.report.notes, *notes)))


def recover(
    parts: StoreFiles,
    last_shutdown: LastShutdown,
    topics: frozenset[str],
    forget: Callable[[str], None],
    *,
    rebuild_index: bool,
    is_replica: bool,
    progress: Progress | None,
) -> RecoveryResult:
    """Make `parts` ready to read and write. `topics` are the topics in topics.json, empty if unknown. `forget` removes
    a topic there whose deletion was interrupted. `is_replica`: a master has what a crash has damaged, so the log is cut
    before it.

    StoreFullError, OSError: no good record is lost, and a retry is safe.
    """
    began = time.monotonic()
    mark = None if rebuild_index else last_shutdown.mark
    is_current = mark is not None and mark.speaks_of(parts.log, last_shutdown.lock_mtime_ns)
    if mark is not None and is_current and not UnreadRanges(parts.log.files, mark.unread).again:
        return _take_over(parts.log, parts.queues, mark)
    point = valid_recovery_point(parts.layout, parts.log, last_shutdown)
    if point is None:
        leave_out_deleted(parts.queues, parts.deleted, last_shutdown, topics)
    refetched_from = point.physical_end if point is not None and is_replica else None
    return _Recovery(parts, point, forget, last_shutdown.clean, progress, refetched_from).run(rebuild_index, began)


def leave_out_deleted(
    queues: ConsumeQueues, deleted: DeletedTopics, last_shutdown: LastShutdown, topics: frozenset[str]
) -> None:
    """Leave out topics without a queue that are not in `topics`, in a closed store without a recovery point: they were
    deleted, because a writer that closes has dispatched all of its log.

    Without any `topics`, or without any queue, these were lost rather than deleted, and no topic is left out.
    """
    in_queues = queues.topics()
    if last_shutdown.clean and topics and in_queues:
        deleted.leave_out_all_but(topics.union(in_queues))


def valid_recovery_point(layout: StoreLayout, log: CommitLog, last_shutdown: LastShutdown) -> RecoveryPoint | None:
    """The recovery point, None if it does not describe the store."""
    point = read_recovery_point(layout.coverage)
    return point if point is not None and point.speaks_of(log, last_shutdown.lock_mtime_ns) else None


def evidence_at_rest(
    log: CommitLog,
    queues: ConsumeQueues,
    deleted: DeletedTopics,
    point: RecoveryPoint | None,
    *,
    clean: bool,
    start: int | None = None,
    end: int | None = None,
) -> Evidence:
    """The evidence about the log of a store that no process writes, after its queues' ends were found. Entries for
    records from the physical offset `start` on count (None: all). The log ends at `end` (None: with its last file)."""
    start = log.min_offset if start is None else start
    return read_evidence(
        list(queues.reaching(start)),
        point.covered(queues.at_rest) if point else None,
        clean=clean,
        start=start,
        end=files_end(log.files) if end is None else end,
        file_bytes=log.files.file_bytes,
        deleted_until=deleted.until,
        at_rest=queues.at_rest,
    )


def files_end(files: FileQueue) -> int:
    """Physical offset of the end of the log's last file; 0 without files."""
    return files.last.start + files.last.size if files.last else 0


def _take_over(log: CommitLog, queues: ConsumeQueues, point: RecoveryPoint) -> RecoveryResult:
    """Take all ends from the mark: no file has changed since the close."""
    queues.resume(point.queues, point.physical_end)
    queues.multi_dispatch = point.multi_dispatch
    log.resume(point.physical_end, point.store_time_ms)
    queues.expire(log.min_offset)
    damage = point.newest_damage(log)
    report = RecoveryReport(damaged=tuple(one.start for one in damage), notes=tuple(map(_sentence, damage)))
    return RecoveryResult(report, point.newest_record, point.queues, point.physical_end, True, point.unread)


class _Recovery:
    """One recovery that reads records."""

    def __init__(
        self,
        parts: StoreFiles,
        point: RecoveryPoint | None,
        forget: Callable[[str], None],
        clean: bool,
        progress: Progress | None,
        refetched_from: int | None,
    ) -> None:
        self._parts = parts
        self._refetched_from = refetched_from
        self._forget = forget
        self._log = parts.log
        self._point = point
        self._clean = clean
        self._progress = progress
        self._rebuilt: list[str] = []
        self._notes: list[str] = []
        self._evidence = Evidence()
        self._multi_dispatch = parts.multi_dispatch or (point is not None and point.multi_dispatch)
        self._unread = UnreadRanges(parts.log.files, point.unread if point else ())
        self._framed: list[DamagedRange] = []
        """Framed ranges that the disk refused at an earlier opening, and that turned out to be empty."""
        self._unproved: list[tuple[int, int]] = []
        """Ranges of the log, not known to be on disk, that the kernel had in memory before recovery read them."""
        self._unwritten: deque[tuple[int, int]] = deque()
        """Those of them that are still to be written again."""
        self._log_scan: LogScan

    def run(self, rebuild_index: bool, began: float) -> RecoveryResult:
        parts, log = self._parts, self._log
        trusted_end = self._point.physical_end if self._point else self._rocketmq_start()
        if parts.access is Access.WRITE and not self._clean:
            self._unproved = log.files.cached_ranges(trusted_end)
            self._unwritten.extend(self._unproved)
        parts.queues.recover(scan=True, at_rest=self._queues_at_rest(), rest_end=trusted_end)
        parts.queues.remove_deleted(parts.deleted.until, self._forget)
        self._evidence = evidence_at_rest(
            log, parts.queues, parts.deleted, self._point, clean=self._clean, start=trusted_end
        )
        start = self._prepare(Basis(trusted_end, self._point, self._clean, not rebuild_index))
        self._log_scan = LogScan(
            log.files,
            start,
            Known(
                self._seed(start),
                self._evidence,
                trusted_end,
                self._earliest_ms(start),
                self._multi_dispatch,
                self._refetched_from,
            ),
            disproved=self._take_back,
            progress=self._tell if self._progress else None,
        )
        for found in self._log_scan:
            queued = parts.deleted.without_queues(found)
            for kind in parts.derived:
                kind.put_scanned(queued, Losses(self._log_scan.damaged, self._keep))
            self._write_again(self._log_scan.end)
        found_end = self._log_scan.end
        for topic in parts.deleted.keep_left_out(found_end, durably=parts.access is Access.WRITE):
            self._notes.append(
                f"topic {topic}: the store was closed, and neither config/topics.json nor a consume queue knows it:"
                " it was deleted, and its records in the log are left out"
            )
        self._cut(trusted_end)
        damaged = [one for one in self._log_scan.damaged if one.is_new and one not in self._framed]
        if self._point is not None and start >= self._point.physical_end:
            damaged = [*self._point.newest_damage(log), *damaged]
        report = RecoveryReport(
            clean=self._clean,
            scanned_bytes=found_end - start,
            scanned_messages=self._log_scan.records,
            cut_bytes=self._cut_bytes,
            damaged=tuple(damage.start for damage in damaged),
            rebuilt=tuple(self._rebuilt),
            notes=(*self._notes, *self._uncommitted(), *(_sentence(damage) for damage in damaged)),
            seconds=time.monotonic() - began,
        )
        covered_end = self._point.physical_end if self._point else 0
        before = (one for one in self._unread.still if one[1] <= start)
        unread = (*before, *self._refused_ranges())
        parts.queues.multi_dispatch = self._multi_dispatch
        return RecoveryResult(report, self._newest(), parts.queues.note_extents(), covered_end, unread=unread)

    def _queues_at_rest(self) -> Extents | None:
        """The queues that have not changed since the recovery point; None if it is none for all of this log."""
        point, queues = self._point, self._parts.queues
        if point is None or not point.time_ns or point.log_begin != self._log.min_offset:
            return None
        return queues_at_rest(queues.directory, queues.file_bytes, queues.ids(), point)

    def _refused_ranges(self) -> list[Range]:
        """The damaged ranges so far whose bytes the disk refuses, or refused during the scan."""
        ranges = [(one.start, one.end) for one in self._log_scan.damaged if one.kind is DamageKind.UNREADABLE]
        return [one for one in ranges if self._log_scan.was_refused(*one) or self._unread.is_refused(*one)]

    def _keep(self, topic: str, queue_id: int, first: int, entries: Entries) -> None:
        """Keep the queue's old entries for lost messages if they lead to bytes that the disk refuses."""
        keep_entries(self._evidence.runs.get((topic, queue_id), ()), first, entries, self._refused_ranges())

    def _uncommitted(self) -> list[str]:
        """A sentence about a ledger's newest entries if they are not known to be committed."""
        checkpoint, newest = self._parts.layout.ledger_checkpoint, self._log_scan.number
        committed = read_committed_entry(checkpoint) if checkpoint is not None else None
        if newest is None or committed is None or newest.entry <= committed:
            return []
        return [
            f"the newest {newest.entry - committed:,} entries of the ledger are behind entry {committed}, the last that"
            f" {checkpoint} says is committed (it is written every few seconds): they are shown, and a group of several"
            " brokers may have dropped them"
        ]

    def _tell(self, physical_offset: int) -> None:
        if self._progress is not None:
            first, total = self._log.min_offset, files_end(self._log.files) - self._log.min_offset
            self._progress(RecoveryProgress("recovering", physical_offset - first, total))

    # the start of the scan

    def _rocketmq_start(self) -> int:
        """Physical offset of the file from which on RocketMQ would read records."""
        files = self._log.files.files
        if not files:
            return 0
        if self._clean:
            return files[max(len(files) - TRUSTED_FILES, 0)].start
        checkpoint = read_checkpoint(self._parts.layout.checkpoint)
        for file in reversed(files):
            if 0 < first_store_ms(file, self._log.framing) <= checkpoint.min_timestamp_ms:
                return file.start
        return files[0].start

    def _prepare(self, basis: Basis) -> int:
        """Cut or destroy derived data that can't be trusted; return the physical offset at which the scan begins."""
        parts, log, trusted_end = self._parts, self._log, basis.trusted_end
        log.files.drop_empty()
        self._look_for_multi_dispatch(trusted_end)
        entries = sum(queue.max_offset - queue.first_offset for queue in parts.queues) if not log.files.files else 0
        if entries:
            self._notes.append(
                "no file of the commit log is there, as after a power cut before it reached the disk:"
                f" queues lose {entries:,} entries that led there"
            )
        proofs = [(kind, kind.prove(basis)) for kind in parts.derived]
        start = max(min(trusted_end, *(proof.end for _, proof in proofs)), log.min_offset)
        again = max(min((first for first, _ in self._unread.again), default=trusted_end), log.min_offset)
        start = min(start, again)
        if start < trusted_end:
            self._look_for_multi_dispatch(start)
            self._evidence = with_entries(self._evidence, parts.queues, start, trusted_end)
        for kind, proof in proofs:
            if proof.unfit is not None:
                self._rebuilt.append(proof.unfit)
                self._destroy(kind)
            elif again < trusted_end:  # a range that was refused is readable: its derived data is made again
                kind.truncate(again)
        return start

    def _destroy(self, kind: Derived) -> None:
        """Destroy derived data. With access WRITE the foreign files in its folder, perhaps a broker's, are kept."""
        root = self._parts.layout.root
        for path in filter(Path.is_file, kind.foreign) if self._parts.access is Access.WRITE else ():
            name = str(path.relative_to(root))
            moved = quarantine(self._parts.layout, name, self._parts.disk)
            self._notes.append(f"moved {name}, whose sizes are not this store's, to {moved}")
        kind.destroy()

    def _take_back(self, suspect: Suspect) -> None:
        for kind in self._parts.derived:
            kind.take_back(suspect)

    def _look_for_multi_dispatch(self, start: int) -> None:
        """Look for multi-dispatch in the queues before their entries for records from `start` on are dropped."""
        self._multi_dispatch = self._multi_dispatch or shows_multi_dispatch(self._log, self._parts.queues, start)

    def _seed(self, start: int) -> Seed:
        """The queue offsets from `start` on, according to the queues."""

        def seed(topic: str, queue_id: int) -> int | None:
            queue = self._parts.queues.get(topic, queue_id)
            if queue is not None and queue.newest_physical_offset >= 0:
                found = queue.offset_of_physical(start)
                if found > queue.first_offset or found == 0:
                    return found  # else its first files may be lost
            return 0 if start == 0 or self._began_after(topic, queue_id, start) else None

        return seed

    def _began_after(self, topic: str, queue_id: int, start: int) -> bool:
        """Whether the mark for the log up to `start` lacks the queue, so that the queue began later."""
        point = self._point
        if point is None or point.physical_end != start or self._parts.deleted.until(topic):
            return False
        return queue_id not in point.queues.get(topic, ())

    def _earliest_ms(self, start: int) -> int:
        if self._point is not None and self._point.physical_end == start:
            return self._point.store_time_ms
        return 0

    # the end

    def _cut(self, trusted_end: int) -> None:
        """Cut the log and the derived data after the last good record."""
        parts, log_files, end = self._parts, self._log.files, self._log_scan.end
        if log_files.last is not None and end > files_end(self._log.files):
            log_files.skip_to(end)  # the newest files are missing: their physical offsets are not reused
        self._cut_bytes = written_after(log_files, end)
        if parts.access is Access.WRITE:
            self._notes += keep_records(parts.layout, log_files, end, parts.disk)
        self._write_tombstones()
        for kind in parts.derived:
            kind.truncate(end)
        self._take_numbers()
        if parts.access is Access.WRITE and self._log.files.last is not None:
            self._bring_to_disk(end, min(trusted_end, end))
        newest = self._newest()
        self._log.resume(end, newest.store_time_ms if newest else 0)
        parts.queues.expire(self._log.min_offset)

    def _bring_to_disk(self, end: int, durable_from: int) -> None:
        """Cut the log at `end` durably. If a write of a killed process failed, the kernel may hold its bytes in memory
        as if they were written, so they are written again before the sync. OSError."""
        files = self._log.files
        end_of_file = end - end % files.file_bytes + files.file_bytes
        for tries_left in (1, 0):
            try:
                self._write_again(min(end + REWRITTEN_ZEROS, end_of_file))
                files.truncate(end, durable_from)
                return
            except OSError as error:
                if not tries_left or error.errno != errno.EIO:
                    raise  # else it may be an earlier, unreported failure: write all once more
                self._unwritten = deque(self._unproved)

    def _write_again(self, end: int) -> None:
        """Write again what is before the physical offset `end`, as the scan goes: the disk works beside it. OSError."""
        while self._unwritten and self._unwritten[0][0] < end:
            first, last = self._unwritten.popleft()
            if last > end:
                self._unwritten.appendleft((end, last))
            self._log.files.write_again(first, min(last, end))

    def _write_tombstones(self) -> None:
        """Frame records that lost a sector at a power cut, never ones acknowledged as durable: their CRC is right, but
        readers must not take them for whole. Frame also empty ranges that the disk refused at an earlier opening."""
        for damage in self._log_scan.damaged:
            if damage.kind is DamageKind.UNREADABLE and self._unread.was_refused(damage.start, damage.end):
                self._frame_empty(damage)
            file = self._log.files.find(damage.start)
            if damage.kind is not DamageKind.LOST_SECTOR or file is None:
                continue
            first, last = damage.start - file.start, min(damage.end - file.start, file.size)
            if self._parts.access is Access.WRITE:
                keep_bytes(self._parts.layout.quarantine, file, first, last, self._parts.disk)
            if fits_tombstone(first, last, file.size):
                write_tombstone(file, first, last, damage.since_ms)

    def _frame_empty(self, damage: DamagedRange) -> None:
        parts = list(parts_of(self._log.files, damage.start, damage.end))
        is_empty = all(
            fits_tombstone(first, last, file.size) and not any(file.pages()[first:last]) for file, first, last in parts
        )
        if not is_empty or sum(last - first for _, first, last in parts) < damage.end - damage.start:
            return
        newest_ms = self._point.store_time_ms if self._point and damage.end >= self._log_scan.end else 0
        for file, first, last in parts:
            write_tombstone(file, first, last, damage.since_ms or newest_ms)
            file.sync()
        self._framed.append(damage)

    def _take_numbers(self) -> None:
        """Append entries that lead to the damage for the newest messages of queues whose records are damaged."""
        for (topic, queue_id), queue_evidence in self._evidence.queues.items():
            if self._parts.deleted.until(topic) >= max(queue_evidence.physical_end, 1):
                continue
            queue = self._parts.queues.get(topic, queue_id)
            known = queue.max_offset if queue is not None else 0
            if queue_evidence.next_offset > known and (found := self._damage_of(queue_evidence)) is not None:
                has_files = queue is not None and queue.files.last is not None
                first = self._first_lost(queue_evidence, known, has_files=has_files)
                entries = np.zeros(queue_evidence.next_offset - first, ENTRY)
                entries["physical_offset"], entries["size"] = found
                self._keep(topic, queue_id, first, entries)
                self._parts.queues.get_or_create(topic, queue_id).append(first, entries)

    def _damage_of(self, queue_evidence: QueueEvidence) -> tuple[int, int] | None:
        """(physical offset, size) of the damage that a queue's newest entry leads to, None without any."""
        file_bytes = self._log.files.file_bytes
        is_covered = queue_evidence.physical_offset < 0
        for damage in reversed(self._log_scan.damaged):
            if is_covered or damage.start <= queue_evidence.physical_offset < damage.end:
                start = damage.start if is_covered else queue_evidence.physical_offset
                end = min(damage.end, start - start % file_bytes + file_bytes)
                return start, end - start
        return None

    def _first_lost(self, queue_evidence: QueueEvidence, known: int, *, has_files: bool) -> int:
        """The first queue offset that may be lost. Without files, the damaged bytes limit the lost messages."""
        if has_files:
            return known
        lost_bytes = sum(damage.end - damage.start for damage in self._log_scan.damaged)
        return max(known, queue_evidence.next_offset - lost_bytes // MIN_RECORD_BYTES - SPARE)

    def _newest(self) -> NewestRecord | None:
        return self._log_scan.newest or (self._point.newest_record if self._point else None)


def first_store_ms(file: MappedFile, framing: Framing) -> int:
    """Store time in ms of the first record in a file of the log; 0 without one."""
    position = framing.header_bytes
    try:
        return decode_record(file.pages()[position:], file.start + position, verify=False).store_time_ms
    except ReadError:
        return 0


def _sentence(damage: DamagedRange) -> str:
    size = damage.end - damage.start
    return f"{size:,} damaged bytes at physical offset {damage.start}: {damage.reason}"
