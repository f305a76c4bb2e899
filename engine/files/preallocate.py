"""Preallocation: makes a file queue's next files ahead, on a thread (docs/format.md, 3).

Disk space is allocated before the first write. So a full disk raises an error that a caller can handle, and never a
SIGBUS during a copy.
"""

from __future__ import annotations

import errno
import threading
from pathlib import Path

from engine.errors import StoreClosedError
from engine.files.disk import Disk
from engine.files.file_queue import BufferPool, FileSource
from engine.files.layout import LogPaths
from engine.files.mapped_file import Access, MappedFile


class Preallocator(FileSource):
    """Makes the requested file and the next one on its own thread; their names are durable.

    So the next file normally exists before it is needed. `take` raises the error of a full disk, and each `take` tries
    again. Thread safety: any thread.
    """

    names_durable = True

    def __init__(
        self,
        directory: Path | LogPaths,
        file_bytes: int,
        disk: Disk,
        *,
        warm: bool = False,
        pool: BufferPool | None = None,
    ) -> None:
        """`warm`: write to every page of a file before `take` returns it."""
        super().__init__(directory, file_bytes, Access.WRITE, disk, pool=pool)
        self._warm = warm
        self._changed = threading.Condition()
        self._wanted: set[int] = set()
        self._making: int | None = None
        self._ready: dict[int, MappedFile] = {}
        self._failed: dict[int, BaseException] = {}
        self._closed = False
        self._thread: threading.Thread | None = None  # from the first demand on

    def take(self, start: int) -> MappedFile:
        """As `FileSource.take`; requests the next file, too. Raises any error of the thread. StoreClosedError after
        `close`."""
        with self._changed:
            self._start()
            self._failed.clear()
            self._want(start)
            self._changed.wait_for(lambda: self._closed or start in self._ready or start in self._failed)
            if start in self._failed:
                raise self._failed.pop(start)
            if self._closed:
                raise StoreClosedError
            self._want(start + self._file_bytes)
            return self._ready.pop(start)

    def restore(self, file: MappedFile) -> None:
        """As `FileSource.restore`: the file is kept for a later `take`."""
        with self._changed:
            self._ready[file.start] = file

    def close(self) -> None:
        """As `FileSource.close`. Waits for a file that is being made. OSError: a file can't be deleted."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join()
        leftover, self._ready = self._ready, {}
        for file in leftover.values():
            file.retire()
        for directory in {file.path.parent for file in leftover.values()}:
            self._disk.sync_directory(directory)

    def _start(self) -> None:
        if self._thread is None and not self._closed:
            thread = threading.Thread(target=self._run, name="fsstore-allocate", daemon=True)
            try:
                thread.start()
            except RuntimeError as error:
                raise OSError(errno.EAGAIN, "no thread can be started to make a file") from error
            self._thread = thread

    def _want(self, start: int) -> None:
        if start not in self._ready and start != self._making:
            self._wanted.add(start)
            self._changed.notify_all()

    def _run(self) -> None:
        while (start := self._next_wanted()) is not None:
            made: MappedFile | BaseException
            try:
                made = self._make_durably(start)
            except BaseException as error:  # `take` waits for the file and raises this
                made = error
            self._finish(start, made)

    def _next_wanted(self) -> int | None:
        with self._changed:
            self._changed.wait_for(lambda: self._closed or self._wanted)
            if self._closed:
                return None
            self._making = min(self._wanted)
            self._wanted.discard(self._making)
            return self._making

    def _finish(self, start: int, made: MappedFile | BaseException) -> None:
        with self._changed:
            self._making = None
            if isinstance(made, MappedFile):
                self._ready[start] = made
            else:
                self._failed[start] = made
            self._changed.notify_all()

    def _make_durably(self, start: int) -> MappedFile:
        file = self._make(start, sync=True)
        try:
            if self._warm:
                file.warm()
                file.sync()
            self._disk.sync_directory(file.path.parent)
        except BaseException:
            file.retire()
            raise
        return file
