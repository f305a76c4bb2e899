"""DropBox: files that become messages, once and whole (docs/format.md, 13).

    STORE/fsstore/drop/<topic>/<queue id, or `all`>/
        staged/<name>              what is being written, or waits for its final name
        sent/<id>-<end>/<name>     what is a message with the UNIQ_KEY <id>, or becomes one, behind that end of the log

A file moves from `staged` to `sent` before its message is put, and stays there until the log that holds it is on disk.
So whoever opens the store next finds each file that may have been put, and the index tells whether it was. What is
staged then stays so: nobody knows whether it was written to its end.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from engine.files.disk import make_directory
from engine.files.paths import create_file, open_file, read_file, remove_folder, rename, unlink
from engine.record.message import Message, StoredMessage
from engine.record.properties import UNIQUE_KEY
from engine.results import PutResult

FILE_NAME = "FILE_NAME"
"""The property that holds a file's name."""
MOST_BYTES = 1 << 31
"""What no message is longer than."""
STAGED, SENT = "staged", "sent"
ALL_QUEUES = "all"


class DropStore(Protocol):
    """What a box asks of its store."""

    def put(self, message: Message, queue: int | None = None) -> PutResult: ...

    def query(self, topic: str, key: str, limit: int = 64) -> list[StoredMessage]: ...

    @property
    def physical_end(self) -> int: ...

    @property
    def durable_end(self) -> int: ...

    @property
    def log_begin(self) -> int: ...

    def queues(self, topic: str) -> list[int]: ...


@dataclass(eq=False)
class DroppedFile:
    """A file of a box, by its name now."""

    name: str
    number: int
    """Its inode on disk: the same under another name."""
    sent: str = ""
    """The folder below `sent`; empty: it is staged."""
    physical_end: int = 0
    """Of its message, if it is one."""
    sent_ms: int = 0
    is_removed: bool = False


class DropBox:
    """The box of a topic or of one of its queues. Thread safety: one caller at a time."""

    def __init__(self, store: DropStore, folder: Path, topic: str, queue: int | None, clock: Callable[[], int]) -> None:
        """Finds what is there. OSError."""
        self.topic = topic
        self.queue = queue
        self._store = store
        self._clock = clock
        self._folder = folder / topic / (ALL_QUEUES if queue is None else str(queue))
        self.files: dict[str, DroppedFile] = {}
        """What is shown, by name; not to be changed."""
        self._sent: list[DroppedFile] = []
        for path in _files_in(self._folder / STAGED):
            self.files[path.name] = DroppedFile(path.name, path.lstat().st_ino)
        for sent in _folders_in(self._folder / SENT):
            for path in _files_in(sent):
                sent_ms = sent.lstat().st_mtime_ns // 1_000_000
                number, end = path.lstat().st_ino, self._store.physical_end
                self._sent.append(DroppedFile(path.name, number, sent.name, end, sent_ms))
        self._sent.sort(key=lambda file: file.sent_ms)
        for file in reversed(self._sent):
            file.is_removed = self.files.setdefault(file.name, file) is not file

    @property
    def has_sent(self) -> bool:
        """Whether files are kept that are messages."""
        return bool(self._sent)

    def path(self, file: DroppedFile) -> Path:
        """Where a file is on disk."""
        return self._folder / SENT / file.sent / file.name if file.sent else self._folder / STAGED / file.name

    def create(self, name: str) -> tuple[DroppedFile, int]:
        """A new, staged file, and a descriptor to read and write it. FileExistsError, OSError."""
        make_directory(self._folder / STAGED, mode=0o700)
        descriptor = create_file(self._folder / STAGED / name)
        file = self.files[name] = DroppedFile(name, os.fstat(descriptor).st_ino)
        return file, descriptor

    def descriptor(self, file: DroppedFile, *, writing: bool) -> int:
        """For who opens a file. OSError, ObstructedError."""
        return open_file(self.path(file), os.O_RDWR if writing else os.O_RDONLY)

    def rename(self, file: DroppedFile, name: str) -> None:
        """Give it another name, in place of what has that one. OSError."""
        before, other = self.path(file), self.files.get(name)
        if other is not None and other is not file and other.sent != file.sent:
            self.remove(other)
        old, file.name = file.name, name
        try:
            rename(before, self.path(file))
        except BaseException:
            file.name = old
            raise
        if other is not None and other is not file:
            other.is_removed = True
        self.files.pop(old, None)
        self.files[name] = file

    def remove(self, file: DroppedFile) -> None:
        """Show it no longer; what is a message stays one. OSError."""
        if not file.sent:
            unlink(self.path(file))
        file.is_removed = True
        if self.files.get(file.name) is file:
            del self.files[file.name]

    def change(self, file: DroppedFile) -> None:
        """It is about to become other than the message that it is: staged again. OSError."""
        if file.sent and not file.is_removed:
            before, folder = self.path(file), self._folder / SENT / file.sent
            make_directory(self._folder / STAGED, mode=0o700)
            rename(before, self._folder / STAGED / file.name)
            file.sent = ""
            self._sent.remove(file)
            with suppress(OSError):
                remove_folder(folder)

    def send(self, file: DroppedFile, name: str) -> int:
        """Make a staged file a message, and give it that name; the physical offset behind it. As it was after an error:
        StoreError as `MessageStore.put`, OSError."""
        staged, old = self.path(file), file.name
        sent = f"{os.urandom(16).hex().upper()}-{self._store.physical_end}"
        folder = self._folder / SENT / sent
        make_directory(folder, mode=0o700)
        rename(staged, folder / name)
        try:
            physical_end = self._put(folder / name, sent)
        except BaseException:
            rename(folder / name, staged)
            with suppress(OSError):
                remove_folder(folder)
            raise
        other = self.files.get(name)
        if other is not None and other is not file:
            with suppress(OSError):
                self.remove(other)
        if self.files.get(old) is file:
            del self.files[old]
        file.name, file.sent, file.physical_end, file.sent_ms = name, sent, physical_end, self._clock()
        self.files[name] = file
        self._sent.append(file)
        return physical_end

    def _put(self, path: Path, sent: str) -> int:
        body = read_file(path, MOST_BYTES)
        properties = {FILE_NAME: path.name, UNIQUE_KEY.decode(): sent.partition("-")[0]}
        self._store.queues(self.topic)  # a topic that was deleted is not made again
        return self._store.put(Message(self.topic, body, properties=properties), self.queue).physical_end

    def settle(self) -> None:
        """After the store was opened: put what was to be sent, and is not in the log. StoreError, OSError."""
        for file in list(self._sent):
            key, _, end = file.sent.partition("-")
            if not end.isdigit() or self._store.log_begin > int(end):
                continue  # the log does not tell any more
            if not self._store.query(self.topic, key, 1):
                file.physical_end = self._put(self.path(file), file.sent)

    def clean(self, sent_before_ms: int, is_open: Callable[[DroppedFile], bool] = lambda _: False) -> list[DroppedFile]:
        """Remove the copies of messages that were sent before then, and are on disk; which. OSError."""
        durable_end, gone = self._store.durable_end, []
        for file in self._sent:
            if file.sent_ms >= sent_before_ms and not file.is_removed:
                break  # the others were sent later
            if file.physical_end <= durable_end and not is_open(file):
                gone.append(file)
        for file in gone:
            self.remove(file)
            unlink(self.path(file))
            with suppress(OSError):
                remove_folder(self._folder / SENT / file.sent)
            self._sent.remove(file)
        return gone


def boxes_below(folder: Path) -> Iterator[tuple[str, int | None]]:
    """Topic and queue of each box."""
    for topic in _folders_in(folder):
        for box in _folders_in(topic):
            if box.name == ALL_QUEUES or box.name.isdecimal():
                yield topic.name, None if box.name == ALL_QUEUES else int(box.name)


def _folders_in(folder: Path) -> list[Path]:
    with suppress(FileNotFoundError, NotADirectoryError):
        return [path for path in sorted(folder.iterdir()) if stat.S_ISDIR(path.lstat().st_mode)]
    return []


def _files_in(folder: Path) -> list[Path]:
    with suppress(FileNotFoundError, NotADirectoryError):
        return [path for path in sorted(folder.iterdir()) if stat.S_ISREG(path.lstat().st_mode)]
    return []
