"""Plain files over HTTP: `/files/PATH` with ranges; `/datasets`, the files of a time as URLs; `/positions`, where
messages are; `/witness`, by which a store's log is recognized.

A file is what it is in the mount; it never changes but by growing, so its size and time are its tag.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from email.utils import formatdate
from typing import NamedTuple
from urllib.parse import quote

import msgspec

from engine import MessageStore, QueueBounds, TopicNotFoundError
from fsstore.fleet.identity import Facts, Witness, facts, witness
from fsstore.fleet.sources import MountedSource, Slot
from fsstore.parquet.names import parse_queue_partition, parse_segment, parse_topic_partition, topic_partition
from fsstore.serve.connection import Answer, Request, answer_in_pieces, answer_with
from fsstore.serve.tree import Entry, PathError, ServedTree, parse_path
from fsstore.tree.names import MAX_QUEUE_OFFSET, parse_queue, parse_time_ms

FILES = "/files"
DATASET = b"@parquet"
_RANGE = re.compile(r"bytes=(?:([0-9]{1,18})-([0-9]{0,18})|-([0-9]{1,18}))")
_PIECE_LINES = 256

_json = msgspec.json.Encoder()


class Times(NamedTuple):
    """Store times [since, until) in epoch milliseconds; None: no bound."""

    since_ms: int | None
    until_ms: int | None


ALWAYS = Times(None, None)
_DATASET_OF_TIMES = re.compile(rb"@parquet@([0-9]{0,18})-([0-9]{0,18})")


def dataset_of_times(name: bytes) -> Times | None:
    """The times of a directory that has the files of these times alone; None: it is no such name."""
    found = _DATASET_OF_TIMES.fullmatch(name)
    return None if found is None else Times(*(int(text) if text else None for text in found.groups()))


def file_answer(tree: ServedTree, path: bytes, request: Request) -> Answer:
    """A file, or the range of it that is asked for. Several ranges at once are answered with the whole file. Blocks.
    MountGoneError, PathError, OSError."""
    file = tree.open(parse_path(path))
    status = os.fstat(file.fileno())
    tag = f'"{status.st_size:x}-{status.st_mtime_ns:x}"'
    headers = [
        ("ETag", tag),
        ("Last-Modified", formatdate(status.st_mtime, usegmt=True)),
        ("Accept-Ranges", "bytes"),
        ("Content-Type", "application/octet-stream"),
        ("X-Content-Type-Options", "nosniff"),  # a message is nothing that a browser should run
    ]
    if request.headers.get("if-none-match") == tag:
        return Answer(304, headers)
    if (begin_end := _range(request, tag, status.st_size)) is None:
        return answer_with(200, headers, file, 0, status.st_size)
    begin, end = begin_end
    if begin >= end:
        return Answer(416, [*headers, ("Content-Range", f"bytes */{status.st_size}")])
    shown = f"bytes {begin}-{end - 1}/{status.st_size}"
    return answer_with(206, [*headers, ("Content-Range", shown)], file, begin, end)


def _range(request: Request, tag: str, size: int) -> tuple[int, int] | None:
    """The bytes [begin, end) of the range that a request asks for; None: the whole file. It may be empty."""
    found = _RANGE.fullmatch(request.headers.get("range", "").strip())
    if found is None or request.headers.get("if-range", tag) != tag:
        return None
    first, last, count = found.groups()
    if count is not None:
        return max(size - int(count), 0), size
    if last and int(last) < int(first):
        return None  # RFC 9110: no range
    return int(first), min(int(last) + 1, size) if last else size


def witness_answer(tree: ServedTree, request: Request) -> Answer:
    """JSON of `witness_of`. Blocks. MountGoneError, PathError, OSError."""
    return _json_answer(witness_of(tree, request.parameters))


def witness_of(tree: ServedTree, parameters: Mapping[str, str]) -> Witness | Facts | None:
    """The number of messages and the newest record; with `topic`, `queue` and `offset` what is in that message's
    record, or None. Blocks. MountGoneError, PathError, OSError."""
    tree.require_answer()
    topic, queue, offset = (os.fsencode(parameters.get(name, "")) for name in ("topic", "queue", "offset"))
    if not (topic or queue or offset):
        return witness(tree.mountpoint)
    parts, numbers = (
        parse_path(topic),
        [number for name in (queue, offset) if (number := parse_queue(name)) is not None],
    )
    if len(parts) != 1 or len(numbers) != 2:
        raise PathError(400, "topic, queue and offset name a message")
    return facts(tree.mountpoint, os.fsdecode(parts[0]), *numbers)


def positions_answer(tree: ServedTree, request: Request) -> Answer:
    """JSON like `of`, {topic: {queue: position}}: in the place of a queue offset is the physical offset of that
    message, in the place of "@TIME", in epoch milliseconds, the queue offset of the first message stored at or after
    it; null: there is none. Blocks. MountGoneError, PathError, OSError."""
    try:
        asked = msgspec.json.decode(request.parameters.get("of", ""), type=dict[str, dict[str, int | str]])
    except msgspec.DecodeError as error:
        raise PathError(400, f"of is {{topic: {{queue: position}}}}: {error}") from None
    tree.require_answer()
    source = MountedSource("", tree.mountpoint)
    return _json_answer(
        {
            topic: {queue: _position(source, topic, queue, position) for queue, position in queues.items()}
            for topic, queues in asked.items()
        }
    )


def _position(source: MountedSource, topic: str, queue: str, position: int | str) -> int | None:
    number, parts = parse_queue(queue.encode()), parse_path(topic.encode())
    if number is None or len(parts) != 1:
        raise PathError(400, "of names a queue that can't be")
    if isinstance(position, str):
        time_ms = parse_time_ms(position.removeprefix("@").encode("utf-8", "surrogateescape"))
        if time_ms is None or not position.startswith("@"):
            raise PathError(400, "a position is a queue offset or @TIME")
        return source.offset_at(topic, number, time_ms)
    slot = Slot(topic, number, position)
    return source.physical_offsets([slot])[slot] if 0 <= position <= MAX_QUEUE_OFFSET else None


def _json_answer(content: object) -> Answer:
    return Answer(200, [("Content-Type", "application/json")], body=_json.encode(content))


class Datasets:
    """Names the files of topics and times. Blocks; MountGoneError, PathError, OSError."""

    def __init__(self, tree: ServedTree, store: MessageStore | None) -> None:
        """`store` follows the mount's, and answers questions of time; None: its files can't be read here."""
        self._tree = tree
        self._store = store

    def answer(self, request: Request, origin: str) -> Answer:
        """Lines of JSON, one for each file of `@parquet/` that may have messages of `topic` stored in [since, until);
        of all topics, if none is named."""
        times = Times(*(_time(request, name) for name in ("since", "until")))
        self.require_times(times)
        topic = request.parameters.get("topic")
        if topic:
            self._tree.entry((DATASET, topic_partition(topic)))  # PathError: there is none
        folders = [topic_partition(topic)] if topic else sorted(self._tree.names((DATASET,)))
        headers = [("Content-Type", "application/jsonl")]
        return answer_in_pieces(200, headers, _in_pieces(self._lines(origin, folders, times)))

    def require_times(self, times: Times) -> None:
        """Have the follower read what is new, if it has to answer questions of time. PathError: there is none."""
        if times != ALWAYS:
            if self._store is None:
                raise PathError(501, "since and until are not served: the server's user may not read the store's files")
            self._store.refresh()

    def files(self, folder: bytes, queue: bytes, times: Times) -> Iterator[Entry]:
        """The files of a queue that may have messages of those times, by the names of their directories."""
        topic, number = parse_topic_partition(folder), parse_queue_partition(queue)
        bounds = self._between(topic or "", number or 0, times)

        def is_wanted(name: bytes) -> bool:
            found = parse_segment(name)
            return found is not None and found.end > bounds.min_offset and found.begin < bounds.max_offset

        return self._tree.entries((DATASET, folder, queue), is_wanted)

    def _lines(self, origin: str, folders: Sequence[bytes], times: Times) -> Iterator[bytes]:
        for folder in folders:
            topic = parse_topic_partition(folder) or ""
            queues = [(parse_queue_partition(name), name) for name in self._tree.names((DATASET, folder))]
            for queue, name in sorted((number, name) for number, name in queues if number is not None):
                for entry in self.files(folder, name, times):
                    yield _line(origin, topic, queue, (DATASET, folder, name, entry.name), entry)

    def _between(self, topic: str, queue: int, times: Times) -> QueueBounds:
        """The queue offsets of messages stored in [since, until), as far as the follower has read."""
        first, last = 0, 1 << 63
        if self._store is None or times == ALWAYS:
            return QueueBounds(first, last)
        try:
            end = self._store.bounds(topic, queue).max_offset
            if times.since_ms is not None:
                first = self._store.offset_at(topic, queue, times.since_ms)
            if times.until_ms is not None and (found := self._store.offset_at(topic, queue, times.until_ms)) < end:
                last = found
        except TopicNotFoundError:  # made just now
            pass
        return QueueBounds(first, last)


def _line(origin: str, topic: str, queue: int, parts: Sequence[bytes], entry: Entry) -> bytes:
    found = parse_segment(entry.name)
    assert found is not None
    row = {
        "url": f"{origin}{FILES}/{quote(b'/'.join(parts), safe='/@=')}",
        "topic": topic.encode("utf-8", "replace").decode(),
        "queue": queue,
        "begin": found.begin,
        "end": found.end,
        "bytes": entry.status.st_size,
        "rows": found.end - found.begin,
    }
    return _json.encode(row) + b"\n"


def _in_pieces(lines: Iterator[bytes]) -> Iterator[bytes]:
    held: list[bytes] = []
    for line in lines:
        held.append(line)
        if len(held) == _PIECE_LINES:
            yield b"".join(held)
            held = []
    if held:
        yield b"".join(held)


def _time(request: Request, name: str) -> int | None:
    """Epoch milliseconds of a parameter; None: it is not there. PathError."""
    text = request.parameters.get(name)
    if text is None:
        return None
    time_ms = parse_time_ms(text.encode("utf-8", "surrogateescape"))
    if time_ms is None:
        raise PathError(400, f"{name} is no time: give epoch milliseconds or ISO 8601")
    return time_ms
