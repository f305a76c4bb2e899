"""Log scan: all good records of the commit log from a physical offset on, past damage (docs/format.md, 8).

    good records | damaged range | good records | torn or stale tail, zeros
                                                  ^ the log's end

Publishers choose the bodies, so bytes inside a damaged record may look like a record and be none. The scan continues at
the damaged record's end according to its own sizes. If these contradict each other, it continues at a record that a
consume queue leads to. Without queues it takes a record from which records follow each other to the file's end.

Bytes at the end that no `Evidence` covers are a tail that a crash or an earlier truncation left: the log ends before
them. It also ends before a batch without its first 8 bytes, whose writer died while writing it.

`engine.record.log_framing` defines frame, record and blank.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from engine.errors import REFUSED_PAGE, ReadError, RefusedReadError
from engine.files.mapped_file import MappedFile, unread_end, used_end
from engine.log.evidence import Evidence, QueueEvidence
from engine.log.sequence import SPARE, Gap, QueueSequence, Seed, Suspect, inner_batches, queued_rows
from engine.log.tombstone import TOMBSTONE_TOPIC, is_tombstone
from engine.record.byte_columns import items_at
from engine.record.columns import lost_sector_rows
from engine.record.header import BLANK_BYTES, MIN_RECORD_BYTES, is_queued, is_rolled_back, position_of
from engine.record.kernel.decode import StoredMessage
from engine.record.log_framing import EntryNumber
from engine.record.multi_dispatch import Slot, matches_slot
from engine.record.parsed_headers import ParsedHeaders
from engine.record.record import CLOSING_ZEROS, SECTOR_BYTES, decode_record, frame_extent, read_header
from engine.record.scan import CHUNK_BYTES, ScannedRecords, ScanStop, find_chained_record, scan_records
from engine.results import DamagedRange, DamageKind, NewestRecord

if TYPE_CHECKING:
    from engine.files.file_queue import FileQueue

Array = np.ndarray[Any, Any]


SOON_MS = 10_000
"""Longest time from a message's birth to its storing for which its store time is compared with later ones. No checksum
covers either time: a bit flip into the future would turn all later records into a stale tail."""
_BORN_TIME_POSITION = position_of("born_time_ms")
_MOST_LOOKED_AT = 64
"""Limit of the queue offsets of one gap whose entries are followed to a record."""
_ENDING_BYTES = 3
"""The last 3 bytes of a record are never all zero: it ends with its properties, or its topic and two zeros."""


def _one_ahead(scan: Iterator[ScannedRecords]) -> Iterator[ScannedRecords]:
    """The runs of `scan`: a thread prepares the next run, its properties and hashes, while one is dispatched."""

    def following() -> ScannedRecords | None:
        found = next(scan, None)
        if found is not None:
            found.prepare()
        return found

    with ThreadPoolExecutor(1, "fsstore-scan") as thread:
        coming = thread.submit(following)
        while (found := coming.result()) is not None:
            coming = thread.submit(following)
            yield found


@dataclass(frozen=True, slots=True)
class Known:
    """The caller's knowledge of the log before a scan. `seed` gives the queue offset of each queue's first record.
    Bodies before the physical offset `trusted_end` need no check. `earliest_ms` is the store time of the record before
    the scan, 0 when unknown. `multi_dispatch`: records may have secondary slots. From the physical offset
    `refetched_from` on the log ends before damage, because a replica gets the rest from its master again; None: it does
    not."""

    seed: Seed = lambda topic, queue_id: None
    evidence: Evidence = field(default_factory=Evidence)
    trusted_end: int = 0
    earliest_ms: int = 0
    multi_dispatch: bool = False
    refetched_from: int | None = None


class LogScan:
    """One pass over the log: iterate it for the records, then read `end`, `newest` and `damaged`. In a ledger, `number`
    is the number of its last entry.

    Thread safety: one caller. The log must not be written meanwhile, unless `is_settled` is given.
    """

    def __init__(
        self,
        files: FileQueue,
        start: int,
        known: Known,
        *,
        end: int | None = None,
        disproved: Callable[[Suspect], None] | None = None,
        progress: Callable[[int], None] | None = None,
        pages: Callable[[MappedFile], memoryview] = MappedFile.pages,
        is_settled: Callable[[int], bool] | None = None,
    ) -> None:
        """A frame begins at the physical offset `start`. The log is known to reach the physical offset `end`, where the
        scan stops. `disproved` is called with a yielded record whose queue offset turns out to be wrong, before the run
        that shows it is yielded. `progress` is called with physical offsets. `pages` returns a file's bytes. The scan
        ends at a physical offset for which `is_settled` is False: a record may be being written there.
        """
        self.end = start
        self.newest: NewestRecord | None = None
        self.damaged: list[DamagedRange] = []
        self.records = 0
        self._files = files
        self._framing = files.framing
        self.number: EntryNumber | None = None
        self._before: EntryNumber | None = None
        self._limit = end
        self._trusted_end = known.trusted_end
        self._refetched_from = known.refetched_from
        self._latest_ms = known.earliest_ms
        self._evidence = evidence = known.evidence
        self._sequence = QueueSequence(
            known.seed,
            evidence.physical_offset_of,
            deleted_until=evidence.deleted_until,
            multi_dispatch=known.multi_dispatch,
        )
        self._lost_bytes = 0
        self._disproved = disproved or (lambda suspect: None)
        self._progress = progress or (lambda physical_offset: None)
        self._pages = pages
        self._refusals: dict[tuple[int, int], str] = {}
        """The reason why [start, end), physical offsets, could not be read: records may be there."""
        self._is_settled = is_settled or (lambda physical_offset: True)
        self._is_written_meanwhile = is_settled is not None

    def __iter__(self) -> Iterator[ScannedRecords]:
        """Runs of good records, in log order. A run is a view of the log's pages: drop it before the log is closed.
        A second iteration continues from `end`."""
        start = self.end
        position: int | None = start
        while position is not None:
            position = yield from self._run(position)
        self._forget_tail()
        self._note_moved(start)

    def reach(self, end: int) -> None:
        """The log is known to reach the physical offset `end` by now: the next iteration goes on up to there."""
        self._limit = end

    def was_refused(self, start: int, end: int) -> bool:
        """Whether the disk refused bytes of [start, end), physical offsets, to this scan."""
        return any(first < end and start < after for first, after in self._refusals)

    def _run(self, position: int) -> Generator[ScannedRecords, None, int | None]:
        """Scan one file from the physical offset `position`; return the next one to scan, None at the log's end."""
        if self._limit is not None and position >= self._limit:
            return None
        file = self._files.find(position)
        if file is None:
            return self._resume(position, "no file holds them")
        view = self._readable(file)
        verify = file.start + file.size > self._trusted_end
        stop, problem = ScanStop.END, None
        for found in self._scan(file, view, position, self._before, verify=verify):
            stop, problem = found.stop or stop, found.problem
            stale = self._first_stale(found, view, file)
            torn = self._first_torn(found)
            if torn is not None and (stale is None or torn < stale):
                yield from self._taken(pick(found, slice(torn)))
                return self._resume(max(self.end, position), DamageKind.LOST_SECTOR.value, DamageKind.LOST_SECTOR)
            if stale is not None:
                yield from self._taken(pick(found, slice(stale)))
                return self._end_at(self.end, "its store time and queue offset are of an earlier life of the log")
            yield from self._taken(found)
            if found.bare_frames:
                self.end = file.start + found.end
            self._before = found.number
            self.number = found.number or self.number
        following = file.start + file.size
        if stop is ScanStop.BLANK and self._reaches(following):
            self._lose(DamagedRange(self.end, following, DamageKind.BLANK.value, DamageKind.BLANK, self._latest_ms))
            self.end = following
            return following
        if stop is ScanStop.BLANK or (stop is ScanStop.END and self.end == self._limit):
            return None
        why = self._refusals.get((file.start, file.start + file.size)) or problem or stop.value
        return self._resume(max(self.end, position), why)  # damage may stand before `position`

    def _reaches(self, file_end: int) -> bool:
        """Whether the log fills the file that ends at `file_end`: its known end says so, or it has a later part."""
        is_known = self._limit is not None and self._limit >= file_end
        return is_known or bool(self._files_after(file_end)) or self._claimed_end(file_end) > file_end

    def _scan(
        self, file: MappedFile, view: memoryview, position: int, before: EntryNumber | None, *, verify: bool = True
    ) -> Iterator[ScannedRecords]:
        start, end = position - file.start, len(view)
        found = scan_records(view, start, file.start, end, framing=self._framing, before=before, verify=verify)
        return _one_ahead(found) if end - start > CHUNK_BYTES else found

    def _taken(self, found: ScannedRecords) -> Iterator[ScannedRecords]:
        """Account for a run, and yield its undamaged rows."""
        if len(found) == 0:
            return
        headers = found.records.headers
        for row in _tombstone_rows(found):
            self._lose_row(found, row, DamageKind.TOMBSTONE, DamageKind.TOMBSTONE.value)
        misnumbered = self._sequence.take(found, self._lost_bytes)
        for suspect in misnumbered.earlier:
            self._lose_suspect(suspect)
        for displaced in misnumbered.displaced:
            self._disproved(displaced)
        found = replace(found, slots=misnumbered.slots) if misnumbered.slots else found
        wrong = misnumbered.rows
        for row in wrong.tolist():
            text = _misnumbered(int(headers["queue_offset"][row]))
            self._lose_row(found, row, DamageKind.MISNUMBERED, text)
        last = headers[-1]
        self._latest_ms = int(_times(found.records.take(slice(-1, None)))[0])  # not the maximum: one may be damaged
        self.newest = NewestRecord(int(last["physical_offset"]), int(last["store_size"]), int(last["store_time_ms"]))
        self.end = self.newest.end
        self.records += len(found) - len(wrong)
        self._progress(self.end)
        if len(wrong):
            found = _without(found, wrong)
        if len(found):
            yield found

    def _first_torn(self, found: ScannedRecords) -> int | None:
        """The first row that lost a sector at a power cut, of those that fsstore wrote behind its last flush."""
        own_from = self._evidence.own_from
        if own_from is None or len(found) == 0 or found.records.headers["physical_offset"][-1] < own_from:
            return None
        lost = lost_sector_rows(found.records)
        return next((row for row in lost if found.records.headers["physical_offset"][row] >= own_from), None)

    def _first_stale(self, found: ScannedRecords, view: memoryview, file: MappedFile) -> int | None:
        """The first row left from before a truncation, after which the log was overwritten up to there. It was stored
        earlier than a record before it, and no record from it on continues its queue's offsets.

        Store times alone prove nothing: a clock may step back, and one time may be wrong.
        """
        times = found.records.headers["store_time_ms"]
        if len(times) == 0 or self._evidence.is_clean or self._limit is not None:
            return None
        if times[0] >= self._latest_ms and not np.any(times[1:] < times[:-1]):
            return None
        latest = np.maximum.accumulate(np.concatenate(([self._latest_ms], _times(found.records)[:-1])))
        marked = sum(int(found.records.headers["store_size"][row]) for row in _tombstone_rows(found))
        lost = (self._lost_bytes + marked) // MIN_RECORD_BYTES
        following: dict[tuple[str, int], int] = {}
        inner = inner_batches(found, queued_rows(found))
        for row, queue, queue_offset in _numbered(found):
            expected = following.get(queue, self._sequence.expected(*queue))
            if expected is None:
                expected = queue_offset
            elif times[row] < latest[row] and not expected <= queue_offset <= expected + lost:
                return None if self._goes_on(found, row, following, view, file) else row
            following[queue] = expected + 1 + len(inner.get(row, ()))
        return None

    def _goes_on(
        self, found: ScannedRecords, row: int, following: dict[tuple[str, int], int], view: memoryview, file: MappedFile
    ) -> bool:
        """Whether `row` or a record after it in this file continues the queue offsets in `following`."""
        if self._continues(pick(found, slice(row, None)), following):
            return True
        rest = self._scan(file, view, file.start + found.end, found.number) if found.stop is None else ()
        return any(self._continues(run, following) for run in rest)

    def _continues(self, found: ScannedRecords, following: dict[tuple[str, int], int]) -> bool:
        """Whether a record of the run has an entry, or has its queue's next offset, or one up to SPARE past it."""
        headers = found.records.headers
        for row, queue, queue_offset in _numbered(found):
            expected = following.get(queue, self._sequence.expected(*queue))
            if expected is not None and expected <= queue_offset <= expected + SPARE and queue_offset > 0:
                return True
            if self._evidence.has_entry(int(headers["physical_offset"][row]), int(headers["store_size"][row])):
                return True
        return False

    # past damage

    def _resume(self, start: int, reason: str, kind: DamageKind = DamageKind.UNREADABLE) -> int | None:
        """Note the damage from `start` on; return the physical offset of the next good record, None without one."""
        is_refetched = self._refetched_from is not None and start >= self._refetched_from
        if is_refetched or not self._is_settled(start):
            return None
        found = None if self._lacks_its_head(start) else self._next_good(start)
        if found is None:
            return self._end_at(start, reason)
        self._before = None
        if found == start:
            return found
        self._lose(DamagedRange(start, found, reason, kind, self._latest_ms))
        return found

    def _end_at(self, start: int, reason: str) -> int | None:
        """No good record follows `start`. If evidence says that bytes were written there, record them as damage and
        return their end, else None (the log's end)."""
        end = self._claimed_end(start)
        if end <= start:
            return None
        self._lose(DamagedRange(start, end, reason, DamageKind.UNREADABLE, self._latest_ms))
        self.end = end
        return end

    def _claimed_end(self, start: int) -> int:
        """Physical end of the bytes that were written according to the evidence; `start` without any after it."""
        if self._limit is not None:
            return start
        evidence = self._evidence
        ends = [start, evidence.covered_end, self._unread_end(start)]
        for (topic, queue_id), queue_evidence in evidence.queues.items():
            is_missing = queue_evidence.physical_end > start and self._is_missing(topic, queue_id, queue_evidence)
            if is_missing and (evidence.is_clean or self._was_written(start, queue_evidence.physical_end)):
                ends.append(queue_evidence.physical_end)
        return max(ends)

    def _unread_end(self, start: int) -> int:
        """Physical end of the last page from `start` on that the disk refuses to read, `start` without one. Records may
        be in it, so it must not be overwritten."""
        if self._is_written_meanwhile:
            return start
        for file in reversed(self._files_after(start)):
            if (file.start, file.start + file.size) in self._refusals:
                return file.start + file.size
            with suppress(ReadError):
                position = max(start - file.start, 0)
                end = unread_end(file, position)
                if end > position:
                    self._refusals[file.start + position, file.start + end] = REFUSED_PAGE
                    return file.start + end
        return start

    def _is_missing(self, topic: str, queue_id: int, queue_evidence: QueueEvidence) -> bool:
        """Whether the scan found no record with the queue offset of a queue's newest entry."""
        expected = self._sequence.expected(topic, queue_id)
        return expected is None or queue_evidence.next_offset > expected

    def _was_written(self, start: int, end: int) -> bool:
        """Whether a record at [start, end) was once whole. Sectors that did not reach the disk before a crash read as
        zeros, and so does the head of an unpublished record. No crash makes a file shorter."""
        file = self._files.find(start)
        if file is None or end > file.start + file.size:
            return False
        pages = self._readable(file)[start - file.start : end - file.start]
        if len(pages) < end - start:
            return True
        if not any(pages[:BLANK_BYTES]) or not any(pages[-_ENDING_BYTES:]):
            return False
        bounds = [0, *range(-start % SECTOR_BYTES or SECTOR_BYTES, len(pages), SECTOR_BYTES), len(pages)]
        return all(any(pages[first:after]) for first, after in pairwise(bounds))

    def _next_good(self, start: int) -> int | None:
        """Physical offset of the next good frame at or after `start`, None without one."""
        file = self._files.find(start)
        if file is not None:
            view, position = self._readable(file), start - file.start
            if self._is_only_misnumbered(view, start, file.start):
                return start
            while (end := self._frame_end(view, position, file.start)) is not None:
                if self._begins(view, end, file.start):
                    if self._framing.goes_on(view[end:], self._before):
                        return file.start + end
                    break
                if self._framing.is_blank(view[end:]) and self._reaches(file.start + len(view)):
                    return file.start + end
                position = end
            start = file.start + position
        return self._search(start)

    def _is_only_misnumbered(self, view: memoryview, start: int, file_start: int) -> bool:
        """Whether only the number of the ledger entry at `start` is wrong: its whole record has a queue entry."""
        record = start + self._framing.header_bytes
        return record > start and bool(
            self._evidence.entries_in(record, record + 1) and self._begins(view, start - file_start, file_start)
        )

    def _frame_end(self, view: memoryview, position: int, file_start: int) -> int | None:
        """End of the damaged frame at `position` of a file, as a position; None when its sizes do not tell.

        If the size differs from the sum of the parts, one of them is wrong. A queue entry for the record decides;
        without one, the end at which a good record begins, preferably a record with an entry.
        """
        framing, evidence = self._framing, self._evidence
        start = position + framing.header_bytes
        extent, told = frame_extent(view[start:], file_start + start), framing.claimed_size(view[position:])
        entry_size = evidence.size_at(file_start + start)
        if entry_size is not None and entry_size in (extent.by_size, extent.by_parts, told):
            return start + entry_size
        if extent.by_size is not None and extent.by_size in (extent.by_parts, told):
            return start + extent.by_size
        likely = (extent.by_parts, extent.by_size) if extent.parts_fit else (told, extent.by_size)
        ends = [start + size for size in likely if size is not None and self._begins(view, start + size, file_start)]
        first, after = file_start + framing.header_bytes, file_start + framing.header_bytes + 1
        led_to = [end for end in ends if evidence.entries_in(first + end, after + end)]
        return next(iter(led_to or ends), None)

    def _begins(self, view: memoryview, position: int, file_start: int) -> bool:
        """Whether a frame with a whole record begins at `position` of a file."""
        return self._framing.problem(view[position:], file_start + position) is None

    def _search(self, start: int) -> int | None:
        """Physical offset of the next good frame at or after `start`, found without the sizes of damaged frames."""
        evidence = self._evidence
        start = evidence.end_around(start)
        has_queues = evidence.dispatched_end >= 0
        if has_queues and start >= evidence.dispatched_end:
            return None
        for file in self._files_after(start):
            view, position = self._readable(file), max(start - file.start, 0)
            if position == 0 and self._begins(view, 0, file.start) and self._framing.goes_on(view, self._before):
                return file.start  # no body reaches from file to file
            target = self._led_to(view, position, file.start)
            found = self._chained(file, position, target, start)
            if found is not None or target is not None:
                return file.start + (found if found is not None else target or 0)
        return None

    def _led_to(self, view: memoryview, position: int, file_start: int) -> int | None:
        """Position of the first whole frame at or after `position` whose record has an entry."""
        for physical_offset, size in self._evidence.entries_in(file_start + position, file_start + len(view)):
            found, end = self._framing.frame_start(physical_offset) - file_start, physical_offset + size - file_start
            if found < position or end > len(view):
                continue
            if self._framing.problem(view[found:end], file_start + found) is None:
                self._progress(physical_offset)
                return found
        return None

    def _chained(self, file: MappedFile, position: int, target: int | None, damage_start: int) -> int | None:
        """Position of the first record from which records follow each other to `target`, or without a target to the end
        of the file's written part."""
        view = self._readable(file)
        if target is not None:
            return find_chained_record(
                view, position, target, file.start, target.__eq__, self._may_lack_entry, self._framing
            )
        if position >= len(view):
            return None
        written = min(used_end(file, position), len(view))

        def ends_well(end: int) -> bool:
            return end >= written or self._framing.is_blank(view[end:])

        def is_believed(message: StoredMessage) -> bool:
            frame = view[self._framing.frame_start(message.physical_offset) - file.start :]
            if self._evidence.reaches_beyond(message.physical_offset) or not self._framing.goes_on(frame, self._before):
                return False
            return self._is_in_sequence(message, damage_start) and self._went_on(message)

        end = min(written + CLOSING_ZEROS, len(view))
        return find_chained_record(view, position, end, file.start, ends_well, is_believed, self._framing)

    def _may_lack_entry(self, message: StoredMessage) -> bool:
        if self._evidence.reaches_beyond(message.physical_offset):
            return False
        slot = (message.topic, message.queue, message.queue_offset)
        return not is_queued(message.sys_flag) or self._evidence.lacks_entry(*slot)

    def _went_on(self, message: StoredMessage) -> bool:
        """Whether a record was written after the damage, and is not left from before a truncation."""
        if self._evidence.is_clean or message.store_time_ms >= self._latest_ms:
            return True
        return 0 < message.queue_offset == self._sequence.expected(message.topic, message.queue)

    def _lacks_its_head(self, start: int) -> bool:
        """Whether an unpublished batch begins at `start`: its writer died before it wrote the first 8 bytes.

        The batch's other records may be whole, and must not reappear without the first. No queue entry leads to them,
        and all have the same store time, because no later record exists. Without any queue entries, the rest of the
        first record's header must be whole.
        """
        file, evidence = self._files.find(start), self._evidence
        record = self._readable(file)[start - file.start :] if file is not None else memoryview(b"")
        if len(record) < MIN_RECORD_BYTES or any(record[:BLANK_BYTES]):
            return False
        if self._limit is not None or evidence.is_clean or start < evidence.covered_end:
            return False
        if evidence.dispatched_end >= 0:
            return start >= evidence.dispatched_end
        if self._framing.header_bytes:
            return False  # a ledger's writer writes the head of an entry first
        try:
            header = read_header(record, start)
        except ReadError:
            return False
        if header.physical_offset != start or header.store_time_ms <= 0:
            return False
        length = frame_extent(record, start).by_parts
        return length is None or not self._is_followed(start + length, header.store_time_ms)

    def _is_followed(self, start: int, store_time_ms: int) -> bool:
        """Whether a record with another store time, so of no such batch, follows in the chain from `start`."""
        position: int | None = start
        while position is not None and (file := self._files.find(position)) is not None:
            view = self._readable(file)
            stop = None
            for found in self._scan(file, view, position, None):
                if np.any(found.records.headers["store_time_ms"] != store_time_ms):
                    return True
                stop = found.stop
            position = file.start + file.size if stop is ScanStop.BLANK else None
        return False

    def _is_in_sequence(self, message: StoredMessage, damage_start: int) -> bool:
        if not is_queued(message.sys_flag):
            return True
        physical_offset = message.physical_offset
        lost_bytes = self._lost_bytes + physical_offset - damage_start
        return self._sequence.fits(message.topic, message.queue, message.queue_offset, physical_offset, lost_bytes)

    def _note_moved(self, start: int) -> None:
        """Note the records from `start` on whose topic or queue id is damaged, which no checksum covers. Such a record
        is whole, and an entry of a queue that lacks its queue offset leads to it. A queue's newest entry is enough
        even if the record may be right as it is: its queue offset is not given again."""
        for topic, queue_id, first, after in [*self._sequence.gaps, *self._missing()]:
            for number in range(first, min(after, first + _MOST_LOOKED_AT)):
                slot = Slot(topic, queue_id, number)
                physical_offset = self._evidence.physical_offset_of(*slot)
                if start <= physical_offset < self.end and self._has_lost_its_name(physical_offset, slot):
                    end = physical_offset + (self._evidence.size_at(physical_offset) or 0)
                    text = f"its topic or queue id is damaged: the entry of {topic}/{queue_id}/{number} leads to it"
                    self._lose(DamagedRange(physical_offset, end, text, DamageKind.MISPLACED, self._latest_ms))
        self._sequence.gaps.clear()
        for (topic, queue_id), queue_evidence in self._evidence.queues.items():
            begin, end = queue_evidence.physical_offset, queue_evidence.physical_end
            if not start <= begin < end <= self.end or not self._is_missing(topic, queue_id, queue_evidence):
                continue
            if self.is_moved(begin, end - begin, queue_evidence.next_offset - 1) and not self._is_lost(begin):
                text = DamageKind.MOVED.value
                self._lose(DamagedRange(begin, end, text, DamageKind.MOVED, self._latest_ms))

    def _missing(self) -> Iterator[Gap]:
        """The newest queue offsets that entries have and the scanned records do not."""
        for (topic, queue_id), queue_evidence in self._evidence.queues.items():
            if self._is_missing(topic, queue_id, queue_evidence):
                expected = self._sequence.expected(topic, queue_id)
                newest = queue_evidence.next_offset - 1
                yield Gap(topic, queue_id, newest if expected is None else expected, queue_evidence.next_offset)

    def _has_lost_its_name(self, physical_offset: int, slot: Slot) -> bool:
        """Whether the record at `physical_offset` belongs to `slot`, whose entry leads to it, but names another slot.
        The entry is wrong instead if the other slot's entry leads there too, or if the entries beside it lead to other
        queues' records."""
        size, message = self._evidence.size_at(physical_offset), self._record_at(physical_offset)
        if message is None or (message.store_size, message.queue_offset) != (size, slot.queue_offset):
            return False
        own = Slot(message.topic, message.queue, message.queue_offset)
        if matches_slot(message, slot) or self._evidence.physical_offset_of(*own) == physical_offset:
            return False
        if self._is_lost(physical_offset):
            return False
        beside = {self._is_confirmed(slot._replace(queue_offset=slot.queue_offset + step)) for step in (-1, 1)}
        return False not in beside and (True in beside or self._is_confirmed(own) is True)

    def _is_lost(self, physical_offset: int) -> bool:
        return any(damage.start <= physical_offset < damage.end for damage in self.damaged)

    def _is_confirmed(self, slot: Slot) -> bool | None:
        """Whether the entry of `slot` leads to a record of that slot; None if it leads to no whole record."""
        message = self._record_at(self._evidence.physical_offset_of(*slot))
        return matches_slot(message, slot) if message is not None else None

    def is_moved(self, physical_offset: int, size: int, queue_offset: int) -> bool:
        """Whether a whole record of that size and queue offset is there. If it names another queue than the entry's,
        its topic or queue id was damaged, which no checksum covers."""
        message = self._record_at(physical_offset)
        return message is not None and (message.store_size, message.queue_offset) == (size, queue_offset)

    def _record_at(self, physical_offset: int) -> StoredMessage | None:
        """The whole record at `physical_offset`, None without one."""
        file = self._files.find(physical_offset)
        if file is None:
            return None
        try:
            return decode_record(self._readable(file)[physical_offset - file.start :], physical_offset)
        except ReadError:
            return None

    def _lose_row(self, found: ScannedRecords, row: int, kind: DamageKind, reason: str) -> None:
        header = found.records.headers[row]
        start = int(header["physical_offset"])
        self._lose(DamagedRange(start, start + int(header["store_size"]), reason, kind, self._latest_ms))

    def _lose_suspect(self, suspect: Suspect) -> None:
        """Note a record that was yielded as good as damage instead."""
        start, text = suspect.physical_offset, _misnumbered(suspect.queue_offset)
        self._lose(DamagedRange(start, start + suspect.store_size, text, DamageKind.MISNUMBERED, self._latest_ms))
        self.records -= 1
        self._disproved(suspect)

    def _lose(self, damage: DamagedRange) -> None:
        self.damaged.append(damage)
        self._lost_bytes += damage.end - damage.start

    def _forget_tail(self) -> None:
        """Drop the damage from `end` on: no good record follows it, so it is the log's tail."""
        while self.damaged and self.damaged[-1].start >= self.end:
            damage = self.damaged.pop()
            self._lost_bytes -= damage.end - damage.start

    def _files_after(self, physical_offset: int) -> list[MappedFile]:
        return [file for file in self._files.files if file.start + file.size > physical_offset]

    def _readable(self, file: MappedFile) -> memoryview:
        """The readable bytes of a file, up to the limit; none if it was cut, deleted or refused."""
        try:
            pages = self._pages(file)
        except RefusedReadError as error:
            self._refusals[file.start, file.start + file.size] = error.reason
            return memoryview(b"")
        except ReadError:
            return memoryview(b"")
        return pages if self._limit is None else pages[: max(self._limit - file.start, 0)]


def _numbered(found: ScannedRecords) -> Iterator[tuple[int, tuple[str, int], int]]:
    """Row, queue and queue offset of each record of a run that has a queue entry."""
    records = found.records
    for row in queued_rows(found).tolist():
        queue = (found.topics[int(found.topic_rows[row])], int(records.queue_ids[row]))
        yield row, queue, int(records.headers["queue_offset"][row])


def _tombstone_rows(found: ScannedRecords) -> list[int]:
    """Rows that are tombstones."""
    names = [number for number, topic in enumerate(found.topics) if topic and TOMBSTONE_TOPIC.startswith(topic)]
    if not names:
        return []
    headers = found.records.headers
    rows = np.flatnonzero(is_rolled_back(headers["sys_flag"]) & np.isin(found.topic_rows, names)).tolist()
    topics = found.topics
    return [row for row in rows if is_tombstone(topics[int(found.topic_rows[row])], int(headers["store_size"][row]))]


def _times(records: ParsedHeaders) -> Array:
    """Store times in ms for comparison with later records, or birth times if SOON_MS is exceeded: int64 (n,)."""
    stored = records.headers["store_time_ms"]
    born = items_at(records.log, records.positions + _BORN_TIME_POSITION, 8).view(">i8").astype(np.int64)
    return np.where(stored - born > SOON_MS, born, stored)


def _misnumbered(queue_offset: int) -> str:
    return f"its queue offset {queue_offset} does not follow its queue's"


def pick(found: ScannedRecords, rows: Array | slice) -> ScannedRecords:
    """The run with only `rows`."""
    kept = np.arange(len(found))[rows].tolist()
    slots = {row: found.slots[old] for row, old in enumerate(kept) if old in found.slots} if found.slots else {}
    return replace(found, records=found.records.take(rows), slots=slots)


def _without(found: ScannedRecords, rows: Array) -> ScannedRecords:
    keep = np.ones(len(found), dtype=bool)
    keep[rows] = False
    return pick(found, keep)
