"""`@store/groups/<group>/<topic>/<queue>`: the offset of a consumer group in a queue, with a newline.

A write sets it: a number, `@first`, `@last` or `@<time>`. It is stored in the broker's own consumerOffset.json before
the write returns. `mkdir` makes a group, and a topic in it; those without an offset are known to this daemon alone.

Each file keeps its inode while the kernel knows it, and the kernel itself does flock(2) on it. So consumers of a group
share its queues, and a queue is free again when its consumer dies. flock(2) needs no write permission, so a user who
may not write an offset may not open it either.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Mapping, Sequence
from functools import partial
from typing import cast

from engine import ConsumerOffsetError, group_problem
from fsstore.interface import NO_OWNER, NOTHING_TO_WAIT_FOR, UNCACHED, Attributes, FilesystemError, Opened, WorkKind
from fsstore.tree.deferred import deferred, in_thread
from fsstore.tree.inodes import Maker, NodeKey
from fsstore.tree.names import can_be_name, from_name, parse_queue, parse_time_ms, to_name
from fsstore.tree.nodes import Context, Creation, Directory, Node, OpenFile, TextFile, not_found
from fsstore.tree.store_reports import ReportSnapshot

DEPTH = 3
"""Names below `groups` that lead to an offset: group, topic, queue."""

Parts = tuple[str, ...]

MOST_MADE = 1_000
"""Groups, topics and queues without an offset that are remembered: the newest ones."""


class Made:
    """Groups, topics and queues that were made and have no offset yet, up to MOST_MADE: the oldest is forgotten."""

    def __init__(self) -> None:
        self._made: dict[Parts, None] = {}

    def __contains__(self, parts: Parts) -> bool:
        return parts in self._made

    def add(self, parts: Parts) -> None:
        """Remember one that was made now."""
        self._made.pop(parts, None)
        self._made[parts] = None
        if len(self._made) > MOST_MADE:
            del self._made[next(iter(self._made))]

    def noted(self, parts: Parts) -> None:
        """Forget a queue whose offset is stored, with its topic and group."""
        for length in range(1, len(parts) + 1):
            self._made.pop(parts[:length], None)

    def below(self, parts: Parts) -> set[str]:
        """Names directly below."""
        depth = len(parts)
        return {made[depth] for made in self._made if len(made) > depth and made[:depth] == parts}


class GroupsDirectory(Directory):
    """`groups`, a group, or a topic in a group, by the length of `parts`."""

    def __init__(self, context: Context, parts: Parts = (), made: Made | None = None) -> None:
        super().__init__(context)
        self._parts = parts
        self._made = Made() if made is None else made
        if not parts:
            context.inodes.makers += [
                Maker(GroupsDirectory, lambda key: self.child(cast("Parts", key.detail)), _as_parts),
                Maker(OffsetFile, lambda key: self.child(cast("Parts", key.detail)), _as_parts),
                Maker(OffsetSnapshot, lambda key: self._snapshot(cast("Parts", key.detail), is_other=True), _as_parts),
            ]

    @property
    def path(self) -> str:
        return "/".join(("@store/groups", *self._parts))

    def attributes(self) -> Attributes:
        return self._context.attribute_factory.owners_directory(self.inode)

    def lookup(self, name: bytes) -> Attributes:
        part = from_name(name)
        if part not in self._children():
            raise not_found()
        parts = (*self._parts, part)
        if len(parts) == DEPTH and self._context.is_no_open:
            node = self._snapshot(parts)
            self._context.inodes.add(node, NodeKey(OffsetSnapshot, detail=parts))
            return node.attributes()
        return self._node(parts).attributes()

    def _snapshot(self, parts: Parts, *, is_other: bool = False) -> ReportSnapshot:
        changed_ns = self._context.store.consumer_offsets_changed_ns or self._context.attribute_factory.started_ns
        file = OffsetFile(self._context, parts, self._made)
        return OffsetSnapshot(self._context, file.path, file.text(), changed_ns=changed_ns, is_other=is_other)

    def _node(self, parts: Parts) -> Node:
        kind = GroupsDirectory if len(parts) < DEPTH else OffsetFile
        return self._context.inodes.named(NodeKey(kind, detail=parts), lambda: self.child(parts))

    def names(self) -> Sequence[bytes]:
        names = (to_name(child) for child in self._children())
        return sorted((name for name in names if can_be_name(name)), key=_in_order)

    def child(self, parts: Parts) -> Node:
        """The node at these names below `groups`."""
        if len(parts) < DEPTH:
            return GroupsDirectory(self._context, parts, self._made)
        return OffsetFile(self._context, parts, self._made)

    def _children(self) -> set[str]:
        """Names in this directory: groups, a group's topics, or a topic's queues; empty if it no longer exists."""
        parts = self._parts
        found: Mapping[str, object] = _offsets(self._context)
        for part in parts:
            found = cast("Mapping[str, Mapping[str, object]]", found).get(part, {})
        return {*map(str, found), *self._made.below(parts)}

    def mkdir(self, name: bytes) -> None:
        self._context.must_be_writable()
        part = from_name(name)
        if part in self._children():
            raise FilesystemError(errno.EEXIST)
        if not self._parts:
            if problem := group_problem(part):
                raise FilesystemError(errno.EINVAL, problem)
        elif len(self._parts) == 1:
            self._context.store.queues(part)  # TopicNotFoundError
        else:
            raise FilesystemError(errno.EPERM, "a queue's offset is a file: write to it")
        self._made.add((*self._parts, part))

    def make(self, name: bytes, how: Creation) -> tuple[Node, OpenFile, Opened]:
        if len(self._parts) != DEPTH - 1:
            return super().make(name, how)
        self._context.must_be_writable()
        topic, part = self._parts[1], from_name(name)
        queue = parse_queue(name)
        if queue is None or not self._context.store.has_queue(topic, queue):
            raise FilesystemError(errno.ENOENT, f"topic {topic!r} has no queue {part!r}")
        self._made.add((*self._parts, part))
        node = self._node((*self._parts, part))
        return node, *node.open(how.flags)


class OffsetSnapshot(ReportSnapshot):
    """An offset at the time of its look-up, for mounts where the kernel opens files without requests."""


class OffsetFile(Node):
    """The offset of a group in a queue; empty if it was never set."""

    def __init__(self, context: Context, parts: Parts, made: Made) -> None:
        self._context = context
        self._parts = parts
        self._made = made

    @property
    def path(self) -> str:
        return "/".join(("@store/groups", *self._parts))

    def attributes(self) -> Attributes:
        changed_ns = self._context.store.consumer_offsets_changed_ns
        return self._context.attribute_factory.offset(
            self.inode, len(self.text()), changed_ns, writable=not self._context.read_only
        )

    def text(self) -> bytes:
        """The offset and a newline. SlowWork while a file that a broker has changed is read."""
        group, topic, queue = self._parts
        offset = _offsets(self._context).get(group, {}).get(topic, {}).get(int(queue))
        if offset is None and self._parts not in self._made:
            raise not_found()
        return b"" if offset is None else b"%d\n" % offset

    def open(self, flags: int) -> tuple[OpenFile, Opened]:
        if flags & os.O_ACCMODE == os.O_RDONLY:
            return TextFile(self.text(), self._context.memory), UNCACHED
        self._context.must_be_writable()
        return OffsetHandle(self), UNCACHED

    @property
    def ignores_setattr(self) -> bool:
        return not self._context.read_only

    def commit(self, request: bytes) -> None:
        """Set the offset from written bytes. ConsumerOffsetError; SlowWork: it waits for the disk."""
        group, topic, queue = self._parts
        commit = partial(self._context.store.commit_offset, group, topic, int(queue), self._parsed(request.strip()))
        in_thread(commit, (self, request), WorkKind.WAITING)
        self._made.noted(self._parts)

    def _parsed(self, text: bytes) -> int:
        group, topic, queue_id = self._parts
        queue = self._context.store.queue(topic, int(queue_id))
        if text.isdigit() and len(text) < 20:
            return int(text)
        bounds = queue.bounds()
        if text in (b"@first", b"@last"):  # @last: before the next message
            return bounds.min_offset if text == b"@first" else bounds.max_offset
        time_ms = parse_time_ms(text[1:]) if text.startswith(b"@") else None
        if time_ms is None:
            shown = text[:40].decode(errors="replace")
            raise ConsumerOffsetError(
                group, f"{shown!r} is no offset: give a number, @first, @last or @2026-01-31T09:30"
            )
        return queue.offset_at(time_ms)


class OffsetHandle(OpenFile):
    """An offset that is open for writing; each write sets it."""

    __slots__ = ("_file",)

    def __init__(self, file: OffsetFile) -> None:
        self._file = file

    @property
    def published_to(self) -> str:
        return self._file.path

    def read(self, position: int, size: int) -> bytes:
        return self._file.text()[position : position + size]

    def write(self, position: int, data: bytes, owner: int = NO_OWNER) -> int:
        self._file.commit(data)
        return NOTHING_TO_WAIT_FOR


def _offsets(context: Context) -> Mapping[str, Mapping[str, Mapping[int, int]]]:
    """Group -> topic -> queue -> next queue offset. SlowWork while a file that a broker has changed is read."""
    return deferred(context.store.consumer_offsets, context.store)


def _as_parts(detail: object) -> Parts:
    return tuple(cast("list[str]", detail))


def _in_order(name: bytes) -> tuple[int, bytes]:
    queue = parse_queue(name)
    return (-1 if queue is None else queue, name)
