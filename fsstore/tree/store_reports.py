"""`@store/`: reports, whose text is made at a look-up, and the file that takes commands.

The texts are made in `status` and `metrics`; `@store/groups/` is in `groups`.
"""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Callable, Iterable

from engine import MessageStore
from fsstore.interface import NO_OWNER, NOTHING_TO_WAIT_FOR, Attributes, FilesystemError, Opened, WorkKind
from fsstore.tree.deferred import deferred, in_thread
from fsstore.tree.inodes import Maker, NodeKey, shown_report_inode
from fsstore.tree.memory_budget import Holding, Purpose
from fsstore.tree.nodes import Context, Directory, Node, OpenFile, TextFile

LOOK_NS = 1_000_000_000
"""Time for which an unopened report is returned by further look-ups, unless each user has another."""

_OPENED = Opened(0, True, False, None)


class StoreDirectory(Directory):
    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self._entries: dict[bytes, Node] = {}
        self._unlisted: set[bytes] = set()
        context.inodes.makers.append(Maker(ReportSnapshot, self._report_again))

    def add(self, name: bytes, node: Node, *, is_listed: bool = True) -> None:
        """Show `node` as `name`; without `is_listed`, only a look-up finds it."""
        self._entries[name] = node
        if not is_listed:
            self._unlisted.add(name)
        self._context.inodes.pin(node, "@store/" + name.decode())

    def add_report(self, name: str, render: Callable[[], bytes], *, is_private: bool = False) -> None:
        """Show the result of `render` as `name`; any thread may call it. `is_private`: each user has a text of their
        own."""
        self.add(name.encode(), ReportFile(self._context, name, render, is_private=is_private))

    def lookup(self, name: bytes) -> Attributes:
        node = self._entries.get(name)
        return node.attributes() if node is not None else self._context.absence(name)

    def _report_again(self, key: NodeKey) -> Node:
        """A report of the last server, whose text is lost: a reader that has read a part of it gets EIO."""
        report = self._entries.get(str(key.detail).encode())
        if not isinstance(report, ReportFile):  # another version had it
            raise FilesystemError(errno.ESTALE)
        now_ns = self._context.clock_ns()
        reader = report.reader
        return ReportSnapshot(
            self._context, report.path, report.text(), changed_ns=now_ns, is_other=True, reader=reader
        )

    def describe(self, name: bytes) -> Attributes:
        node = self._entries[name]
        if isinstance(node, ReportFile):
            return self._context.attribute_factory.name_of_file(shown_report_inode(node.path))
        return node.attributes()

    def names(self) -> list[bytes]:
        return [name for name in self._entries if name not in self._unlisted]


class ReportFile(Node):
    """A name of `@store`. Each look-up returns the report of that moment, a file that never changes.

    So a copy is consistent even if the report changes meanwhile.
    """

    def __init__(self, context: Context, name: str, render: Callable[[], bytes], *, is_private: bool) -> None:
        self._context = context
        self._name = name
        self._is_private = is_private
        self._render = render
        self._last: ReportSnapshot | None = None
        self._last_look = 0, 0
        self._seen: tuple[int | None, int] = None, context.attribute_factory.started_ns

    @property
    def path(self) -> str:
        return f"@store/{self._name}"

    @property
    def reader(self) -> int | None:
        """The only user who may read the report of this request; None: all may."""
        return self._context.accounts.caller if self._is_private else None

    def text(self) -> bytes:
        """Its text now. SlowWork while a thread makes it."""
        return deferred(self._render, self)

    def attributes(self) -> Attributes:
        """Attributes of the report as it is now. SlowWork as `text`."""
        return self._looked_up().attributes()

    def _looked_up(self) -> ReportSnapshot:
        last = self._last if self._last is not None and self._last.is_known else None
        now_ns, physical_end = self._context.clock_ns(), self._context.store.physical_end
        if last is not None and not self._is_private and not last.was_opened:  # a stat often comes before the open
            last_ns, last_end = self._last_look
            if now_ns - last_ns < LOOK_NS and physical_end == last_end:
                return last
        text, reader = self.text(), self.reader
        if last is None or text != last.text or reader != last.reader:
            changed_ns = self._changed_ns_of(text)
            last = ReportSnapshot(self._context, self.path, text, changed_ns=changed_ns, reader=reader)
            self._context.inodes.add(last, NodeKey(ReportSnapshot, detail=self._name))
            self._last = last
        last.was_opened = False
        self._last_look = now_ns, physical_end
        return last

    def _changed_ns_of(self, text: bytes) -> int:
        """The time of the last change of the text that a look-up has seen."""
        digest = hash(text)
        if digest != self._seen[0]:
            is_first = self._seen[0] is None
            self._seen = digest, self._context.attribute_factory.started_ns if is_first else self._context.clock_ns()
        return self._seen[1]


class ReportSnapshot(Node):
    """A report at the time of its look-up."""

    def __init__(
        self,
        context: Context,
        path: str,
        text: bytes,
        *,
        changed_ns: int,
        is_other: bool = False,
        reader: int | None = None,
    ) -> None:
        """`changed_ns`: the time of its last change. `is_other`: the last server made another text for its inode.
        `reader`: the only user who may read it. ENOBUFS: the known reports take too much memory."""
        self._context = context
        self.text = text
        self.reader = reader
        self.was_opened = False
        """Whether it was opened since its look-up."""
        self._path = path
        self._is_other = is_other
        self._changed_ns = changed_ns
        self._memory = Holding(context.memory, Purpose.REPORTS)
        self._memory.resize(len(text))

    @property
    def path(self) -> str:
        return self._path

    @property
    def is_known(self) -> bool:
        """Whether its inode is still valid."""
        return self._context.inodes.nodes.get(self.inode) is self

    def attributes(self) -> Attributes:
        found = self._context.attribute_factory.report(self.inode, len(self.text), self._changed_ns, self.reader)
        return found._replace(shown_inode=shown_report_inode(self._path))

    def open(self, flags: int) -> tuple[OpenFile, Opened]:
        if flags & os.O_ACCMODE != os.O_RDONLY:
            raise self._context.refusal()
        self.was_opened = True
        file = TextFile(self.text, self._context.memory)
        if self._is_other:
            file.resume(None)
        return file, _OPENED

    def forgotten(self) -> None:
        self.text = b""
        self._memory.resize(0)


class ControlFile(Node):
    """`control`: each write is one command, a line of JSON.

    {"delete_topic": NAME}
    {"create_topics": {NAME: QUEUES, ...}}  all or none of them, with their numbers of queues
    {"flush": true}                         wait until all published messages and all derived files are on disk
    """

    def __init__(self, context: Context) -> None:
        self._context = context

    def attributes(self) -> Attributes:
        return self._context.attribute_factory.control(self.inode)

    def open(self, flags: int) -> tuple[OpenFile, Opened]:
        self._context.must_be_writable()
        return ControlHandle(self._context), _OPENED

    @property
    def ignores_setattr(self) -> bool:
        return not self._context.read_only


class ControlHandle(OpenFile):
    __slots__ = ("_context",)

    def __init__(self, context: Context) -> None:
        self._context = context

    @property
    def published_to(self) -> str:
        return "@store/control"

    def write(self, position: int, data: bytes, owner: int = NO_OWNER) -> int:
        """Do one command. EINVAL: it is none; errors of the command are raised. SlowWork: a thread does it."""
        is_again = self._context.survival.was_begun
        in_thread(lambda: _do(self._context.store, data, is_again=is_again), (self, data), WorkKind.WAITING)
        return NOTHING_TO_WAIT_FOR


def _do(store: MessageStore, command: bytes, *, is_again: bool) -> None:
    """Do a command; `is_again`: a server that was killed may have done it."""
    match _parsed(command):
        case {"delete_topic": str(topic), **others} if not others:
            if not is_again or store.has_topic(topic):
                store.delete_topic(topic)
        case {"create_topics": dict(topics), **others} if not others and _are_counts(topics.values()):
            if not is_again or not all(map(store.has_topic, topics)):
                store.create_topics(topics)
        case {"flush": True, **others} if not others:
            store.flush()
        case {"create_topic": _}:
            raise FilesystemError(errno.EINVAL, 'use {"create_topics": {NAME: QUEUES, ...}}, not create_topic')
        case _:
            raise FilesystemError(
                errno.EINVAL,
                'not a command: {"delete_topic": NAME}, {"create_topics": {NAME: QUEUES, ...}} or {"flush": true}',
            )


def _are_counts(values: Iterable[object]) -> bool:
    return all(isinstance(value, int) and not isinstance(value, bool) for value in values)


def _parsed(data: bytes) -> object:
    try:
        command: object = json.loads(data)
    except (ValueError, RecursionError):
        return None
    return command
