"""`drop/`: a directory whose files become messages, each once and whole. The engine stores and puts the files
(`engine.DropBox`); this module decides when, and shows them to programs.

    created, written ──last writer closed──► a final name, with bytes? ──► message, its file readable for LINGER_MS
          └─ a temporary name: waits ──renamed to a final name, no writer──────┘        │
                                                                 written again ◄────────┘  another message at its close

A file that could not be written whole is cut to 0 bytes: empty files never become messages. The whole state of a file
is on disk, for the next server and mount: bytes, name, times, owner, mode and whether it is a message.

Only the loop's thread changes a box. Other threads list the files of a box before it is used (`DropBox`), and put
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
from fsstore.callers import Caller
from fsstore.handover.handles import HandleState
from fsstore.interface import (
    AT_END,
    NO_OWNER,
    NOTHING_TO_WAIT_FOR,
    Attributes,
    FilesystemError,
    Opened,
    SlowWork,
    WorkKind,
)
from fsstore.tree.deferred import deferred, in_thread
from fsstore.tree.inodes import Maker, NodeKey
from fsstore.tree.limited_log import LIMITED_LOG
from fsstore.tree.names import from_name, to_name
from fsstore.tree.nodes import Context, Creation, Directory, Node, OpenFile, not_found
from fsstore.tree.refusals import RefusalKind

log = logging.getLogger(__name__)

DROP = b"drop"
LINGER_MS = 60_000
"""Time for which a file stays readable after it became a message."""
MOST_SENT = 1_000
"""The largest number of such files; older ones are removed earlier."""
MOST_CLEANED = 16
"""Files that one request removes at most, at some 0.1 ms each."""
SMALL_BYTES = 1 << 18
"""A thread makes messages of longer files."""
WAIT_S = 0.02
TEMPORARY_ENDS = ("~", ".tmp", ".part", ".swp")
TEMPORARY_BEGINS = (".", "#")
TEMPORARY_OF_PYTHON = re.compile(r"tmp[a-z0-9_]{8}")
"""Names that `tempfile` gives: programs write such a file and rename it."""

DROPPED = Opened(0, False, False, None)
"""The result of opening a file of a box."""
RENAME_NOREPLACE = 1
PERMISSIONS = 0o777
"""Permitted bits of a mode. Set-user-ID is not: a waiting file must not be run as its owner."""


def is_temporary(name: str) -> bool:
    """Whether a file of that name waits for a rename."""
    is_of_python = TEMPORARY_OF_PYTHON.fullmatch(name) is not None
    return is_of_python or name.startswith(TEMPORARY_BEGINS) or name.endswith(TEMPORARY_ENDS)


def path_of(topic: str, queue: int | None) -> str:
    """The path of a box below the mount point."""
    return f"{topic}/drop" if queue is None else f"{topic}/{queue}/drop"


class SetattrRequest(NamedTuple):
    """The attributes that a setattr sets; None: leave it."""

    mode: int | None = None
    uid: int | None = None
    gid: int | None = None
    atime_ns: int | None = None
    mtime_ns: int | None = None

    def owner(self, before: FileOwner) -> FileOwner:
        """The owner and mode after the request; `before` has the present ones."""
        return FileOwner(
            before.uid if self.uid is None else self.uid,
            before.gid if self.gid is None else self.gid,
            before.mode if self.mode is None else self.mode & PERMISSIONS,
        )


@dataclass(eq=False)
class _Activity:
    """The open handles of a file, and its message while that is put."""

    writers: int = 0
    sending: Sending | None = None
    """The put of its message, until that is finished."""
    sent_bytes: int = 0
    """Size of this message."""
    handles: list[DropHandle] = field(default_factory=list)


class DropBoxes:
    """The drop boxes of one mount. Thread safety: the core's thread."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._boxes: dict[tuple[str, int | None], DropBoxView] = {}
        self._sent: deque[tuple[DropBoxView, DroppedFile, str]] = deque()
        """Files that became messages, with the folder of `sent` that holds each, the oldest first."""
        context.inodes.makers += [
            Maker(DropDirectory, lambda key: DropDirectory(context, self, self._topic_of(key), key.queue)),
            Maker(DropFile, self._file_again),
        ]

    def look_up(self, topic: str, queue: int | None) -> Attributes:
        """Attributes of the directory. ENOENT if nothing can be published."""
        return self._directory(topic, queue).attributes()

    def _directory(self, topic: str, queue: int | None) -> DropDirectory:
        if self._context.read_only:
            raise not_found()
        key = NodeKey(DropDirectory, topic, queue)
        node = self._context.inodes.named(key, lambda: DropDirectory(self._context, self, topic, queue))
        assert isinstance(node, DropDirectory)
        return node

    def opened(self, topic: str, queue: int | None) -> DropBoxView | None:
        """The box of a topic or queue, if it was used."""
        return self._boxes.get((topic, queue))

    def box(self, topic: str, queue: int | None) -> DropBoxView:
        """The box of a topic or queue. TopicNotFoundError, OSError. SlowWork: its files are being listed."""
        known = self._boxes.get((topic, queue))
        if known is not None:
            return known
        return self._begin(deferred(partial(self._find, topic, queue), (self, topic, queue)))

    def _find(self, topic: str, queue: int | None) -> DropBox:
        """A box before its use: lists its files, and puts those whose put had begun. Thread safety: any thread."""
        found = self._context.store.drop_box(topic, queue)
        for sentence in found.settle():
            LIMITED_LOG.log_once(log, logging.WARNING, (self._find.__qualname__, sentence), sentence)
        return found

    def _begin(self, found: DropBox) -> DropBoxView:
        """Use a box from now on."""
        box = self._boxes[found.topic, found.queue] = DropBoxView(self._context, self, found)
        self._sent.extend((box, file, file.sent) for file in found.sent)
        return box

    def _file_again(self, key: NodeKey) -> Node:
        box = self.box(self._topic_of(key), key.queue)
        file = box.by_number.get(cast("int", key.detail))
        if file is None:
            raise FilesystemError(errno.ESTALE)
        return DropFile(self._context, box, file)

    def _topic_of(self, key: NodeKey) -> str:
        """The topic of a node that is made again. ESTALE: the topic or the queue was deleted."""
        store = self._context.store
        assert key.topic is not None
        if not store.has_topic(key.topic) or (key.queue is not None and not store.has_queue(key.topic, key.queue)):
            raise FilesystemError(errno.ESTALE)
        return key.topic

    def settle(self) -> None:
        """Before the first request, finish puts that had begun when the last server ended. Files of other boxes are
        listed when a request needs them."""
        if self._context.read_only:
            return
        try:
            found = self._context.store.drop_boxes()
        except (StoreError, OSError) as error:
            log.warning("the drop boxes can't be listed: %s", error)
            return
        topics = frozenset(self._context.store.topics())
        for box in found:
            if problem := box.problem or self._settle(box, topics):
                sentence = f"{box.path}: {problem}: its files are left alone"
                LIMITED_LOG.log_once(log, logging.WARNING, (self.settle.__qualname__, sentence), sentence)
        self._sent = deque(sorted(self._sent, key=lambda sent: sent[1].sent_ms))

    def _settle(self, found: FoundBox, topics: frozenset[str]) -> str:
        """Finish puts that had begun in one box; returns why that is impossible, or an empty text."""
        if found.topic not in topics:
            return "there is no such topic"
        try:
            if found.has_sent and (found.topic, found.queue) not in self._boxes:
                self._begin(self._find(found.topic, found.queue))
        except (StoreError, OSError) as error:
            return str(error)
        return ""

    def note_sent(self, box: DropBoxView, file: DroppedFile) -> None:
        """Note that a file became a message, to remove it later."""
        self._sent.append((box, file, file.sent))

    def clean(self) -> None:
        """Remove some files that became messages more than LINGER_MS ago, or that are too many."""
        old_ms = self._context.clock_ns() // 1_000_000 - LINGER_MS
        for _ in range(min(len(self._sent), MOST_CLEANED)):
            box, file, sent = self._sent[0]
            is_due = file.is_removed or file.sent_ms < old_ms or len(self._sent) > MOST_SENT
            was_written_again = file.sent != sent
            if not was_written_again and not (is_due and self._discard(box, file)):
                break  # the others became messages later
            self._sent.popleft()

    def _discard(self, box: DropBoxView, file: DroppedFile) -> bool:
        """Remove a file that became a message; False: its message is not on disk yet. An open file goes to the end."""
        if box.is_open(file):
            self._sent.append((box, file, file.sent))
            return True
        try:
            return box.discard(file)
        except OSError as error:
            about = self._discard.__qualname__, type(error)
            text = f"a published file can't be removed from {box.path}: {error}"
            LIMITED_LOG.log_once(log, logging.WARNING, about, text)
            return True

    def close(self) -> None:
        """At the end of the mount, remove files whose messages are on disk."""
        if not self._sent:
            return
        try:
            self._context.store.flush()
            for box, file, sent in self._sent:
                if file.sent == sent:
                    box.discard(file)
        except (StoreError, OSError) as error:
            log.warning("published files stay in drop until the next mount: %s", error)


class DropBoxView:
    """A box with the handles and puts of its files."""

    def __init__(self, context: Context, boxes: DropBoxes, dropped: DropBox) -> None:
        self.dropped = dropped
        self.key = dropped.topic, dropped.queue
        self.changed_ns = context.attribute_factory.started_ns  # listing a box does not change it
        self._context = context
        self._boxes = boxes
        self._accounts = context.accounts
        self._activities: WeakKeyDictionary[DroppedFile, _Activity] = WeakKeyDictionary()
        self._renaming: dict[tuple[bytes, bytes], DroppedFile] = {}  # files that a thread puts for a rename
        self._waiting = {file for file in dropped.files.values() if not file.sent}
        """Files that count to their owners."""
        for user, count in Counter(self.owner(file).uid for file in self._waiting).items():
            self._accounts.inherit(user, Resource.STAGED_FILES, count)

    @property
    def path(self) -> str:
        return path_of(*self.key)

    @property
    def files(self) -> dict[str, DroppedFile]:
        """The files that are shown, by name."""
        return self.dropped.files

    @property
    def by_number(self) -> dict[int, DroppedFile]:
        return self.dropped.by_number

    def owner(self, file: DroppedFile) -> FileOwner:
        """Owner and mode of a file; if unknown, the mount's owner and no access for others."""
        return file.owner or FileOwner(*self._context.attribute_factory.owner, 0o600)

    def is_open(self, file: DroppedFile) -> bool:
        """Whether a file has handles, or its message is being put."""
        activity = self._activities.get(file)
        return activity is not None and bool(activity.handles or activity.sending)

    def activity(self, file: DroppedFile) -> _Activity:
        """The handles and the put of a file."""
        return self._activities.setdefault(file, _Activity())

    def _key_of(self, file: DroppedFile) -> NodeKey:
        return NodeKey(DropFile, *self.key, file.number)

    def node(self, file: DroppedFile) -> DropFile:
        """The node of a file. The disk may have given it the number of a removed one, whose node is then dropped."""
        key = self._key_of(file)
        node = self._named(key, file)
        if node.file is not file:
            self._context.inodes.invalidate_named(key)
            node = self._named(key, file)
        return node

    def _named(self, key: NodeKey, file: DroppedFile) -> DropFile:
        """The node of that key. There may be thousands, so the next server gets only the open ones."""
        node = self._context.inodes.named(key, lambda: DropFile(self._context, self, file), while_open=True)
        assert isinstance(node, DropFile)
        return node

    def find(self, name: bytes) -> DroppedFile:
        """The file of that name. ENOENT; SlowWork while its message is being put."""
        self._boxes.clean()
        file = self.files.get(from_name(name))
        if file is None:
            raise not_found()
        self.wait_for(file)
        return file

    def wait_for(self, file: DroppedFile) -> None:
        """SlowWork while another request puts the file's message."""
        activity = self._activities.get(file)
        if activity is not None and activity.sending is not None:
            raise SlowWork(lambda: _pause.wait(WAIT_S))

    def status(self, file: DroppedFile) -> os.stat_result:
        """Size and times of a file. ESTALE: it was removed."""
        activity = self._activities.get(file)
        if activity is not None and activity.handles:
            return os.fstat(activity.handles[0].descriptor)
        try:
            return self.dropped.status(file)
        except FileNotFoundError:
            raise FilesystemError(errno.ESTALE) from None

    # waiting files

    def create(self, name: bytes, how: Creation) -> tuple[DropFile, int]:
        """Create a file; returns its node and descriptor. EDQUOT: its owner has too many waiting files."""
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
        """Count a file no longer that was removed or published."""
        if file in self._waiting:
            self._waiting.discard(file)
            self._accounts.give(self.owner(file).uid, Resource.STAGED_FILES)

    def open(self, file: DroppedFile, *, writing: bool) -> int:
        return self.dropped.descriptor(file, writing=writing)

    def change(self, file: DroppedFile) -> None:
        """Prepare a write: a file that is a message already will become another one. EDQUOT as `create`."""
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
        """Remove a file that became a message; False: its message is not on disk yet. OSError."""
        if not self.dropped.discard(file):
            return False
        self._context.inodes.invalidate_named(self._key_of(file))
        return True

    def set_owner(self, file: DroppedFile, owner: FileOwner) -> None:
        """Change the owner or mode of a file."""
        activity, before = self._activities.get(file), self.owner(file)
        self.dropped.set_owner(
            file, owner, activity.handles[0].descriptor if activity is not None and activity.handles else None
        )
        if file in self._waiting:
            self._accounts.give(before.uid, Resource.STAGED_FILES)
            self._accounts.inherit(owner.uid, Resource.STAGED_FILES)

    def set_times(self, file: DroppedFile, times_ns: tuple[int, int]) -> None:
        activity = self._activities.get(file)
        if activity is not None and activity.handles:
            os.utime(activity.handles[0].descriptor, ns=times_ns)
        else:
            os.utime(self.dropped.path(file), ns=times_ns, follow_symlinks=False)

    # becoming a message

    def rename(self, name: bytes, new_name: bytes, *, replaces: bool) -> int:
        """Rename a file, and publish it if the new name is final; the physical offset to wait for. ENOENT; EEXIST: a
        file has the new name, and not `replaces`; SlowWork: call it again."""
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
        """The file that a rename replaces, or None. EEXIST; SlowWork while its message is being put."""
        other = self.files.get(new_name)
        if other is None or other is file:
            return None
        self.wait_for(other)
        if not replaces:
            raise FilesystemError(errno.EEXIST)
        return other

    def was_renamed(self, name: bytes, new_name: bytes) -> bool:
        """Whether a killed server did this rename."""
        return from_name(name) not in self.files and from_name(new_name) in self.files

    def publish_if_due(self, file: DroppedFile) -> None:
        """Publish a file if it can be a message: its last writer has closed it, or its times were set to try again. An
        error is noted in the refusals, because no request waits for it. SlowWork: call it again."""
        if self.activity(file).sending is None and not self._is_due(file, file.name):
            return
        try:
            self._send(file, file.name)
        except (StoreError, OSError) as error:
            self._complain(file, error)

    def _send(self, file: DroppedFile, name: str) -> int:
        """Publish a file; the physical offset behind it. SlowWork: call it again. Errors as `DropBox.send`."""
        activity = self.activity(file)
        if activity.sending is not None and not activity.sending.is_done:
            self.wait_for(file)
        if activity.sending is None:
            activity.sent_bytes = self.status(file).st_size
            is_small = activity.sent_bytes <= SMALL_BYTES
            sending = self.dropped.begin(file, name)
            if not is_small or self._context.long_puts.is_under_way:  # the loop never waits for the log's lock
                activity.sending = sending
                raise SlowWork(partial(self._put, sending, is_small), WorkKind.PUBLISHING)
            sending.put()
        else:
            sending, activity.sending = activity.sending, None
        other = self.files.get(file.name)
        physical_end = self.dropped.finish(sending)
        self._context.callers.published(Caller(self.owner(file).uid, 0), 1, activity.sent_bytes)
        for gone in (file, other):
            if gone is not None and (gone.sent or gone.is_removed):
                self._waits_no_more(gone)
        self._boxes.note_sent(self, file)
        return physical_end

    def _put(self, sending: Sending, is_small: bool) -> None:
        """Put a message. Thread safety: any thread, as the box does not change."""
        with nullcontext() if is_small else self._context.long_puts.under_way():
            sending.put()

    def _is_due(self, file: DroppedFile, name: str) -> bool:
        """Whether a file under that name must be published now."""
        is_whole = not self.activity(file).writers and not file.sent and not file.is_removed
        return is_whole and not is_temporary(name) and self.status(file).st_size > 0

    def _complain(self, file: DroppedFile, error: Exception) -> None:
        """Note in the log and the refusals why a file is not published."""
        path, text = f"{self.path}/{file.name}", f"it is not published and stays there: {error}"
        LIMITED_LOG.log_once(
            log, logging.WARNING, (self._complain.__qualname__, self.key, type(error)), f"{path}: {text}"
        )
        number = error.errno if isinstance(error, OSError) and error.errno else 0
        kind = None if number else RefusalKind.MALFORMED
        self._context.refusals.note(self.owner(file).uid, 0, path, "", number, text, kind)


_pause = threading.Event()


def must_be_property(name: bytes) -> str:
    """The text of a name, which becomes a property. EINVAL."""
    text = from_name(name)
    if any(character in text for character in "\1\2") or not text.isprintable():
        raise FilesystemError(errno.EINVAL, "a file's name becomes a property: printable UTF-8")
    return text


@contextmanager
def descriptor_of_caller(context: Context) -> Iterator[int]:
    """Count a descriptor to the caller, whom it yields, while it is opened. EMFILE. A failed open is not counted."""
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
    """Names of files, encoded when they are listed."""

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
    """The directory `drop` of a topic or a queue."""

    def __init__(self, context: Context, boxes: DropBoxes, topic: str, queue: int | None) -> None:
        super().__init__(context)
        self._boxes = boxes
        self._key = topic, queue

    @property
    def box(self) -> DropBoxView:
        """The box with its files."""
        return self._boxes.box(*self._key)

    @property
    def path(self) -> str:
        return path_of(*self._key)

    @property
    def ignores_setattr(self) -> bool:
        """Copying a folder into it sets its times and mode at the end."""
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
        raise FilesystemError(errno.EPERM, "only files can be dropped here")

    def make(self, name: bytes, how: Creation) -> tuple[Node, OpenFile, Opened]:
        """Create a file, or open one that was created meanwhile. EEXIST."""
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
        """Remove a waiting file, or hide a published one. ENOENT."""
        if self._context.survival.was_begun and from_name(name) not in self.box.files:
            return
        self.box.remove(self.box.find(name))

    def move(self, name: bytes, target: Node, new_name: bytes, flags: int) -> int:
        """Rename a file; the physical offset to wait for. EXDEV: to another box, as between disks."""
        if not isinstance(target, DropDirectory):
            raise FilesystemError(errno.EPERM, "a file can't be moved out of its drop box")
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

    def __init__(self, context: Context, box: DropBoxView, file: DroppedFile) -> None:
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
        """Note that no handle of it is open."""
        self._context.inodes.closed(self.inode)

    @property
    def accounts(self) -> Accounts:
        """The accounts of the mount's users."""
        return self._context.accounts

    @property
    def limit_bytes(self) -> int:
        """Bytes of the largest message body."""
        return self._context.store.config.max_message_bytes

    @property
    def too_long(self) -> str:
        """Why a longer file is refused."""
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
        """Set size, owner, mode and times. Setting times tries again to publish a file that was refused."""
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

    __slots__ = ("_is_closed", "_limit_bytes", "_node", "_refusal", "_user", "_writing", "descriptor")

    takes_positions = True

    def __init__(self, node: DropFile, descriptor: int, user: int, *, writing: bool) -> None:
        """The descriptor counts to `user`, who opened it."""
        self.descriptor = descriptor
        self._node = node
        self._user = user
        self._writing = writing
        self._refusal = 0
        self._is_closed = False
        self._limit_bytes = node.limit_bytes
        activity = node.box.activity(node.file)
        activity.handles.append(self)
        activity.writers += writing

    @property
    def published_to(self) -> str:
        return self._node.path if self._writing else ""

    def read(self, position: int, size: int) -> bytes:
        return os.pread(self.descriptor, size, position)

    def write(self, position: int, data: bytes, owner: int = NO_OWNER) -> int:
        """As `OpenFile.write`. A file with a failed write is cut to 0 bytes, so that no part of it is published."""
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
            raise self._spoil(errno.EFBIG, f"{self._node.too_long}: the file is cut to 0 bytes and not published")

    def _change(self) -> None:
        self._node.box.wait_for(self._node.file)
        self._node.box.change(self._node.file)

    def _spoil(self, number: int, reason: str) -> FilesystemError:
        """Cut the file to 0 bytes after a failed write: it can't become whole. Returns the error."""
        self._change()
        os.ftruncate(self.descriptor, 0)
        self._refusal = number
        return FilesystemError(number, reason)

    def flush(self, owner: int = NO_OWNER) -> int:
        """Close reports nothing, since each write reported its own error. With NO_OWNER, as for fsync, sync the
        file."""
        if owner == NO_OWNER and self._writing:
            in_thread(partial(os.fsync, self.descriptor), self, WorkKind.WAITING)
        return NOTHING_TO_WAIT_FOR

    def unpublished(self, *, whole: bool = False) -> HandleState | None:
        return HandleState(b"", 0, refusal=self._refusal) if self._refusal else None

    def resume(self, state: HandleState | None) -> None:
        if state is not None:
            self._refusal = state.refusal

    def release(self) -> None:
        """Close the handle. SlowWork: call it again."""
        box, file = self._node.box, self._node.file
        if not self._is_closed:
            self.abandon()
        if self._writing:
            box.publish_if_due(file)
        if not box.is_open(file):
            self._node.closed()

    def abandon(self) -> None:
        activity = self._node.box.activity(self._node.file)
        activity.handles.remove(self)
        activity.writers -= self._writing
        self._is_closed = True
        os.close(self.descriptor)
        self._node.accounts.give(self._user, Resource.DESCRIPTORS)
