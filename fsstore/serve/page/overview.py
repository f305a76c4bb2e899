"""The first page: topics, the state of store and mount, groups."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from threading import Lock
from typing import Any, NamedTuple

import msgspec

from engine import MasterFigures, MessageStore, QueueState, RecoveryReport, StoreStats, rows_of
from fsstore.serve.page.rendering import human_size, human_time
from fsstore.serve.page.selection import Parameters, number_in
from fsstore.serve.tree import PathError, ServedTree
from fsstore.topic_facts import LOOKED_AT, TopicFacts, facts_of, is_system_topic

PAGE_TOPICS = 50
PAGE_QUEUES = 4 * LOOKED_AT
PAGE_GROUPS = 50
REPORT_S = 1.0
"""Seconds for which a report of the mount is shown again."""


class TopicsPage(NamedTuple):
    """Some of the `total` topics: those from number `first` on, counted from 0, on the page `page` of them; `is_last`:
    there are none behind them. `hidden` are empty ones of RocketMQ's own."""

    topics: Sequence[TopicFacts]
    total: int
    hidden: int
    page: int
    first: int
    is_last: bool


class GroupLag(NamedTuple):
    """A group in a topic: its number of queues, and the messages that it has not read."""

    group: str
    topic: str
    queues: int
    lag: int


def topics_page(store: MessageStore, parameters: Parameters) -> TopicsPage:
    """The topics whose names contain the parameter `find`, by name. Only those up to the end of the page are looked at.
    PathError."""
    wanted, every = parameters.get("find", "").lower(), "system" in parameters
    names = [topic for topic in store.topics() if wanted in topic.lower()]
    hidden = set() if every else _empty(store, list(filter(is_system_topic, names)))
    shown = [topic for topic in names if topic not in hidden]
    asked, page, first = number_in(parameters, "page") or 0, 0, 0
    states = _page_from(store, shown, first)
    while page < asked and first + len(states) < len(shown):
        page, first = page + 1, first + len(states)
        states = _page_from(store, shown, first)
    now_ms = time.time_ns() // 1_000_000
    facts = [facts_of(store, topic, queues, now_ms) for topic, queues in states.items() if store.has_topic(topic)]
    return TopicsPage(facts, len(shown), len(hidden), page, first, first + len(states) >= len(shown))


def _empty(store: MessageStore, topics: Sequence[str]) -> set[str]:
    return {*topics} - {state.topic for state in store.queue_states(topics) if state.messages or state.refused}


def _page_from(store: MessageStore, shown: Sequence[str], first: int) -> dict[str, list[QueueState]]:
    """The topics of a page that begins with number `first`, with their queues: as many as take little time."""
    found: dict[str, list[QueueState]] = {}
    queues = 0
    for topic in shown[first : first + PAGE_TOPICS]:
        states = store.queue_states([topic])
        queues += min(sum(state.messages > 0 for state in states), LOOKED_AT)
        if found and queues > PAGE_QUEUES:
            break
        found[topic] = states
    return found


@dataclass(frozen=True, slots=True)
class MountState:
    """The mount's report about itself and its store: `status.json`, without topics."""

    status: Mapping[str, Any]

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
        for reason, count in self.status["refused_publications"].items():
            if count:
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
    """The reports of a mount, each read again after REPORT_S, or after ten times the time that it took. Thread safety:
    any thread."""

    def __init__(self, tree: ServedTree, clock: Callable[[], float] = time.monotonic) -> None:
        self._tree = tree
        self._clock = clock
        self._lock = Lock()
        self._known: MountState | None = None
        self._read_again_s = 0.0

    def state(self) -> MountState:
        """The mount's report now. PathError: it can't be read; MountGoneError, OSError."""
        with self._lock:
            began_s = self._clock()
            if self._known is None or began_s > self._read_again_s:
                self._known = self._read()
                self._read_again_s = self._clock() + max(REPORT_S, 10 * (self._clock() - began_s))
            return self._known

    def _read(self) -> MountState:
        with self._tree.open((b"@store", b"status.json")) as file:
            content = file.readall()
        try:
            parts = msgspec.json.decode(content, type=dict[str, msgspec.Raw])
            return MountState({name: msgspec.json.decode(part) for name, part in parts.items() if name != "topics"})
        except msgspec.DecodeError as error:
            raise PathError(502, f"status.json is not JSON: {error}") from None
