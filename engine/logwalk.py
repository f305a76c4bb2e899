"""Log walk: every good record of the commit log from some place on, past damage, to the log's end (docs/format.md, 8).

    good records | damaged stretch | good records | torn or stale tail, zeros
                                                  ^ the log's end

Behind damage a record counts only if everything fits that can be checked: framing, CRC, physical offset, the next queue
offset, and a store time that is not earlier. What fits nothing is a tail that a crash or an earlier truncation left:
the log ends before it. It also ends before a batch whose writer died while writing it: that lacks the first 8 bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any

import numpy as np

from engine.damagemark import DAMAGE_TOPIC, is_damage_mark
from engine.errors import ReadError
from engine.filequeue import FileQueue
from engine.located import LocatedRecords
from engine.logscan import ScannedRecords, ScanStop, find_next_record, scan_records
from engine.mappedfile import MappedFile
from engine.message import StoredMessage
from engine.record import (
    BLANK_BYTES,
    MIN_RECORD_BYTES,
    TRANSACTION_COMMIT,
    TRANSACTION_MASK,
    TRANSACTION_ROLLBACK,
    decode_record,
    read_header,
)
from engine.sequence import Doubt, QueueSequence, Seed
from engine.slices import items_at

Array = np.ndarray[Any, Any]


SOON_MS = 10_000
"""A message is stored so soon after it was born, or its store time is not held against what follows: no checksum covers
either, and one that a bit took to the future would make a stale tail of all behind it."""
_BORN_TIME_POSITION = 40


class DamageKind(Enum):
    """What is known of a stretch without a good record."""

    UNREADABLE = "no record can be made out"
    MISNUMBERED = "a record whose queue offset can't be right"
    FILLER = "the filler at a file's end, which may stand for what was damaged"
    MARKED = "framed by a repair: whoever reads the log passes it"


@dataclass(frozen=True, slots=True)
class DamagedStretch:
    """Bytes [start, end) of the commit log that hold no good record, between good ones."""

    start: int
    end: int
    reason: str
    kind: DamageKind
    since_ms: int
    """Store time of the newest record before it."""

    @property
    def is_new(self) -> bool:
        """Whether it is damage that nobody has dealt with."""
        return self.kind in (DamageKind.UNREADABLE, DamageKind.MISNUMBERED)


@dataclass(frozen=True, slots=True)
class NewestRecord:
    """The last good record of a log: where, how long, stored when."""

    physical_offset: int
    size: int
    store_time_ms: int

    @property
    def end(self) -> int:
        """Physical offset just past it."""
        return self.physical_offset + self.size


class LogWalk:
    """One pass over the log; iterate it for the records, then read `end`, `newest` and `damaged`.

    Thread safety: one caller; the log must not be written meanwhile.
    """

    def __init__(
        self,
        files: FileQueue,
        start: int,
        seed: Seed,
        *,
        end: int | None = None,
        trusted_end: int = 0,
        earliest_ms: int = 0,
        dispatched_end: int = -1,
        disproved: Callable[[Doubt], None] | None = None,
        multi_dispatch: bool = False,
        progress: Callable[[int], None] | None = None,
    ) -> None:
        """`start` is where a record begins; `end` where to stop, if the log is known to reach there. Bodies before
        `trusted_end` are not checked (they were, or readers do). `earliest_ms` is the store time of the record before
        `start`, 0 when unknown. Queues lead to records before `dispatched_end`, -1: there are none. `disproved` hears
        of a record that was yielded and whose queue offset turns out to be wrong, before the run is yielded that shows
        it. With `multi_dispatch` records may have further places. `progress` hears physical offsets.
        """
        self.end = start
        self.newest: NewestRecord | None = None
        self.damaged: list[DamagedStretch] = []
        self.records = 0
        self._files = files
        self._start = start
        self._sequence = QueueSequence(seed, multi_dispatch=multi_dispatch)
        self._limit = end
        self._trusted_end = trusted_end
        self._latest_ms = earliest_ms
        self._dispatched_end = dispatched_end
        self._lost_bytes = 0
        self._disproved = disproved or (lambda doubt: None)
        self._progress = progress or (lambda physical_offset: None)

    def __iter__(self) -> Iterator[ScannedRecords]:
        """Runs of good records, in log order. A run is a view of the log's pages: drop it before the log is closed."""
        position: int | None = self._start
        while position is not None:
            position = yield from self._run(position)

    def _run(self, position: int) -> Generator[ScannedRecords, None, int | None]:
        """Walk one file from `position`; return where to go on, None at the log's end."""
        if self._limit is not None and position >= self._limit:
            return None
        file = self._files.find(position)
        if file is None:
            return self._resume(position, "no file holds them")
        view = self._readable(file)
        verify = file.start + file.size > self._trusted_end
        scan = scan_records(view, position - file.start, file.start, len(view), verify=verify)
        stop, problem = ScanStop.END, None
        for found in scan:
            stop, problem = found.stop or stop, found.problem
            stale = self._first_stale(found)
            if stale is not None:
                yield from self._taken(_head(found, stale))
                return self._resume(self.end, "its store time and queue offset are of an earlier life of the log")
            yield from self._taken(found)
        following = file.start + file.size
        if stop is ScanStop.BLANK and self._files_behind(following):
            self._lose(DamagedStretch(self.end, following, DamageKind.FILLER.value, DamageKind.FILLER, self._latest_ms))
            self.end = following
            return following
        if stop is ScanStop.BLANK:
            return None
        return self._resume(self.end, problem or stop.value)

    def _taken(self, found: ScannedRecords) -> Iterator[ScannedRecords]:
        """Account for a run, and yield what of it is undamaged."""
        if len(found) == 0:
            return
        headers = found.records.headers
        for row in _marked_rows(found):
            self._lose_row(found, row, DamageKind.MARKED, DamageKind.MARKED.value)
        misnumbered = self._sequence.take(found, self._lost_bytes)
        for doubt in misnumbered.earlier:
            self._lose_doubted(doubt)
        for displaced in misnumbered.displaced:
            self._disproved(displaced)
        found = replace(found, places=misnumbered.places) if misnumbered.places else found
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

    def _first_stale(self, found: ScannedRecords) -> int | None:
        """The first row that was stored earlier than a record before it, and does not go on from its queue's number."""
        times = found.records.headers["store_time_ms"]
        if len(times) == 0:
            return None
        if times[0] >= self._latest_ms and not np.any(times[1:] < times[:-1]):
            return None
        latest = np.maximum.accumulate(np.concatenate(([self._latest_ms], _times(found.records)[:-1])))
        for row in np.flatnonzero(times < latest).tolist():
            if self._is_stale(found, row):
                return int(row)
        return None

    def _is_stale(self, found: ScannedRecords, row: int) -> bool:
        """A clock may step back; then queue offsets go on all the same."""
        records = found.records
        if not _is_queued(int(records.headers["sys_flag"][row])):
            return False
        topic_row, queue_id = found.topic_rows[row], records.queue_ids[row]
        expected = self._sequence.expected(found.topics[int(topic_row)], int(queue_id))
        if expected is None:
            return False
        before = (found.topic_rows[:row] == topic_row) & (records.queue_ids[:row] == queue_id)
        queued = np.isin(records.headers["sys_flag"][:row] & TRANSACTION_MASK, (0, TRANSACTION_COMMIT))
        expected += int(np.count_nonzero(before & queued))
        marked = sum(int(records.headers["store_size"][one]) for one in _marked_rows(found) if one < row)
        lost = (self._lost_bytes + marked) // MIN_RECORD_BYTES
        return not expected <= int(records.headers["queue_offset"][row]) <= expected + lost

    def _resume(self, start: int, reason: str) -> int | None:
        """Where good records go on behind `start`, the stretch between noted; None when nothing good follows.

        One that is not earlier than what is before `start` shows that the log went on: then those between are good too,
        though they seem to be earlier. It is the last time before `start` that is wrong.
        """
        unpublished = self._lacks_its_head(start)
        first: StoredMessage | None = None
        for file in self._files_behind(start):
            view = self._readable(file)
            position = max(start - file.start, 0)
            while (found := find_next_record(view, position, file.start, len(view))) is not None:
                message = decode_record(view[found:], file.start + found)
                if self._is_in_sequence(message, start):
                    first = first or message
                    went_on = message.store_time_ms >= self._latest_ms
                    if went_on and not (unpublished and message.store_time_ms == first.store_time_ms):
                        self._lose(
                            DamagedStretch(start, first.physical_offset, reason, DamageKind.UNREADABLE, self._latest_ms)
                        )
                        return first.physical_offset
                position = found + message.store_size
                self._progress(file.start + position)
        return None

    def _lacks_its_head(self, start: int) -> bool:
        """Whether a batch stands at `start` whose writer died before publishing it, which writes the first 8 bytes.

        The batch's other records may be whole, and must not come back without the first. No queue leads to any of them,
        and all have one store time, for nothing was written behind them. Where queues were lost, the rest of the first
        record's header has to be there.
        """
        file = self._files.find(start)
        record = self._readable(file)[start - file.start :] if file is not None else memoryview(b"")
        if len(record) < MIN_RECORD_BYTES or any(record[:BLANK_BYTES]):
            return False
        if self._limit is not None:
            return False
        if self._dispatched_end >= 0:
            return start >= self._dispatched_end
        try:
            header = read_header(record, start)
        except ReadError:
            return False
        return header.physical_offset == start and header.store_time_ms > 0

    def _is_in_sequence(self, message: StoredMessage, damage_start: int) -> bool:
        if not _is_queued(message.sys_flag):
            return True
        place = message.physical_offset
        lost_bytes = self._lost_bytes + place - damage_start
        return self._sequence.fits(message.topic, message.queue_id, message.queue_offset, place, lost_bytes)

    def _lose_row(self, found: ScannedRecords, row: int, kind: DamageKind, reason: str) -> None:
        header = found.records.headers[row]
        start = int(header["physical_offset"])
        self._lose(DamagedStretch(start, start + int(header["store_size"]), reason, kind, self._latest_ms))

    def _lose_doubted(self, doubt: Doubt) -> None:
        """Take back what was said of a record."""
        start, text = doubt.physical_offset, _misnumbered(doubt.queue_offset)
        self._lose(DamagedStretch(start, start + doubt.store_size, text, DamageKind.MISNUMBERED, self._latest_ms))
        self.records -= 1
        self._disproved(doubt)

    def _lose(self, stretch: DamagedStretch) -> None:
        self.damaged.append(stretch)
        self._lost_bytes += stretch.end - stretch.start

    def _files_behind(self, physical_offset: int) -> list[MappedFile]:
        return [file for file in self._files.files if file.start + file.size > physical_offset]

    def _readable(self, file: MappedFile) -> memoryview:
        """What of a file can be read, up to the limit; nothing of one that was cut or deleted."""
        try:
            pages = file.pages()
        except ReadError:
            return memoryview(b"")
        return pages if self._limit is None else pages[: max(self._limit - file.start, 0)]


def _marked_rows(found: ScannedRecords) -> list[int]:
    """Rows that frame damaged bytes: see `damagemark`."""
    names = [number for number, topic in enumerate(found.topics) if topic and DAMAGE_TOPIC.startswith(topic)]
    if not names:
        return []
    headers = found.records.headers
    is_rolled_back = headers["sys_flag"] & TRANSACTION_MASK == TRANSACTION_ROLLBACK
    rows = np.flatnonzero(is_rolled_back & np.isin(found.topic_rows, names)).tolist()
    topics = found.topics
    return [row for row in rows if is_damage_mark(topics[int(found.topic_rows[row])], int(headers["store_size"][row]))]


def _times(records: LocatedRecords) -> Array:
    """When records were stored, as far as that can be held against those behind them; int64 (n,)."""
    stored = records.headers["store_time_ms"]
    born = items_at(records.log, records.positions + _BORN_TIME_POSITION, 8).view(">i8").astype(np.int64)
    return np.where(stored - born > SOON_MS, born, stored)


def _misnumbered(queue_offset: int) -> str:
    return f"its queue offset {queue_offset} does not follow its queue's"


def _is_queued(sys_flag: int) -> bool:
    return sys_flag & TRANSACTION_MASK in (0, TRANSACTION_COMMIT)


def pick(found: ScannedRecords, rows: Array | slice) -> ScannedRecords:
    """The run with only these rows."""
    kept = np.arange(len(found))[rows].tolist()
    places = {row: found.places[old] for row, old in enumerate(kept) if old in found.places} if found.places else {}
    return replace(found, records=found.records.take(rows), topic_rows=found.topic_rows[rows], places=places)


def _head(found: ScannedRecords, count: int) -> ScannedRecords:
    return pick(found, slice(0, count))


def _without(found: ScannedRecords, rows: Array) -> ScannedRecords:
    keep = np.ones(len(found), dtype=bool)
    keep[rows] = False
    return pick(found, keep)
