"""Which places hold the same log: a master and its slave, a store and its backup, or two mounts of one store.

Two logs are one if they have the same record at the newest physical offset where both hold one. Each place shows its
newest record; the place whose newest is the older one is compared with what the other holds there. A copy that was
written since has another record, for its store host or time is another. A name never decides.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, NamedTuple, Protocol, TypeVar

from fsstore.jobs.mount import bounds, if_there, physical_offset

_FACTS = ("physical_offset", "store_size", "store_time", "store_host", "born_time", "born_host", "body_crc", "sys_flag")
"""The facts of a record that are compared, by the names of its extended attributes."""

Facts = Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Record:
    """A message's place in its queue, and what is in its record."""

    topic: str
    queue: int
    queue_offset: int
    facts: Facts


@dataclass(frozen=True, slots=True)
class Witness:
    """A store's number of messages, and its newest record; None: it has none."""

    messages: int
    newest: Record | None


class Holder(Protocol):
    """A place, as far as its log is concerned. `broker` is its name, `place` where it is."""

    broker: str
    place: str

    def witness(self) -> Witness:
        """As the function `witness`."""

    def facts(self, topic: str, queue: int, queue_offset: int) -> Facts | None:
        """As the function `facts`."""


H = TypeVar("H", bound=Holder)


class SameNameError(ValueError):
    """Two places with different logs have one name."""

    def __init__(self, broker: str, places: tuple[str, str]) -> None:
        super().__init__(broker, places)
        self.broker = broker
        self.places = places

    def __str__(self) -> str:
        return f"{' and '.join(self.places)} are both called {self.broker}, and have different logs"


class Roles(NamedTuple, Generic[H]):
    """The places to read, and those that hold a log that is read elsewhere: (the place, the one that is read)."""

    read: list[H]
    spare: list[tuple[H, H]]


def witness(mount: str) -> Witness:
    """The witness of a mounted store. It takes a look-up for each queue. MountGoneError, OSError."""
    messages, newest = 0, (-1, "", 0, 0)
    for topic, queues in bounds(mount).items():
        for queue, (begin, end) in queues.items():
            messages += end - begin
            if begin < end and (physical := physical_offset(mount, topic, queue, end - 1)) is not None:
                newest = max(newest, (physical, topic, queue, end - 1))
    found = facts(mount, *newest[1:]) if newest[0] >= 0 else None
    return Witness(messages, None if found is None else Record(*newest[1:], found))


def facts(mount: str, topic: str, queue: int, queue_offset: int) -> Facts | None:
    """The facts of a message's record in a mounted store. None: it is missing or damaged. MountGoneError,
    OSError."""
    path = os.path.join(mount, topic, str(queue), str(queue_offset))
    return if_there(mount, lambda: {name: os.getxattr(path, f"user.mq.{name}").decode() for name in _FACTS})


def roles(known: Sequence[tuple[H, Witness]]) -> Roles[H]:
    """The places to read, of some with their witnesses: of those with one log the fullest, of equally full ones the
    first. SameNameError; errors of the places."""
    read: list[tuple[H, Witness]] = []
    spare: list[tuple[H, H]] = []
    for one in sorted(known, key=lambda one: -one[1].messages):
        same = next((other for other, its in read if _are_one((other, its), one)), None)
        if same is not None:
            spare.append((one[0], same))
            continue
        for other, _ in read:
            if other.broker == one[0].broker:
                raise SameNameError(other.broker, (other.place, one[0].place))
        read.append(one)
    order = [holder for holder, _ in known]
    return Roles(sorted((holder for holder, _ in read), key=order.index), spare)


def _are_one(first: tuple[Holder, Witness], second: tuple[Holder, Witness]) -> bool:
    """Whether two places hold the same log."""
    newest = [(int(its.newest.facts["physical_offset"]), its.newest) for _, its in (first, second) if its.newest]
    if len(newest) < 2:
        return False
    (_, record), holder = (newest[0], second[0]) if newest[0][0] <= newest[1][0] else (newest[1], first[0])
    return holder.facts(record.topic, record.queue, record.queue_offset) == record.facts
