"""The selection that a view shows, as the parameters of its link."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import parse_qsl, quote, urlencode

from engine import MessageStore, TopicNotFoundError
from fsstore.query.hist import QueueRange
from fsstore.query.times import parse_moment_ms
from fsstore.serve.connection import Request
from fsstore.serve.tree import PathError
from fsstore.tree.names import parse_queue, to_name

_MOST_PARAMETERS = 64
_MOST_CHARACTERS = 4_000
MAX_OFFSET = (1 << 63) - 1


class FormError(ValueError):
    """The input in the field `name` is invalid. `reason` says why; `position` is the wrong character, from 0, if
    there is one."""

    def __init__(self, name: str, reason: str, position: int | None = None) -> None:
        super().__init__(name, reason, position)
        self.name = name
        self.reason = reason
        self.position = position

    def __str__(self) -> str:
        return self.reason


Parameters = dict[str, str]


def parameters_of(request: Request) -> Parameters:
    """The parameters of a link, without empty ones; any bytes of a name survive. PathError: they are too long."""
    query = request.target.partition("?")[2]
    try:
        pairs = parse_qsl(query, max_num_fields=_MOST_PARAMETERS, errors="surrogateescape")
    except ValueError:
        raise PathError(400, f"a link has at most {_MOST_PARAMETERS} parameters") from None
    found: Parameters = {}
    for name, value in pairs:
        if len(value) > _MOST_CHARACTERS:
            raise PathError(400, f"a parameter has at most {_MOST_CHARACTERS:,} characters")
        found.setdefault(name, value)
    return found


def link(path: str, **parameters: object) -> str:
    """A link of this server, without parameters that are None, False or empty."""
    given = [
        (name, to_name(str(value)))
        for name, value in parameters.items()
        if value not in (None, "") and value is not False
    ]
    query = urlencode(given)
    return quote(path, safe="/@=") + (f"?{query}" if query else "")


def number_in(parameters: Parameters, name: str) -> int | None:
    """A whole number of a parameter; None: it is not there. PathError."""
    text = parameters.get(name)
    if text is None:
        return None
    if not (text.isascii() and text.isdecimal() and len(text) < 20) or int(text) > MAX_OFFSET:
        raise PathError(400, f"{name} is a number")
    return int(text)


@dataclass(frozen=True, slots=True)
class Selection:
    """Messages of a topic, or of one of its queues: stored in [since, until), times as people write them; with the key,
    with the text, for which `where` is true; stored in the log before the physical offset `before`."""

    topic: str
    queue: int | None = None
    since: str = ""
    until: str = ""
    key: str = ""
    text: str = ""
    where: str = ""
    before: int | None = None

    @classmethod
    def of(cls, parameters: Parameters) -> Selection:
        """The selection of a link. PathError."""
        if not (topic := parameters.get("topic", "")):
            raise PathError(400, "topic names a topic")
        texts = {name: parameters.get(name, "").strip() for name in ("key", "where")}
        since, until = parameters.get("from", "").strip(), parameters.get("until", "").strip()
        queue = parse_queue(to_name(parameters["queue"])) if "queue" in parameters else None
        if queue is None and "queue" in parameters:
            raise PathError(400, "queue is a number")
        before = number_in(parameters, "before")
        return cls(topic, queue, since, until, text=parameters.get("text", ""), before=before, **texts)

    @property
    def is_search(self) -> bool:
        """Whether it leaves messages out by what is in them."""
        return bool(self.key or self.text or self.where)

    def parameters(self) -> Parameters:
        """The parameters from which `of` makes this selection."""
        named = {
            "topic": self.topic, "queue": self.queue, "from": self.since, "until": self.until, "key": self.key,
            "text": self.text, "where": self.where, "before": self.before,
        }  # fmt: skip
        return {name: str(value) for name, value in named.items() if value not in (None, "")}

    def link(self, path: str = "/page/topic", more: Mapping[str, object] | None = None, **changes: Any) -> str:
        """The link of this selection, with some of its fields changed; `more` are parameters beside it."""
        return link(path, **replace(self, **changes).parameters(), **(more or {}))

    def times_ms(self) -> tuple[int | None, int | None]:
        """`since` and `until` in epoch milliseconds. FormError."""
        return _moment("from", self.since), _moment("until", self.until)

    def ranges(self, store: MessageStore) -> list[QueueRange]:
        """The queue offsets of the topic stored within the times, without empty ranges. FormError, PathError."""
        since_ms, until_ms = self.times_ms()
        found = []
        for queue in queues_of(store, self.topic) if self.queue is None else [self.queue]:
            try:
                bounds = store.bounds(self.topic, queue)
            except TopicNotFoundError:
                raise PathError(404, "there is no such topic or queue") from None
            start, end = bounds.min_offset, bounds.max_offset
            if start < end and since_ms is not None:
                start = max(start, store.offset_at(self.topic, queue, since_ms))
            if start < end and until_ms is not None:
                end = min(end, store.offset_at(self.topic, queue, until_ms))
            if start < end:
                found.append(QueueRange(self.topic, queue, start, end))
        return found


def queues_of(store: MessageStore, topic: str) -> list[int]:
    """The queue ids of a topic. PathError: there is no such topic."""
    try:
        return store.queues(topic)
    except TopicNotFoundError:
        raise PathError(404, "there is no such topic") from None


def _moment(name: str, text: str) -> int | None:
    if not text:
        return None
    moment_ms = parse_moment_ms(text)
    if moment_ms is None or not 0 <= moment_ms < 1 << 53:
        raise FormError(name, "no time: give 2026-01-31T09:30, @EPOCH_MS, or a time before now like -15m or -1d")
    return moment_ms


def file_link(parts: list[bytes]) -> str:
    """The link of a file of the mount."""
    return "/files/" + quote(b"/".join(parts), safe="/@=")
