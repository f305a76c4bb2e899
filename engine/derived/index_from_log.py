"""The index of a store as derived data (docs/format.md, 7 and 8)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from engine.derived.coverage import index_start
from engine.derived.derived import Basis, Losses, Proof
from engine.errors import RefusedReadError
from engine.files.mapped_file import Access

if TYPE_CHECKING:
    from engine.derived.index import Index
    from engine.log.commit_log import CommitLog
    from engine.log.sequence import Suspect
    from engine.record.scan import ScannedRecords


class IndexFromLog:
    """See `Derived`."""

    def __init__(self, log: CommitLog, index: Index) -> None:
        self._log = log
        self._index = index

    @property
    def foreign(self) -> Sequence[Path]:
        return self._index.foreign

    def prove(self, basis: Basis) -> Proof:
        """As `Derived.prove`. An index that another program closed is kept whole: we can't make all of its entries."""
        index, begin, last = self._index, self._log.min_offset, self._log.files.last
        if not basis.is_index_readable:
            return self._unfit("its sizes")
        is_kept_whole = basis.point is None and basis.was_closed and last is not None
        try:
            self.truncate(last.start + last.size if last is not None and is_kept_whole else basis.trusted_end)
        except RefusedReadError as error:
            if index.access is Access.WRITE:
                raise
            return self._unfit(str(error))
        point = basis.point
        if point is not None and point.log_begin == begin:
            names = tuple(file.file.path.name for file in index.files)
            as_covered = names[: len(point.index_files)] == point.index_files
            if as_covered and index.last_physical_offset == point.index_physical_offset:
                return Proof(basis.trusted_end)
            return self._unfit("it is not as it was left")
        if not basis.was_closed:  # a power cut may have torn files of expired records, unseen
            if 0 <= index.last_physical_offset < begin:
                return self._unfit("all of its records are gone")
            index.delete_expired(begin)
        start = index_start(self._log, index, basis.trusted_end)
        if start == begin < basis.trusted_end:
            return self._unfit("it does not hold every key")
        if point is not None and start < basis.trusted_end:
            self.truncate(index.last_physical_offset)  # a killed rebuild may have stored only some of a record's keys
        return Proof(start)

    def _unfit(self, reason: str) -> Proof:
        has_any = self._index.files or self._index.foreign
        return Proof(self._log.min_offset, f"index ({reason})" if has_any else None)

    def put_scanned(self, found: ScannedRecords, losses: Losses) -> list[tuple[str, int]]:
        self._index.put_scanned(found)
        return []

    def take_back(self, suspect: Suspect) -> None:
        """The keys stay: the index has no queue offsets."""

    def truncate(self, physical_end: int) -> None:
        self._index.truncate(physical_end, self._log.stored_ms)

    def delete_expired(self, now_ms: int) -> None:
        self._index.delete_expired(self._log.min_offset)

    def begin_anew(self, folder: Path, access: Access) -> None:
        self._index.begin_anew(folder, access)

    def destroy(self) -> None:
        self._index.destroy()
