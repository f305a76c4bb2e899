"""`@store/groups/<group>/<topic>/<queue>`: where consumer groups stand, a queue offset and a newline. Read-only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from engine import TakesLongError, in_haste
from fsstore.interface import Attributes, SlowWork
from fsstore.tree.names import can_be_name, from_name, parse_queue, to_name
from fsstore.tree.nodes import Context, Directory, Node, not_found
from fsstore.tree.store_reports import ReportFile


@dataclass(frozen=True, slots=True)
class GroupPath:
    """What a node below `groups` is known by in the inode table."""

    parts: tuple[str, ...]


class GroupsDirectory(Directory):
    """`groups`, a group, or a topic in a group: as deep as `parts` is long."""

    def __init__(self, context: Context, parts: tuple[str, ...] = ()) -> None:
        super().__init__(context)
        self._parts = parts

    def lookup(self, name: bytes) -> Attributes:
        part = from_name(name)
        if part not in self._children():
            raise not_found()
        parts = (*self._parts, part)
        return self._context.inodes.named(GroupPath(parts), lambda: self._child(parts)).attributes()

    def names(self) -> Sequence[bytes]:
        names = (to_name(child) for child in self._children())
        return sorted((name for name in names if can_be_name(name)), key=_in_order)

    def _child(self, parts: tuple[str, ...]) -> Node:
        if len(parts) < 3:
            return GroupsDirectory(self._context, parts)
        return ReportFile(self._context, lambda: _offset_text(self._context, parts))

    def _children(self) -> Mapping[str, object]:
        return _children_of(self._context, self._parts)


def _children_of(context: Context, parts: tuple[str, ...]) -> Mapping[str, object]:
    """What is at this depth: groups by name, a group's topics, or a topic's queues; empty when it has gone."""
    groups = _offsets(context)
    if not parts:
        return groups
    topics = groups.get(parts[0], {})
    return topics if len(parts) == 1 else {str(queue): offset for queue, offset in topics.get(parts[1], {}).items()}


def _offsets(context: Context) -> Mapping[str, Mapping[str, Mapping[int, int]]]:
    """Group -> topic -> queue -> next queue offset. SlowWork when a broker has written them anew."""
    try:
        with in_haste():
            return context.store.consumer_offsets()
    except TakesLongError:
        raise SlowWork(context.store.consumer_offsets) from None


def _offset_text(context: Context, parts: tuple[str, ...]) -> bytes:
    group, topic, queue = parts
    offset = _offsets(context).get(group, {}).get(topic, {}).get(int(queue))
    if offset is None:
        raise not_found()
    return b"%d\n" % offset


def _in_order(name: bytes) -> tuple[int, bytes]:
    queue = parse_queue(name)
    return (-1 if queue is None else queue, name)
