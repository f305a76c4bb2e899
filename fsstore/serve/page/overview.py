"""What the first page shows: topics, the state of store and mount, groups."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from threading import Lock
from typing import Any, NamedTuple

import msgspec

from engine import MasterFigures, MessageStore, QueueState, RecoveryReport, StoreStats, rows_of
from fsstore.query.topics import LOOKED_AT, TopicFacts, facts_of, is_system_topic
from fsstore.serve.page.rendering import human_size, human_time
from fsstore.serve.page.selection import Parameters, number_in
from fsstore.serve.tree import PathError, ServedTree

PAGE_TOPICS = 50
PAGE_QUEUES = 4 * LOOKED_AT
PAGE_GROUPS = 50
REPORT_S = 1.0
"""Seconds for which reports of the mount are shown again: of thousands of queues, one takes its daemon a while."""
_REFUSED = re.compile(rb'^fsstore_refused_total\{reason="(\w+)"\} ([1-9][0-9]*)', re.MULTILINE)


class TopicsPage(NamedTuple):
    """Some of the topics. `hidden` are empty ones of RocketMQ's own; `page`, from 0, of `pages`."""

    topics: Sequence[TopicFacts]
    total: int
    hidden: int
    page: int
    pages: int


class GroupLag(NamedTuple):
    """A group in a topic: its number of queues, and the messages that it has not read."""

    group: str
    topic: str
    queues: int
    lag: int


def topics_page(store: MessageStore, parameters: Parameters) -> TopicsPage:
    """The topics whose names contain the parameter `find`, by name. PathError."""
    wanted, every = parameters.get("find", "").lower(), "system" in parameters
    by_topic: dict[str, list[QueueState]] = {topic: [] for topic in store.topics()}
    for state in store.queue_states():
        by_topic.setdefault(state.topic, []).append(state)
    found = {topic: states for topic, states in sorted(by_topic.items()) if wanted in topic.lower()}
    hidden = [
        topic
        for topic, states in found.items()
        if not every and is_system_topic(topic) and not any(state.messages or state.refused for state in states)
    ]
    for topic in hidden:
        del found[topic]
    pages = list(_pages(found))
    page = min(number_in(parameters, "page") or 0, len(pages) - 1)
    now_ms = time.time_ns() // 1_000_000
    facts = [facts_of(store, topic, found[topic], now_ms) for topic in pages[page] if store.has_topic(topic)]
    return TopicsPage(facts, len(found), len(hidden), page, len(pages))


def _pages(found: Mapping[str, Sequence[QueueState]]) -> Iterator[list[str]]:
    """Topics of each page: as many as take little time. One page at least."""
    names: list[str] = []
    queues = 0
    for topic, states in found.items():
        filled = min(sum(state.messages > 0 for state in states), LOOKED_AT)
        if names and (len(names) == PAGE_TOPICS or queues + filled > PAGE_QUEUES):
            yield names
            names, queues = [], 0
        names.append(topic)
        queues += filled
    yield names


@dataclass(frozen=True, slots=True)
class MountState:
    """What the mount says of itself and its store: `status.json`, and refused publications by reason."""

    status: Mapping[str, Any]
    refused: Mapping[str, int]

    @property
    def facts(self) -> list[tuple[str, str]]:
        """Names and values for people."""
        status, stats = self.status, self.status["stats"]
        waiting = stats["physical_end"] - stats["durable_end"]
        recovery = "cleanly closed" if stats["recovery"]["clean"] else "recovered: its last writer did not close it"
        found = [
            ("Store", status["store"]),
            ("Mounted at", f"{status['mountpoint']} by version {status['version']}"),
            ("Access", status["mode"]),
            ("Log", f"{human_size(stats['physical_end'] - stats['min_physical_offset'])}, {_log_files(stats)}"),
            ("On disk", "all of it" if waiting <= 0 else f"all but the newest {human_size(waiting)}"),
            ("Disk", f"{human_size(stats['disk_free_bytes'])} free of {human_size(stats['disk_total_bytes'])}"),
            ("Retention", _retention(status)),
            ("Opened", f"{human_time(stats['opened_at_ms'])} ({recovery})"),
        ]
        if check := status.get("last_check"):
            found.append(
                ("Last check", f"{check['state']}, {human_time(check['begun_ms'])}, findings: {check['findings']:,}")
            )
        return found

    @property
    def problems(self) -> list[str]:
        """Sentences: damage, and all else that wants to be looked at."""
        status, stats = self.status, self.status["stats"]
        whole = [
            status["read_only_reason"] and f"Nothing can be published: {status['read_only_reason']}",
            stats["no_space_reason"] and f"Nothing can be published: {stats['no_space_reason']}",
            status["log_problem"],
            stats["queues_derived"] and f"Queues are derived from the log: {stats['queues_derived']}",
            stats["index"] != "in use" and f"The index of keys is {stats['index']}: {stats['index_reason']}",
            *status["settings_problems"],
            *(f"The disk refuses {problem}" for problem in status["refused_queues"]),
            *(f"Not shown: {sentence}" for sentence in stats["not_shown"]),
        ]
        return [*filter(None, whole), *self._notices()]

    def _notices(self) -> Iterator[str]:
        stats = self.status["stats"]
        records = (
            (RecoveryReport, stats["recovery"]),
            (StoreStats, stats),
            (MasterFigures, self.status["replication"] or {}),
        )
        for record, values in records:
            for name, row in rows_of(record):
                if row.notice and (number := int(row.number(values[name])) if name in values else 0):
                    label, noun, rest = row.notice.split(" ", 2)
                    yield f"{label}: {number:,} × {noun} {rest.format_map(values)}"
        if restarts := self.status.get("restarts"):
            yield f"The daemon was killed and replaced {restarts:,} times: see {self.status.get('log_file')}"
        for reason, count in self.refused.items():
            yield f"Refused publications ({reason.replace('_', ' ')}): {count:,}; @store/refusals has the reasons"

    def groups(self) -> list[GroupLag]:
        """Groups by topic, the largest lag first."""
        found = [
            GroupLag(group, topic, len(queues), sum(at["lag"] for at in queues.values()))
            for group, topics in self.status["groups"].items()
            for topic, queues in topics.items()
        ]
        return sorted(found, key=lambda one: (-one.lag, one.group, one.topic))


def _log_files(stats: Mapping[str, Any]) -> str:
    files = stats["commit_log_files"]
    return f"{files:,} {'file' if files == 1 else 'files'} of {human_size(stats['commit_log_file_bytes'])}"


def _retention(status: Mapping[str, Any]) -> str:
    if status["mode"] != "write":
        return "that of the process that writes the store"
    in_force, last = status["retention"]["in_force"] or "off: nothing is deleted", status["stats"]["last_deletion"]
    return f"{in_force}; last deletion {human_time(last['at_ms'])}: {last['reason']}" if last else in_force


class MountReports:
    """The reports of a mount, each read again after REPORT_S. Thread safety: any thread."""

    def __init__(self, tree: ServedTree, clock: Callable[[], float] = time.monotonic) -> None:
        self._tree = tree
        self._clock = clock
        self._lock = Lock()
        self._known: tuple[float, MountState] | None = None

    def state(self) -> MountState:
        """What the mount says now. PathError: it can't be read; MountGoneError, OSError."""
        with self._lock:
            if self._known is None or self._clock() - self._known[0] > REPORT_S:
                status = self._read(b"status.json")
                refused = {name.decode(): int(count) for name, count in _REFUSED.findall(self._read(b"metrics"))}
                try:
                    self._known = self._clock(), MountState(msgspec.json.decode(status), refused)
                except msgspec.DecodeError as error:
                    raise PathError(502, f"status.json is no JSON: {error}") from None
            return self._known[1]

    def _read(self, name: bytes) -> bytes:
        with self._tree.open((b"@store", name)) as file:
            return file.readall()
