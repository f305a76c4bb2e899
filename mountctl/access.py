"""What verbs ask of a store, mounted or not, and what they are answered; how a command line names messages."""

from __future__ import annotations

import base64
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from fsstore.tree.names import parse_time_ms
from fsstore.tree.xattrs import NUMBERS
from mountctl.errors import CommandError
from mountctl.output import visible


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


@dataclass(frozen=True, slots=True)
class Shown:
    """A message as the verbs show it; `attributes` (name without `user.mq.` to text) are empty unless asked for."""

    topic: str
    queue: int
    offset: int
    body: bytes
    attributes: Mapping[str, str]

    def as_json(self) -> dict[str, Any]:
        """For `--json`: numbers as numbers; a body that is no UTF-8 stands in `body_base64`."""
        shown: dict[str, Any] = {"topic": self.topic, "queue": self.queue, "offset": self.offset}
        properties = {}
        for name, text in self.attributes.items():
            if name.startswith("property."):
                properties[name.removeprefix("property.")] = text
            elif name != "queue_offset":
                shown[name] = int(text) if name in NUMBERS else text
        try:
            body = {"body": self.body.decode()}
        except UnicodeDecodeError:
            body = {"body_base64": base64.b64encode(self.body).decode()}
        return {**shown, "properties": properties, **body}


class Access(Protocol):
    """One store, however it is reached."""

    def status(self) -> dict[str, Any]:
        """What `@store/status.json` says."""

    def topics(self) -> list[Topic]:
        """Every topic, by name."""

    def bounds(self, topic: str, queue: int) -> Queue:
        """Where that queue begins and ends now."""

    def messages(self, topic: str, queue: int, start: int, count: int | None, attributes: bool) -> Iterator[Shown]:
        """Messages from queue offset `start` on, up to `count` offsets, oldest first; damaged ones are left out."""

    def with_key(self, topic: str, key: str) -> Shown | None:
        """The newest message that carries `key`, matched whole."""

    def offset_at(self, topic: str, queue: int, when: str) -> int:
        """Queue offset of the first message stored at or after `when` (ISO 8601, or '@' and epoch ms)."""

    def body_limit_bytes(self) -> int:
        """How long a message's body may be."""

    def publish(self, topic: str, queue: int | None, body: bytes, labels: Labels) -> None:
        """Store one message. An unknown topic is made, with 4 queues."""

    def publish_lines(self, topic: str, queue: int | None, chunks: Iterable[bytes], labels: Labels) -> None:
        """Store each line of the stream that `chunks` are as a message; empty lines are skipped."""

    def create_topic(self, topic: str, queues: int) -> None:
        """Make a topic, or an error if it is there."""

    def delete_topic(self, topic: str) -> None:
        """Forget a topic and its messages, for good."""


def parse_time(text: str) -> int:
    """Epoch milliseconds of a time on the command line."""
    time_ms = parse_time_ms(text.encode())
    if time_ms is None:
        remedy = "give epoch milliseconds, or ISO 8601 like 2026-01-31T09:30"
        raise CommandError(f"invalid time {text!r}", remedy, os.EX_USAGE)
    return time_ms


def find_topic(access: Access, name: str) -> Topic:
    """The topic of that name, or an error that names those there are."""
    topics = access.topics()
    for topic in topics:
        if topic.name == name:
            return topic
    known = ", ".join(visible(topic.name) for topic in topics[:10]) or "none yet"
    raise CommandError(f"no topic {name!r}", f"there are: {known}", os.EX_USAGE)


@dataclass(frozen=True, slots=True)
class Target:
    """A topic, narrowed to a queue and to a queue offset where those are given."""

    topic: str
    queue: int | None = None
    offset: int | None = None


def parse_target(text: str) -> Target:
    """`TOPIC[/QUEUE[/OFFSET]]`, as the path below a mount point would be."""
    topic, *numbers = text.strip("/").split("/")
    if not topic or len(numbers) > 2 or not all(number.isdecimal() for number in numbers):
        raise CommandError(f"{text!r} is not a message path (TOPIC[/QUEUE[/OFFSET]])", exit_code=os.EX_USAGE)
    return Target(topic, *map(int, numbers))


def queues_of(access: Access, target: Target) -> tuple[Queue, ...]:
    """The queues that `target` names, as they stand now."""
    topic = find_topic(access, target.topic)
    if target.queue is None:
        return topic.queues
    for queue in topic.queues:
        if queue.number == target.queue:
            return (queue,)
    raise CommandError(f"topic {target.topic} has no queue {target.queue}", f"it has {len(topic.queues)}", os.EX_USAGE)
