"""`drop/`: a directory that takes files as messages, each once and whole. The engine keeps and puts them
(`engine.DropBox`); here is when, and what a program sees of its files.

    created, written ──last writer closed──► a final name, with bytes? ──► message, its file readable for LINGER_MS
          └─ a temporary name: waits ──renamed to a final name, no writer──────┘        │
                                                                 written again ◄────────┘  another message at its close

A file that could not be written whole is cut to nothing: empty files are no messages. Nothing is kept in memory but
owner and mode: bytes, names, times and whether a file is a message are on disk, for the next server and mount.
"""

from __future__ import annotations

import errno
import logging
import os
import re
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import NamedTuple

from engine import DropBox, DroppedFile, StoreError
from fsstore.accounts import ROOT
from fsstore.handover import HandleState
from fsstore.interface import (
    AT_END,
    NOBODY,
    NOTHING_TO_WAIT_FOR,
    Attributes,
    DoneInThread,
    FilesystemError,
    Kind,
    Opened,
    SlowWork,
)
from fsstore.tree.complaints import COMPLAINTS
from fsstore.tree.inodes import Maker, NodeKey
from fsstore.tree.names import can_be_name, from_name, to_name
from fsstore.tree.nodes import Context, Creation, Directory, Node, OpenFile, not_found
from fsstore.tree.refusals import Kind as RefusalKind

log = logging.getLogger(__name__)

DROP = b"drop"
LINGER_MS = 60_000
"""How long a file stays readable in its box after it became a message."""
SMALL_BYTES = 1 << 18
"""Longer files become messages in a thread."""
WAIT_S = 0.02
TEMPORARY_ENDS = ("~", ".tmp", ".part", ".swp")
TEMPORARY_BEGINS = (".", "#")
TEMPORARY_OF_PYTHON = re.compile(r"tmp[a-z0-9_]{8}")
"""`tempfile` gives such names: programs write there, and rename."""

DROPPED = Opened(0, False, False, None)
"""How its files are opened."""
RENAME_NOREPLACE = 1


def is_temporary(name: str) -> bool:
    """Whether a file of that name waits for another one."""
    is_python_s = TEMPORARY_OF_PYTHON.fullmatch(name) is not None
    return is_python_s or name.startswith(TEMPORARY_BEGINS) or name.endswith(TEMPORARY_ENDS)


def path_of(topic: str, queue: int | None) -> str:
    """Of a box, below the mount point."""
    return f"{topic}/drop" if queue is None else f"{topic}/{queue}/drop"


class Wanted(NamedTuple):
    """What a setattr is to set; None: not that."""

    mode: int | None = None
    uid: int | None = None
    gid: int | None = None
    atime_ns: int | None = None
    mtime_ns: int | None = None


@dataclass(eq=False)
class _Live:
    """What is known of a file besides what is on disk."""

    mode: int = 0o644
    uid: int | None = None
    gid: int | None = None
    writers: int = 0
    is_sending: bool = False
    error: Exception | None = None
    """Why it could not be made a message, if nobody was told yet."""
    handles: list[DropHandle] = field(default_factory=list)


class Boxes:
    """The boxes of one mount. Thread safety: the core's thread."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._boxes: dict[tuple[str, int | None], Box] = {}
        context.inodes.makers += [Maker(DropDirectory, self._directory_again), Maker(DropFile, self._file_again)]

    def look_up(self, topic: str, queue: int | None) -> Attributes:
        """Attributes of the directory. ENOENT where nothing can be published."""
        return self._directory(topic, queue).attributes()

    def _directory(self, topic: str, queue: int | None) -> DropDirectory:
        if self._context.read_only:
            raise not_found()
        key = NodeKey(DropDirectory, topic, queue)
        node = self._context.inodes.named(key, lambda: DropDirectory(self._context, self, topic, queue))
        assert isinstance(node, DropDirectory)
        return node

    def opened(self, topic: str, queue: int | None) -> Box | None:
        """That of a topic or queue, if it was used."""
        return self._boxes.get((topic, queue))

    def box(self, topic: str, queue: int | None) -> Box:
        """That of a topic or queue. TopicNotFoundError, OSError."""
        found = self._boxes.get((topic, queue))
        if found is None:
            box = self._context.store.drop_box(topic, queue)
            found = self._boxes[topic, queue] = Box(self._context, box)
        return found

    def _directory_again(self, key: NodeKey) -> Node:
        return DropDirectory(self._context, self, *self._box_again(key).key)

    def _file_again(self, key: NodeKey) -> Node:
        box = self._box_again(key)
        for file in list(box.files.values()):
            if file.number == key.detail:
                return DropFile(self._context, box, file)
        raise FilesystemError(errno.ESTALE)

    def _box_again(self, key: NodeKey) -> Box:
        assert key.topic is not None
        try:
            return self.box(key.topic, key.queue)
        except StoreError:
            raise FilesystemError(errno.ESTALE) from None

    def settle(self) -> None:
        """Before the first request: put what was about to be when the last server ended."""
        if self._context.read_only:
            return
        for topic, queue in self._context.store.drop_boxes():
            try:
                self.box(topic, queue).settle()
            except (StoreError, OSError) as error:
                log.warning(
                    "files in %s/drop are not published: %s", topic if queue is None else f"{topic}/{queue}", error
                )

    def close(self) -> None:
        """The mount ends: remove what is on disk as messages."""
        if not any(box.has_sent for box in self._boxes.values()):
            return
        try:
            self._context.store.flush()
            for box in self._boxes.values():
                box.clean(everything=True)
        except (StoreError, OSError) as error:
            log.warning("copies of messages stay in drop until the next mount: %s", error)


class Box:
    """A box with what its files are doing."""

    def __init__(self, context: Context, box: DropBox) -> None:
        self._context = context
        self._box = box
        self._live: dict[DroppedFile, _Live] = {}
        self._renaming: dict[tuple[bytes, bytes], DroppedFile] = {}  # made messages by a thread, not answered yet
        self.key = box.topic, box.queue
        self.changed_ns = context.appearance.started_ns  # to list a box does not change it

    @property
    def path(self) -> str:
        return path_of(*self.key)

    @property
    def files(self) -> dict[str, DroppedFile]:
        return self._box.files

    @property
    def has_sent(self) -> bool:
        return self._box.has_sent

    def settle(self) -> None:
        self._box.settle()

    def clean(self, *, everything: bool = False) -> None:
        """Remove files that have been messages for long enough."""
        now_ms = self._context.clock_ns() // 1_000_000
        gone = self._box.clean(now_ms + LINGER_MS if everything else now_ms - LINGER_MS, self._is_open)
        if gone:
            keys = {self._key_of(file) for file in gone}
            for file in gone:
                self._live.pop(file, None)
            self._context.inodes.retire(lambda key: key in keys)

    def _is_open(self, file: DroppedFile) -> bool:
        live = self._live.get(file)
        return live is not None and bool(live.handles or live.is_sending)

    def _key_of(self, file: DroppedFile) -> NodeKey:
        return NodeKey(DropFile, *self.key, file.number)

    def live(self, file: DroppedFile) -> _Live:
        """What it is doing."""
        return self._live.setdefault(file, _Live())

    def node(self, file: DroppedFile) -> DropFile:
        """Its node; the disk may have given the number of a file that is gone to another one."""
        inodes, key = self._context.inodes, self._key_of(file)
        node = inodes.named(key, lambda: DropFile(self._context, self, file))
        assert isinstance(node, DropFile)
        if node.file is not file:
            inodes.retire(lambda other: other == key)
            node = inodes.named(key, lambda: DropFile(self._context, self, file))
            assert isinstance(node, DropFile)
        return node

    def find(self, name: bytes) -> DroppedFile:
        """The file of that name, when nothing is being done with it. ENOENT."""
        self.clean()
        file = self.files.get(from_name(name))
        if file is None:
            raise not_found()
        self.wait_for(file)
        return file

    def wait_for(self, file: DroppedFile) -> None:
        """SlowWork while a thread makes it a message."""
        if file in self._live and self._live[file].is_sending:
            raise SlowWork(lambda: _pause.wait(WAIT_S), Kind.WAITING)

    def status(self, file: DroppedFile) -> os.stat_result:
        """Size and times."""
        live = self._live.get(file)
        if live is not None and live.handles:
            return os.fstat(live.handles[0].descriptor)
        try:
            return os.lstat(self._box.path(file))
        except FileNotFoundError:
            raise FilesystemError(errno.ESTALE) from None

    def create(self, name: bytes, how: Creation) -> tuple[DropFile, int]:
        """A new file, and its descriptor."""
        text = must_be_property(name)
        file, descriptor = self._box.create(text)
        self._live[file] = _Live(how.mode & 0o7777, how.uid, how.gid)
        self.changed_ns = self._context.clock_ns()
        return self.node(file), descriptor

    def open(self, file: DroppedFile, *, writing: bool) -> int:
        return self._box.descriptor(file, writing=writing)

    def change(self, file: DroppedFile) -> None:
        """It is written: if it is a message already, it is to be another one."""
        if file.sent:
            self._box.change(file)

    def remove(self, file: DroppedFile) -> None:
        self._box.remove(file)
        self.changed_ns = self._context.clock_ns()

    def set_times(self, file: DroppedFile, times_ns: tuple[int, int]) -> None:
        live = self._live.get(file)
        if live is not None and live.handles:
            os.utime(live.handles[0].descriptor, ns=times_ns)
        else:
            os.utime(self._box.path(file), ns=times_ns, follow_symlinks=False)

    def rename(self, name: bytes, new_name: bytes, *, replaces: bool) -> int:
        """Give a file another name, and make it a message if that is final; the physical offset to wait for. ENOENT;
        EEXIST unless it `replaces` what has that name; SlowWork, and the same call again."""
        new_text = must_be_property(new_name)
        file = self._renaming.pop((name, new_name), None)
        if file is not None:
            return self._answer_after(file)
        file = self.find(name)
        other = self.files.get(new_text)
        if other is not None:
            self.wait_for(other)
            if not replaces:
                raise FilesystemError(errno.EEXIST)
        self.changed_ns = self._context.clock_ns()
        if not self._is_due(file, new_text):
            self._box.rename(file, new_text)
            return NOTHING_TO_WAIT_FOR
        if self._is_quick(file):
            self._box.send(file, new_text)
            return self._answer_after(file)

        def send() -> None:
            with self._sending(file):
                self._box.send(file, new_text)
            self._renaming[name, new_name] = file

        self.live(file).is_sending = True
        raise SlowWork(send, Kind.PUBLISHING)

    def was_renamed(self, name: bytes, new_name: bytes) -> bool:
        """Whether a server that was killed did so."""
        return from_name(name) not in self.files and from_name(new_name) in self.files

    def publish_if_due(self, file: DroppedFile) -> None:
        """Nobody writes it any more, or somebody asks for another try: make it a message if it can be one. An error is
        listed: there is nobody to tell. SlowWork, and the same call again."""
        live = self.live(file)
        error, live.error = live.error, None
        if error is None and self._is_due(file, file.name):
            if not self._is_quick(file):
                live.is_sending = True
                raise SlowWork(lambda: self._try(file), Kind.PUBLISHING)
            self._try(file)
            error, live.error = live.error, None
        if error is not None:
            self._complain(file, error)

    def _try(self, file: DroppedFile) -> None:
        """Make it a message, in any thread; the error is noted."""
        try:
            with self._sending(file):
                self._box.send(file, file.name)
        except (StoreError, OSError) as error:
            self.live(file).error = error

    @contextmanager
    def _sending(self, file: DroppedFile) -> Iterator[None]:
        """Meanwhile nobody else does anything with the file."""
        live = self.live(file)
        live.is_sending = True
        try:
            with nullcontext() if self._is_small(file) else self._context.long_puts.under_way():
                yield
        finally:
            live.is_sending = False

    def _is_due(self, file: DroppedFile, name: str) -> bool:
        """Whether it is to be a message under that name now."""
        is_whole = not self.live(file).writers and not file.sent and not file.is_removed
        return is_whole and not is_temporary(name) and self.status(file).st_size > 0

    def _is_small(self, file: DroppedFile) -> bool:
        return self.status(file).st_size <= SMALL_BYTES

    def _is_quick(self, file: DroppedFile) -> bool:
        """Whether it may be put on the request loop, which never waits for the log's lock."""
        return self._is_small(file) and not self._context.long_puts.is_under_way

    def _answer_after(self, file: DroppedFile) -> int:
        return file.physical_end if self._context.store.sync_flush else NOTHING_TO_WAIT_FOR

    def _complain(self, file: DroppedFile, error: Exception) -> None:
        """List why it is no message."""
        path, text = f"{self.path}/{file.name}", f"it is not published, and stays there: {error}"
        COMPLAINTS.tell(log, logging.WARNING, (self._complain.__qualname__, self.key, type(error)), f"{path}: {text}")
        number = error.errno if isinstance(error, OSError) and error.errno else 0
        self._context.refusals.note(ROOT, 0, path, "", number, text, None if number else RefusalKind.MALFORMED)


_pause = threading.Event()


def must_be_property(name: bytes) -> str:
    """The text of a name, which is to be a property. EINVAL."""
    text = from_name(name)
    if any(character in text for character in "\1\2") or not text.isprintable():
        raise FilesystemError(errno.EINVAL, "a file's name becomes a property: printable UTF-8")
    return text


class DropDirectory(Directory):
    """`drop` of a topic or a queue."""

    def __init__(self, context: Context, boxes: Boxes, topic: str, queue: int | None) -> None:
        super().__init__(context)
        self._boxes = boxes
        self._key = topic, queue

    @property
    def box(self) -> Box:
        """Its files."""
        return self._boxes.box(*self._key)

    @property
    def path(self) -> str:
        return path_of(*self._key)

    @property
    def ignores_setattr(self) -> bool:
        """Who copies a whole folder into it sets its times and mode in the end."""
        return not self._context.read_only

    def attributes(self) -> Attributes:
        box = self._boxes.opened(*self._key)
        return self._context.appearance.drop_directory(self.inode, None if box is None else box.changed_ns)

    def lookup(self, name: bytes) -> Attributes:
        return self.box.node(self.box.find(name)).attributes()

    def names(self) -> Sequence[bytes]:
        self.box.clean()
        return [name for name in map(to_name, list(self.box.files)) if can_be_name(name)]

    def mkdir(self, name: bytes) -> None:
        raise FilesystemError(errno.EPERM, "files alone are dropped here")

    def make(self, name: bytes, how: Creation) -> tuple[Node, OpenFile, Opened]:
        """Make a file, or open the one that is there meanwhile. EEXIST."""
        self._context.must_be_writable()
        self._context.store.require_writable(self._key[0])
        box = self.box
        box.clean()
        existing = box.files.get(from_name(name))
        if existing is not None:
            box.wait_for(existing)
            if how.flags & os.O_EXCL and not self._context.survival.was_begun:
                raise FilesystemError(errno.EEXIST)
            node = box.node(existing)
            return node, *node.open(how.flags)
        node, descriptor = box.create(name, how)
        return node, DropHandle(node, descriptor, writing=how.flags & os.O_ACCMODE != os.O_RDONLY), DROPPED

    def remove(self, name: bytes) -> None:
        """Withdraw a file, or show it no longer. ENOENT."""
        if self._context.survival.was_begun and from_name(name) not in self.box.files:
            return
        self.box.remove(self.box.find(name))

    def move(self, name: bytes, target: Node, new_name: bytes, flags: int) -> int:
        """Rename a file; the physical offset to wait for. EXDEV: to another directory, as between disks."""
        if not isinstance(target, DropDirectory):
            raise FilesystemError(errno.EPERM, "a file leaves its drop box as a message alone")
        box = self.box
        if target.box is not box:
            raise FilesystemError(errno.EXDEV)
        if flags & ~RENAME_NOREPLACE:
            raise FilesystemError(errno.EINVAL)
        if self._context.survival.was_begun and box.was_renamed(name, new_name):
            return NOTHING_TO_WAIT_FOR
        return box.rename(name, new_name, replaces=not flags)


class DropFile(Node):
    """A file of a box."""

    def __init__(self, context: Context, box: Box, file: DroppedFile) -> None:
        self._context = context
        self.box = box
        self.file = file

    @property
    def path(self) -> str:
        return f"{self.box.path}/{self.file.name}"

    @property
    def ignores_setattr(self) -> bool:
        return True

    @property
    def limit_bytes(self) -> int:
        """Bytes of the longest file that can be a message."""
        return self._context.store.config.max_message_bytes

    @property
    def too_long(self) -> str:
        """Why a longer one is refused."""
        return f"a message has at most {self.limit_bytes:,} bytes (maxMessageSize)"

    def attributes(self) -> Attributes:
        found, live = self.box.status(self.file), self.box.live(self.file)
        return self._context.appearance.dropped(
            self.inode, found.st_size, found.st_mtime_ns, live.mode, live.uid, live.gid
        )

    def open(self, flags: int) -> tuple[OpenFile, Opened]:
        writing = flags & os.O_ACCMODE != os.O_RDONLY
        if writing:
            self._context.must_be_writable()
            self._context.store.require_writable(self.box.key[0])
        self.box.wait_for(self.file)
        handle = DropHandle(self, self.box.open(self.file, writing=writing), writing=writing)
        if flags & os.O_TRUNC and writing:
            try:
                handle.truncate(0)
            except BaseException:
                handle.abandon()
                raise
        return handle, DROPPED

    def set(self, size: int | None, wanted: Wanted) -> None:
        """Set what is wanted. Who sets times has another try at what could not be published."""
        box, file = self.box, self.file
        box.wait_for(file)
        if size is not None:
            if size > self.limit_bytes:
                raise FilesystemError(errno.EFBIG, self.too_long)
            handle, _ = self.open(os.O_WRONLY)
            try:
                handle.truncate(size)
            finally:
                handle.release()
        live = box.live(file)
        live.mode = live.mode if wanted.mode is None else wanted.mode & 0o7777
        live.uid = live.uid if wanted.uid is None else wanted.uid
        live.gid = live.gid if wanted.gid is None else wanted.gid
        if wanted.atime_ns is not None or wanted.mtime_ns is not None:
            found = box.status(file)
            atime_ns = found.st_atime_ns if wanted.atime_ns is None else wanted.atime_ns
            box.set_times(file, (atime_ns, found.st_mtime_ns if wanted.mtime_ns is None else wanted.mtime_ns))
            box.publish_if_due(file)


class DropHandle(OpenFile):
    """An open file of a box."""

    __slots__ = ("_is_closed", "_limit_bytes", "_node", "_refusal", "_syncs", "_writing", "descriptor")

    def __init__(self, node: DropFile, descriptor: int, *, writing: bool) -> None:
        self.descriptor = descriptor
        self._node = node
        self._writing = writing
        self._refusal = 0
        self._is_closed = False
        self._syncs: DoneInThread[None] = DoneInThread(Kind.WAITING)
        self._limit_bytes = node.limit_bytes
        live = node.box.live(node.file)
        live.handles.append(self)
        live.writers += writing

    @property
    def published_to(self) -> str:
        return self._node.path if self._writing else ""

    def read(self, position: int, size: int) -> bytes:
        return os.pread(self.descriptor, size, position)

    def write(self, position: int, data: bytes, owner: int = NOBODY) -> int:
        """As `OpenFile.write`. A file of which a write fails is cut to nothing, so that no part of it is published."""
        if position == AT_END:
            position = os.fstat(self.descriptor).st_size
        self._must_fit(position + len(data))
        self._change()
        view = memoryview(data)
        try:
            while view:
                written = os.pwrite(self.descriptor, view, position)
                view, position = view[written:], position + written
        except OSError as error:
            raise self._spoil(error.errno or errno.EIO, str(error)) from error
        return NOTHING_TO_WAIT_FOR

    def truncate(self, size: int) -> None:
        if size == os.fstat(self.descriptor).st_size:
            return
        self._must_fit(size)
        self._change()
        os.ftruncate(self.descriptor, size)

    def _must_fit(self, size: int) -> None:
        if self._refusal:
            raise FilesystemError(self._refusal, "a part of this file is missing: write it again from its beginning")
        if size > self._limit_bytes:
            raise self._spoil(errno.EFBIG, f"{self._node.too_long}: the file is cut to nothing, and not published")

    def _change(self) -> None:
        self._node.box.wait_for(self._node.file)
        self._node.box.change(self._node.file)

    def _spoil(self, number: int, reason: str) -> FilesystemError:
        """What was written is not whole, and never will be."""
        self._change()
        os.ftruncate(self.descriptor, 0)
        self._refusal = number
        return FilesystemError(number, reason)

    def flush(self, owner: int = NOBODY) -> int:
        """Close reports nothing: what has to be said of a write was said. NOBODY: fsync, so what is written is on
        disk."""
        if owner == NOBODY and self._writing:
            self._syncs.do(self.descriptor, lambda: os.fsync(self.descriptor))
        return NOTHING_TO_WAIT_FOR

    def unpublished(self, *, whole: bool = False) -> HandleState | None:
        return HandleState(b"", 0, refusal=self._refusal) if self._refusal else None

    def resume(self, state: HandleState | None) -> None:
        if state is not None:
            self._refusal = state.refusal

    def release(self) -> None:
        """SlowWork: the same call again."""
        box, file = self._node.box, self._node.file
        if not self._is_closed:
            self.abandon()
        if self._writing:
            box.publish_if_due(file)

    def abandon(self) -> None:
        live = self._node.box.live(self._node.file)
        live.handles.remove(self)
        live.writers -= self._writing
        self._is_closed = True
        os.close(self.descriptor)
