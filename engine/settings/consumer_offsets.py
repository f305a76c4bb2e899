"""Consumer offsets: the next queue offset of each consumer group (docs/format.md, 11). Written by brokers, and by us.

consumerOffset.json       {"offsetTable": {"topic@group": {queue: next queue offset}}}
lmqConsumerOffset.json    {"lmqOffsetTable": {"topic@group": next queue offset of queue 0}}
"""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from engine.deadline import check_deadline
from engine.errors import ConsumerOffsetError
from engine.files.disk import Disk, is_whole_number
from engine.record.header import MAX_OFFSET
from engine.settings.config_file import Version, next_version, read_config, version_of, write_config

MOST_GROUP_CHARACTERS = 255
_GROUP = re.compile("[%|a-zA-Z0-9_-]+")
_QUEUE = re.compile("[0-9]{1,10}")

Offsets = dict[str, dict[str, dict[int, int]]]
"""group -> topic -> queue -> next queue offset"""


class _Known(NamedTuple):
    """The content of both files at these `versions`, and the offsets in it."""

    versions: list[Version]
    content: dict[str, Any]
    lmq: dict[str, Any]
    offsets: Offsets


class ConsumerOffsets:
    """The consumer offsets of one store, read again when their files have changed. Thread safety: any thread."""

    def __init__(self, path: Path, lmq_path: Path) -> None:
        self._paths = path, lmq_path
        self._known: _Known | None = None
        self._lock = threading.Lock()

    def read(self) -> Offsets:
        """The current offsets; read-only. ConfigFileError; WouldBlock on a nonblocking thread when the files must be
        read."""
        return self._read().offsets

    def _read(self) -> _Known:
        """As `read`. A file that is unchanged, or that we wrote, is not read again, because the read might fail."""
        versions = self._versions()
        known = self._known
        if known is None or known.versions != versions:
            check_deadline()
            content, lmq = map(read_config, self._paths)
            known = self._known = _Known(versions, content, lmq, _offsets_in(content, lmq))
        return known

    def _versions(self) -> list[Version]:
        return [version_of(path) for path in self._paths]

    @property
    def changed_ns(self) -> int | None:
        """Newest modification time of the files in epoch ns; None: both are missing."""
        times = [file[2] for path in self._paths for file in version_of(path)[:1] if file is not None]
        return max(times, default=None)

    def commit(self, group: str, topic: str, queue: int, offset: int, disk: Disk, now_ms: int) -> None:
        """Durably store a group's next queue offset; the rest of the file is unchanged. A broker that reads the file
        uses the offset. ConsumerOffsetError, ConfigFileError, OSError."""
        if problem := group_problem(group):
            raise ConsumerOffsetError(group, problem)
        with self._lock:
            path, lmq_path = self._paths
            if any(path.parent.glob("*/CURRENT")):
                raise ConsumerOffsetError(group, "the broker keeps offsets in RocksDB, which is not written")
            known = self._read()
            content, lmq = known.content, known.lmq
            name = f"{topic}@{group}"
            if any(
                isinstance(table := lmq.get(key), dict) and name in table for key in ("offsetTable", "lmqOffsetTable")
            ):
                raise ConsumerOffsetError(
                    group, f"its offset in {topic} is kept in {lmq_path.name}, which is not written"
                )
            table = content.get("offsetTable")
            table = dict(table) if isinstance(table, dict) else {}
            queues = table.get(name)
            table[name] = {**(queues if isinstance(queues, dict) else {}), str(queue): offset}
            content = {**content, "offsetTable": table}
            if "dataVersion" in content:
                content["dataVersion"] = next_version(content["dataVersion"], now_ms)
            write_config(path, content, disk)
            self._known = _Known(self._versions(), content, lmq, _offsets_in(content, lmq))


def group_problem(group: str) -> str:
    """Reason why a broker refuses a consumer group's name; empty: it is legal."""
    if not group or len(group) > MOST_GROUP_CHARACTERS:
        return f"a group's name has 1 to {MOST_GROUP_CHARACTERS} characters"
    if not _GROUP.fullmatch(group):
        return "a group's name holds letters, digits, %, |, - and _ alone"
    return ""


def _offsets_in(content: Mapping[str, Any], lmq: Mapping[str, Any]) -> Offsets:
    """The offsets in both files; invalid entries are left out."""
    found: Offsets = {}
    for file in (content, lmq):
        for group, topic, queues in _entries(file.get("offsetTable")):
            if isinstance(queues, dict):
                found.setdefault(group, {}).setdefault(topic, {}).update(_queue_offsets(queues))
    for group, topic, offset in _entries(lmq.get("lmqOffsetTable")):
        found.setdefault(group, {}).setdefault(topic, {}).update(_queue_offsets({"0": offset}))
    return found


def _entries(table: Any) -> Iterator[tuple[str, str, Any]]:
    """Yields (group, topic, value) for each key "topic@group" of a table."""
    for name, value in (table if isinstance(table, dict) else {}).items():
        topic, at, group = name.partition("@")
        if topic and at and group:
            yield group, topic, value


def _queue_offsets(queues: Mapping[str, Any]) -> dict[int, int]:
    return {int(queue): offset for queue, offset in queues.items() if _QUEUE.fullmatch(queue) and _is_offset(offset)}


def _is_offset(value: Any) -> bool:
    return is_whole_number(value) and abs(value) <= MAX_OFFSET
