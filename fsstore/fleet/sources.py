"""The stores of brokers as readers ask them: mounted on this host, or served by `mountctl serve` on another one.

Both answer the same questions. What a mount raises while its daemon is down is a MountGoneError, after a minute; what
goes wrong with a server is a BrokerError, at once.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import msgspec

from fsstore.fleet.datasets import DATASET, BrokerError, DatasetFile, file_at
from fsstore.fleet.http import RemoteFile, Server
from fsstore.fleet.identity import Facts, Witness, facts, witness
from fsstore.fleet.places import Place, PlaceError
from fsstore.jobs import mount as mounts
from fsstore.jobs.mount import STATUS, Bounds, MountGoneError, QueueRange, files_between, if_there, parse_bounds
from fsstore.parquet.names import parse_topic_partition

FAILURES = (BrokerError, MountGoneError, OSError)
"""The errors of a source that can't answer at the moment."""
_MOST_LINE_BYTES, _MOST_NUMBER_BYTES = 8_000, 60
"""Most bytes of a request that names messages, and of a queue's number and offset in it with their separators."""


class Slot(NamedTuple):
    """A message's place in its queue."""

    topic: str
    queue: int
    queue_offset: int


class MountedSource:
    """The store of a mount of this host. `broker` labels it, `root` is its dataset's directory as Hadoop names it."""

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

    def root_of(self, from_ms: int | None, until_ms: int | None) -> str | None:
        """A directory with the files that `files` finds for these times and no other; None: there is none."""
        return self.root if from_ms is None and until_ms is None else None

    def witness(self) -> Witness:
        """As Holder."""
        return witness(self.place)

    def facts(self, topic: str, queue: int, queue_offset: int) -> Facts | None:
        """As Holder."""
        return facts(self.place, topic, queue, queue_offset)

    def require_there(self) -> None:
        """Look whether the store is there now; all else waits a minute for it. OSError."""
        os.stat(os.path.join(self.place, STATUS))

    def bounds(self) -> Bounds:
        """The present bounds of every queue. MountGoneError; OSError EIO: the disk refuses to read the end of a
        queue."""
        return mounts.bounds(self.place)

    def physical_offsets(self, slots: Collection[Slot]) -> dict[Slot, int | None]:
        """Physical offsets of messages; None: there is none, or it is damaged. MountGoneError, OSError."""
        return {slot: mounts.physical_offset(self.place, *slot) for slot in slots}

    def offset_at(self, topic: str, queue: int, time_ms: int) -> int | None:
        """The first queue offset stored at or after a time; None: there is none. MountGoneError, OSError."""
        return mounts.offset_at(self.place, topic, queue, time_ms)

    def size_of(self, part: QueueRange) -> int:
        """Bytes of the Parquet file of a range from `cut`; 0: it has expired. OSError."""
        return mounts.size_of(self.place, part)

    @contextmanager
    def range_file(self, part: QueueRange) -> Iterator[str]:
        """The Parquet file of a range from `cut`, as pyarrow takes it."""
        yield mounts.range_path(self.place, part)

    def _paths(self, topic: str, from_ms: int | None, until_ms: int | None) -> list[str]:
        return if_there(self.place, lambda: files_between(self.place, topic, from_ms, until_ms)) or []

    def _topics(self) -> list[str]:
        names = if_there(self.place, lambda: os.listdir(self.root)) or ()
        return [topic for name in names if (topic := parse_topic_partition(os.fsencode(name))) is not None]


class ServedSource:
    """The store of a server, as MountedSource. `token` lets in where one is needed. All methods: BrokerError."""

    is_remote = True

    def __init__(self, broker: str, url: str, token: str | None) -> None:
        self.broker = broker
        self.place = url
        self._server = Server(broker, url, token)
        parts = urlsplit(url)
        self.root = f"{'swebhdfs' if parts.scheme == 'https' else 'webhdfs'}://{parts.netloc}/{DATASET}"

    def files(self, topics: Sequence[str] | None, from_ms: int | None, until_ms: int | None) -> list[DatasetFile]:
        """As MountedSource."""
        times = {name: ms for name, ms in (("since", from_ms), ("until", until_ms)) if ms is not None}
        asked = [times] if topics is None else [{"topic": topic, **times} for topic in topics]
        return [file for parameters in asked for file in self._named(parameters)]

    def _named(self, parameters: Mapping[str, object]) -> Iterator[DatasetFile]:
        try:
            lines = self._server.ask("/datasets", parameters)
        except FileNotFoundError:  # there is no such topic
            return
        for line in lines.splitlines():
            file = file_at(self._decoded(line, dict[str, Any])["url"])
            if file is None:
                raise BrokerError(self.broker, self.place, "it names files that are none of a dataset")
            yield file

    def root_of(self, from_ms: int | None, until_ms: int | None) -> str:
        """As MountedSource."""
        if from_ms is None and until_ms is None:
            return self.root
        return f"{self.root}@{'' if from_ms is None else from_ms}-{'' if until_ms is None else until_ms}"

    def witness(self) -> Witness:
        """As Holder."""
        found: Witness = self._decoded(self._ask("/witness", {}), Witness)
        return found

    def facts(self, topic: str, queue: int, queue_offset: int) -> Facts | None:
        """As Holder."""
        asked = {"topic": topic, "queue": queue, "offset": queue_offset}
        found: Facts | None = self._decoded(self._ask("/witness", asked), dict[str, str] | None)
        return found

    def require_there(self) -> None:
        """A server is asked by each question itself; none waits for it."""

    def bounds(self) -> Bounds:
        """As MountedSource."""
        content = self._ask(f"/files/{STATUS}", {})
        try:
            return parse_bounds(content, self.place)
        except OSError as error:
            raise BrokerError(self.broker, self.place, str(error)) from error
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise self._stranger(error) from error

    def physical_offsets(self, slots: Collection[Slot]) -> dict[Slot, int | None]:
        """As MountedSource."""
        found: dict[Slot, int | None] = {}
        for some in _in_requests(slots):
            asked: dict[str, dict[str, int]] = {}
            for topic, queue, queue_offset in some:
                asked.setdefault(topic, {})[str(queue)] = queue_offset
            answers = self._positions(asked)
            found |= {slot: answers[slot.topic][slot.queue] for slot in some}
        return found

    def offset_at(self, topic: str, queue: int, time_ms: int) -> int | None:
        """As MountedSource."""
        return self._positions({topic: {str(queue): f"@{time_ms}"}})[topic][queue]

    def _positions(self, asked: Mapping[str, Mapping[str, int | str]]) -> dict[str, dict[int, int | None]]:
        """A position of each queue that is asked for."""
        content = self._ask("/positions", {"of": msgspec.json.encode(asked).decode()})
        found: dict[str, dict[int, int | None]] = self._decoded(content, dict[str, dict[int, int | None]])
        if {topic: {str(queue) for queue in queues} for topic, queues in found.items()} != {
            topic: set(queues) for topic, queues in asked.items()
        }:
            raise BrokerError(self.broker, self.place, "its answer has other queues than were asked for")
        return found

    def size_of(self, part: QueueRange) -> int:
        """As MountedSource."""
        try:
            with self.range_file(part) as file:
                return file.seek(0, os.SEEK_END)
        except FileNotFoundError:
            return 0

    @contextmanager
    def range_file(self, part: QueueRange) -> Iterator[RemoteFile]:
        """As MountedSource. FileNotFoundError: it is not there."""
        with closing(RemoteFile(self._server, f"/files/{DATASET}/{mounts.range_name(part)}")) as file:
            yield file

    def _ask(self, path: str, parameters: Mapping[str, object]) -> bytes:
        try:
            return self._server.ask(path, parameters)
        except FileNotFoundError as error:
            raise self._stranger(error) from error

    def _decoded(self, content: bytes, kind: Any) -> Any:
        try:
            return msgspec.json.decode(content, type=kind)
        except msgspec.DecodeError as error:
            raise self._stranger(error) from error

    def _stranger(self, error: Exception) -> BrokerError:
        return BrokerError(self.broker, self.place, f"its answer is none of `mountctl serve`: {error}")


Source = MountedSource | ServedSource


def source_of(place: Place, tokens: Mapping[str, str]) -> Source:
    """The store at a place; `tokens` are those for servers, by address. PlaceError: it is only to be had by ssh."""
    if place.url is not None:
        return ServedSource(place.name, place.url, tokens.get(urlsplit(place.url).netloc))
    if place.path is not None:
        return MountedSource(place.name, place.path)
    raise PlaceError(
        place.name, "Spark reads no place by ssh: give the url of `mountctl serve` there, or a mount of this host"
    )


def _in_requests(slots: Collection[Slot]) -> Iterator[list[Slot]]:
    """Slots in parts for a request each, which has a queue once, and no longer line than servers take."""
    some: dict[tuple[str, int], Slot] = {}
    size = 0
    for slot in slots:
        longest = 3 * len(slot.topic.encode()) + _MOST_NUMBER_BYTES
        if slot[:2] in some or size + longest > _MOST_LINE_BYTES:
            yield list(some.values())
            some, size = {}, 0
        some[slot[:2]] = slot
        size += longest
    if some:
        yield list(some.values())
