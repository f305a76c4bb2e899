"""Missing keys: whether the index files of a followed store lack keys that its log has.

A killed broker loses the keys that were in its memory, and leaves a gap between two index files. A broker that was
changed to keep keys in RocksDB leaves its old index files, and the keys behind them are missing.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from engine.errors import RefusedReadError
from engine.files.mapped_file import MappedFile
from engine.log.scan import Known, LogScan
from engine.record.header import is_rolled_back

if TYPE_CHECKING:
    from engine.derived.index import Index
    from engine.log.commit_log import CommitLog

BEHIND_SECONDS = 5.0
"""Time for which a message may lack its keys in the index files: the writer indexes it last."""

LOOK_BYTES = 32 << 20
"""Bytes of log, about, that one look reads in a gap, and behind the index files."""

Gap = tuple[int, int]
"""Two physical offsets: records after the first and before the second have no keys in index files."""


class MissingKeys:
    """Looks for keys that the index files lack, a part of the log at a time. Thread safety: one caller at a time."""

    def __init__(self, log: CommitLog, index: Index) -> None:
        self._log = log
        self._index = index
        self._next_look = 0.0
        self._due = 0
        self._looked = 0
        self._gaps_due: frozenset[Gap] = frozenset()
        self._gaps_looked: dict[Gap, int] = {}

    def forget(self) -> None:
        """Begin again: the log is another one."""
        self._due = self._looked = 0
        self._gaps_due, self._gaps_looked = frozenset(), {}

    def look(self, end: int, newest: int) -> str | None:
        """A text about keys, of records older than BEHIND_SECONDS, that the index files lack; None without any. The log
        is whole up to `end`, and `newest` is the physical offset of its newest record, -1 if that is unknown."""
        now = time.monotonic()
        if now < self._next_look:
            return None
        self._next_look = now + BEHIND_SECONDS
        due, self._due = self._due, end
        try:
            gaps = self._gaps()
        except RefusedReadError as error:
            return f"a file that can't be read: {error}"
        for after, before in gaps:
            if self._are_keys_between((after, before), end):
                return f"no keys from {max(after, self._log.min_offset):,} to {before:,}, as after a kill of its broker"
        last = self._index.last_physical_offset
        if (newest < 0 or last < newest) and self._are_keys_behind(last, due):
            return f"no keys behind {last:,}, as where a broker keeps keys in RocksDB"
        return None

    def _gaps(self) -> list[Gap]:
        """The gaps between index files, known since the last look, in which records may have keys in no file."""
        files = self._index.files
        ends = [-1, *(one.last_physical_offset for one in files[:-1])]
        begins = [one.header.begin_physical_offset for one in files]
        begin = self._log.min_offset
        gaps = frozenset(
            (after, before) for after, before in zip(ends, begins, strict=True) if max(after + 1, begin) < before
        )
        due, self._gaps_due = self._gaps_due & gaps, gaps
        return sorted(due)

    def _are_keys_between(self, gap: Gap, log_end: int) -> bool:
        """Whether a record within a gap has keys. One call reads a part of the gap, and the next one continues."""
        (after, before), log, files = gap, self._log, self._log.files
        begin = self._gaps_looked.get(gap, files.min_offset)
        if gap not in self._gaps_looked and after >= begin:
            begin = files.framing.frame_start(after) if log.is_whole(after) else after - after % files.file_bytes
        begin, end = max(begin, files.min_offset), min(files.framing.frame_start(before), log_end)
        self._gaps_looked[gap] = self._looked_up_to(begin, end, after)
        return self._gaps_looked[gap] < 0

    def _are_keys_behind(self, last: int, due: int) -> bool:
        """Whether a record behind `last`, which has the last keys in the index files, and before `due` has keys. One
        call reads a part of the log, and the next one continues."""
        files = self._log.files
        begin = last - last % files.file_bytes  # a frame begins there even if the index is wrong
        looked = self._looked_up_to(max(files.min_offset, begin, self._looked), due, last)
        self._looked = max(looked, self._looked)
        return looked < 0

    def _looked_up_to(self, begin: int, end: int, after: int) -> int:
        """Physical offset in [begin, end] up to which no record behind `after` has keys, by a read of about LOOK_BYTES;
        -1: a record has keys."""
        if begin >= end:
            return begin
        scan = LogScan(self._log.files, begin, Known(trusted_end=end), end=end, pages=MappedFile.whole)
        for found in scan:
            headers, (rows, _) = found.records.headers, found.index_keys
            is_kept = ~is_rolled_back(headers["sys_flag"][rows])
            if (is_kept & (headers["physical_offset"][rows] > after)).any():
                return -1
            if scan.end - begin >= LOOK_BYTES:
                return scan.end
        return end
