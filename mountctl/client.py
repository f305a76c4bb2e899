"""StoreClient: the operations that verbs request of the process that writes a store; and records of messages."""

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
from mountctl.errors import DAMAGED, INCOMPLETE
from mountctl.output import plural, visible

Array = np.ndarray[Any, Any]

FEW = 3
"""The most damaged messages, or queues, that a summary names."""

_PROPERTY = "property."


@dataclass(frozen=True, slots=True)
class Placed:
    """The slot in which a message was stored; a delayed message is stored in the schedule's topic."""

    topic: str
    queue: int
    offset: int


@dataclass(frozen=True, slots=True)
class Queue:
    """One queue of a topic; its queue offsets are [min_offset, max_offset)."""

    number: int
    min_offset: int
    max_offset: int


@dataclass(frozen=True, slots=True)
class Topic:
    """A topic and its queues, by ascending number."""

    name: str
    queues: tuple[Queue, ...]

    @property
    def messages(self) -> int:
        """Number of queue offsets that can be read."""
        return sum(queue.max_offset - queue.min_offset for queue in self.queues)


@dataclass(frozen=True, slots=True)
class Labels:
    """Keys, tags and properties for published messages."""

    keys: Sequence[str] = ()
    tags: str = ""
    properties: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class MessageRow:
    """A message as the verbs print it. `attributes` maps names without `user.mq.` to texts; it is empty unless
    requested. Messages of one store are ordered by `physical_offset`, messages of several stores by `store_time_ms`.
    Both are -1 where only bodies were searched. `broker` is its place's name, where there are several."""

    topic: str
    queue: int
    offset: int
    body: bytes
    store_time_ms: int = -1
    physical_offset: int = -1
    attributes: Mapping[str, str] = field(default_factory=dict)
    broker: str = ""

    @property
    def properties(self) -> dict[str, str]:
        """The message's properties, KEYS and TAGS among them."""
        named = self.attributes.items()
        return {name.removeprefix(_PROPERTY): text for name, text in named if name.startswith(_PROPERTY)}

    def as_json(self) -> dict[str, Any]:
        """The object that `--json` prints: numbers as numbers; a body that is not UTF-8 is in `body_base64`."""
        shown: dict[str, Any] = {
            **({"broker": self.broker} if self.broker else {}),
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
"""The parts of a message, beside its body, that can be searched."""


@dataclass(frozen=True)
class Bodies:
    """Bodies, or other texts, of messages of a queue. They may view the mapped log, and are copied on use. `numbers[i]`
    is the index of the searched text that row i contains first; -1 where that was not determined."""

    offsets: Array
    numbers: Array
    column: SliceColumn

    def __len__(self) -> int:
        return len(self.offsets)

    def __getitem__(self, row: int) -> bytes:
        return self.column[row]

    def lines(self, rows: Sequence[int]) -> memoryview:
        """The texts at `rows`, which ascend, each followed by a newline."""
        chosen = self.column if len(rows) == len(self) else self.column.take(np.array(rows, np.int64))
        return chosen.joined(b"\n")[1].data[1:]

    @property
    def joined(self) -> memoryview:
        """All texts, each preceded by a newline: text i is joined[ends[i] + 1 : ends[i + 1]]."""
        return self._joined[1]

    @property
    def ends(self) -> list[int]:
        """0, then the end of each text in `joined`."""
        return self._joined[0]

    @cached_property
    def _joined(self) -> tuple[list[int], memoryview]:
        ends, joined = self.column.joined(b"\n")
        return ends.tolist(), joined.data[:-1]


class LeftOut:
    """Why an answer is not complete: the damaged messages that a verb skipped, those that retention deleted before they
    were read, and limits. `tell`, if set, is called once with a sentence about each message or queue."""

    def __init__(self) -> None:
        self.tell: Callable[[str], None] | None = None
        self._paths: dict[str, None] = {}
        self._expired: dict[str, int] = {}
        self._expired_ends: dict[str, int] = {}
        self._limits: list[str] = []

    def __len__(self) -> int:
        """Number of damaged messages."""
        return len(self._paths)

    def note(self, topic: str, queue: int, offset: int) -> None:
        """Record one damaged message; the same one may be noted again."""
        path = f"{topic}/{queue}/{offset}"
        if path not in self._paths:
            self._paths[path] = None
            if self.tell is not None:
                self.tell(f"{path} is damaged, and left out")

    def noting(self, topic: str, queue: int) -> Callable[[int], None]:
        """`note`, bound to a queue."""
        return lambda offset: self.note(topic, queue, offset)

    def expire(self, topic: str, queue: int, start: int, end: int) -> None:
        """Record that the messages at queue offsets [start, end) expired before they were read; the same ones may be
        recorded again."""
        path = f"{topic}/{queue}"
        count = end - max(start, self._expired_ends.get(path, 0))
        if count > 0:
            self._expired[path] = self._expired.get(path, 0) + count
            self._expired_ends[path] = end
            if self.tell is not None:
                self.tell(f"{plural(count, 'message')} of {path} expired unread")

    def limit(self, reason: str) -> None:
        """Record that a limit cut the answer."""
        self._limits.append(reason)

    def exit_code(self, otherwise: int = 0) -> int:
        """DAMAGED if any message was damaged, INCOMPLETE if any expired or a limit cut the answer, after a summary on
        standard error; otherwise `otherwise`."""
        for sentence in self._sentences():
            click.echo(visible(f"mountctl: {sentence}"), err=True)
        return DAMAGED if self._paths else INCOMPLETE if self._expired or self._limits else otherwise

    def _sentences(self) -> Iterator[str]:
        if self._paths:
            named = "" if self.tell is not None else f": {_first_of(self._paths)}"
            yield f"{plural(len(self._paths), 'damaged message')} left out{named} (see mountctl check)"
        if self._expired:
            count = plural(sum(self._expired.values()), "message")
            yield f"{count} left out, which expired before they were read: {_first_of(self._expired)}"
        yield from self._limits


def _first_of(paths: Iterable[str]) -> str:
    first = list(islice(paths, FEW + 1))
    return ", ".join(first[:FEW]) + (", ..." if len(first) > FEW else "")


class Claim(Protocol):
    """Exclusive use of a queue by one member of a consumer group, until `release` or the end of the process."""

    def offset(self) -> int | None:
        """The group's next queue offset; None: the group has none in this queue."""

    def commit(self, offset: int) -> None:
        """Durably set the group's next queue offset."""

    def release(self) -> None:
        """Let other members claim the queue."""


class StoreClient(Protocol):
    """A store, as seen by its writer: the daemon that serves it, or this process. `published` counts the messages that
    `publish` and `publish_lines` stored."""

    published: int

    def status(self) -> dict[str, Any]:
        """The content of `@store/status.json`."""

    def topics(self) -> list[Topic]:
        """All topics, by name."""

    def has_topic(self, topic: str) -> bool:
        """Whether the topic exists."""

    def claim(self, group: str, topic: str, queue: int) -> Claim | None:
        """Claim a queue for a member of a consumer group; None: another member has it."""

    def body_limit_bytes(self) -> int:
        """Limit of a message's body in bytes."""

    def publish(
        self, queue: int | None, messages: Iterable[Message], stored: Callable[[Placed], None] | None = None
    ) -> None:
        """Store messages in their order, in batches of one topic that are stored whole or not at all. An unknown topic
        is created with 4 queues. `stored` is called with the slot of each message."""

    def publish_lines(self, topic: str, queue: int | None, chunks: Iterable[bytes], labels: Labels) -> None:
        """Store each line of the stream in `chunks` as a message, empty lines excepted. A chunk has at most
        WHOLE_WRITE_BYTES. If a chunk is refused, some of its lines may be stored without being counted."""

    def create_topics(self, topics: Mapping[str, int]) -> None:
        """Create topics with these numbers of queues, all or none. TopicExistsError, IllegalTopicError;
        TopicsRefusedError if several are refused."""

    def delete_topic(self, topic: str) -> None:
        """Delete a topic and its messages permanently."""


def batches(messages: Iterable[tuple[Message, bytes]]) -> Iterator[list[tuple[Message, bytes]]]:
    """Group messages, each with its encoded text, into batches of one topic; a batch fits into one write, or is one
    message."""
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
    """The same bytes, divided after newlines; a newline is added to an unfinished last line."""
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
