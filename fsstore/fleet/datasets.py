"""The files of `@parquet/` at the places of a fleet, and whether those that were asked for are those that will be read.

A reader lists files for itself, some time after it was told which: what expired meanwhile must not be missing in
silence. Ranges of queue offsets are compared, not names: the newest file of a queue has another name as soon as it has
grown.
"""

from __future__ import annotations

import os
import ssl
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from typing import Any, NamedTuple
from urllib.parse import unquote_to_bytes, urlencode, urlsplit

import msgspec

from fsstore.fleet.identity import Facts, Witness, facts, witness
from fsstore.jobs.mount import QueueRange, files_between, if_there
from fsstore.parquet.names import parse_queue_partition, parse_segment, parse_topic_partition

PATIENCE_S = 60.0
"""Seconds for which a server may be silent."""
DATASET = "@parquet"
_NO_TOPIC = "there is no such file"
"""The text of our server's 404 for an unknown topic. Another server's 404 has another text."""
_NAMED = 3
"""Ranges that an error names."""


class BrokerError(RuntimeError):
    """The store of a broker can't be asked; `reason` says why."""

    def __init__(self, broker: str, place: str, reason: str) -> None:
        super().__init__(broker, place, reason)
        self.broker = broker
        self.place = place
        self.reason = reason

    def __str__(self) -> str:
        return f"broker {self.broker} at {self.place}: {self.reason}"


class ExpiredFilesError(RuntimeError):
    """Messages that were asked for expired, or their topic was deleted, before a reader had listed their files."""

    def __init__(self, broker: str, parts: Sequence[QueueRange]) -> None:
        super().__init__(broker, parts)
        self.broker = broker
        self.parts = parts

    def __str__(self) -> str:
        shown = ", ".join(f"{part.topic}/{part.queue} [{part.begin}, {part.end})" for part in self.parts[:_NAMED])
        more = f" and {len(self.parts) - _NAMED} more" if len(self.parts) > _NAMED else ""
        return f"{self.broker}: queue offsets {shown}{more} expired while the job was planned"


class DatasetFile(NamedTuple):
    """A file of `@parquet/`, by its path below that directory, and the queue offsets in its name."""

    path: str
    part: QueueRange


class MountedSource:
    """The dataset of a mount of this host. `broker` labels it, `root` is its directory as Hadoop names it."""

    is_remote = False

    def __init__(self, broker: str, mount: str) -> None:
        self.broker = broker
        self.place = os.path.abspath(mount)
        self.root = os.path.join(self.place, DATASET)

    def files(self, topics: Sequence[str] | None, from_ms: int | None, until_ms: int | None) -> list[DatasetFile]:
        """The files that may have messages of `topics` (None: of all) stored in [from_ms, until_ms). A topic that is
        not there has none. MountGoneError, OSError."""
        known = sorted(self._topics()) if topics is None else topics
        paths = [path for topic in known for path in self._paths(topic, from_ms, until_ms)]
        return [file for path in paths if (file := file_at(path)) is not None]

    def witness(self) -> Witness:
        """As Holder."""
        return witness(self.place)

    def facts(self, topic: str, queue: int, queue_offset: int) -> Facts | None:
        """As Holder."""
        return facts(self.place, topic, queue, queue_offset)

    def _paths(self, topic: str, from_ms: int | None, until_ms: int | None) -> list[str]:
        return if_there(self.place, lambda: files_between(self.place, topic, from_ms, until_ms)) or []

    def _topics(self) -> list[str]:
        names = if_there(self.place, lambda: os.listdir(self.root)) or ()
        return [topic for name in names if (topic := parse_topic_partition(os.fsencode(name))) is not None]


class ServedSource:
    """The dataset of a server, as MountedSource. `token` lets in where one is needed."""

    is_remote = True

    def __init__(self, broker: str, url: str, token: str | None) -> None:
        self.broker = broker
        self.place = url
        parts = urlsplit(url)
        self._host, self._has_tls = parts.netloc, parts.scheme == "https"
        self.root = f"{'swebhdfs' if self._has_tls else 'webhdfs'}://{self._host}/{DATASET}"
        self._headers = {} if token is None else {"Authorization": f"Bearer {token}"}

    def files(self, topics: Sequence[str] | None, from_ms: int | None, until_ms: int | None) -> list[DatasetFile]:
        """As MountedSource. BrokerError."""
        times = {name: ms for name, ms in (("since", from_ms), ("until", until_ms)) if ms is not None}
        if topics is None:
            return self._named(self._ask("/datasets", times))
        answers = [self._ask("/datasets", {"topic": topic, **times}) for topic in topics]
        return [file for lines in answers for file in self._named(lines)]

    def _named(self, lines: bytes) -> list[DatasetFile]:
        files = [file_at(self._decoded(line, dict[str, Any])["url"]) for line in lines.splitlines()]
        if None in files:
            raise BrokerError(self.broker, self.place, "it names files that are none of a dataset")
        return [file for file in files if file is not None]

    def witness(self) -> Witness:
        """As Holder."""
        found: Witness = self._decoded(self._ask("/witness", {}), Witness)
        return found

    def facts(self, topic: str, queue: int, queue_offset: int) -> Facts | None:
        """As Holder."""
        asked = {"topic": topic, "queue": queue, "offset": queue_offset}
        found: Facts | None = self._decoded(self._ask("/witness", asked), dict[str, str] | None)
        return found

    def _decoded(self, content: bytes, kind: Any) -> Any:
        try:
            return msgspec.json.decode(content, type=kind)
        except msgspec.DecodeError as error:
            raise BrokerError(self.broker, self.place, f"its answer is none of `mountctl serve`: {error}") from error

    def _ask(self, path: str, parameters: Mapping[str, object]) -> bytes:
        """The content at a path; nothing for a topic that is not there. BrokerError."""
        try:
            with closing(self._connection()) as connection:
                connection.request("GET", f"{path}?{urlencode(parameters)}", headers=self._headers)
                answer = connection.getresponse()
                content = answer.read()
        except (OSError, HTTPException) as error:
            raise BrokerError(self.broker, self.place, str(error) or type(error).__name__) from error
        if answer.status == 200:
            return content
        said = content.decode("utf-8", "replace").strip()
        if (answer.status, said) != (404, _NO_TOPIC):
            raise BrokerError(self.broker, self.place, f"{answer.status} {answer.reason}: {said}")
        return b""

    def _connection(self) -> HTTPConnection:
        if self._has_tls:
            return HTTPSConnection(self._host, timeout=PATIENCE_S, context=ssl.create_default_context())
        return HTTPConnection(self._host, timeout=PATIENCE_S)


Source = MountedSource | ServedSource


def file_at(uri: str) -> DatasetFile | None:
    """The file that a URI, with its escapes, or a path names; None: it is no file of `@parquet/`."""
    names = (unquote_to_bytes(uri) if ":" in uri.partition("/")[0] else os.fsencode(uri)).split(b"/")[-3:]
    if len(names) < 3:
        return None
    topic, queue, part = parse_topic_partition(names[0]), parse_queue_partition(names[1]), parse_segment(names[2])
    if topic is None or queue is None or part is None:
        return None
    return DatasetFile(os.fsdecode(b"/".join(names)), QueueRange(topic, queue, *part))


def lost(asked: Iterable[QueueRange], planned: Iterable[QueueRange]) -> list[QueueRange]:
    """The parts of `asked` that `planned` does not cover, in order."""
    covered: defaultdict[tuple[str, int], list[QueueRange]] = defaultdict(list)
    for part in sorted(planned, reverse=True):
        covered[part[:2]].append(part)
    found: list[QueueRange] = []
    for part in sorted(asked):
        known, begin = covered[part[:2]], part.begin
        while known and known[-1].begin <= begin < part.end:
            begin = max(begin, known.pop().end) if known[-1].end <= part.end else part.end
        if begin < part.end:
            found.append(part._replace(begin=begin))
    return found
