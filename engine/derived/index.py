"""Index: finds the records that may have a key, in the store's index files (docs/format.md, 7).

    index/<17 digits>      local time of creation, yyyyMMddHHmmssSSS; the names rise

One writer (dispatch), any readers. A result is a candidate: the files hold hashes, so the caller reads the record and
compares. The encoder (engine.record.kernel.encode) gives the keys of records that are put, and
`ScannedRecords.keys` those of a scan. Keys wait in a memtable, which queries search, and are written to the files
some thousand at a time.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from engine.derived.index_file import IndexFile, IndexHeader, index_file_bytes
from engine.errors import FlushFailedError, NoDescriptorError, RefusedReadError, StoreFullError
from engine.files.disk import Disk, flush_error, make_directory, opening_error, space_for
from engine.files.ignored import IgnoredErrors
from engine.files.mapped_file import Access, MappedFile
from engine.files.paths import unlink
from engine.record.kernel.chain import KeyIndex
from engine.record.kernel.encode import EncodedBatch
from engine.record.kernel.keys import MEMTABLE_KEYS as MEMTABLE_KEYS
from engine.record.kernel.keys import MOST_CHAINED, KeyMemtable
from engine.settings.config import EMBEDDED_SIZES, Clock

if TYPE_CHECKING:
    from engine.record.scan import ScannedRecords

Array = np.ndarray[Any, Any]


class Index(KeyIndex):
    """The index of a store. Thread safety: any thread; a lock guards writes, queries take no lock."""

    def __init__(
        self,
        directory: Path,
        slots: int,
        entries: int,
        access: Access,
        clock: Clock,
        disk: Disk | None = None,
        ignored: IgnoredErrors | None = None,
    ) -> None:
        """`entries` is the capacity N of a file's entry area, of which N - 1 are usable. `clock` names new files.
        `ignored` notes the errors for which keys stay in memory."""
        self._ignored = ignored or IgnoredErrors()
        self.directory = directory
        self.slots = slots
        self.entries = entries
        self.access = access
        self.foreign: tuple[Path, ...] = ()
        self._clock = clock
        self._disk = disk or Disk()
        self._lock = threading.RLock()
        self._files = ()
        self._unsynced: set[IndexFile] = set()
        self._unsynced_names: list[Path] = []
        self.memtable = KeyMemtable()
        """Keys that wait in memory before they go into a file together."""

    def load(self) -> None:
        """List the files. Those that can be no index file of these sizes go to `foreign`."""
        self._list()
        self.memtable.last = self._stored_last()

    def _list(self) -> None:
        size = index_file_bytes(self.slots, self.entries)
        known = {one.file.path: one for one in self._files}
        files, foreign = [], []
        for path in sorted(self.directory.iterdir()) if self.directory.is_dir() else ():
            try:
                fits = is_index_name(path.name) and path.stat().st_size == size
            except FileNotFoundError:
                continue
            if fits:
                files.append(known.get(path) or self._mapped(MappedFile(path, size, self.access, disk=self._disk)))
            else:
                foreign.append(path)
        self._files, self.foreign = tuple(files), tuple(foreign)

    def _mapped(self, file: MappedFile) -> IndexFile:
        return IndexFile(file, self.slots, self.entries)

    def _stored_last(self) -> int:
        """Physical offset of the newest record with a key in the files, -1 without one. If the disk refuses the newest
        file: -1, with access WRITE RefusedReadError."""
        try:
            return max((file.last_physical_offset for file in self._files[-1:]), default=-1)
        except RefusedReadError:
            if self.access is Access.WRITE:
                raise
            return -1

    @property
    def files(self) -> tuple[IndexFile, ...]:
        """The files, oldest first. The newest keys may still wait in memory (see `flush`)."""
        return self._files

    @property
    def last_physical_offset(self) -> int:
        """Physical offset of the newest record with a key in the index; -1 without one."""
        return self.memtable.last

    # writing

    def put(self, batch: EncodedBatch, physical_offset: int, store_time_ms: int) -> None:
        """Add the keys of records that begin at `physical_offset`, if any. Records that the index has are skipped.

        The keys wait in memory until there are some thousand. On a full disk they wait for space for a new file.
        """
        self.memtable.add(batch, physical_offset, store_time_ms)
        if len(self.memtable) >= self.memtable.settles_at:
            self.settle()

    def put_many(
        self, key_hashes: Array, physical_offsets: Array, store_times_ms: Array, more_records: bool = False
    ) -> None:
        """Add index hashes of keys, in log order (arrays of shape (k,)). Records that the index has are skipped.

        `more_records`: records without keys follow.
        """
        with self._lock:
            memtable = self.memtable
            known = int(np.searchsorted(physical_offsets, memtable.last, side="right"))
            if known < len(key_hashes):
                offsets, times = physical_offsets[known:], store_times_ms[known:]
                hashes = key_hashes[known:].astype(np.int32)
                memtable.extend(hashes.tobytes(), offsets.astype(np.int64).tobytes(), times.astype(np.int64).tobytes())
                memtable.needs_room = False
                if len(memtable) >= MEMTABLE_KEYS:
                    self.settle()
            memtable.needs_room |= more_records

    def put_scanned(self, found: ScannedRecords) -> None:
        """Add the keys of records of a scan. Records that the index has are skipped. StoreFullError."""
        if len(found):
            self.put_many(*found.keys)

    def settle(self) -> None:
        """Write the waiting keys to the files, as far as there is space. The others keep waiting."""
        try:
            self._store_keys()
        except (StoreFullError, NoDescriptorError, FlushFailedError) as error:  # the log still has the keys
            self._ignored.note("keys wait in memory", error)

    def _store_keys(self) -> None:
        """Write all keys to the files. FlushFailedError, StoreFullError, NoDescriptorError: the rest keeps waiting."""
        with self._lock:
            memtable = self.memtable
            try:
                while len(memtable):
                    file = self._file_with_room()
                    count = min(file.room, len(memtable), MOST_CHAINED)
                    file.put_many(memtable, count)
                    self._unsynced.add(file)
                    memtable.drop(count)
            finally:
                memtable.settles_at = len(memtable) + MEMTABLE_KEYS

    def _file_with_room(self) -> IndexFile:
        """The newest file, ready to be written, or a new one if that is full. StoreFullError, NoDescriptorError;
        FlushFailedError: the disk refused it."""
        previous = self._files[-1] if self._files else None
        if previous is not None and previous.room > 0:
            return self._ready(previous)
        path = self.directory / next_name(self._clock(), previous.file.path.name if previous else "")
        size_bytes = index_file_bytes(self.slots, self.entries)
        try:
            if self.access is Access.WRITE:
                with space_for(path, size_bytes):
                    self._unsynced_names += [*make_directory(self.directory), self.directory]
            file = self._mapped(MappedFile.create(path, size_bytes, self.access, disk=self._disk))
        except OSError as error:
            raise opening_error(path, error) from error
        file.file.set_end(file.file.size)
        if previous is not None:
            file.inherit(previous.header)
        self._unsynced.add(file)
        self._files = (*self._files, file)
        return file

    def _ready(self, file: IndexFile) -> IndexFile:
        try:
            file.file.writable()
        except OSError as error:
            raise opening_error(file.file.path, error) from error
        return file

    def flush(self) -> None:
        """Write every key to the files, and sync every changed file.

        FlushFailedError: the disk refused. StoreFullError, NoDescriptorError: the flush is incomplete, call it again.
        """
        with self._lock:
            self._store_keys()
            if self.memtable.needs_room:
                self._file_with_room()
                self.memtable.needs_room = False
            unsynced, self._unsynced = self._unsynced, set()
            names, self._unsynced_names = self._unsynced_names, []
        path = self.directory
        try:
            for file in unsynced:
                path = file.file.path
                file.file.sync()
            for path in dict.fromkeys(names):
                self._disk.sync_directory(path)
        except OSError as error:
            with self._lock:
                self._unsynced |= unsynced
                self._unsynced_names += names
            raise flush_error(path, error) from error

    # reading (`candidates` is the kernel's)

    def between_writes(self, file: IndexFile) -> tuple[IndexHeader, Array, Array]:
        """A file's consistent header, entries and slots. The slots of the newest file, which is written to, are a copy.
        ReadError, and ValueError for a negative count in the header."""
        is_written_to = file in self._files[-1:]
        with self._lock:
            slots = file.chain_starts()
            return file.header, file.records(), slots.copy() if is_written_to else slots

    # recovery, retention, and other writers

    def truncate(self, physical_end: int, stored_ms: Callable[[int], int]) -> None:
        """Drop keys of records at or after `physical_end`, and rebuild the newest file's slots (see
        `IndexFile.truncate`). RefusedReadError: the newest file is unchanged."""
        with self._lock:
            self._drop_empty()
            while self._files:
                newest = self._files[-1]
                newest.require_read()
                if len(self._files) == 1 and newest.header.next_entry <= 1 and not newest.chain_starts().any():
                    break  # it never had a key: only its header may have been lost
                if newest.truncate(physical_end, stored_ms):
                    self._unsynced.add(newest)
                    break
                self._drop(newest)
            self.memtable.truncate(physical_end, self._stored_last())

    def _drop_empty(self) -> None:
        """Delete files without a byte: a power cut leaves them if only the name reached the disk."""
        if self.access is Access.WRITE:
            empty = {path for path in self.foreign if path.is_file() and not path.stat().st_size}
            for path in empty:
                unlink(path)
            self.foreign = tuple(path for path in self.foreign if path not in empty)

    def delete_expired(self, min_physical_offset: int) -> int:
        """Delete files of records before `min_physical_offset`, never the newest; return their number. OSError."""
        deleted = 0
        with self._lock:
            for file in self._files[:-1]:
                if file.header.end_physical_offset >= min_physical_offset:
                    break
                self._drop(file)
                deleted += 1
        return deleted

    def _drop(self, file: IndexFile) -> None:
        self._files = tuple(one for one in self._files if one is not file)
        self._unsynced.discard(file)
        file.file.retire()
        if self.access is Access.WRITE:
            self._unsynced_names.append(self.directory)

    def refresh(self) -> bool:
        """FOLLOW: list the files again; return whether any was added or removed."""
        before = self._files, self.foreign
        self._list()
        self.memtable.last = self._stored_last()
        return before != (self._files, self.foreign)

    def reopen(self, slots: int, entries: int) -> None:
        """FOLLOW: forget every file, and list the files of these sizes."""
        self._files = ()
        self.slots, self.entries = slots, entries
        self.refresh()

    def move(self, directory: Path, slots: int, entries: int, access: Access) -> None:
        """FOLLOW: close every file, and use those below `directory` from now on. READ: another process writes them, and
        `refresh` lists them; otherwise this process makes them, and none exists yet."""
        with self._lock:
            for file in self._files:
                file.file.close()
            self._files, self.foreign = (), ()
            self.memtable = KeyMemtable()
            self._unsynced, self._unsynced_names = set(), []
            self.directory, self.access = directory, access
            self.slots, self.entries = slots, entries

    def begin_anew(self, folder: Path, access: Access) -> None:
        """FOLLOW: make new files below `folder` from now on."""
        self.move(folder / "index", EMBEDDED_SIZES.index_slots, EMBEDDED_SIZES.index_entries, access)

    def destroy(self) -> None:
        """Delete every file of the index, before a rebuild. `foreign` files stay. OSError."""
        with self._lock:
            self.memtable = KeyMemtable()
            for file in self._files:
                self._drop(file)
            self.foreign = ()

    def close(self) -> None:
        """Close all files. Keys that wait in memory are lost without a `flush` before."""
        for file in self._files:
            file.file.close()
        self._files = ()


def is_index_name(name: str) -> bool:
    """Whether a file of that name can be an index file: 17 digits."""
    return len(name) == 17 and name.isascii() and name.isdigit()


def next_name(now_ms: int, previous: str) -> str:
    """A name for a file made at `now_ms`, greater than `previous` ("" for none) even if the clock went back."""
    name = _name(datetime.fromtimestamp(now_ms / 1000))
    if name > previous:
        return name
    try:
        made = datetime.strptime(previous + "000", "%Y%m%d%H%M%S%f")
    except ValueError:  # another program's name that is no time
        return f"{int(previous) + 1:017d}"
    return _name(made + timedelta(milliseconds=1))


def _name(time: datetime) -> str:
    return f"{time:%Y%m%d%H%M%S}{time.microsecond // 1000:03d}"
