"""DropBox: files that become messages, once and whole (docs/format.md, 13).

    STORE/fsstore/drop/<topic>/<queue id, or `all`>/
        staged/<name>              file being written, or waiting for its final name
        sent/<id>-<end>/<name>     file being published, or published, under UNIQ_KEY <id>; the log ended at <end> then

A file moves from `staged` to `sent` before its message is put, and stays there until the message is on disk. So the
next opening finds each file that may have been put, and the index shows whether it was. Staged files then stay staged,
because they may be incomplete.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, Protocol

from engine.errors import MessageTooLargeError, StoreError
from engine.files.disk import make_directory
from engine.files.paths import create_file, open_file, open_folder, read_file, remove_folder, rename, unlink
from engine.record.message import Message, StoredMessage
from engine.record.properties import UNIQUE_KEY
from engine.results import PutResult
from engine.write.drop_owner import FileOwner, give_to, owner_of

FILE_NAME = "FILE_NAME"
"""Message property with the file's name."""
STAGED, SENT = "staged", "sent"
ALL_QUEUES = "all"
_QUEUE = re.compile(r"0|[1-9][0-9]{0,9}")
_SENT_NAME = re.compile(r"([0-9A-F]{32})-(0|[1-9][0-9]{0,18})")
"""UNIQ_KEY, and the physical end of the log."""


class DropStore(Protocol):
    """The methods of a store that a box uses."""

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
    """A file of a box with its current name."""

    name: str
    number: int
    """Inode number on disk, which a rename does not change."""
    owner: FileOwner | None
    """None: unknown."""
    sent: str = ""
    """Name of its folder below `sent`; empty: the file is staged."""
    physical_end: int = 0
    """Physical offset just past its message; 0: it is not put yet."""
    sent_ms: int = 0
    is_removed: bool = False


class Sending:
    """A file that is being published, between `DropBox.begin` and `finish`. Any thread may call `put`: it does not use
    the box."""

    def __init__(self, file: DroppedFile, old_name: str, put: Callable[[], int]) -> None:
        self.file = file
        self.old_name = old_name
        self._put = put
        self._end: Future[int] = Future()

    @property
    def is_done(self) -> bool:
        """Whether `put` has returned."""
        return self._end.done()

    def put(self) -> None:
        """Put the message; `physical_end` raises its error."""
        try:
            self._end.set_result(self._put())
        except Exception as error:
            self._end.set_exception(error)

    def physical_end(self) -> int:
        """Physical offset just past the message. StoreError as `MessageStore.put`, OSError."""
        return self._end.result()


class DropBox:
    """The box of a topic or of one of its queues. Thread safety: one caller at a time, except `Sending.put`."""

    def __init__(
        self,
        store: DropStore,
        folder: Path,
        topic: str,
        queue: int | None,
        clock: Callable[[], int],
        limit_bytes: int,
    ) -> None:
        """Load the box's files; a file of more than `limit_bytes` can't be put. OSError, ObstructedError."""
        self.topic = topic
        self.queue = queue
        self._store = store
        self._clock = clock
        self._limit_bytes = limit_bytes
        self._folder = folder / topic / (ALL_QUEUES if queue is None else str(queue))
        self._staged = str(self._folder / STAGED)
        self.files: dict[str, DroppedFile] = {}
        """Shown files by name; read-only."""
        self.by_number: dict[int, DroppedFile] = {}
        """Files on disk by number; read-only."""
        for found in _files_in(self._folder / STAGED):
            self._show(DroppedFile(*found))
        self.sent = sorted(self._find_sent(), key=lambda file: file.sent_ms)
        """Files found in `sent` at construction, oldest first."""
        for file in reversed(self.sent):
            file.is_removed = self.files.setdefault(file.name, file) is not file
            self.by_number[file.number] = file

    def _find_sent(self) -> Iterator[DroppedFile]:
        end = self._store.physical_end
        for name in _folders_in(self._folder / SENT):
            folder = self._folder / SENT / name
            if _SENT_NAME.fullmatch(name):
                for found in _files_in(folder):
                    yield DroppedFile(*found, name, end, folder.lstat().st_mtime_ns // 1_000_000)
                with suppress(OSError):  # it is empty if the process was killed before it moved the file
                    remove_folder(folder)

    def _show(self, file: DroppedFile) -> None:
        self.files[file.name] = self.by_number[file.number] = file

    def path(self, file: DroppedFile) -> Path:
        """Path of a file on disk."""
        return self._folder / SENT / file.sent / file.name if file.sent else self._folder / STAGED / file.name

    def status(self, file: DroppedFile) -> os.stat_result:
        """Size and times of a file. OSError."""
        return os.lstat(self.path(file) if file.sent else f"{self._staged}/{file.name}")  # fast, for long listings

    def create(self, name: str, owner: FileOwner) -> tuple[DroppedFile, int]:
        """A new, staged file, and a descriptor to read and write it. FileExistsError, OSError."""
        make_directory(self._folder / STAGED, mode=0o700)
        path = self._folder / STAGED / name
        descriptor = create_file(path)
        try:
            give_to(descriptor, owner)
        except BaseException:
            os.close(descriptor)
            unlink(path)
            raise
        file = DroppedFile(name, os.fstat(descriptor).st_ino, owner)
        self._show(file)
        return file, descriptor

    def descriptor(self, file: DroppedFile, *, writing: bool) -> int:
        """A new descriptor of a file. OSError, ObstructedError."""
        return open_file(self.path(file), os.O_RDWR if writing else os.O_RDONLY)

    def set_owner(self, file: DroppedFile, owner: FileOwner, opened: int | None = None) -> None:
        """Change owner and mode of a file; `opened` is a descriptor of it, if any. OSError, ObstructedError."""
        descriptor = open_file(self.path(file)) if opened is None else opened
        try:
            give_to(descriptor, owner)
        finally:
            if opened is None:
                os.close(descriptor)
        file.owner = owner

    def rename(self, file: DroppedFile, name: str) -> None:
        """Rename a file; another file of that name is replaced. OSError."""
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
            self._forget(other)
        self.files.pop(old, None)
        self.files[name] = file

    def remove(self, file: DroppedFile) -> None:
        """Remove a file from the box; a published message stays. OSError."""
        if not file.sent:
            unlink(self.path(file))
        self._forget(file)

    def _forget(self, file: DroppedFile) -> None:
        """Remove a file from `files`; a sent file stays in `by_number` until `discard`."""
        file.is_removed = True
        if self.files.get(file.name) is file:
            del self.files[file.name]
        if not file.sent and self.by_number.get(file.number) is file:
            del self.by_number[file.number]

    def change(self, file: DroppedFile) -> None:
        """Stage a sent file again, because its content is about to differ from its message. OSError."""
        if file.sent and not file.is_removed:
            self._take_back(file, file.name)

    def _take_back(self, file: DroppedFile, name: str) -> None:
        """Move a file back to `staged` under a free name. OSError."""
        make_directory(self._folder / STAGED, mode=0o700)
        rename(self.path(file), self._folder / STAGED / name)
        folder = self._folder / SENT / file.sent
        file.name, file.sent = name, ""
        with suppress(OSError):
            remove_folder(folder)

    # becoming a message

    def send(self, file: DroppedFile, name: str) -> int:
        """Publish a staged file under `name`; returns the physical offset just past its message. An error leaves the
        file staged: StoreError as `MessageStore.put`, OSError."""
        sending = self.begin(file, name)
        sending.put()
        return self.finish(sending)

    def begin(self, file: DroppedFile, name: str) -> Sending:
        """First step of `send`; call `Sending.put`, then `finish`. The file must not be used until then. OSError."""
        key, staged, old_name = os.urandom(16).hex().upper(), self.path(file), file.name
        sent = f"{key}-{self._store.physical_end}"
        path = self._folder / SENT / sent / name
        make_directory(path.parent, mode=0o700)
        try:
            rename(staged, path)
        except BaseException:
            with suppress(OSError):
                remove_folder(path.parent)
            raise
        file.name, file.sent = name, sent
        return Sending(file, old_name, lambda: self._put(path, key))

    def finish(self, sending: Sending) -> int:
        """Last step of `send`; returns the physical offset just past the message. Errors as `send`."""
        file, name = sending.file, sending.file.name
        try:
            file.physical_end = sending.physical_end()
        except BaseException:
            self._take_back(file, sending.old_name)
            raise
        file.sent_ms = self._clock()
        other = self.files.get(name)
        if other is not None and other is not file:
            with suppress(OSError):
                self.remove(other)
        if self.files.get(sending.old_name) is file:
            del self.files[sending.old_name]
        self.files[name] = file
        return file.physical_end

    def _put(self, path: Path, key: str) -> int:
        try:
            body = read_file(path, self._limit_bytes)
        except ValueError:
            raise MessageTooLargeError("body", path.lstat().st_size, self._limit_bytes) from None
        properties = {FILE_NAME: path.name, UNIQUE_KEY.decode(): key}
        self._store.queues(self.topic)  # a topic that was deleted is not made again
        return self._store.put(Message(self.topic, body, properties=properties), self.queue).physical_end

    # files of an earlier process

    def settle(self) -> list[str]:
        """After an opening: put each sent file whose message is not in the log.

        A file that can't be put, or may have been put, is staged again or left in `sent`. Returns a sentence with the
        reason for each such file, and for each folder that was not made by us.
        """
        ours = {file.sent for file in self.sent}
        others = [name for name in _folders_in(self._folder / SENT) if name not in ours]
        sentences = [f"{self._folder / SENT / name}: no file was sent there: it is left alone" for name in others]
        for file in list(self.sent):
            path = self.path(file)
            try:
                why = self._settle(file, path)
            except (StoreError, OSError) as error:
                why = str(error)
            if why:
                self.sent.remove(file)
                sentences.append(f"{path}: {why}: {self._wait_again(file)}")
        return sentences

    def _settle(self, file: DroppedFile, path: Path) -> str:
        """Put a sent file if its message is not in the log; returns the reason if that can't be decided, else ""."""
        key, _, end = file.sent.partition("-")
        if self._store.query(self.topic, key, 1):
            return ""
        if self._store.log_begin > int(end):
            return "the log does not tell any more whether it is a message"
        file.physical_end = self._put(path, key)
        return ""

    def _wait_again(self, file: DroppedFile) -> str:
        """Stage a file that may not be published; returns words about the result."""
        if file.is_removed or self.files.get(file.name) is not file:
            return "it is left alone"
        try:
            self._take_back(file, file.name)
        except OSError as error:
            self._forget(file)
            return f"it is left alone ({error})"
        return "it waits in its box"

    def discard(self, file: DroppedFile) -> bool:
        """Remove a sent file once its message is on disk; returns whether it was. OSError."""
        if file.physical_end > self._store.durable_end:
            return False
        unlink(self.path(file))
        with suppress(OSError):
            remove_folder(self._folder / SENT / file.sent)
        self._forget(file)
        if self.by_number.get(file.number) is file:
            del self.by_number[file.number]
        return True


class FoundBox(NamedTuple):
    """A folder of a box."""

    path: Path
    topic: str
    queue: int | None
    has_sent: bool
    """Whether it has sent files."""
    problem: str = ""
    """Reason why the folder is not a box."""


def boxes_below(folder: Path) -> Iterator[FoundBox]:
    """Yields each box below the folder of all boxes. OSError, ObstructedError."""
    for topic in _folders_in(folder):
        for name in _folders_in(folder / topic):
            yield _found(folder / topic / name, topic, name)


def _found(path: Path, topic: str, name: str) -> FoundBox:
    if name != ALL_QUEUES and not _QUEUE.fullmatch(name):
        return FoundBox(path, topic, None, False, "no queue has that name")
    queue = None if name == ALL_QUEUES else int(name)
    try:
        return FoundBox(path, topic, queue, bool(_folders_in(path / SENT)))
    except (StoreError, OSError) as error:
        return FoundBox(path, topic, queue, False, str(error))


def is_used(folder: Path, topic: str, queue: int | None) -> bool:
    """Whether a box has ever had a file."""
    return (folder / topic / (ALL_QUEUES if queue is None else str(queue))).is_dir()


def _folders_in(folder: Path) -> list[str]:
    """Names of the folders in a folder, sorted."""
    return [entry.name for entry, _ in _entries_in(folder) if entry.is_dir(follow_symlinks=False)]


def _files_in(folder: Path) -> list[tuple[str, int, FileOwner | None]]:
    """Name, number and owner of the regular files in a folder, sorted by name."""
    return [
        (entry.name, entry.inode(), owner_of(f"/proc/self/fd/{descriptor}/{entry.name}"))
        for entry, descriptor in _entries_in(folder)
        if entry.is_file(follow_symlinks=False)
    ]


def _entries_in(folder: Path) -> Iterator[tuple[os.DirEntry[str], int]]:
    """Yields each member of a folder, sorted, with the folder's descriptor; nothing if it is missing. Planted links in
    its path are not followed. OSError, ObstructedError."""
    with suppress(FileNotFoundError):
        descriptor = open_folder(folder)
        try:
            with os.scandir(descriptor) as entries:
                found = sorted(entries, key=lambda entry: entry.name)
            for entry in found:
                yield entry, descriptor
        finally:
            os.close(descriptor)
