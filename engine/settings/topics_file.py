"""Topics and their queue counts: config/topics.json (docs/format.md, 11).

    {"dataVersion": {...}, "topicConfigTable": {"orders": {"topicName": "orders", "writeQueueNums": 4, ...}}}

Unknown fields are kept.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine.errors import ConfigFileError, IllegalTopicError, StoreError, TopicExistsError
from engine.files.disk import Disk, is_whole_number
from engine.record.multi_dispatch import can_have_queues
from engine.record.record import topic_problem
from engine.settings.config import Clock
from engine.settings.config_file import Version, next_version, read_config, version_of, write_config

MAX_QUEUES = 1_024
MOST_QUEUES = 16_384
"""Largest valid number of queues in an entry: listings show all queues of a topic, even empty ones."""
MOST_TOLD = 100
MOST_PERMISSION = (1 << 31) - 1
DEFAULT_QUEUES = 16  # RocketMQ's, where an entry does not say
READ_AND_WRITE = 6


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

    Thread safety: any thread; readers see a snapshot.
    """

    def __init__(self, path: Path, disk: Disk, clock: Clock) -> None:
        """Read the file. If it can't be parsed, it counts as empty, `problem` is set, and it is not overwritten."""
        self._path = path
        self._disk = disk
        self._clock = clock
        self._lock = threading.Lock()
        self._content: dict[str, Any] = {}
        self._topics: dict[str, TopicConfig] = {}
        self.unwritable: set[str] = set()
        """Topics without write permission; always the same object, read-only."""
        self._version: Version | None = None
        self.problem: ConfigFileError | None = None
        self.reload()

    def problems(self) -> list[str]:
        """Sentences about the file if it can't be parsed, else about the entries that are left out."""
        if self.problem is not None:
            return [str(self.problem)]
        left_out = sorted(set(map(str, _entries(self._content))) - self._topics.keys())
        shown = [f"{self._path}: the entry of topic {topic[:255]!r} is left out" for topic in left_out[:MOST_TOLD]]
        more = len(left_out) - len(shown)
        return [*shown, f"{self._path}: {more:,} more entries are left out"] if more else shown

    def reload(self) -> bool:
        """Read the file again if another process changed it; returns whether the topics changed.

        If it can't be parsed, the known topics are kept, because it may be incomplete during a write.
        """
        with self._lock:
            version = version_of(self._path)
            if version == self._version:
                return False
            before = self._topics
            try:
                self._content = read_config(self._path)
            except ConfigFileError as error:
                self.problem = error.with_traceback(None)  # a traceback would keep the callers' maps alive
                return False
            self._version, self.problem = version, None
            self._show(self._content)
            return self._topics != before

    def names(self) -> list[str]:
        """All topics, sorted."""
        return sorted(self._topics)

    def get(self, topic: str) -> TopicConfig | None:
        """The entry of a topic; None: the file has none."""
        return self._topics.get(topic)

    def create(self, topic: str, queues: int) -> None:
        """Add a topic. TopicExistsError, IllegalTopicError, ConfigFileError, OSError."""
        with self._lock:
            if topic in self._topics:
                raise TopicExistsError(topic)
            self._store(topic, queues)

    def ensure(self, topic: str, queues: int) -> bool:
        """Make a topic, or give it at least `queues` queues; returns whether it changed. Errors as `create`."""
        with self._lock:
            known = self._topics.get(topic)
            if known is not None and min(known.read_queues, known.write_queues) >= queues:
                return False
            self._store(topic, max(queues, known.queues if known else 0))
            return True

    def discard(self, topic: str) -> None:
        """Remove a topic, if the file has it. ConfigFileError, OSError."""
        with self._lock:
            if topic in self._topics:
                table = self._table()
                del table[topic]
                self._replace_table(table)

    def _store(self, topic: str, queues: int) -> None:
        if problem := topic_problem(topic):
            raise IllegalTopicError(topic, problem)
        if not 1 <= queues <= MAX_QUEUES:
            raise IllegalTopicError(topic, f"{queues} queues asked for, but a topic has 1 to {MAX_QUEUES}")
        table = self._table()
        known = table.get(topic)
        entry = known if isinstance(known, dict) else _new_entry(topic)
        table[topic] = {**entry, "readQueueNums": queues, "writeQueueNums": queues}
        self._replace_table(table)

    def _table(self) -> dict[str, Any]:
        """A copy of the table in the file."""
        return dict(_entries(self._content))

    def _replace_table(self, table: dict[str, Any]) -> None:
        if self.problem is not None:
            raise self.problem
        content = {**self._content, "topicConfigTable": table}
        content["dataVersion"] = next_version(content.get("dataVersion"), self._clock())
        try:
            write_config(self._path, content, self._disk)
        except (StoreError, OSError):
            with suppress(StoreError, OSError):  # the new file may have replaced the old one already
                write_config(self._path, self._content, self._disk)
            raise
        self._content = content
        self._show(content)

    def _show(self, content: Mapping[str, Any]) -> None:
        """Use the topics of `content` from now on."""
        self._topics = parse_topics(content)
        unwritable = {topic for topic, config in self._topics.items() if not config.is_writable}
        self.unwritable |= unwritable
        self.unwritable &= unwritable


def parse_topics(content: Mapping[str, Any]) -> dict[str, TopicConfig]:
    """The topics in the content of topics.json; entries with invalid values or names are left out."""
    entries = _entries(content).items()
    found = (_parse_entry(topic, entry) for topic, entry in entries if isinstance(entry, dict))
    return {config.topic: config for config in found if config is not None}


def _entries(content: Mapping[str, Any]) -> Mapping[str, Any]:
    """The topic table in the content of topics.json; empty if it is not an object."""
    table = content.get("topicConfigTable")
    return table if isinstance(table, dict) else {}


def _parse_entry(topic: str, entry: Mapping[str, Any]) -> TopicConfig | None:
    read_queues = entry.get("readQueueNums", DEFAULT_QUEUES)
    write_queues = entry.get("writeQueueNums", DEFAULT_QUEUES)
    permission = entry.get("perm", READ_AND_WRITE)
    counts = all(_is_number(count, MOST_QUEUES) for count in (read_queues, write_queues))
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
