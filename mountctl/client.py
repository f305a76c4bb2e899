"""What verbs ask of the process that writes a store, and the records of what they read (mountctl/connect.py)."""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import islice
from typing import Any, Protocol

import click
import numpy as np

from engine import Message, SliceColumn
from fsstore.interface import WHOLE_WRITE_BYTES
from fsstore.tree.xattrs import NUMBERS
from mountctl.errors import DAMAGED
from mountctl.output import plural, visible

Array = np.ndarray[Any, Any]

FEW = 3
"""So many damaged messages are named."""

_PROPERTY = "property."


@dataclass(frozen=True, slots=True)
class Placed:
    """Where a message went: the topic and queue in which it is stored, which for a delayed one are the schedule's."""

    topic: str
    queue: int
    offset: int


@dataclass(frozen=True, slots=True)
class Queue:
    """One queue of a topic and the queue offsets in it: [min_offset, max_offset)."""

    number: int
    min_offset: int
    max_offset: int


@dataclass(frozen=True, slots=True)
class Topic:
    """A topic and its queues, ascending."""

    name: str
    queues: tuple[Queue, ...]

    @property
    def messages(self) -> int:
        """Queue offsets that can be read."""
        return sum(queue.max_offset - queue.min_offset for queue in self.queues)


@dataclass(frozen=True, slots=True)
class Labels:
    """What a publisher says about messages, beside their bodies."""

    keys: Sequence[str] = ()
    tags: str = ""
    properties: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class MessageRow:
    """A message as the verbs show it. `attributes` (name without `user.mq.` to text) are empty unless asked for. In a
    store messages are in the order of `physical_offset`; those of several are put together by `store_time_ms`. Both
    are -1 where bodies alone were searched."""

    topic: str
    queue: int
    offset: int
    body: bytes
    store_time_ms: int = -1
    physical_offset: int = -1
    attributes: Mapping[str, str] = field(default_factory=dict)

    @property
    def properties(self) -> dict[str, str]:
        """Its properties, KEYS and TAGS among them."""
        named = self.attributes.items()
        return {name.removeprefix(_PROPERTY): text for name, text in named if name.startswith(_PROPERTY)}

    def as_json(self) -> dict[str, Any]:
        """For `--json`: numbers as numbers; a body that is no UTF-8 stands in `body_base64`."""
        shown: dict[str, Any] = {
            "topic": self.topic,
            "queue": self.queue,
            "offset": self.offset,
            "store_time": self.store_time_ms,
            "physical_offset": self.physical_offset,
        }
        for name, text in self.attributes.items():
            if not name.startswith(_PROPERTY) and name != "queue_offset":
                shown[name] = int(text) if name in NUMBERS else text
        try:
            body = {"body": self.body.decode()}
        except UnicodeDecodeError:
            body = {"body_base64": base64.b64encode(self.body).decode()}
        return {**shown, "properties": self.properties, **body}


PARTS: dict[str, Callable[[MessageRow], Iterable[str]]] = {
    "keys": lambda message: filter(None, message.attributes.get("keys", "").split(" ")),
    "tags": lambda message: [message.attributes.get("tags", "")],
    "properties": lambda message: [f"{name}={value}" for name, value in message.properties.items()],
}
"""What can be searched of a message beside its body."""


@dataclass(frozen=True)
class Bodies:
    """Bodies, or other texts, of messages of a queue, which may be in the mapped log: they are copied when they are
    wanted. `numbers` says which of the texts that were asked for it holds first, -1 where that was not looked at."""

    offsets: Array
    numbers: Array
    column: SliceColumn

    def __len__(self) -> int:
        return len(self.offsets)

    def __getitem__(self, row: int) -> bytes:
        return self.column[row]

    def lines(self, rows: Sequence[int]) -> memoryview:
        """Those at `rows`, which ascend, a newline after each."""
        chosen = self.column if len(rows) == len(self) else self.column.take(np.array(rows, np.int64))
        return chosen.joined(b"\n")[1].data[1:]

    @property
    def joined(self) -> memoryview:
        """All of them, a newline before each: the i-th is joined[ends[i] + 1 : ends[i + 1]]."""
        return self._joined[1]

    @property
    def ends(self) -> list[int]:
        """Where each ends in `joined`, behind a 0."""
        return self._joined[0]

    @cached_property
    def _joined(self) -> tuple[list[int], memoryview]:
        ends, joined = self.column.joined(b"\n")
        return ends.tolist(), joined.data[:-1]


class LeftOut:
    """The damaged messages that a verb met and left out. `tell`, where it is set, is called with each, once."""

    def __init__(self) -> None:
        self.tell: Callable[[str], None] | None = None
        self._places: dict[str, None] = {}

    def __len__(self) -> int:
        return len(self._places)

    def note(self, topic: str, queue: int, offset: int) -> None:
        """That one is damaged; it may be met again."""
        place = f"{topic}/{queue}/{offset}"
        if place not in self._places:
            self._places[place] = None
            if self.tell is not None:
                self.tell(place)

    def noting(self, topic: str, queue: int) -> Callable[[int], None]:
        """`note` for a queue."""
        return lambda offset: self.note(topic, queue, offset)

    def exit_code(self, otherwise: int = 0) -> int:
        """DAMAGED, once it is said on standard error how many there were and where the first are; `otherwise` when
        there was none."""
        if not self._places:
            return otherwise
        if self.tell is None:
            first = ", ".join(islice(self._places, FEW)) + (", ..." if len(self) > FEW else "")
            left_out = f"{plural(len(self), 'damaged message')} left out: {first}"
        else:
            left_out = f"{plural(len(self), 'damaged message')} left out"
        click.echo(visible(f"mountctl: {left_out} (see mountctl check)"), err=True)
        return DAMAGED


class Claim(Protocol):
    """A queue that a member of a consumer group has for itself, until it is released, or the process ends."""

    def offset(self) -> int | None:
        """Where the group goes on; None: it never was here."""

    def commit(self, offset: int) -> None:
        """Have it go on there, durably."""

    def release(self) -> None:
        """Give the queue to others."""


class StoreClient(Protocol):
    """A store as its writer has it: the daemon that serves it, or this process. `published` counts what `publish` and
    `publish_lines` stored."""

    published: int

    def status(self) -> dict[str, Any]:
        """What `@store/status.json` says."""

    def topics(self) -> list[Topic]:
        """Every topic, by name."""

    def has_topic(self, topic: str) -> bool:
        """Whether there is one of that name."""

    def claim(self, group: str, topic: str, queue: int) -> Claim | None:
        """A queue for a member of a consumer group; None: another one has it."""

    def body_limit_bytes(self) -> int:
        """How long a message's body may be."""

    def publish(
        self, queue: int | None, messages: Iterable[Message], stored: Callable[[Placed], None] | None = None
    ) -> None:
        """Store messages, in their order: those of one topic, as many as one write takes whole, all or none. An unknown
        topic is made, with 4 queues. `stored` is told where each went."""

    def publish_lines(self, topic: str, queue: int | None, chunks: Iterable[bytes], labels: Labels) -> None:
        """Store each line of the stream that `chunks` are as a message; empty lines are skipped. A chunk has at most
        WHOLE_WRITE_BYTES: more of it may be stored than is counted when it is refused."""

    def create_topic(self, topic: str, queues: int) -> None:
        """Make a topic, or an error if it is there."""

    def delete_topic(self, topic: str) -> None:
        """Forget a topic and its messages, for good."""


def batches(messages: Iterable[tuple[Message, bytes]]) -> Iterator[list[tuple[Message, bytes]]]:
    """Messages with what is written of each, as many of one topic as one write takes whole; at least one."""
    batch: list[tuple[Message, bytes]] = []
    size = 0
    for message, written in messages:
        if batch and (size + len(written) > WHOLE_WRITE_BYTES or message.topic != batch[0][0].topic):
            yield batch
            batch, size = [], 0
        batch.append((message, written))
        size += len(written)
    if batch:
        yield batch


def whole_lines(chunks: Iterable[bytes]) -> Iterator[bytes]:
    """The same bytes, cut after newlines; a last line without one gets one."""
    rest = b""
    for chunk in chunks:
        lines, newline, tail = chunk.rpartition(b"\n")
        if newline:
            yield rest + lines + newline
            rest = tail
        else:
            rest += chunk
    if rest:
        yield rest + b"\n"
