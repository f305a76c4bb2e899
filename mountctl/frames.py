"""The messages between `mountctl` and `mountctl remote` on another host: a request, then frames, each a line of JSON.

    request    {"protocol": 2, "version": "0.1.0", "place": "/mnt/mq", "kind": "rows", "targets": ["orders"], ...}
    frames     Hello, then Missing where topics are asked for, then the rows, counts, topics or status, then End;
               Refused ends them, too. While a store is followed, Following comes after each group of rows

Bodies are base64, as JSON has no bytes. Frames are decoded into the types below: the other side is not trusted. A row
of 1 kB takes 1.6 µs to encode and 2.0 to decode so; a length, Python's own JSON and the body's bytes took 3.3 and 4.6.
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from typing import Any, TypeAlias

import msgspec

from mountctl.client import MessageRow, Topic
from mountctl.errors import CommandError

PROTOCOL = 2
LONGEST_BYTES = 256 << 20
"""Limit of one line; RocketMQ's largest body is far below."""
SAME_VERSION = "install the same version on both hosts"


@dataclass(frozen=True, slots=True)
class Searched:
    """The options of a search, as `mountctl grep` takes them."""

    text: str
    fixed: bool
    any_case: bool
    invert: bool
    parts: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Request:
    """A request to a host. `kind` is rows, counts, topics or status. `start` and `end` are offsets, or times as
    @EPOCH_MS; times in `where` are epoch milliseconds. `count` limits the messages: of each queue with `by_queue`,
    of each topic in a search, else the newest ones of all. `ends` has the next offset of each queue, from which
    following continues."""

    kind: str
    place: str = ""
    targets: tuple[str, ...] = ()
    start: str | None = None
    end: str | None = None
    tags: tuple[str, ...] = ()
    key: str | None = None
    where: str | None = None
    count: int | None = None
    by_queue: bool = False
    follow: bool = False
    attributes: bool = False
    search: Searched | None = None
    ends: dict[str, dict[int, int]] | None = None
    protocol: int = PROTOCOL
    version: str = ""

    def to_line(self) -> bytes:
        """JSON on one line; a name's bytes that are not UTF-8 are escaped."""
        return json.dumps(asdict(self)).encode() + b"\n"

    @classmethod
    def from_line(cls, line: bytes) -> Request:
        """The request of a line of `to_line`. CommandError: it is none, or another version's."""
        try:
            values = json.loads(line)
            if (protocol := values.get("protocol")) != PROTOCOL:
                raise CommandError(
                    f"it answers protocol {PROTOCOL}, and was asked by protocol {protocol}", SAME_VERSION
                )
            return msgspec.convert(values, cls, strict=False)
        except (ValueError, AttributeError) as error:
            raise CommandError(
                f"this is not a request: {error}", "mountctl cat HOST:PLACE sends one", os.EX_USAGE
            ) from None


class _Frame(msgspec.Struct, frozen=True, tag=True):
    """A line of an answer."""


class Hello(_Frame, frozen=True, tag=True):
    """The host's version, and that of its frames."""

    version: str
    protocol: int


class Missing(_Frame, frozen=True, tag=True):
    """The targets that the store does not have."""

    targets: tuple[str, ...]


class Row(_Frame, frozen=True, tag=True):
    """A message."""

    message: MessageRow


class Count(_Frame, frozen=True, tag=True):
    """The number of a topic's messages that a search found."""

    topic: str
    messages: int


class Topics(_Frame, frozen=True, tag=True):
    """All topics."""

    topics: tuple[Topic, ...]


class Status(_Frame, frozen=True, tag=True):
    """The content of `@store/status.json`."""

    status: dict[str, Any]


class Following(_Frame, frozen=True, tag=True):
    """A group of messages was sent. The first one has the offset, by topic and queue, before which all were sent."""

    ends: dict[str, dict[int, int]]


class End(_Frame, frozen=True, tag=True):
    """All was sent; the exit code says whether something was left out."""

    code: int


class Refused(_Frame, frozen=True, tag=True):
    """The reason why there is no more, in words, and the exit code."""

    reason: str
    code: int


Frame: TypeAlias = Hello | Missing | Row | Count | Topics | Status | Following | End | Refused

encode = msgspec.json.Encoder().encode
decode = msgspec.json.Decoder(Frame).decode
"""The frame of a line. ValueError: it is none."""
