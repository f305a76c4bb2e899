"""`drop/`: a directory that takes files as messages, each once and whole. The engine keeps and puts them
(`engine.DropBox`); here is when, and what a program sees of its files.

    created, written ──last writer closed──► a final name, with bytes? ──► message, its file readable for LINGER_MS
          └─ a temporary name: waits ──renamed to a final name, no writer──────┘        │
                                                                 written again ◄────────┘  another message at its close

A file that could not be written whole is cut to nothing: empty files are no messages. All that is known of one, bytes,
names, times, owner, mode and whether it is a message, is on disk, for the next server and mount.

The loop's thread alone changes a box. Others find out what files it has (`DropBox`), before it is used, and put
messages (`Sending.put`).
"""

from __future__ import annotations

import errno
import logging
import os
import re
import threading
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple, cast, overload
from weakref import WeakKeyDictionary

from engine import DropBox, DroppedFile, FileOwner, FoundBox, Sending, StoreError
from fsstore.accounts import Accounts, Resource
from fsstore.handover.handles import HandleState
from fsstore.interface import (
    AT_END,
    NOBODY,
    NOTHING_TO_WAIT_FOR,
    Attributes,
    FilesystemError,
    Opened,
    SlowWork,
    WorkKind,
)
from fsstore.tree.deferred import DoneInThread
from fsstore.tree.inodes import Maker, NodeKey
from fsstore.tree.limited_log import LIMITED_LOG
from fsstore.tree.names import from_name, to_name
from fsstore.tree.nodes import Context, Creation, Directory, Node, OpenFile, not_found
from fsstore.tree.refusals import RefusalKind

log = logging.getLogger(__name__)

DROP = b"drop"
LINGER_MS = 60_000
"""How long a file stays readable in its box after it became a message."""
MOST_SENT = 1_000
"""So many of the newest do."""
MOST_CLEANED = 16
"""So many of the others one request removes, some 0.1 ms each."""
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
PERMISSIONS = 0o777
"""Of a mode: nobody is to run a file that waits as its owner."""


def is_temporary(name: str) -> bool:
    """Whether a file of that name waits for another one."""
    is_python_s = TEMPORARY_OF_PYTHON.fullmatch(name) is not None
    return is_python_s or name.startswith(TEMPORARY_BEGINS) or name.endswith(TEMPORARY_ENDS)


def path_of(topic: str, queue: int | None) -> str:
    """Of a box, below the mount point."""
    return f"{topic}/drop" if queue is None else f"{topic}/{queue}/drop"


class SetattrRequest(NamedTuple):
    """What a setattr is to set; None: not that."""

    mode: int | None = None
    uid: int | None = None
    gid: int | None = None
    atime_ns: int | None = None
    mtime_ns: int | None = None

    def owner(self, before: FileOwner) -> FileOwner:
        """Whose a file is to be, which was that one's before."""
        return FileOwner(
            before.uid if self.uid is None else self.uid,
            before.gid if self.gid is None else self.gid,
            before.mode if self.mode is None else self.mode & PERMISSIONS,
        )


@dataclass(eq=False)
class _Live:
    """What is known of a file besides what is on disk."""

    writers: int = 0
    sending: Sending | None = None
    """It is about to be a message."""
    handles: list[DropHandle] = field(default_factory=list)


class Boxes:
    """The boxes of one mount. Thread safety: the core's thread."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._boxes: dict[tuple[str, int | None], Box] = {}
        self._found: DoneInThread[DropBox] = DoneInThread()
        self._sent: deque[tuple[Box, DroppedFile, str]] = deque()
        """Copies of messages, with the folder that each was sent in, the oldest first."""
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
        """That of a topic or queue. TopicNotFoundError, OSError. SlowWork: there may be many files to be found."""
        known = self._boxes.get((topic, queue))
        if known is not None:
            return known
        find = partial(self._find, topic, queue)
        is_used = self._context.store.has_drop_box(topic, queue)
        return self._begin(self._found.do((topic, queue), find) if is_used else find())

    def _find(self, topic: str, queue: int | None) -> DropBox:
        """A box that is not used yet, with the files that are there, and what was about to be put is. In any thread."""
        found = self._context.store.drop_box(topic, queue)
        for sentence in found.settle():
            LIMITED_LOG.log_once(log, logging.WARNING, (self._find.__qualname__, sentence), sentence)
        return found

    def _begin(self, found: DropBox) -> Box:
        """Use a box from now on."""
        box = self._boxes[found.topic, found.queue] = Box(self._context, self, found)
        self._sent.extend((box, file, file.sent) for file in found.sent)
        return box

    def _directory_again(self, key: NodeKey) -> Node:
        topic = self._topic_of(key)
        return DropDirectory(self._context, self, topic, key.queue)

    def _file_again(self, key: NodeKey) -> Node:
        box = self.box(self._topic_of(key), key.queue)
        file = box.by_number.get(cast("int", key.detail))
        if file is None:
            raise FilesystemError(errno.ESTALE)
        return DropFile(self._context, box, file)

    def _topic_of(self, key: NodeKey) -> str:
        """The topic of a node that is to be made again. ESTALE where it, or the queue, is gone."""
        store = self._context.store
        assert key.topic is not None
        if key.topic not in store.topics() or (key.queue is not None and not store.has_queue(key.topic, key.queue)):
            raise FilesystemError(errno.ESTALE)
        return key.topic

    def settle(self) -> None:
        """Before the first request: put what was about to be when the last server ended. Where nothing was, the files
        of a box are found when somebody asks for them."""
        if self._context.read_only:
            return
        try:
            found = self._context.store.drop_boxes()
        except (StoreError, OSError) as error:
            log.warning("no drop box has its files: %s", error)
            return
        topics = frozenset(self._context.store.topics())
        for one in found:
            if problem := one.problem or self._settle(one, topics):
                sentence = f"{one.path}: {problem}: what is there is left alone"
                LIMITED_LOG.log_once(log, logging.WARNING, (self.settle.__qualname__, sentence), sentence)
        self._sent = deque(sorted(self._sent, key=lambda sent: sent[1].sent_ms))

    def _settle(self, found: FoundBox, topics: frozenset[str]) -> str:
        """Put what was about to be in one box; why that can't be."""
        if found.topic not in topics:
            return "there is no such topic"
        try:
            if found.has_sent and (found.topic, found.queue) not in self._boxes:
                self._begin(self._find(found.topic, found.queue))
        except (StoreError, OSError) as error:
            return str(error)
        return ""

    def note_sent(self, box: Box, file: DroppedFile) -> None:
        """A file became a message: its copy goes some time later."""
        self._sent.append((box, file, file.sent))

    def clean(self) -> None:
        """Remove some of the copies that have been messages for long enough, or that are too many."""
        old_ms = self._context.clock_ns() // 1_000_000 - LINGER_MS
        for _ in range(min(len(self._sent), MOST_CLEANED)):
            box, file, sent = self._sent[0]
            is_due = file.is_removed or file.sent_ms < old_ms or len(self._sent) > MOST_SENT
            was_written_again = file.sent != sent
            if not was_written_again and not (is_due and self._discard(box, file)):
                break  # the others were sent later
            self._sent.popleft()

    def _discard(self, box: Box, file: DroppedFile) -> bool:
        """Remove a copy; whether it may go. One that is open waits behind all others."""
        if box.is_open(file):
            self._sent.append((box, file, file.sent))
            return True
        try:
            return box.discard(file)
        except OSError as error:
            about = self._discard.__qualname__, type(error)
            LIMITED_LOG.log_once(log, logging.WARNING, about, f"a copy of a message stays in {box.path}: {error}")
            return True

    def close(self) -> None:
        """The mount ends: remove what is on disk as messages."""
        if not self._sent:
            return
        try:
            self._context.store.flush()
            for box, file, sent in self._sent:
                if file.sent == sent:
                    box.discard(file)
        except (StoreError, OSError) as error:
            log.warning("copies of messages stay in drop until the next mount: %s", error)


class Box:
    """A box with what its files are doing."""

    def __init__(self, context: Context, boxes: Boxes, dropped: DropBox) -> None:
        self.dropped = dropped
        self.key = dropped.topic, dropped.queue
        self.changed_ns = context.attribute_factory.started_ns  # to list a box does not change it
        self._context = context
        self._boxes = boxes
        self._accounts = context.accounts
        self._live: WeakKeyDictionary[DroppedFile, _Live] = WeakKeyDictionary()
        self._renaming: dict[tuple[bytes, bytes], DroppedFile] = {}  # which a thread makes messages of
        self._waiting = {file for file in dropped.files.values() if not file.sent}
        """Files that count to their owners."""
        for user, count in Counter(self.owner(file).uid for file in self._waiting).items():
            self._accounts.inherit(user, Resource.STAGED_FILES, count)

    @property
    def path(self) -> str:
        return path_of(*self.key)

    @property
    def files(self) -> dict[str, DroppedFile]:
        """What is shown, by name."""
        return self.dropped.files

    @property
    def by_number(self) -> dict[int, DroppedFile]:
        """What is on disk."""
        return self.dropped.by_number

    def owner(self, file: DroppedFile) -> FileOwner:
        """Whose it is; the mount's owner's alone where nobody knows."""
        return file.owner or FileOwner(*self._context.attribute_factory.owner, 0o600)

    def is_open(self, file: DroppedFile) -> bool:
        """Whether something is being done with it."""
        live = self._live.get(file)
        return live is not None and bool(live.handles or live.sending)

    def live(self, file: DroppedFile) -> _Live:
        """What it is doing."""
        return self._live.setdefault(file, _Live())

    def _key_of(self, file: DroppedFile) -> NodeKey:
        return NodeKey(DropFile, *self.key, file.number)

    def node(self, file: DroppedFile) -> DropFile:
        """Its node; the disk may have given the number of a file that is gone to another one."""
        key = self._key_of(file)
        node = self._named(key, file)
        if node.file is not file:
            self._context.inodes.retire_named(key)
            node = self._named(key, file)
        return node

    def _named(self, key: NodeKey, file: DroppedFile) -> DropFile:
        """There may be thousands: the next server is told of those that are open."""
        node = self._context.inodes.named(key, lambda: DropFile(self._context, self, file), while_open=True)
        assert isinstance(node, DropFile)
        return node

    def find(self, name: bytes) -> DroppedFile:
        """The file of that name, when nothing is being done with it. ENOENT."""
        self._boxes.clean()
        file = self.files.get(from_name(name))
        if file is None:
            raise not_found()
        self.wait_for(file)
        return file

    def wait_for(self, file: DroppedFile) -> None:
        """SlowWork while it becomes a message for another request."""
        live = self._live.get(file)
        if live is not None and live.sending is not None:
            raise SlowWork(lambda: _pause.wait(WAIT_S))

    def status(self, file: DroppedFile) -> os.stat_result:
        """Size and times."""
        live = self._live.get(file)
        if live is not None and live.handles:
            return os.fstat(live.handles[0].descriptor)
        try:
            return self.dropped.status(file)
        except FileNotFoundError:
            raise FilesystemError(errno.ESTALE) from None

    # waiting files

    def create(self, name: bytes, how: Creation) -> tuple[DropFile, int]:
        """A new file, and its descriptor. EDQUOT: too many of its owner's wait."""
        text, owner = must_be_property(name), FileOwner(how.uid, how.gid, how.mode & PERMISSIONS)
        self._accounts.take(owner.uid, Resource.STAGED_FILES)
        try:
            file, descriptor = self.dropped.create(text, owner)
        except BaseException:
            self._accounts.give(owner.uid, Resource.STAGED_FILES)
            raise
        self._waiting.add(file)
        self.changed_ns = self._context.clock_ns()
        return self.node(file), descriptor

    def _waits_no_more(self, file: DroppedFile) -> None:
        """It is gone, or a message."""
        if file in self._waiting:
            self._waiting.discard(file)
            self._accounts.give(self.owner(file).uid, Resource.STAGED_FILES)

    def open(self, file: DroppedFile, *, writing: bool) -> int:
        return self.dropped.descriptor(file, writing=writing)

    def change(self, file: DroppedFile) -> None:
        """It is written: if it is a message already, it is to be another one. EDQUOT as `create`."""
        if not file.sent or file.is_removed:
            return
        user = self.owner(file).uid
        self._accounts.take(user, Resource.STAGED_FILES)
        try:
            self.dropped.change(file)
        except BaseException:
            self._accounts.give(user, Resource.STAGED_FILES)
            raise
        self._waiting.add(file)

    def remove(self, file: DroppedFile) -> None:
        self.dropped.remove(file)
        self._waits_no_more(file)
        self.changed_ns = self._context.clock_ns()

    def discard(self, file: DroppedFile) -> bool:
        """Remove the copy of a message, if that is on disk; whether it was. OSError."""
        if not self.dropped.discard(file):
            return False
        self._context.inodes.retire_named(self._key_of(file))
        return True

    def set_owner(self, file: DroppedFile, owner: FileOwner) -> None:
        """It is somebody else's, or others may use it."""
        live, before = self._live.get(file), self.owner(file)
        self.dropped.set_owner(file, owner, live.handles[0].descriptor if live is not None and live.handles else None)
        if file in self._waiting:
            self._accounts.give(before.uid, Resource.STAGED_FILES)
            self._accounts.inherit(owner.uid, Resource.STAGED_FILES)

    def set_times(self, file: DroppedFile, times_ns: tuple[int, int]) -> None:
        live = self._live.get(file)
        if live is not None and live.handles:
            os.utime(live.handles[0].descriptor, ns=times_ns)
        else:
            os.utime(self.dropped.path(file), ns=times_ns, follow_symlinks=False)

    # becoming a message

    def rename(self, name: bytes, new_name: bytes, *, replaces: bool) -> int:
        """Give a file another name, and make it a message if that is final; the physical offset to wait for. ENOENT;
        EEXIST unless it `replaces` what has that name; SlowWork, and the same call again."""
        new_text = must_be_property(new_name)
        file = self._renaming.pop((name, new_name), None)
        if file is None:
            file = self.find(name)
            other = self._replaced(file, new_text, replaces)
            self.changed_ns = self._context.clock_ns()
            if not self._is_due(file, new_text):
                self.dropped.rename(file, new_text)
                if other is not None:
                    self._waits_no_more(other)
                return NOTHING_TO_WAIT_FOR
        try:
            physical_end = self._send(file, new_text)
        except SlowWork:
            self._renaming[name, new_name] = file
            raise
        return physical_end if self._context.store.sync_flush else NOTHING_TO_WAIT_FOR

    def _replaced(self, file: DroppedFile, new_name: str, replaces: bool) -> DroppedFile | None:
        """What has the new name of a file. EEXIST; SlowWork while it becomes a message."""
        other = self.files.get(new_name)
        if other is None or other is file:
            return None
        self.wait_for(other)
        if not replaces:
            raise FilesystemError(errno.EEXIST)
        return other

    def was_renamed(self, name: bytes, new_name: bytes) -> bool:
        """Whether a server that was killed did so."""
        return from_name(name) not in self.files and from_name(new_name) in self.files

    def publish_if_due(self, file: DroppedFile) -> None:
        """Nobody writes it any more, or somebody asks for another try: make it a message if it can be one. An error is
        listed: there is nobody to tell. SlowWork, and the same call again."""
        if self.live(file).sending is None and not self._is_due(file, file.name):
            return
        try:
            self._send(file, file.name)
        except (StoreError, OSError) as error:
            self._complain(file, error)

    def _send(self, file: DroppedFile, name: str) -> int:
        """Make it a message of that name; the physical offset behind it. SlowWork, and the same call again. Errors as
        `DropBox.send`."""
        live = self.live(file)
        if live.sending is not None and not live.sending.is_done:
            self.wait_for(file)
        if live.sending is None:
            is_small = self.status(file).st_size <= SMALL_BYTES
            sending = self.dropped.begin(file, name)
            if not is_small or self._context.long_puts.is_under_way:  # the loop never waits for the log's lock
                live.sending = sending
                raise SlowWork(partial(self._put, sending, is_small), WorkKind.PUBLISHING)
            sending.put()
        else:
            sending, live.sending = live.sending, None
        other = self.files.get(file.name)
        physical_end = self.dropped.finish(sending)
        for gone in (file, other):
            if gone is not None and (gone.sent or gone.is_removed):
                self._waits_no_more(gone)
        self._boxes.note_sent(self, file)
        return physical_end

    def _put(self, sending: Sending, is_small: bool) -> None:
        """In any thread; nothing of the box changes."""
        with nullcontext() if is_small else self._context.long_puts.under_way():
            sending.put()

    def _is_due(self, file: DroppedFile, name: str) -> bool:
        """Whether it is to be a message under that name now."""
        is_whole = not self.live(file).writers and not file.sent and not file.is_removed
        return is_whole and not is_temporary(name) and self.status(file).st_size > 0

    def _complain(self, file: DroppedFile, error: Exception) -> None:
        """List why it is no message."""
        path, text = f"{self.path}/{file.name}", f"it is not published, and stays there: {error}"
        LIMITED_LOG.log_once(
            log, logging.WARNING, (self._complain.__qualname__, self.key, type(error)), f"{path}: {text}"
        )
        number = error.errno if isinstance(error, OSError) and error.errno else 0
        kind = None if number else RefusalKind.MALFORMED
        self._context.refusals.note(self.owner(file).uid, 0, path, "", number, text, kind)


_pause = threading.Event()


def must_be_property(name: bytes) -> str:
    """The text of a name, which is to be a property. EINVAL."""
    text = from_name(name)
    if any(character in text for character in "\1\2") or not text.isprintable():
        raise FilesystemError(errno.EINVAL, "a file's name becomes a property: printable UTF-8")
    return text


@contextmanager
def descriptor_of_caller(context: Context) -> Iterator[int]:
    """Count a descriptor that is about to be opened to the user whose request this is: that user. EMFILE. It counts no
    more when it is not opened after all."""
    accounts = context.accounts
    user = accounts.caller
    take = accounts.inherit if context.survival.is_reopening else accounts.take
    take(user, Resource.DESCRIPTORS)
    try:
        yield user
    except BaseException:
        accounts.give(user, Resource.DESCRIPTORS)
        raise


class Names(Sequence[bytes]):
    """Names of files, each encoded when it is listed."""

    def __init__(self, names: Sequence[str]) -> None:
        self._names = names

    def __len__(self) -> int:
        return len(self._names)

    @overload
    def __getitem__(self, at: int) -> bytes: ...

    @overload
    def __getitem__(self, at: slice) -> Sequence[bytes]: ...

    def __getitem__(self, at: int | slice) -> bytes | Sequence[bytes]:
        return to_name(self._names[at]) if isinstance(at, int) else [*map(to_name, self._names[at])]


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
        return self._context.attribute_factory.drop_directory(self.inode, None if box is None else box.changed_ns)

    def lookup(self, name: bytes) -> Attributes:
        return self.box.node(self.box.find(name)).attributes()

    def names(self) -> Sequence[bytes]:
        self._boxes.clean()
        return Names(list(self.box.files))

    def describe(self, name: bytes) -> Attributes:
        """As `lookup`, also while the file becomes a message."""
        box = self.box
        file = box.files.get(from_name(name))
        if file is None:
            raise not_found()
        return box.node(file).attributes()

    def mkdir(self, name: bytes) -> None:
        raise FilesystemError(errno.EPERM, "files alone are dropped here")

    def make(self, name: bytes, how: Creation) -> tuple[Node, OpenFile, Opened]:
        """Make a file, or open the one that is there meanwhile. EEXIST."""
        self._context.must_be_writable()
        self._context.store.require_writable(self._key[0])
        box = self.box
        self._boxes.clean()
        existing = box.files.get(from_name(name))
        if existing is not None:
            box.wait_for(existing)
            if how.flags & os.O_EXCL and not self._context.survival.was_begun:
                raise FilesystemError(errno.EEXIST)
            node = box.node(existing)
            return node, *node.open(how.flags)
        with descriptor_of_caller(self._context) as user:
            node, descriptor = box.create(name, how)
        return node, DropHandle(node, descriptor, user, writing=how.flags & os.O_ACCMODE != os.O_RDONLY), DROPPED

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

    def closed(self) -> None:
        """No handle of it is open any more."""
        self._context.inodes.closed(self.inode)

    @property
    def accounts(self) -> Accounts:
        """Who takes how much."""
        return self._context.accounts

    @property
    def limit_bytes(self) -> int:
        """Bytes of the longest file that can be a message."""
        return self._context.store.config.max_message_bytes

    @property
    def too_long(self) -> str:
        """Why a longer one is refused."""
        return f"a message has at most {self.limit_bytes:,} bytes (maxMessageSize)"

    def attributes(self) -> Attributes:
        found, owner = self.box.status(self.file), self.box.owner(self.file)
        return self._context.attribute_factory.dropped(self.inode, found.st_size, found.st_mtime_ns, owner)

    def open(self, flags: int) -> tuple[OpenFile, Opened]:
        writing = flags & os.O_ACCMODE != os.O_RDONLY
        if writing:
            self._context.must_be_writable()
            self._context.store.require_writable(self.box.key[0])
        self.box.wait_for(self.file)
        with descriptor_of_caller(self._context) as user:
            handle = DropHandle(self, self.box.open(self.file, writing=writing), user, writing=writing)
        if flags & os.O_TRUNC and writing:
            try:
                handle.truncate(0)
            except BaseException:
                handle.abandon()
                raise
        return handle, DROPPED

    def set(self, size: int | None, wanted: SetattrRequest) -> None:
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
        owner = wanted.owner(box.owner(file))
        if owner != box.owner(file):
            box.set_owner(file, owner)
        if wanted.atime_ns is not None or wanted.mtime_ns is not None:
            found = box.status(file)
            atime_ns = found.st_atime_ns if wanted.atime_ns is None else wanted.atime_ns
            box.set_times(file, (atime_ns, found.st_mtime_ns if wanted.mtime_ns is None else wanted.mtime_ns))
            box.publish_if_due(file)


class DropHandle(OpenFile):
    """An open file of a box."""

    __slots__ = ("_is_closed", "_limit_bytes", "_node", "_refusal", "_syncs", "_user", "_writing", "descriptor")

    def __init__(self, node: DropFile, descriptor: int, user: int, *, writing: bool) -> None:
        """`user` is who opened it: the descriptor counts to him."""
        self.descriptor = descriptor
        self._node = node
        self._user = user
        self._writing = writing
        self._refusal = 0
        self._is_closed = False
        self._syncs: DoneInThread[None] = DoneInThread(WorkKind.WAITING)
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

    def write_refused(self, number: int) -> None:
        if not self._refusal:
            with suppress(SlowWork, OSError, StoreError):
                self._spoil(number, "")

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
        if not box.is_open(file):
            self._node.closed()

    def abandon(self) -> None:
        live = self._node.box.live(self._node.file)
        live.handles.remove(self)
        live.writers -= self._writing
        self._is_closed = True
        os.close(self.descriptor)
        self._node.accounts.give(self._user, Resource.DESCRIPTORS)
