"""Preallocation: files for a queue to grow into, made ahead on a thread (docs/format.md, 3).

A file is truly allocated before anybody writes to it: a full disk is an error at a moment when it can be answered,
never a fault in the middle of a copy.
"""

from __future__ import annotations

import errno
import threading
from pathlib import Path

from engine.errors import StoreClosedError
from engine.files.disk import Disk
from engine.files.file_queue import FileSource
from engine.files.file_scan import LogPaths
from engine.files.mapped_file import Access, MappedFile


class Preallocator(FileSource):
    """Makes the file that is asked for and the one after it, durably named, on a thread of its own.

    So the file after the one being written is normally there before it is needed. A full disk is raised to the one
    who takes the file; each demand tries again. Thread safety: any thread.
    """

    names_durable = True

    def __init__(self, directory: Path | LogPaths, file_bytes: int, disk: Disk, *, warm: bool = False) -> None:
        """`warm`: write to every page of a file before it is handed out."""
        super().__init__(directory, file_bytes, Access.WRITE, disk)
        self._warm = warm
        self._changed = threading.Condition()
        self._wanted: set[int] = set()
        self._making: int | None = None
        self._ready: dict[int, MappedFile] = {}
        self._failed: dict[int, BaseException] = {}
        self._closed = False
        self._thread: threading.Thread | None = None  # from the first demand on

    def take(self, start: int) -> MappedFile:
        """As `FileSource.take`; asks for the file after it, too. Whatever made the thread fail is raised here.
        StoreClosedError after `close`."""
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
        """As `FileSource.restore`: kept for the next demand."""
        with self._changed:
            self._ready[file.start] = file

    def close(self) -> None:
        """As `FileSource.close`. Waits for a file being made. OSError when one can't be deleted."""
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
            except BaseException as error:  # whatever it is: who takes the file waits for it
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
