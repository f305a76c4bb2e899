"""Consume queue: the physical offsets of the messages of one topic queue (docs/format.md, 6).

    physical_offset i64 | size i32 | tags_code i64    big-endian, 20 bytes; entry i is at byte 20*i

If a queue begins later than at a file's first entry, the entries before are "pre-blank": physical offset 0, size
0x7FFFFFFF, no message. Zeros follow the newest entry. A queue can be rebuilt from the commit log, so it carries no
checksum. One writer (dispatch), any readers.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from engine.deadline import WouldBlock, check_deadline
from engine.derived.queue_end import ends_at, holds_more, scanned_end, searched_end, shown_prefix, unbroken_tail
from engine.derived.remade import MOST_RUNS, Make, Run
from engine.errors import QueueGapError, ReadError, RefusedReadError, RetiredFileError, UnreadableRangeError
from engine.files.mapped_file import PAGE_BYTES, Access
from engine.files.watch import Watch
from engine.log.entries import (
    ENTRY,
    ENTRY_STRUCT,
    PRE_BLANK_SIZE,
    Entries,
    is_pre_blank,
    record_end,
    starts_from,
)
from engine.record.header import MAX_OFFSET
from engine.record.kernel.append import QueueEnd
from engine.record.kernel.files import refused_parts

if TYPE_CHECKING:
    from engine.files.file_queue import FileQueue
    from engine.files.mapped_file import MappedFile

Array = np.ndarray[Any, Any]

SCANNED_FILES = 3
"""Number of the newest files that recovery reads whole. Older files were synced long before."""
_FOLLOW_ENTRIES = 1024
_UNEXPIRED = MAX_OFFSET, 1, 0
"""Represents a refused entry: it counts as not expired."""
_UNREAD = -1, 1, 0
"""Represents a refused entry: it leads to no record."""
_REFUSED = -1, 0, 0
"""Represents a refused entry in an array: see `is_refused_entry`."""
ENTRY_BYTES = ENTRY.itemsize
_APART = -(-PAGE_BYTES // ENTRY_BYTES)
"""Distance in entries at which two entries share no page."""
_MANY = 1024
"""A read of this many entries or more is likely to continue: four times as many are read from disk ahead."""


class ConsumeQueue(QueueEnd):
    """Entries by queue offset, which counts messages and not bytes. Call `recover` or `resume` first.

    Thread safety: one writer at a time (append, recover, truncate, expire, refresh); reads from any thread.
    """

    def __init__(self, topic: str, queue_id: int, files: FileQueue) -> None:
        super().__init__(topic, queue_id, files)
        self.is_stale = False
        """True when the store no longer uses this object: its topic was deleted, or (FOLLOW) its writer recreated or
        cut the queue. Look the queue up again."""
        self.pending = 0
        """Number of queue offsets given to records whose entries are still to be appended (transient pool)."""
        self._file_entries = files.file_bytes // ENTRY.itemsize
        self._first = 0
        self._max = 0
        self.notified_min: int | None = None
        """Lowest min_offset handed out since the last expiry notification (None: none was). The next notification
        covers the queue offsets from this to min_offset."""
        self._newest = -1
        self._physical_end = -1
        self._watch = Watch(files.directory)
        self._before_failed_refresh: tuple[int, int, int] | None = None  # the state before a failed refresh
        self.make: Make | None = None
        """Makes entries again that the disk refuses. None: reading them raises RefusedReadError."""
        self._making = threading.RLock()
        self._runs: list[Run] = []  # made by `make`

    @property
    def first_offset(self) -> int:
        """Queue offset of the oldest entry in the files, expired or not."""
        return self._first

    @property
    def max_offset(self) -> int:
        """The queue offset that the next entry gets."""
        return self._max

    @property
    def extent(self) -> tuple[int, int]:
        """Queue offsets of the first entry in the files (after the last missing one), and of the next entry."""
        return self._first if self.files.first else self._max, self._max

    def _find_min_offset(self) -> int:
        """Compute `min_offset`."""
        found = self._min = self._find_min(self._first)
        notified = self.notified_min
        if notified is None or (found[0] < notified and found[1] == self._min_physical):
            self.notified_min = found[0]
        return found[0]

    def _find_min(self, low: int) -> tuple[int, int, int]:
        """The value of `_min`. Retention may continue and entries may be appended meanwhile."""
        log_begin, max_offset = self._min_physical, self._max
        found = self._search(lambda entry: starts_from(entry, log_begin), low, max_offset, if_refused=_UNEXPIRED)
        return found, log_begin, -1 if found < max_offset else max_offset

    @property
    def physical_end(self) -> int:
        """Physical offset just past the newest entry's record; -1 when the queue holds none."""
        return self._physical_end

    @property
    def newest_physical_offset(self) -> int:
        """Physical offset of the newest entry's record; -1 when the queue holds none."""
        return self._newest

    # finding the end

    def recover(self, scan: bool = True) -> None:
        """Find the end of the valid entries. `scan` reads the newest files whole, and unless access is READ clears the
        bytes after their valid entries. Without it (after a clean close) a binary search finds the end."""
        files = unbroken_tail(self.files.files, self.files.missized)
        self._first = files[0].start // ENTRY.itemsize if files else 0
        self._runs.clear()
        try:
            end = _written_end(files, scan)
        except RefusedReadError:
            if self.make is None:
                raise
            end = self._end_past_refused(files)
        if scan and self.files.access is not Access.READ and holds_more(files, end):
            self.files.truncate(end)
        elif files and self.files.access is not Access.READ:
            self.files.set_end(end)
        self._moved(end // ENTRY.itemsize)
        self._min = None

    def resume(self, max_offset: int, physical_end: int) -> None:
        """Take the end from the mark of a clean close, unless the files contradict it. The log ended at `physical_end`:
        a newest entry that leads past it is damaged, and later entries are not compared with it."""
        files = unbroken_tail(self.files.files, self.files.missized)
        if not files or not self._may_end_at(files, max_offset):
            self.recover(scan=False)
        else:
            self._first = files[0].start // ENTRY.itemsize
            if self.files.access is not Access.READ:
                self.files.set_end(max_offset * ENTRY.itemsize)
            self._moved(max_offset)
            self._min = None
        if self._newest < -1 or self._physical_end > physical_end:
            self._newest = self._physical_end = -1

    def _may_end_at(self, files: Sequence[MappedFile], max_offset: int) -> bool:
        """Whether the files allow that the queue ends at `max_offset`."""
        try:
            return ends_at(files, max_offset * ENTRY.itemsize)
        except RefusedReadError:
            if self.make is None:
                raise
            return bool(files[0].start < max_offset * ENTRY.itemsize <= files[-1].start + files[-1].size)

    def _end_past_refused(self, files: Sequence[MappedFile]) -> int:
        """Byte offset of the end of the entries: after the newest readable one, or, if the disk refuses entries behind
        it, after the newest in the log."""
        self._max = self._first
        is_refused = False
        for file in reversed(files):
            first = file.start // ENTRY_BYTES
            entries = np.concatenate([*self._pieces(first, first + self._file_entries)])
            written, refused = np.flatnonzero(entries["size"] > 0), np.flatnonzero(is_refused_entry(entries))
            last = int(written[-1]) if len(written) else -1
            is_refused = is_refused or bool(len(refused) and refused[-1] > last)
            if last >= 0:
                self._max = first + last + 1
                break
        if is_refused:
            self._max = max(self._max, self._run_of(self._max).found_end)
        return self._max * ENTRY_BYTES

    def _moved(self, max_offset: int) -> None:
        """Publish a new end that did not come from an append."""
        self._appended_to = None
        self.forget_texts()
        self._max = max_offset
        self._newest = self._physical_end = -1
        newest = self._raw(max_offset - 1) if max_offset > self._first else None
        if newest is not None and newest[1] not in (PRE_BLANK_SIZE, 0):  # 0: the file was replaced meanwhile
            self._newest, self._physical_end = newest[0], newest[0] + newest[1]

    # writing

    def append(self, queue_offset: int, entries: Entries, text_bytes: Array | None = None) -> int:
        """Store the entries (from `queue_offset` on) that the queue does not have yet; return their number.
        `text_bytes`: as of `note_texts`, if known.

        QueueGapError; StoreFullError (no new file: the entries before it are stored, see `reserve`).
        """
        present = self._present(queue_offset, entries)
        fresh = entries[present:]
        if len(fresh):
            if self.files.last is not None and queue_offset + present > self._max:
                record = int(fresh["physical_offset"][0]), int(fresh["size"][0])
                raise QueueGapError(self.topic, self.queue_id, self._max, queue_offset + present, *record)
            self._begin(queue_offset + present)
            self._write(fresh)
        if text_bytes is not None:
            self.note_texts(queue_offset, entries["physical_offset"].astype(np.int64), text_bytes)
        return len(fresh)

    def _present(self, queue_offset: int, entries: Entries) -> int:
        """Number of leading `entries` that the queue has: their records are the newest entry's, or lie before it."""
        if self._newest < 0 or not len(entries) or self._newest < entries[0].item()[0]:
            return 0
        offsets = entries["physical_offset"].astype(np.int64)
        present = int(np.searchsorted(offsets, self._newest, side="left"))
        if present < len(offsets) and offsets[present] == self._newest and queue_offset + present < self._max:
            present += 1
        return present

    def _begin(self, queue_offset: int) -> None:
        """Make `queue_offset` the next entry's, in a queue without files with pre-blank entries.

        If an earlier record has that offset, the broker gave it again after it lost this queue's files: the newer
        record gets it.
        """
        if self.files.last is not None:
            if queue_offset >= self._first:
                if queue_offset < self._max:
                    self._cut(queue_offset)
                return
            self.files.delete_all()
        blanks = queue_offset % self._file_entries
        first = queue_offset - blanks
        self.files.roll(first * ENTRY.itemsize, needed=blanks * ENTRY.itemsize)  # no queue begins with half its blanks
        self._first = first
        if blanks:
            self.files.append(ENTRY_STRUCT.pack(0, PRE_BLANK_SIZE, 0) * blanks)
        self._moved(queue_offset)
        self._min = self.notified_min = None
        self._appended_to = self.files.last

    def _write(self, entries: Entries) -> None:
        """Append file by file. Each part is published after its bytes are written."""
        if self._appended_to is None and self.files.access is Access.READ:
            self.files.truncate(self._max * ENTRY.itemsize)  # in memory: what another process wrote behind is not ours
        raw = np.ascontiguousarray(entries).view(np.uint8)
        done = 0
        while done < len(entries):
            part = min(self._file_entries - self._max % self._file_entries, len(entries) - done)
            self.files.append(raw[done * ENTRY.itemsize : (done + part) * ENTRY.itemsize].data)
            done += part
            self._newest, size, _ = entries[done - 1].item()
            self._physical_end = self._newest + size
            self._max += part
        self._appended_to = self.files.last

    def reserve(self, count: int) -> int:
        """Make the next `count` entries' files and disk space ready to be written; return the first entry's queue
        offset, counting `pending` ones. StoreFullError, OSError, RefusedReadError: no entry may be appended."""
        queue_offset = self._max + self.pending
        size = (count + self.pending) * ENTRY.itemsize
        if self.files.last is None:
            self._begin(self._max)
        newest = self.files.last
        assert newest is not None
        if not newest.full:
            newest.ready(size)  # an error is harmless only before the records are in the log
        size -= newest.remaining
        for file in self.files.reserve(-(-size // self.files.file_bytes)) if size > 0 else ():
            file.writable(0, min(size, file.size))
            size -= file.size
        return queue_offset

    def append_one(self, queue_offset: int, physical_offset: int, size: int, tags_code: int) -> int:
        """`append` one entry."""
        if self.add_entry(queue_offset, physical_offset, size, tags_code):
            return 1
        return self.append(queue_offset, np.array([(physical_offset, size, tags_code)], dtype=ENTRY))

    def truncate(self, physical_end: int) -> int:
        """Drop entries whose record ends after `physical_end`; return their number.

        The rest of the file is zeroed and synced, later files are deleted, and numbering continues from there. READ:
        the entries are only hidden, until `refresh` gets a larger physical end.
        """
        if self._physical_end <= physical_end:
            return 0
        kept = self._search(lambda entry: record_end(entry) > physical_end, self._first, self._max)
        while kept > self._first and record_end(self._raw(kept - 1)) > physical_end:
            kept -= 1  # damaged entries have no order, and may have misled the search
        dropped = self._max - kept
        if dropped:
            self._cut(kept)
        return dropped

    def drop_from(self, queue_offset: int) -> None:
        """Drop the entries from `queue_offset` on: other records of the log have these queue offsets."""
        if self._first <= queue_offset < self._max:
            self._cut(queue_offset)

    def _cut(self, max_offset: int) -> None:
        self._runs.clear()
        if self.files.access is not Access.READ:
            self.files.truncate(max_offset * ENTRY.itemsize)
        self._moved(max_offset)
        self._min = None

    # reading

    def read(self, queue_offset: int, count: int) -> Entries:
        """View of up to `count` entries of one file, from `queue_offset` on; empty at or past max_offset.

        The view is read-only and keeps its file mapped. It may contain pre-blank entries below min_offset.
        """
        count = min(count, self._max - queue_offset, self._file_entries - queue_offset % self._file_entries)
        return self._stored(queue_offset, count)

    def _stored(self, queue_offset: int, count: int) -> Entries:
        """Entries of one file, published or not; none without a file. Refused entries are made again from the log;
        RefusedReadError if it lacks them."""
        try:
            return self._on_disk(queue_offset, count)
        except RefusedReadError:
            found = self._known(queue_offset, queue_offset + count)
            if self.make is None or is_refused_entry(found).any():
                raise
            return found

    def _on_disk(self, queue_offset: int, count: int) -> Entries:
        """As `_stored`, but RefusedReadError if the disk refuses an entry."""
        position = queue_offset * ENTRY.itemsize
        file = self.files.find(position) if count > 0 else None
        if file is None:
            return np.empty(0, ENTRY)
        if count >= _MANY:
            file.read_soon(position - file.start, 4 * count * ENTRY.itemsize)
        return file.array(ENTRY, position - file.start, count)

    def entries(self, queue_offset: int, count: int) -> Entries:
        """Up to `count` entries from `queue_offset` on, across files: a view if they are in one file, else a copy."""
        count = min(count, self._max - queue_offset)
        first = self.read(queue_offset, count)
        if len(first) >= count or not len(first):
            return first
        parts = [first]
        found = len(first)
        while found < count:
            part = self.read(queue_offset + found, count - found)
            if not len(part):
                break
            parts.append(part)
            found += len(part)
        return np.concatenate(parts)

    def known_entries(self, queue_offset: int, count: int) -> Entries:
        """As `entries`, but refused entries are included with size 0. Their physical offset is a neighbour's plus 1,
        where no record begins: it is in the log file where their record may be. It is -1 if no entry is readable."""
        try:
            return self.entries(queue_offset, count)
        except RefusedReadError:
            return _leading_near(self._known(queue_offset, min(queue_offset + count, self._max)))

    def _known(self, first: int, end: int) -> Entries:
        """The entries at [first, end), refused ones made again from the log, or _REFUSED if it lacks them."""
        found = np.concatenate([np.empty(0, ENTRY), *self._pieces(first, end)])
        for row in np.flatnonzero(is_refused_entry(found)).tolist() if self.make is not None else ():
            found[row] = self._from_log(first + row) or _REFUSED
        return found

    def _pieces(self, first: int, end: int) -> Iterator[Entries]:
        """The entries at [first, end), one array a file; _REFUSED stands for refused ones."""
        while first < end:
            count = min(end - first, self._file_entries - first % self._file_entries)
            try:
                piece = self._on_disk(first, count)
            except RefusedReadError:
                piece = self._not_refused(first, count)
            if not len(piece):
                return
            yield piece
            first += len(piece)

    def _not_refused(self, first: int, count: int) -> Entries:
        """`count` entries of one file that the disk refuses in part; _REFUSED stands for those of a refused page. Each
        page is tried once, since a failing disk may take long."""
        file = self.files.find(first * ENTRY_BYTES)
        if file is None:
            return np.empty(0, ENTRY)
        found = np.full(count, np.array(_REFUSED, ENTRY))
        with suppress(RefusedReadError):
            view = file.view(first * ENTRY_BYTES - file.start, count * ENTRY_BYTES)
            found = np.frombuffer(view, ENTRY).copy()
            for begin, end in refused_parts(view):
                found[begin // ENTRY_BYTES : -(-end // ENTRY_BYTES)] = _REFUSED
        return found

    def made_again(self, queue_offset: int, refused: RefusedReadError) -> tuple[int, int, int]:
        """The refused entry, made again from the log. Raises `refused` if the log lacks it."""
        entry = self._from_log(queue_offset) if self.make is not None else None
        if entry is None:
            raise refused
        return entry

    def _from_log(self, queue_offset: int) -> tuple[int, int, int] | None:
        """The entry made from the log, None if the log lacks it. WouldBlock with its work on a nonblocking thread, if
        much of the log must be read, or another thread reads it."""
        try:
            return self._made_entry(queue_offset)
        except WouldBlock:
            raise WouldBlock(partial(self._made_entry, queue_offset)) from None
        except (ReadError, OSError):
            return None

    def _made_entry(self, queue_offset: int) -> tuple[int, int, int] | None:
        """As `_from_log`. ReadError, OSError."""
        if not self._making.acquire(blocking=False):
            check_deadline()
            self._making.acquire()
        try:
            return self._run_of(queue_offset).find(queue_offset)
        finally:
            self._making.release()

    def _run_of(self, queue_offset: int) -> Run:
        """The run made from the log that covers `queue_offset`. ReadError, OSError, WouldBlock."""
        assert self.make is not None
        run = next((run for run in self._runs if run.reaches(queue_offset)), None)
        is_new = run is None
        if run is None:
            before = self._nearest(range(queue_offset - _APART, self._first, -_APART), self._first)
            behind = self._nearest(range(queue_offset + _APART, self._max, _APART), self._max - 1)
            first, start = (before[0] + 1, before[1]) if before and before[0] < queue_offset else (self._first, -1)
            after, end = behind if behind and behind[0] > queue_offset else (None, None)
            run = Run(first, after, start)
            run.add(self.make(self.topic, self.queue_id, start, end))
            self._runs = [*self._runs[1 - MOST_RUNS :], run]
        if not is_new and run.grows and run.find(queue_offset) is None:
            run.add(self.make(self.topic, self.queue_id, run.end, None))
        return run

    def _nearest(self, queue_offsets: Iterable[int], last: int) -> tuple[int, int] | None:
        """(queue offset, physical offset) of the first readable entry of these and `last`; None without one."""
        for queue_offset in (*queue_offsets, last):
            with suppress(ReadError):
                for physical_offset, size, _ in self._on_disk(queue_offset, 1).tolist():
                    if 0 < size < PRE_BLANK_SIZE:
                        return queue_offset, physical_offset
        return None

    def physical_offsets(self, start: int, end: int) -> np.ndarray[Any, np.dtype[np.int64]]:
        """Physical offsets of the records of queue offsets [start, end): int64 (n,), in order. Pre-blank entries and
        those without a file are left out; empty if an entry is unreadable."""
        try:
            found = self.entries(start, end - start)
        except ReadError:
            return np.empty(0, np.int64)
        return np.asarray(found["physical_offset"][~is_pre_blank(found)], np.int64)

    def offset_of_physical(self, physical_offset: int) -> int:
        """Queue offset of the first message whose record starts at or after `physical_offset`, else max_offset."""
        if physical_offset > self._newest:
            return self._max
        return self._search(lambda entry: starts_from(entry, physical_offset), self._first, self._max)

    def leads_before(self, physical_offset: int) -> bool:
        """Whether the oldest entry's record starts before `physical_offset`."""
        oldest = self.offset_of_physical(0)
        return oldest < self._max and self._raw(oldest)[0] < physical_offset

    def offset_at(self, timestamp_ms: int, stored_ms: Callable[[int], int]) -> int:
        """Queue offset of the first message stored at or after `timestamp_ms`; max_offset when there is none.

        `stored_ms` returns the store time in ms of the record at a physical offset, -1 if it is unreadable: its message
        then counts as stored with the next readable one. Store times must not fall along the queue.
        """
        low, high = self.min_offset, self._max
        while low < high:
            middle = (low + high) // 2
            probe, stored = middle, -1
            while probe < high and stored < 0:
                entry = self._raw_if_there(probe, _UNREAD)
                stored = stored_ms(entry[0]) if entry is not None else -1
                probe += 1
            if stored < 0 or stored >= timestamp_ms:
                high = middle
            else:
                low = probe
        return low

    def _search(
        self,
        wanted: Callable[[tuple[int, int, int]], bool],
        low: int,
        high: int,
        if_refused: tuple[int, int, int] | None = None,
    ) -> int:
        """First queue offset in [low, high) whose entry is `wanted`, if all after it are; `high` if none is. Refused
        entries count as `if_refused`; without it RefusedReadError.

        Entries whose file is deleted meanwhile lie before the wanted ones. The first entry is tested first, because
        usually nothing has expired.
        """
        if low < high and (oldest := self._raw_if_there(low, if_refused)) is not None and wanted(oldest):
            return low
        while low < high:
            middle = (low + high) // 2
            entry = self._raw_if_there(middle, if_refused)
            if entry is not None and wanted(entry):
                high = middle
            else:
                low = middle + 1
        return low

    def _raw_if_there(self, queue_offset: int, if_refused: tuple[int, int, int] | None) -> tuple[int, int, int] | None:
        """The entry, None if retention removed its file, in this process or another. A refused entry reads as
        `if_refused`; without it RefusedReadError."""
        try:
            return self._raw(queue_offset)
        except RefusedReadError:
            if if_refused is None:
                raise
            return if_refused
        except (UnreadableRangeError, RetiredFileError) as error:
            taken_by_another = isinstance(error, RetiredFileError) and self.files.access is Access.READ
            if not taken_by_another and self.files.find(queue_offset * ENTRY.itemsize) is not None:
                raise
            return None

    # retention, and other writers

    def expire(self, min_physical_offset: int) -> int:
        """Move min_offset to a log that begins at `min_physical_offset`; return it. Files stay."""
        self._min_physical = max(self._min_physical, min_physical_offset)
        self._min = self._find_min(max(self._first, self._min[0] if self._min is not None else 0))
        return self._min[0]

    def begin_at(self, min_physical_offset: int) -> None:
        """Set the physical offset at which the log begins. min_offset is computed at its next use."""
        self._min_physical = min_physical_offset
        self._min = self.notified_min = None

    def delete_expired(self, now_ms: int) -> int:
        """Delete the files with all entries before min_offset, never the last file; return their number."""
        keep_from = self.min_offset * ENTRY.itemsize
        deleted = 0
        while len(self.files.files) > 1 and self.files.files[0].start + self.files.file_bytes <= keep_from:
            if self.files.retire_first(now_ms) is None:
                break
            deleted += 1
        self._first = max(self._first, self.files.files[0].start // ENTRY.itemsize) if self.files.files else 0
        return deleted

    def refresh(self, physical_end: int) -> bool:
        """FOLLOW: take over another process's changes, up to records that end at `physical_end`; return whether the
        queue changed. A queue that `is_stale` changes no more. After an error (ReadError, OSError) the next call starts
        over and counts changes from the state before the failed one."""
        before, failed_before = (
            self._before_failed_refresh or (self._first, self._max, self._newest),
            self._before_failed_refresh is not None,
        )
        self._before_failed_refresh = before
        is_listed = self._list_files(failed_before)
        is_overtaken = self._newest >= 0 and self._max * ENTRY.itemsize <= self.files.min_offset  # by retention
        if not is_overtaken and self._has_other_entries():
            self.is_stale = True
            return True
        if is_overtaken or failed_before or (is_listed and self._newest < 0):
            self.recover()
            self.truncate(physical_end)
        files = unbroken_tail(self.files.files, self.files.missized)
        self._first = files[0].start // ENTRY.itemsize if files else self._first
        if self._max < self._first:
            self._moved(self._first)
        if self._min is not None and self._min[0] < self._first:
            self._min = None
        self.take_in(physical_end)
        self._before_failed_refresh = None
        return before != (self._first, self._max, self._newest)

    def _list_files(self, surely: bool) -> bool:
        """List the files if they may have changed, or `surely`; return whether they were listed."""
        if not self._watch.changed() and not surely:
            return False
        if self.files.refresh():
            for file in self.files.files:
                file.set_end(file.size)
        return True

    def _has_other_entries(self) -> bool:
        """Whether the newest known entry is gone or has changed."""
        if self._newest < 0:
            return False
        newest = self._raw(self._max - 1) if self.files.find((self._max - 1) * ENTRY.itemsize) else None
        return newest is None or (newest[0], record_end(newest)) != (self._newest, self._physical_end)

    def _has_next(self) -> bool:
        """Whether an entry is stored at max_offset."""
        if self.files.find(self._max * ENTRY.itemsize) is None:
            return False
        try:
            return self._raw(self._max)[1] > 0
        except RefusedReadError:
            if self.make is None:
                raise
            return False  # the log lacks it so far

    def take_in(self, physical_end: int) -> None:
        """FOLLOW: publish another process's entries after the newest, up to records that end at `physical_end`."""
        while self._has_next() and self._take_in(physical_end):
            pass

    def _take_in(self, physical_end: int) -> bool:
        """Publish the next few entries of another process; return whether more may follow."""
        count = min(self._file_entries - self._max % self._file_entries, _FOLLOW_ENTRIES)
        found = self._known(self._max, self._max + count)
        count = shown_prefix(found, self._newest, physical_end)
        if count:
            self._moved(self._max + count)
            if self.notified_min is not None and self.notified_min >= self._max - count:
                self.notified_min = None  # the queue was empty and may begin at a later offset
        return 0 < count == len(found)

    # life

    def close(self) -> None:
        """Unmap and close all files."""
        self.files.close()

    def destroy(self, *, durably: bool = True) -> None:
        """Delete the queue's files and directory: see `FileQueue.delete_all`."""
        self.files.delete_all(durably=durably)


def is_refused_entry(entries: Entries) -> Array:
    """Whether the disk refused each entry: bool (n,)."""
    refused: Array = (entries["size"] == 0) & (entries["physical_offset"] == -1)
    return refused


def _written_end(files: Sequence[MappedFile], scan: bool) -> int:
    """Byte offset of the end of the entries in `files`. RefusedReadError."""
    scanned = files[-SCANNED_FILES:]
    end = scanned_end(scanned) if scan else searched_end(files)
    if scan and scanned and end == scanned[0].start:
        end = scanned_end(files)  # the newest are empty: their writer is recreating the queue
    return end


def _leading_near(entries: Entries) -> Entries:
    """`entries` in which each refused one gets the physical offset, plus 1, of the readable entry before it, or of the
    first readable one."""
    is_refused = is_refused_entry(entries)
    known = np.flatnonzero(~is_refused)
    if len(known):
        rows = np.flatnonzero(is_refused)
        near = known[np.maximum(np.searchsorted(known, rows) - 1, 0)]
        entries["physical_offset"][rows] = entries["physical_offset"][near] + 1
    return entries
