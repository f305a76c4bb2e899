"""FileQueue: files of one size that together form one growing range of bytes (docs/format.md, 3).

    00000000000000000000  00000000000016777216  00000000000033554432      named by the offset of byte 0, 20 digits

Files before the last are full. Retention deletes the oldest files; in a damaged store one in between may be missing. A
preallocated file may follow the last one. It is empty, and joins the queue when writing reaches it.
"""

from __future__ import annotations

import mmap
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from engine.errors import ReadError, RefusedReadError, StoreFullError, UnreadableRangeError
from engine.files.disk import Disk, flush_error, make_directory, space_for
from engine.files.file_scan import FileProblem, FoundFile, file_name, one_of_each, scan_directory
from engine.files.layout import LogPaths, as_paths
from engine.files.mapped_file import PAGE_BYTES, Access, FixedFile, MappedFile
from engine.files.open_files import OpenFiles
from engine.files.paths import remove_folder, unlink
from engine.record.kernel.files import FilesByStart, read_through

TAIL_BYTES = 8 << 20
"""Bytes at the end of a file queue that are not read ahead: a large page, and the kernel's own read-ahead."""


class FileSource:
    """Makes the next file of a file queue on demand, in the directory whose turn it is, or the next one with space.
    Thread safety: one caller at a time."""

    names_durable = False
    """Whether a file's name is on disk when `take` returns."""

    def __init__(
        self,
        directory: Path | LogPaths,
        file_bytes: int,
        access: Access,
        disk: Disk,
        *,
        in_steps: bool = False,
        pool: BufferPool | None = None,
    ) -> None:
        """`in_steps`: see `MappedFile.create`. With a `pool`, its files are written through the pool's buffers."""
        self._paths = as_paths(directory)
        self._file_bytes = file_bytes
        self._access = access
        self._disk = disk
        self._in_steps = in_steps
        self.pool = pool
        self._full: frozenset[Path] = frozenset()

    def take(self, start: int) -> MappedFile:
        """A new, empty file at offset `start`. StoreFullError, OSError: no file was made."""
        return self._make(start, sync=False)

    def _make(self, start: int, *, sync: bool) -> MappedFile:
        refused: StoreFullError | None = None
        for directory in self._paths.in_turn(start // self._file_bytes, self._full):
            path = directory / file_name(start)
            try:
                return MappedFile.create(
                    path,
                    self._file_bytes,
                    self._access,
                    start=start,
                    disk=self._disk,
                    sync=sync,
                    in_steps=self._in_steps,
                )
            except StoreFullError as error:
                refused = refused or error
        assert refused is not None
        raise refused

    def avoid(self, full: frozenset[Path]) -> None:
        """Make files in these directories only when no other has space."""
        self._full = full

    def restore(self, file: MappedFile) -> None:
        """Return a file that was taken and not used."""
        file.retire()

    def close(self) -> None:
        """Delete the files that were made and not taken."""


class BufferPool:
    """Write buffers for the commit log; RocketMQ calls this the transient store pool:

        append -> buffer            readers don't see the bytes yet, and a crash of the process loses them
        commit -> file, readable    every 200 ms; then they are dispatched
        flush  -> disk

    Thread safety: any thread.
    """

    def __init__(self, count: int, size_bytes: int) -> None:
        """Allocate `count` buffers of `size_bytes`; they are reused last in, first out."""
        self._free = [memoryview(mmap.mmap(-1, size_bytes)) for _ in range(count)]
        self._lock = threading.Lock()

    def take(self) -> memoryview | None:
        """A buffer with arbitrary content; None when all are in use: the caller then writes to the file directly."""
        with self._lock:
            return self._free.pop() if self._free else None

    def give_back(self, buffer: memoryview) -> None:
        """Return a buffer from `take`."""
        with self._lock:
            self._free.append(buffer)


@dataclass(frozen=True, slots=True)
class Unflushed:
    """The files that a flush has to sync, each with the position of its readable end, and the number of new names."""

    files: tuple[tuple[MappedFile, int], ...]
    names: int


class FileQueue(FilesByStart):
    """The files of one directory, or of several that share them, addressed by offset.

    Thread safety: one writer at a time (append, roll, truncate, commit); any readers; flush, retire_first, sweep and
    refresh from any thread.
    """

    def __init__(
        self,
        directory: Path | LogPaths,
        file_bytes: int,
        access: Access,
        *,
        disk: Disk | None = None,
        source: FileSource | None = None,
        open_files: OpenFiles | None = None,
        reads_ahead: bool = True,
        is_new: bool = False,
    ) -> None:
        """Load the files of `directory`, which may be missing; `is_new` skips the scan. Nothing is changed on disk.

        All bytes count as written until `set_end` or `truncate`. `source` makes new files; default: on demand, with
        disk space in steps. Files are mapped at the first access and evicted by `open_files`. `reads_ahead`: whether
        the kernel may read ahead. Unexpected directory members are in `problems`.
        """
        self.paths = as_paths(directory)
        self.file_bytes = file_bytes
        self.access = access
        self.framing = self.paths.framing
        """Framing of the records, in a commit log."""
        self._reads_ahead = reads_ahead
        self._disk = disk or Disk()
        self._source = source or FileSource(self.paths, file_bytes, access, self._disk, in_steps=True)
        self._pool = self._source.pool
        self._open_files = open_files
        self._reserved: list[MappedFile] = []  # a deque takes half a KiB, and of queues there may be a hundred thousand
        self._retired: list[tuple[MappedFile, int]] = []
        self._unsynced_names: list[Path] = []
        self._change_lock = threading.Lock()
        self._flush_lock = threading.Lock()
        found, self._problems = ({}, ()) if is_new else self._scan()
        self._set_files([self._loaded(start, found[start]) for start in sorted(found)])
        self._flushed_offset = self.max_offset

    def _scan(self) -> tuple[dict[int, FoundFile], tuple[FileProblem, ...]]:
        """Start -> file for all directories, and their unexpected members."""
        found: list[FoundFile] = []
        problems: list[FileProblem] = []
        for folder in self.paths.folders:
            sizes, odd = scan_directory(folder, self.file_bytes)
            found += [FoundFile(Path(f"{folder}/{file_name(start)}"), size) for start, size in sizes.items()]
            problems += odd
        files, twice = one_of_each(found)
        return files, (*problems, *twice)

    def _loaded(self, start: int, found: FoundFile) -> MappedFile:
        kind, access = (FixedFile, Access.READ) if self._may_only_read(found.path) else (MappedFile, self.access)
        file = kind(found.path, self.file_bytes, access, start=start, disk=self._disk)
        self._count_in(file)
        file.set_end(min(found.size, self.file_bytes))
        return file

    def _count_in(self, file: MappedFile) -> None:
        if not self._reads_ahead:
            file.read_no_further()
        file.count_in(self._open_files)

    def _may_only_read(self, path: Path) -> bool:
        return self.access is Access.WRITE and bool(self.paths.read_only) and path.parent in self.paths.read_only

    def _set_files(self, files: list[MappedFile]) -> None:
        self._by_start = {file.start: file for file in files}
        self._files = tuple(files)

    # files and offsets

    @property
    def directory(self) -> Path:
        """The first directory; only a log may have several."""
        return self.paths.folders[0]

    @property
    def files(self) -> tuple[MappedFile, ...]:
        """The files, oldest first: a snapshot."""
        return self._files

    @property
    def problems(self) -> tuple[FileProblem, ...]:
        """Unexpected directory members found at loading. A short file is loaded and readable up to its end."""
        return self._problems

    @property
    def missized(self) -> frozenset[int]:
        """Start offsets of files whose size differed from `file_bytes` when they were loaded."""
        return frozenset(int(one.path.name) for one in self._problems if one.kind in ("short", "long"))

    @property
    def first(self) -> MappedFile | None:
        """The oldest file."""
        files = self._files
        return files[0] if files else None

    @property
    def last(self) -> MappedFile | None:
        """The newest file."""
        files = self._files
        return files[-1] if files else None

    @property
    def max_offset(self) -> int:
        """Offset just past the newest readable byte; 0 when there are no files."""
        files = self._files
        for file in reversed(files):
            if file.readable:
                return file.start + file.readable
        return files[0].start if files else 0

    @property
    def wrote_offset(self) -> int:
        """Offset just past the newest written byte (ahead of `max_offset` only while a write buffer is used)."""
        files = self._files
        for file in reversed(files):
            if file.wrote:
                return file.start + file.wrote
        return files[0].start if files else 0

    @property
    def flushed_offset(self) -> int:
        """Offset before which everything is on disk."""
        return self._flushed_offset

    def view(self, offset: int, length: int) -> memoryview:
        """Read-only view of readable bytes of one file. UnreadableRangeError, TruncatedFileError, RetiredFileError."""
        file = self._by_start.get(offset - offset % self.file_bytes)
        if file is None:
            raise UnreadableRangeError(self.directory, offset, length, self.max_offset)
        return file.view(offset - file.start, length)

    def read_soon(self, start: int, end: int) -> None:
        """Start reading [start, end) from disk, except the queue's last TAIL_BYTES, which may be written now."""
        end = min(end, self.max_offset - TAIL_BYTES)
        for offset in range(start // self.file_bytes * self.file_bytes, end, self.file_bytes):
            file = self.find(offset)
            if file is not None:
                position = max(start - offset, 0)
                file.read_large(position, end - offset - position)

    def peek(self, offset: int, length: int) -> bytes:
        """Current bytes [offset, offset + length) of one file, written or not; fewer if the file was deleted or cut.
        RefusedReadError: the disk can't read them."""
        file = self.find(offset)
        if file is None:
            return b""
        try:
            view = file.whole()[offset - file.start :][:length]
        except RefusedReadError:
            raise
        except ReadError:
            return b""
        read_through(view)
        return bytes(view)

    def missing_ranges(self) -> list[tuple[int, int]]:
        """Offset ranges [from, to) of missing files between the first and the last one."""
        starts = [file.start for file in self._files]
        return [
            (before + self.file_bytes, after) for before, after in pairwise(starts) if before + self.file_bytes != after
        ]

    # growing

    def append(self, data: bytes | bytearray | memoryview) -> int:
        """Write after the newest byte, in a new file when the last is full; returns the offset of `data`.

        `data` must not straddle files: its unit divides the file size, or the caller rolls before. StoreFullError.
        """
        file = self.last
        if file is None or file.full:
            file = self.roll()
        if len(data) > file.remaining:
            raise ValueError(f"{len(data)} bytes straddle the end of {file.path}")
        return file.start + file.append(data)

    def reserve(self, count: int) -> list[MappedFile]:
        """Make and return the `count` files that the next `roll` calls will add. StoreFullError: none is reserved."""
        taken: list[MappedFile] = []
        try:
            while len(self._reserved) + len(taken) < count:
                taken.append(self._take(self._next_start(len(self._reserved) + len(taken))))
        except BaseException:
            for file in taken:
                self._source.restore(file)
            raise
        self._reserved.extend(taken)
        return list(self._reserved)[:count]

    def roll(self, start: int | None = None, *, buffered: bool = True, needed: int = 0) -> MappedFile:
        """Add the next file, with disk space for `needed` bytes, and return it; an empty queue begins with the file
        that holds `start`. StoreFullError: none was added.

        The write buffer is committed first, so that bytes become readable in order. The file gets a buffer of the pool,
        unless it was written to already (`buffered` False).
        """
        self.commit()
        if start is not None and not self._files:
            file = self._take(start - start % self.file_bytes)
        elif self._reserved:
            file = self._reserved.pop(0)
        else:
            file = self._take(self._next_start(0))
        try:
            file.writable(0, needed)
        except BaseException:
            self._source.restore(file)
            raise
        buffer = self._pool.take() if self._pool and buffered else None
        if buffer is not None:
            file.attach_buffer(buffer)
        self._add(file)
        return file

    def skip_to(self, offset: int) -> None:
        """Add the file for `offset`, which is past the last file; files in between stay missing. StoreFullError,
        OSError."""
        self._add(self._take(offset - offset % self.file_bytes))

    def _add(self, file: MappedFile) -> None:
        self._count_in(file)
        with self._change_lock:
            self._set_files([*self._files, file])

    def _next_start(self, ahead: int) -> int:
        last = self.last
        return ahead * self.file_bytes + (0 if last is None else last.start + self.file_bytes)

    def _take(self, start: int) -> MappedFile:
        if self.access is not Access.WRITE:
            return self._source.take(start)
        for folder in self.paths.writable:
            with space_for(folder, PAGE_BYTES):
                self._note_names(make_directory(folder))  # first: after a failure below no later call would note them
        file = self._source.take(start)
        if not self._source.names_durable:
            self._note_names([file.path.parent])
        return file

    def _note_names(self, directories: Sequence[Path]) -> None:
        with self._change_lock:
            self._unsynced_names += directories

    def commit(self, least_pages: int = 0) -> int:
        """Copy the write buffer to its file and publish, as `MappedFile.commit`; returns the new `max_offset`.

        FlushFailedError: the written bytes may never reach the file.
        """
        last = self.last
        if self._pool is not None and last is not None:
            try:
                self._return_buffer(last.commit(least_pages))
            except OSError as error:
                raise flush_error(last.path, error) from error
        return self.max_offset

    def _return_buffer(self, buffer: memoryview | None) -> None:
        if buffer is not None and self._pool is not None:
            self._pool.give_back(buffer)

    # recovery

    def set_end(self, offset: int) -> None:
        """Set the end that recovery found, in memory only: bytes before `offset` count as written and on disk.

        Later files are dropped from the list; READ keeps them as empty files. WRITE must use `truncate` to delete them.
        """
        files = self._files
        kept = [file for file in files if file.start <= offset or self.access is Access.READ]
        for file in files[len(kept) :]:
            file.close()
        for file in kept:
            file.set_end(min(max(offset - file.start, 0), self.file_bytes))
        with self._change_lock:
            self._set_files(kept)
        self._flushed_offset = min(offset, self.max_offset)

    def truncate(self, offset: int, durable_from: int | None = None) -> None:
        """As `set_end`, and on disk: delete later files; zero and sync the rest of the file at `offset`.

        Files from the one with offset `durable_from` on are synced, too: a killed process did not do it. OSError.
        """
        later = [file for file in self._files if file.start > offset]
        with self._change_lock:
            self._set_files([file for file in self._files if file.start <= offset])
        for file in reversed(later):
            self._remove(file)
        self.set_end(offset)
        for file in self._files:
            if offset < file.start + self.file_bytes:
                file.truncate(offset - file.start)
            elif durable_from is not None and durable_from < file.start + self.file_bytes:
                file.sync()
        self._sync_directories()

    def cached_ranges(self, offset: int) -> list[tuple[int, int]]:
        """Offset ranges [start, end), from `offset` on, of writable files' pages in the kernel's cache, each in one
        file: see `MappedFile.cached_ranges`. A file that the disk can't read counts as cached as a whole."""
        found = []
        for file in self._files:
            if file.access is Access.WRITE and offset < file.start + self.file_bytes:
                first = max(offset - file.start, 0)
                try:
                    ranges = list(file.cached_ranges(first))
                except RefusedReadError:
                    ranges = [(first, file.size)]
                except ReadError:
                    continue
                found += [(file.start + start, file.start + end) for start, end in ranges]
        return found

    def write_again(self, first: int, last: int) -> None:
        """Make the next sync write offsets [first, last) of one file, a range of `cached_ranges`. OSError."""
        file = self.find(first)
        if file is not None:
            file.write_again(first - file.start, last - file.start)

    def _remove(self, file: MappedFile) -> None:
        """Remove the file's name, as `MappedFile.retire`, also of a file in a read-only path."""
        file.retire()
        if self.access is Access.WRITE and file.access is Access.READ:
            unlink(file.path)

    def _sync_directories(self) -> None:
        """WRITE: make removed names durable."""
        if self.access is Access.WRITE:
            for folder in self.paths.folders:
                if folder.exists():
                    self._disk.sync_directory(folder)

    def avoid(self, full: frozenset[Path]) -> None:
        """Make new files in these directories only when no other has space."""
        self._source.avoid(full)

    def drop_empty(self) -> None:
        """WRITE: delete files of size 0: a power cut leaves them when only the name reached the disk. OSError."""
        if self.access is Access.WRITE:
            for problem in self._problems:
                is_empty = problem.kind == "empty" and problem.path.exists() and not problem.path.stat().st_size
                if is_empty and not self._may_only_read(problem.path):
                    unlink(problem.path)
            self._problems = tuple(problem for problem in self._problems if problem.kind != "empty")

    # durability

    def flush(self, least_pages: int = 0) -> int:
        """Sync files with at least `least_pages` unflushed pages (0: any byte), and names; returns `flushed_offset`.

        An error leaves it unchanged: FlushFailedError; NoDescriptorError, after which a new try may work.
        """
        with self._flush_lock:
            due = self._due(least_pages)
            if due or not least_pages:
                self._sync(due)
                self._flushed_offset = self._contiguously_flushed()
            return self._flushed_offset

    def _due(self, least_pages: int) -> list[MappedFile]:
        return [file for file in self._unflushed() if file.due(file.flushed, file.readable, least_pages)]

    def unflushed(self, least_pages: int = 0) -> Unflushed | None:
        """The files and names that `flush` would sync now; None without any."""
        due = tuple([(file, file.readable) for file in self._due(least_pages)])
        names = len(self._unsynced_names) if due or not least_pages else 0
        return Unflushed(due, names) if due or names else None

    def note_flushed(self, done: Unflushed) -> None:
        """A sync of the filesystem has brought `done` to disk. FlushFailedError: an earlier sync of a file failed."""
        with self._flush_lock:
            for file, position in done.files:
                try:
                    file.note_synced(position)
                except OSError as error:
                    raise flush_error(file.path, error) from error
            self._forget_names(done.names)
            self._flushed_offset = self._contiguously_flushed()

    def _sync(self, files: list[MappedFile]) -> None:
        """Sync files, then the names of new files; after a failure these names stay to be synced."""
        names = tuple(self._unsynced_names)
        path = self.directory
        try:
            for file in files:
                path = file.path
                file.sync()
            for path in dict.fromkeys(names):
                self._disk.sync_directory(path)
        except OSError as error:
            raise flush_error(path, error) from error
        self._forget_names(len(names))

    def _forget_names(self, count: int) -> None:
        with self._change_lock:
            del self._unsynced_names[:count]

    def _unflushed(self) -> list[MappedFile]:
        """Files with bytes that are not on disk, oldest first."""
        found: list[MappedFile] = []
        for file in reversed(self._files):
            if file.flushed == file.size:
                break
            found.append(file)
        return found[::-1]

    def _contiguously_flushed(self) -> int:
        unflushed = self._unflushed()
        if unflushed:
            return unflushed[0].start + unflushed[0].flushed
        last = self.last
        return last.start + last.size if last else self._flushed_offset

    # deleting

    @property
    def retired(self) -> list[MappedFile]:
        """Deleted files that readers still hold: their disk space is not free yet."""
        return [file for file, _ in self._retired]

    def retire_first(self, now_ms: int) -> MappedFile | None:
        """Delete and return the oldest file; None when only one is left. OSError. One caller at a time.

        Readers that hold the file can read it until `sweep` closes it. Writers never wait for this on the disk.
        """
        with self._change_lock:
            if len(self._files) < 2:
                return None
            file, *kept = self._files
            self._set_files(kept)  # first: a reader that finds the file closed must not find it in the list
        try:
            self._remove(file)
        except OSError:
            with self._change_lock:
                self._set_files([file, *self._files])
            raise
        with self._change_lock:
            self._retired.append((file, now_ms))
        if self.access is Access.WRITE:
            self._disk.sync_directory(file.path.parent)
        return file

    def sweep(self, now_ms: int, forced_interval_ms: int) -> int:
        """Close files retired at least `forced_interval_ms` before `now_ms`; returns the number still held."""
        for file, retired_ms in list(self._retired):
            if now_ms - retired_ms >= forced_interval_ms:
                file.close()
        with self._change_lock:
            self._retired = [pair for pair in self._retired if not pair[0].closed]
            return len(self._retired)

    def delete_all(self, *, durably: bool = True) -> None:
        """Delete every file, newest first, and the directory if it is then empty. OSError.

        Without `durably` this does not sync: the caller syncs the directories above.
        """
        with self._change_lock:
            files = self._files
            self._set_files([])
            self._flushed_offset = 0
        for file in reversed(files):
            self._return_buffer(file.detach_buffer())
            file.retire()
        if self.access is Access.WRITE and self.directory.exists():
            if durably:
                self._disk.sync_directory(self.directory)
            if not any(self.directory.iterdir()):
                remove_folder(self.directory)
                if durably:
                    self._disk.sync_directory(self.directory.parent)

    # following

    def refresh(self) -> bool:
        """READ: load new files and drop removed ones; True if there were any. New files are empty until `set_end`."""
        found, problems = self._scan()
        with self._change_lock:
            before = self._by_start
            kept = {start: file for start, file in before.items() if start in found and not file.is_replaced()}
            if kept.keys() == before.keys() == found.keys() and problems == self._problems:
                return False
            for start, file in before.items():
                if start not in kept:
                    file.retire()
                elif start in self.missized:
                    file.unmap()  # its map still has the old length
            self._set_files([kept.get(start) or self._appeared(start, found[start]) for start in sorted(found)])
            self._problems = problems
            return True

    def forget(self, file_bytes: int) -> None:
        """READ: close every file. The next `refresh` loads files of `file_bytes` each."""
        with self._change_lock:
            files = self._files
            self._set_files([])
            self._problems = ()
            self.file_bytes = file_bytes
        for file in files:
            file.retire()

    def _appeared(self, start: int, found: FoundFile) -> MappedFile:
        file = self._loaded(start, found)
        file.set_end(0)
        return file

    def close(self) -> None:
        """Close all files; delete preallocated ones that were not used."""
        for file in self._reserved:
            self._source.restore(file)
        self._reserved.clear()
        self._source.close()
        for file in self._files:
            file.close()
        for file, _ in self._retired:
            file.close()
