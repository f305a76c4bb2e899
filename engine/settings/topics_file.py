"""Topics and their queue counts: config/topics.json (docs/format.md, 11).

    {"dataVersion": {...}, "topicConfigTable": {"orders": {"topicName": "orders", "writeQueueNums": 4, ...}}}

Unknown fields are kept.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path
from typing import Any

from engine.errors import (
    ConfigFileError,
    IllegalTopicError,
    StoreError,
    TopicError,
    TopicExistsError,
    TopicsRefusedError,
)
from engine.files.disk import Buffer, Disk, is_whole_number
from engine.record.multi_dispatch import can_have_queues
from engine.record.record import topic_problem
from engine.settings.config import Clock
from engine.settings.config_file import (
    Version,
    extend_config,
    next_version,
    read_config,
    replace_config,
    version_of,
)

MAX_QUEUES = 1_024
MOST_QUEUES = 16_384
"""Largest valid number of queues in an entry: listings show all queues of a topic, even empty ones."""
MOST_TOLD = 100
MOST_PIECES = 64
"""Pieces in which the text of the entries is kept. They are joined rarely, because that copies some megabytes."""
MOST_READS = 10
"""Attempts to read a file that is replaced meanwhile."""
MOST_PERMISSION = (1 << 31) - 1
DEFAULT_QUEUES = 16  # RocketMQ's, where an entry does not say
READ_AND_WRITE = 6
TABLE = "topicConfigTable"
_EMPTY_TABLE = f'\n\t"{TABLE}": {{}}'


@dataclass(frozen=True, slots=True)
class TopicConfig:
    """Entry of a topic in topics.json. `permission` bits: 8 priority, 4 read, 2 write, 1 inherit."""

    topic: str
    read_queues: int
    write_queues: int
    permission: int
    attributes: Mapping[str, str]

    @property
    def queues(self) -> int:
        """Number of queues, with ids from 0 on: the larger of `read_queues` and `write_queues`."""
        return max(self.read_queues, self.write_queues)

    @property
    def is_writable(self) -> bool:
        """Whether messages may be published to it."""
        return bool(self.permission & 2)


class TopicTable:
    """The topics of topics.json. Each change is on disk when the method returns; after an error it is not made.

    A change parses and encodes only the entries that it changes. Brokers read the file, so it is whole at any moment.
    A change that only adds entries, like the two before it, writes what the backup lacks, and the two files exchange
    their names. Any other change writes a new file. Thread safety: any thread; readers see each change as a whole.
    """

    def __init__(self, path: Path, disk: Disk, clock: Clock) -> None:
        """Read the file. If it can't be parsed, it counts as empty, `problem` is set, and it is not overwritten."""
        self._path = path
        self._disk = disk
        self._clock = clock
        self._lock = threading.Lock()
        self._content: dict[str, Any] = {}
        """The content of the file; its topic table is empty."""
        self._entries: dict[str, Any] = {}
        """The topic table of the file."""
        self._lines: list[bytes] | None = None
        """Its text, in pieces: a `_line` for each entry. None: not encoded yet."""
        self._topics: dict[str, TopicConfig] = {}
        self.unwritable: set[str] = set()
        """Topics without write permission; always the same object, read-only."""
        self._version: Version | None = None
        self._written: Version | None = None
        """`_version`, if this process wrote the file."""
        self._end = 0
        """Position behind the last entry of that file; 0 without one."""
        self._missing = b""
        """The last entries of that file: its other text up to `_end` is the backup's, too. Empty: it is not."""
        self.removals = 0
        """Changes after another process has removed topics or queues."""
        self.problem: ConfigFileError | None = None
        self.reload()

    def problems(self) -> list[str]:
        """Sentences about the file if it can't be parsed, else about the entries that are left out."""
        if self.problem is not None:
            return [str(self.problem)]
        left_out = sorted(self._entries.keys() - self._topics.keys())
        shown = [f"{self._path}: the entry of topic {topic[:255]!r} is left out" for topic in left_out[:MOST_TOLD]]
        more = len(left_out) - len(shown)
        return [*shown, f"{self._path}: {more:,} more entries are left out"] if more else shown

    def reload(self) -> bool:
        """Read the file again if another process changed it; returns whether the topics changed.

        If it can't be parsed, the known topics are kept, because it may be incomplete during a write.
        """
        with self._lock:
            if version_of(self._path) == self._version:
                return False
            before = self._topics
            try:
                version, content = self._read()
            except ConfigFileError as error:
                self.problem = error.with_traceback(None)  # a traceback would keep the callers' maps alive
                return False
            self._version, self._written, self.problem = version, None, None
            self._take(content)
            self.removals += any(config.queues > self._queues_of(topic) for topic, config in before.items())
            return self._topics != before

    def _read(self, attempts: int = MOST_READS) -> tuple[Version, dict[str, Any]]:
        """The file's version before it was read, and its content. ConfigFileError."""
        version = version_of(self._path)
        try:
            return version, read_config(self._path)
        except ConfigFileError:
            if attempts == 1 or version_of(self._path) == version:
                raise
            return self._read(attempts - 1)  # its writer made it the backup meanwhile, and extended that

    def _take(self, content: dict[str, Any]) -> None:
        """Use the content of the file from now on."""
        entries = content.get(TABLE)
        self._content = {**content, TABLE: {}} if isinstance(entries, dict) else content
        self._entries = entries if isinstance(entries, dict) else {}
        self._lines = None
        self._topics = _configs(self._entries)
        unwritable = _unwritable(self._topics)
        self.unwritable |= unwritable
        self.unwritable &= unwritable

    def _queues_of(self, topic: str) -> int:
        config = self._topics.get(topic)
        return -1 if config is None else config.queues

    def names(self) -> list[str]:
        """All topics, sorted."""
        return sorted(self._topics)

    def with_attributes(self) -> list[TopicConfig]:
        """The entries with attributes, by name."""
        found = (config for config in self._topics.values() if config.attributes)
        return sorted(found, key=attrgetter("topic"))

    def get(self, topic: str) -> TopicConfig | None:
        """The entry of a topic; None: the file has none."""
        return self._topics.get(topic)

    def create(self, topics: Mapping[str, int], exists: Callable[[str], bool] = lambda topic: False) -> None:
        """Add topics with these numbers of queues, all or none; those for which `exists` is true are refused, too.

        TopicExistsError, IllegalTopicError; TopicsRefusedError if several are refused; ConfigFileError, OSError.
        """
        with self._lock:
            refuse_topics(
                TopicExistsError(topic) if topic in self._topics or exists(topic) else illegal_topic(topic, queues)
                for topic, queues in topics.items()
            )
            if topics:
                self._store(topics)

    def ensure(self, topic: str, queues: int) -> bool:
        """Make a topic, or give it at least `queues` queues; returns whether it changed. Errors as `create`."""
        with self._lock:
            known = self._topics.get(topic)
            if known is not None and min(known.read_queues, known.write_queues) >= queues:
                return False
            queues = max(queues, known.queues if known else 0)
            refuse_topics([illegal_topic(topic, queues)])
            self._store({topic: queues})
            return True

    def discard(self, topic: str) -> None:
        """Remove a topic, if the file has it. ConfigFileError, OSError."""
        with self._lock:
            if topic in self._topics:
                self._write(_exchanged(self._encoded(), _line(topic, self._entries[topic]), b""))
                del self._entries[topic], self._topics[topic]
                self.unwritable.discard(topic)

    def _store(self, topics: Mapping[str, int]) -> None:
        lines, entries = self._encoded(), {}
        for topic, queues in topics.items():
            known = self._entries.get(topic)
            entry = known if isinstance(known, dict) else _new_entry(topic)
            entries[topic] = {**entry, "readQueueNums": queues, "writeQueueNums": queues}
            if topic in self._entries:
                lines = _exchanged(lines, _line(topic, known), _line(topic, entries[topic]))
        new = [_line(topic, entry) for topic, entry in entries.items() if topic not in self._entries]
        added = b"".join(new)
        self._write([*lines, added], added if len(new) == len(entries) else b"")
        configs = _configs(entries)
        self._topics |= configs
        self._entries |= entries
        self.unwritable |= _unwritable(configs)

    def _encoded(self) -> list[bytes]:
        """The text of the topic table. ConfigFileError: the file can't be parsed, and is not overwritten."""
        if self.problem is not None:
            raise self.problem
        if self._lines is None:
            self._lines = [b"".join(_line(topic, entry) for topic, entry in self._entries.items())]
        if len(self._lines) > MOST_PIECES:
            self._lines = [b"".join(self._lines)]
        return self._lines

    def _write(self, lines: list[bytes], added: bytes = b"") -> None:
        """Replace the file by one with these entries: the old ones and then `added`, if that is not empty. OSError: the
        old file is there."""
        content = {**self._content, TABLE: {}}
        version = next_version(content.pop("dataVersion", None), self._clock())
        content["dataVersion"] = version  # at the end: nothing before new entries changes
        if not self._is_extended(content, added):
            self._replace(content, lines, added)
        self._content, self._lines, self._version = content, lines, self._written

    def _is_extended(self, content: dict[str, Any], added: bytes) -> bool:
        """Add the missing entries to the backup, and make it the file. False: it is not known to be possible, or was
        refused."""
        if not (added and self._missing) or version_of(self._path) != self._written:
            return False
        *_, entries, end = _text(content, [added])
        text = b"".join([b",", self._missing, entries, end])
        try:
            self._written = extend_config(self._path, self._end - len(self._missing), text, self._disk)
        except (StoreError, OSError):
            return False
        self._end, self._missing = self._end + len(added), added
        return True

    def _replace(self, content: dict[str, Any], lines: list[bytes], added: bytes) -> None:
        before, text = self._written, _text(content, lines)
        try:
            self._written = replace_config(self._path, text, self._disk, before)
        except (StoreError, OSError):
            self._written = None
            with suppress(StoreError, OSError):  # the new file may have replaced the old one already
                replace_config(self._path, _text(self._content, self._encoded()), self._disk)
            raise
        is_kept = before is not None and self._written[1] == before[0] and self._end
        self._missing = added if is_kept else b""
        self._end = sum(map(len, text[:-1]))


def refuse_topics(errors: Iterable[TopicError | None]) -> None:
    """Raise the errors among `errors`: one as it is, several as TopicsRefusedError."""
    refused = [error for error in errors if error is not None]
    if refused:
        raise refused[0] if len(refused) == 1 else TopicsRefusedError(tuple(map(str, refused)))


def illegal_topic(topic: str, queues: int) -> IllegalTopicError | None:
    """The error for a topic that can't be made, with that name or number of queues; None: it can."""
    if problem := topic_problem(topic):
        return IllegalTopicError(topic, problem)
    if not 1 <= queues <= MAX_QUEUES:
        return IllegalTopicError(topic, f"{queues} queues asked for, but a topic has 1 to {MAX_QUEUES}")
    return None


def _text(content: Mapping[str, Any], lines: Iterable[bytes]) -> list[Buffer]:
    """The file, in pieces, with this content, whose topic table is empty, and these entries: as `json.dumps` with
    tabs."""
    *others, last = [b"", *filter(None, lines)]
    head, table, tail = json.dumps(content, indent="\t").partition(_EMPTY_TABLE)
    if not last:
        return [f"{head}{table}{tail}".encode()]
    return [f"{head}{table[:-1]}".encode(), *others, memoryview(last)[:-1], f"\n\t}}{tail}".encode()]


def _exchanged(lines: Iterable[bytes], old: bytes, new: bytes) -> list[bytes]:
    """The pieces with one line in place of another."""
    return [piece.replace(old, new, 1) for piece in lines]


def _line(topic: str, entry: Any) -> bytes:
    """An entry of the topic table as in the file, with a comma after it."""
    is_flat = isinstance(entry, dict) and not any(part for part in entry.values() if isinstance(part, dict | list))
    if is_flat and entry:  # the quick encoder can't indent
        text = json.dumps(entry, separators=(",\n\t\t\t", ": "))
        text = f"{{\n\t\t\t{text[1:-1]}\n\t\t}}"
    else:
        text = json.dumps(entry, indent="\t").replace("\n", "\n\t\t")
    return f"\n\t\t{json.dumps(topic)}: {text},".encode()


def _configs(entries: Mapping[str, Any]) -> dict[str, TopicConfig]:
    """The topics of these entries; those with invalid values or names are left out."""
    found = (_parse_entry(topic, entry) for topic, entry in entries.items() if isinstance(entry, dict))
    return {config.topic: config for config in found if config is not None}


def _unwritable(topics: Mapping[str, TopicConfig]) -> set[str]:
    return {topic for topic, config in topics.items() if not config.is_writable}


def _parse_entry(topic: str, entry: Mapping[str, Any]) -> TopicConfig | None:
    read_queues = entry.get("readQueueNums", DEFAULT_QUEUES)
    write_queues = entry.get("writeQueueNums", DEFAULT_QUEUES)
    permission = entry.get("perm", READ_AND_WRITE)
    counts = _is_number(read_queues, MOST_QUEUES) and _is_number(write_queues, MOST_QUEUES)
    if not _can_be_topic(topic) or not counts or not _is_number(permission, MOST_PERMISSION):
        return None
    return TopicConfig(topic, read_queues, write_queues, permission, _attributes(entry.get("attributes")))


def _can_be_topic(name: str) -> bool:
    """Whether there may be messages of a topic. A broker's own topic names may break its rules for clients: retry
    topics of POP consumers have a plus sign, and may have more than 127 characters."""
    try:
        name.encode()
    except UnicodeEncodeError:  # a lone surrogate, which no file name has
        return False
    return can_have_queues(name)


def _is_number(value: Any, most: int) -> bool:
    return is_whole_number(value) and 0 <= value <= most


def _attributes(stored: Any) -> dict[str, str]:
    pairs = stored.items() if isinstance(stored, dict) else ()
    return {name: value for name, value in pairs if isinstance(value, str)}


def _new_entry(topic: str) -> dict[str, Any]:
    """The entry that a broker of version 4 writes for a topic without options."""
    return {
        "order": False,
        "perm": READ_AND_WRITE,
        "topicFilterType": "SINGLE_TAG",
        "topicName": topic,
        "topicSysFlag": 0,
    }
