"""What verbs ask of a store, mounted or not, and what they are answered; how a command line names messages.

TOPIC[/QUEUE[/OFFSET]]   as the path below a mount point would be; where several can be meant the topic may be a
                         glob: 'ord*', '*/0'
2026-01-31T09:30         a time: ISO 8601, local without a zone
@1769848200000           the same, in epoch milliseconds
-1h, -1d12h, -15m, -30s  a time before now
"""

from __future__ import annotations

import base64
import difflib
import os
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import cached_property
from itertools import islice
from typing import Any, Protocol

import click
import numpy as np

from engine import Message, SliceColumn
from fsstore.tree.names import parse_time_ms
from fsstore.tree.xattrs import NUMBERS
from mountctl.errors import DAMAGED, CommandError
from mountctl.output import plural, visible

Array = np.ndarray[Any, Any]

FEW = 3
"""So many damaged messages are named."""

_PROPERTY = "property."
_GLOB = re.compile(r"[*?\[]")
_SPAN = re.compile(r"(\d+)(ms|[smhdw])")
_BEFORE_NOW = re.compile(r"-((?:\d+(?:ms|[smhdw]))+)")
_UNITS_MS = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 604_800_000}


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
    """A message as the verbs show it; `attributes` (name without `user.mq.` to text) are empty unless asked for.
    `place` rises in the order in which the store's messages were stored."""

    topic: str
    queue: int
    offset: int
    body: bytes
    attributes: Mapping[str, str]
    place: int = 0

    @property
    def properties(self) -> dict[str, str]:
        """Its properties, KEYS and TAGS among them."""
        named = self.attributes.items()
        return {name.removeprefix(_PROPERTY): text for name, text in named if name.startswith(_PROPERTY)}

    def as_json(self) -> dict[str, Any]:
        """For `--json`: numbers as numbers; a body that is no UTF-8 stands in `body_base64`."""
        shown: dict[str, Any] = {"topic": self.topic, "queue": self.queue, "offset": self.offset}
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


class Access(Protocol):
    """One store, however it is reached. What reading leaves out since it is damaged is in `left_out`; `published`
    counts what `publish` and `publish_lines` stored."""

    left_out: LeftOut
    published: int

    def status(self) -> dict[str, Any]:
        """What `@store/status.json` says."""

    def topics(self) -> list[Topic]:
        """Every topic, by name."""

    def has_topic(self, topic: str) -> bool:
        """Whether there is one of that name."""

    def bounds(self, topic: str, queue: int) -> Queue:
        """Where that queue begins and ends now."""

    def messages(self, topic: str, queue: int, start: int, count: int | None, attributes: bool) -> Iterator[MessageRow]:
        """Messages from queue offset `start` on, up to `count` offsets, oldest first; damaged ones are left out."""

    def bodies(
        self, topic: str, queue: int, start: int, end: int, texts: Sequence[bytes] = (), any_case: bool = False
    ) -> Iterator[Bodies]:
        """Messages at [start, end), some at a time, oldest first; damaged ones are left out. At least those whose body
        holds one of `texts` (with `any_case` ASCII letters of either case are the same)."""

    def texts(self, topic: str, queue: int, start: int, end: int, part: str) -> Iterator[Bodies]:
        """As `bodies`, one of PARTS of the messages: a text a row, so a message may have several rows, or none."""

    def with_key(self, topic: str, key: str) -> Iterator[MessageRow]:
        """Every message that carries `key`, matched whole, each once, with its attributes."""

    def property_values(self, topic: str, name: str) -> Iterator[str]:
        """The values that messages of the topic have of a property; none where there is no such topic."""

    def offset_at(self, topic: str, queue: int, when_ms: int) -> int:
        """Queue offset of the first message stored at or after `when_ms`; the next one's when there is none."""

    def claim(self, group: str, topic: str, queue: int) -> Claim | None:
        """A queue for a member of a consumer group; None: another one has it."""

    def body_limit_bytes(self) -> int:
        """How long a message's body may be."""

    def publish(
        self, queue: int | None, messages: Iterable[Message], stored: Callable[[Placed], None] | None = None
    ) -> None:
        """Store messages, in their order. An unknown topic is made, with 4 queues. `stored` is told where each went."""

    def publish_lines(self, topic: str, queue: int | None, chunks: Iterable[bytes], labels: Labels) -> None:
        """Store each line of the stream that `chunks` are as a message; empty lines are skipped. A chunk has at most
        WHOLE_WRITE_BYTES: more of it may be stored than is counted when it is refused."""

    def create_topic(self, topic: str, queues: int) -> None:
        """Make a topic, or an error if it is there."""

    def delete_topic(self, topic: str) -> None:
        """Forget a topic and its messages, for good."""


def parse_time(text: str, now_ms: int | None = None) -> int:
    """Epoch milliseconds of a time on the command line."""
    if match := _BEFORE_NOW.fullmatch(text):
        before_ms = sum(int(number) * _UNITS_MS[unit] for number, unit in re.findall(_SPAN, match[1]))
        return max((time.time_ns() // 1_000_000 if now_ms is None else now_ms) - before_ms, 0)
    time_ms = parse_time_ms(text.removeprefix("@").encode(errors="surrogateescape"))
    if time_ms is None:
        remedy = "give 2026-01-31T09:30, @EPOCH_MS, or a time before now like -1h or -15m"
        raise CommandError(f"invalid time {text!r}", remedy, os.EX_USAGE)
    return time_ms


def find_topic(access: Access, name: str) -> Topic:
    """The topic of that name, or an error that names those there are."""
    return topics_named(access.topics(), name)[0]


def tell_new_topic(access: Access, name: str) -> None:
    """Say on standard error that publishing makes a topic: its name may be a slip."""
    if not access.has_topic(name):
        near = difflib.get_close_matches(name, [topic.name for topic in access.topics()], 2)
        guess = f" (did you mean {' or '.join(map(visible, near))}?)" if near else ""
        click.echo(f"mountctl: there is no topic {name!r} yet: the first message makes it{guess}", err=True)


def topics_named(topics: Sequence[Topic], name: str) -> list[Topic]:
    """Those that a name or a glob means, at least one; an error names those there are."""
    is_glob = bool(_GLOB.search(name))
    found = [topic for topic in topics if (fnmatchcase(topic.name, name) if is_glob else topic.name == name)]
    if not found:
        known = ", ".join(visible(topic.name) for topic in topics[:10]) or "none yet"
        what = "no topic matches" if is_glob else "no topic"
        raise CommandError(f"{what} {name!r}", f"there are: {known}", os.EX_USAGE)
    return found


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
    return narrowed(find_topic(access, target.topic), target)


def narrowed(topic: Topic, target: Target) -> tuple[Queue, ...]:
    """The queues of `topic` that `target` names."""
    if target.queue is None:
        return topic.queues
    for queue in topic.queues:
        if queue.number == target.queue:
            return (queue,)
    raise CommandError(f"topic {topic.name} has no queue {target.queue}", f"it has {len(topic.queues)}", os.EX_USAGE)


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
