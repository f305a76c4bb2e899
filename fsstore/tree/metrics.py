"""Metrics: figures of a mount in Prometheus' text format, and those among them that the request loop counts.

Each request is counted. One in SAMPLE_OF of each operation is timed, since looking at the clock twice would show in
requests of ten microseconds.
"""

from __future__ import annotations

import errno
import platform
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from importlib.metadata import version
from itertools import accumulate

from engine import CheckNote, MessageStore, Retention, StoreStats, options_of
from fsstore.accounts import Resource, ResourceFigures
from fsstore.handover.memory import HandoverFigures
from fsstore.options import DISTRIBUTION
from fsstore.tree.limited_log import RateLimitedLog
from fsstore.tree.memory_budget import MemoryBudget
from fsstore.tree.nodes import Survival
from fsstore.tree.status import bounds_by_topic, group_lags

VERSION = version(DISTRIBUTION)
"""Of the program that runs, also after another one was installed."""
_COUNTERS = {
    "put_messages": "Messages stored since this daemon opened the store",
    "put_bytes": "Bytes of records stored since then",
    "read_messages": "Messages read since then, whatever the kernel had cached not counted",
    "read_bytes": "Bytes of bodies read since then",
    "queries": "Look-ups of keys since then",
    "flushes": "Times since then that the log was brought to disk",
    "expired_files": "Files of the log that retention deleted since then",
    "expired_messages": "Messages in these files that queues led to",
    "expired_bytes": "Bytes of these files",
}
_GAUGES = {
    "messages": "Messages that can be read",
    "topics": "Topics",
    "queues": "Queues of all topics",
    "min_physical_offset": "Physical offset at which the log begins: what was before has expired",
    "physical_end": "Physical offset at which the next record is stored",
    "durable_end": "Physical offset up to which the log is on disk",
    "commit_log_files": "Files of the log",
    "consume_queue_files": "Files of consume queues",
    "index_files": "Files of the index",
    "commit_log_file_bytes": "Size of each file of the log",
    "consume_queue_file_bytes": "Size of each file of a consume queue",
    "index_slots": "Hash slots of an index file",
    "index_entries": "Keys that an index file holds at most",
    "size_bytes": "Size of all these files; the next file of the log is made ahead",
    "disk_free_bytes": "Free space of the store's disk, of several the one with most",
    "disk_total_bytes": "Size of that disk",
    "sync_flush": "1 where a write is answered when it is on disk",
    "opened_at_ms": "When this daemon opened the store, in milliseconds since 1970",
    "damaged_places": "Places of the log that readers could not read since then",
    "refused_pages": "Pages of the log, queues and index that the disk refused to read, since this daemon began",
    "ignored_errors": "Errors of the disk since then that cost time or memory alone: marks or sizes not written",
}
"""What the figures of `StoreStats` say."""

SAMPLE_OF = 64
"""The first request of an operation is timed, and then each of that number: a power of two."""

BUCKETS_S = (0.00001, 0.00003, 0.0001, 0.0003, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0)
"""Upper bounds."""


class Histogram:
    """How many took how long. Thread safety: none."""

    __slots__ = ("counts", "seconds")

    def __init__(self) -> None:
        self.counts = [0] * (len(BUCKETS_S) + 1)
        """Of each bucket alone; the last one has no bound."""
        self.seconds = 0.0
        """All together."""

    def took(self, seconds: float) -> None:
        """One more."""
        self.counts[bisect_left(BUCKETS_S, seconds)] += 1
        self.seconds += seconds


class RequestFigures:
    """Of one mount, since this daemon serves it. Thread safety: one thread; others may look at copies."""

    def __init__(self) -> None:
        self.name_of: Callable[[int], str] = str
        """The operation that an opcode means; the adapter knows."""
        self.counts: defaultdict[int, int] = defaultdict(int)
        """Requests by opcode."""
        self.times: defaultdict[int, Histogram] = defaultdict(Histogram)
        """By opcode, of those that were timed."""


def metrics_of(
    store: MessageStore,
    complaints: RateLimitedLog,
    memory: MemoryBudget,
    survival: Survival,
    more: Iterable[str] = (),
) -> bytes:
    """Figures in Prometheus' text format; `more` are lines of it."""
    bounds = [
        (topic, queue, bounds) for topic, queues in bounds_by_topic(store).items() for queue, bounds in queues.items()
    ]
    lines = [
        *_store_metrics(store.stats()),
        *_retention_metrics(store.retention),
        *_check_metrics(store.last_check()),
        *_figure("memory_budget_bytes", "gauge", "What clients may make the daemon hold", memory.limit_bytes),
        *_header("fsstore_memory_bytes", "gauge", "What clients make the daemon hold"),
        *(f"fsstore_memory_bytes{{{_labels(purpose=purpose)}}} {size}" for purpose, size in memory.used.items()),
        *_figure("memory_refused_total", "counter", "Requests that were answered ENOBUFS", memory.refused),
        *_figure("memory_evicted_total", "counter", "What was kept to be read again, and had to go", memory.evicted),
        *_figure("restarts_total", "counter", "Times that a killed daemon was replaced", survival.restarts),
        *_figure(
            "planned_restarts_total", "counter", "Times that mountctl restart replaced it", survival.planned_restarts
        ),
        *_figure("complaints_total", "counter", "Requests that failed, and not by their sender", complaints.made),
        *_figure(
            "settings_problems",
            "gauge",
            "Files or entries below config/ that can't be understood",
            len(store.settings_problems()),
        ),
    ]
    for name, what in (
        ("min_offset", "Queue offset of the oldest message"),
        ("max_offset", "Queue offset of the next message"),
    ):
        lines += _header(f"fsstore_queue_{name}", "gauge", what)
        lines += [
            f"fsstore_queue_{name}{{{_labels(topic=topic, queue=queue)}}} {values[name]}"
            for topic, queue, values in bounds
        ]
    return "\n".join([*lines, *_lag_metrics(store, bounds), *more, ""]).encode("utf-8", "replace")


def _retention_metrics(retention: Retention | None) -> Iterator[str]:
    yield from _header("fsstore_retention_info", "gauge", "1 where retention deletes; the labels say by which options")
    options = {} if retention is None else options_of(retention)
    yield f"fsstore_retention_info{{{_labels(**options)}}} {int(retention is not None)}"


def _check_metrics(check: CheckNote | None) -> Iterator[str]:
    if check is not None:
        what = "When the last check of the mounted store ended, in seconds since 1970; 0 until then"
        yield from _header("fsstore_check_end_time_seconds", "gauge", what)
        yield f"fsstore_check_end_time_seconds {check.ended_ms / 1000:.3f}"
        yield from _figure(
            "check_done_bytes", "gauge", "Bytes of the log that the last check has read", check.done_bytes
        )
        yield from _figure("check_total_bytes", "gauge", "Bytes of the log that it is to read", check.total_bytes)
        yield from _figure("check_findings", "gauge", "What the last check found, once it has ended", check.findings)


def refusal_metrics(counts: Mapping[str, int]) -> Iterator[str]:
    """Of publications."""
    yield from _header("fsstore_refused_total", "counter", "Publications that were refused, by reason")
    for reason, count in counts.items():
        yield f"fsstore_refused_total{{{_labels(reason=reason)}}} {count}"


_OF_ACCOUNTS = {
    "limit": ("gauge", "How much there is for all users together"),
    "used": ("gauge", "How much of it is held"),
    "users": ("gauge", "How many users hold some"),
    "largest": ("gauge", "What the user holds who holds most"),
    "refused": ("counter", "Requests that asked for more than their user's share"),
}
"""What the figures of `ResourceFigures` say."""


def account_metrics(figures: Mapping[Resource, ResourceFigures]) -> Iterator[str]:
    """Of what users share."""
    for field, (kind, what) in _OF_ACCOUNTS.items():
        name = f"fsstore_account_{field}" + "_total" * (kind == "counter")
        yield from _header(name, kind, what)
        for of, its in figures.items():
            yield f"{name}{{{_labels(resource=of.value)}}} {getattr(its, field)}"


_OF_HANDOVER = {
    "bytes": "Memory that the next daemon would take over",
    "limit_bytes": "How much that can be",
    "live_bytes": "Bytes of it that count",
    "names": "Numbers of files that the kernel knows, and the next daemon is to know",
    "handles": "Files and directories that are open",
    "handles_lost": "Open files that would answer EIO should this daemon be killed",
    "requests": "Requests that publish or change something, and are not answered yet",
}
"""What the figures of `HandoverFigures` say."""


def handover_metrics(figures: HandoverFigures) -> Iterator[str]:
    """Of the memory that outlives this daemon."""
    for name, what in _OF_HANDOVER.items():
        yield from _figure(f"handover_{name}", "gauge", what, getattr(figures, name))


def process_metrics(started_s: float, followed_s: float | None) -> Iterator[str]:
    """Of this daemon: what it is, since when, and (`followed_s`) how old what a follower shows may be."""
    yield from _header("fsstore_build_info", "gauge", "Always 1; the labels say what runs")
    yield f"fsstore_build_info{{{_labels(version=VERSION, python=platform.python_version())}}} 1"
    yield from _header("fsstore_start_time_seconds", "gauge", "When this daemon began to serve, in seconds since 1970")
    yield f"fsstore_start_time_seconds {started_s:.3f}"
    if followed_s is not None:
        what = "Seconds since the writer's store was last read on: what it wrote since is not shown yet"
        yield from _header("fsstore_follow_lag_seconds", "gauge", what)
        yield f"fsstore_follow_lag_seconds {followed_s:.3f}"


def request_metrics(figures: RequestFigures, by_errno: Mapping[int, int]) -> Iterator[str]:
    """Of the kernel's requests."""
    counts, times = sorted(figures.counts.items()), sorted(figures.times.items())
    yield from _header("fsstore_requests_total", "counter", "Requests of the kernel, by operation")
    for opcode, count in counts:
        yield f"fsstore_requests_total{{{_labels(operation=figures.name_of(opcode))}}} {count}"
    yield from _header("fsstore_request_errors_total", "counter", "Requests that were answered with an errno")
    for number, count in sorted(by_errno.items()):
        name = errno.errorcode.get(number, str(number))
        yield f"fsstore_request_errors_total{{{_labels(errno=name)}}} {count}"
    name = "fsstore_request_duration_seconds"
    of_which = f"of one request in {SAMPLE_OF} of each operation, the first among them, if it succeeds"
    what = f"Time to an answer, {of_which}; what waits for the disk is timed until it begins to wait"
    yield from _header(name, "histogram", what)
    for opcode, histogram in times:
        yield from _histogram(name, figures.name_of(opcode), histogram)


def _histogram(name: str, operation: str, histogram: Histogram) -> Iterator[str]:
    *totals, count = accumulate(histogram.counts)
    for bound, total in zip(BUCKETS_S, totals, strict=True):
        yield f"{name}_bucket{{{_labels(operation=operation, le=repr(bound))}}} {total}"
    yield f"{name}_bucket{{{_labels(operation=operation, le='+Inf')}}} {count}"
    yield f"{name}_sum{{{_labels(operation=operation)}}} {histogram.seconds:.6f}"
    yield f"{name}_count{{{_labels(operation=operation)}}} {count}"


def _store_metrics(stats: StoreStats) -> Iterator[str]:
    is_read_only = stats.read_only_reason is not None or stats.mode.lower() != "write"
    has_keys = stats.index in ("in use", "rebuilt", "derived")
    yield from _figure("read_only", "gauge", "1 where nothing can be published", is_read_only)
    what = "1 where a publication found no space, and there is none yet"
    yield from _figure("no_space", "gauge", what, stats.no_space_reason is not None)
    yield from _figure("index_in_use", "gauge", "0 where a follower can't find keys, or not each of them", has_keys)
    what = "1 where queues are made from the log, not the writer's own"
    yield from _figure("queues_derived", "gauge", what, stats.queues_derived is not None)
    yield from _figure("not_shown", "gauge", "Kinds of data in the store that are not read", len(stats.not_shown))
    for name, what in _COUNTERS.items():
        yield from _figure(f"{name}_total", "counter", what, getattr(stats, name))
    for name, what in _GAUGES.items():
        yield from _figure(name, "gauge", what, getattr(stats, name))
    recovery = stats.recovery
    yield from _figure("recovered", "gauge", "1 where the last writer had not closed the store", not recovery.clean)
    yield from _header("fsstore_recovery_seconds", "gauge", "How long the opening took")
    yield f"fsstore_recovery_seconds {recovery.seconds:.3f}"
    yield from _figure("recovery_scanned_bytes", "gauge", "Bytes of the log that it read", recovery.scanned_bytes)
    yield from _figure("recovery_cut_bytes", "gauge", "Bytes of a torn tail that it cut", recovery.cut_bytes)
    what = "Places of the log that it could not read"
    yield from _figure("recovery_damaged", "gauge", what, len(recovery.damaged))


def _lag_metrics(store: MessageStore, bounds: list[tuple[str, str, dict[str, int]]]) -> list[str]:
    by_topic: dict[str, dict[str, dict[str, int]]] = {}
    for topic, queue, values in bounds:
        by_topic.setdefault(topic, {})[queue] = values
    lines = _header("fsstore_group_lag", "gauge", "Messages of a queue that a consumer group has not consumed")
    for group, topics in group_lags(store, by_topic).items():
        for topic, queues in topics.items():
            lines += [
                f"fsstore_group_lag{{{_labels(group=group, topic=topic, queue=queue)}}} {values['lag']}"
                for queue, values in queues.items()
            ]
    return lines


def _figure(name: str, kind: str, what: str, value: int) -> list[str]:
    return [*_header(f"fsstore_{name}", kind, what), f"fsstore_{name} {int(value)}"]


def _header(name: str, kind: str, what: str) -> list[str]:
    return [f"# HELP {name} {what}.", f"# TYPE {name} {kind}"]


def _labels(**labels: str) -> str:
    def quoted(value: str) -> str:
        return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")

    return ",".join(f'{name}="{quoted(value)}"' for name, value in labels.items())
