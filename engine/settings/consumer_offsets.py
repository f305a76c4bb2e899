"""Consumer offsets: how far each group of consumers is (docs/format.md, 11). Written by brokers; only read here.

consumerOffset.json       {"offsetTable": {"topic@group": {queue: next queue offset}}}
lmqConsumerOffset.json    {"lmqOffsetTable": {"topic@group": next queue offset of queue 0}}
"""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from engine.files.disk import is_whole_number
from engine.files.file_scan import MAX_OFFSET
from engine.haste import require_time
from engine.settings.config_file import Version, read_config, version_of

_QUEUE = re.compile("[0-9]{1,10}")

Offsets = dict[str, dict[str, dict[int, int]]]
"""group -> topic -> queue -> next queue offset"""


class ConsumerOffsets:
    """Those of one store, read again when their files have changed. Thread safety: any thread."""

    def __init__(self, path: Path, lmq_path: Path) -> None:
        self._paths = path, lmq_path
        self._known: tuple[list[Version], Offsets] | None = None

    def read(self) -> Offsets:
        """What the files say now; not to be changed. ConfigFileError; TakesLongError in haste: they are to be read."""
        versions = [version_of(path) for path in self._paths]
        known = self._known
        if known is None or known[0] != versions:
            require_time()
            known = self._known = versions, read_consumer_offsets(*self._paths)
        return known[1]


def read_consumer_offsets(path: Path, lmq_path: Path) -> Offsets:
    """The offsets in both files; empty where they are missing. Odd entries are left out. ConfigFileError."""
    found: Offsets = {}
    lmq = read_config(lmq_path)
    for content in (read_config(path), lmq):
        for group, topic, queues in _entries(content.get("offsetTable")):
            if isinstance(queues, dict):
                found.setdefault(group, {}).setdefault(topic, {}).update(_queue_offsets(queues))
    for group, topic, offset in _entries(lmq.get("lmqOffsetTable")):
        found.setdefault(group, {}).setdefault(topic, {}).update(_queue_offsets({"0": offset}))
    return found


def _entries(table: Any) -> Iterator[tuple[str, str, Any]]:
    """(group, topic, value) of each "topic@group" in a table."""
    for name, value in (table if isinstance(table, dict) else {}).items():
        topic, at, group = name.partition("@")
        if topic and at and group:
            yield group, topic, value


def _queue_offsets(queues: Mapping[str, Any]) -> dict[int, int]:
    return {int(queue): offset for queue, offset in queues.items() if _QUEUE.fullmatch(queue) and _is_offset(offset)}


def _is_offset(value: Any) -> bool:
    return is_whole_number(value) and abs(value) <= MAX_OFFSET
