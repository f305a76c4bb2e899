"""`@store/`: what the store says of itself, in files whose text is made at open, and a file that takes commands.

What the texts say is in `status` and `metrics`; `@store/groups/` is in `groups`.
"""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Callable

from engine import Stored
from fsstore.interface import NOBODY, NOTHING_TO_WAIT_FOR, Attributes, DoneInThread, FilesystemError, Opened
from fsstore.tree.inodes import Maker, NodeKey
from fsstore.tree.memory_budget import Holding, Purpose
from fsstore.tree.nodes import Context, Directory, Node, OpenFile, TextFile

_OPENED = Opened(0, True, False, None)


class StoreDirectory(Directory):
    """`@store/` itself."""

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self._entries: dict[bytes, Node] = {}
        context.inodes.makers.append(Maker(SealedReport, self._report_again))

    def add(self, name: bytes, node: Node) -> None:
        """Show `node` as `name`."""
        self._entries[name] = node
        self._context.inodes.pin(node, "@store/" + name.decode())

    def lookup(self, name: bytes) -> Attributes:
        node = self._entries.get(name)
        if isinstance(node, ReportFile):
            return node.looked_up(name.decode())
        return node.attributes() if node is not None else self._context.absence(name)

    def _report_again(self, key: NodeKey) -> Node:
        """A report that another server had made: nobody knows its text, so whoever has read some gets EIO."""
        report = self._entries.get(str(key.detail).encode())
        if not isinstance(report, ReportFile):  # of another version
            raise FilesystemError(errno.ESTALE)
        now_ns = self._context.clock_ns()
        return SealedReport(self._context, report.text(), changed_ns=now_ns, is_other=True)

    def describe(self, name: bytes) -> Attributes:
        node = self._entries[name]
        return node.listed_attributes() if isinstance(node, SlowReportFile) else node.attributes()

    def names(self) -> list[bytes]:
        return list(self._entries)


class ReportFile(Node):
    """A read-only file; each open sees the text of its moment."""

    def __init__(self, context: Context, render: Callable[[], bytes]) -> None:
        self._context = context
        self._render = render
        self._seen: tuple[int | None, int] = None, context.appearance.started_ns

    def attributes(self) -> Attributes:
        text = self.text()
        self._changed_ns_of(text)
        return self._described(len(text))

    def text(self) -> bytes:
        """The text of this moment. SlowWork: a thread has to make it."""
        return self._render()

    def looked_up(self, name: str) -> Attributes:
        """Attributes for who looks up its name. Where the kernel opens files without asking, it is the look-up whose
        moment counts: each has a text, and a number, of its own."""
        if not self._context.opens_unasked:
            return self.attributes()
        text = self.text()
        node = SealedReport(self._context, text, changed_ns=self._changed_ns_of(text))
        self._context.inodes.add(node, NodeKey(SealedReport, detail=name))
        return node.attributes()

    def open(self, flags: int) -> tuple[OpenFile, Opened]:
        if flags & os.O_ACCMODE != os.O_RDONLY:
            raise self._context.refusal()
        return TextFile(self.text(), self._context.memory), _OPENED

    def _described(self, size: int) -> Attributes:
        return self._context.appearance.report(self.inode, size, self._seen[1])

    def _changed_ns_of(self, text: bytes) -> int:
        """When the text became what it is now, as far as anybody looked."""
        digest = hash(text)
        if digest != self._seen[0]:
            is_first = self._seen[0] is None
            self._seen = digest, self._context.appearance.started_ns if is_first else self._context.clock_ns()
        return self._seen[1]


class SealedReport(Node):
    """A report as it was when its name was looked up."""

    def __init__(self, context: Context, text: bytes, *, changed_ns: int, is_other: bool = False) -> None:
        """`changed_ns`: since when it is so. `is_other`: what another server made for its number is not known. ENOBUFS:
        too many are known."""
        self._context = context
        self._text = text
        self._is_other = is_other
        self._changed_ns = changed_ns
        self._memory = Holding(context.memory, Purpose.REPORTS)
        self._memory.resize(len(text))

    def attributes(self) -> Attributes:
        return self._context.appearance.report(self.inode, len(self._text), self._changed_ns)

    def open(self, flags: int) -> tuple[OpenFile, Opened]:
        if flags & os.O_ACCMODE != os.O_RDONLY:
            raise self._context.refusal()
        file = TextFile(self._text, self._context.memory)
        if self._is_other:
            file.resume(None)
        return file, _OPENED

    def forgotten(self) -> None:
        self._memory.resize(0)


class SlowReportFile(ReportFile):
    """A report on every queue, of which there may be thousands, not opened yet: its text is made in a thread."""

    def __init__(self, context: Context, render: Callable[[], bytes]) -> None:
        made = DoneInThread[bytes]()
        super().__init__(context, lambda: made.do((), render))

    def listed_attributes(self) -> Attributes:
        """As `attributes`, but never slow: the size is left for the stat that follows."""
        return self._described(0)


class ControlFile(Node):
    """`control`: one write, one command, a line of JSON.

    {"delete_topic": NAME}
    {"create_topic": NAME, "queues": N}     as `mkdir NAME`, which gives it the default number of queues
    {"flush": true}                         all that was published is on disk, with what is derived from it
    """

    def __init__(self, context: Context) -> None:
        self._context = context

    def attributes(self) -> Attributes:
        return self._context.appearance.control(self.inode)

    def open(self, flags: int) -> tuple[OpenFile, Opened]:
        self._context.must_be_writable()
        return ControlHandle(self._context), _OPENED

    @property
    def ignores_setattr(self) -> bool:
        return not self._context.read_only


class ControlHandle(OpenFile):
    """An open `control`."""

    __slots__ = ("_context",)

    def __init__(self, context: Context) -> None:
        self._context = context

    @property
    def published_to(self) -> str:
        return "@store/control"

    def write(self, position: int, data: bytes, owner: int = NOBODY, stored: Stored | None = None) -> int:
        """Do one command. EINVAL when it is none; errors of the command as they are. SlowWork: it waits for the
        disk."""
        store, changes = self._context.store, self._context.changes
        survival = self._context.survival
        match _parsed(data) if len(data) <= LONGEST_COMMAND_BYTES else None:
            case {"delete_topic": str(topic), **others} if not others:
                if survival.was_begun and topic not in store.topics():
                    return NOTHING_TO_WAIT_FOR
                changes.do((id(self), data), lambda: store.delete_topic(topic))
            case {"create_topic": str(topic), "queues": int(queues), **others} if not others:
                if survival.was_begun and topic in store.topics():
                    return NOTHING_TO_WAIT_FOR
                changes.do((id(self), data), lambda: store.create_topic(topic, queues))
            case {"flush": True, **others} if not others:
                changes.do((id(self), data), store.flush)
            case _:
                raise FilesystemError(
                    errno.EINVAL,
                    'not a command: {"delete_topic": NAME}, {"create_topic": NAME, "queues": N} or {"flush": true}',
                )
        return NOTHING_TO_WAIT_FOR


def _parsed(data: bytes) -> object:
    try:
        command: object = json.loads(data)
    except (ValueError, RecursionError):
        return None
    return command


LONGEST_COMMAND_BYTES = 1 << 12
