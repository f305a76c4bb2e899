"""Metrics: figures of a mount in Prometheus' text format, and the counters of the request loop.

Each request is counted. One in SAMPLE_OF of each operation is timed, because reading the clock twice is measurable in
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
"""The version of the running program, also after another one was installed."""
_COUNTERS = {
    "put_messages": "Messages stored since this daemon opened the store",
    "put_bytes": "Bytes of records stored since then",
    "read_messages": "Messages read since then, without reads that the kernel's cache answered",
    "read_bytes": "Bytes of bodies read since then",
    "queries": "Look-ups of keys since then",
    "flushes": "Flushes of the log to disk since then",
    "expired_files": "Files of the log that retention deleted since then",
    "expired_messages": "Messages in these files",
    "expired_bytes": "Bytes of these files",
}
_GAUGES = {
    "messages": "Messages that can be read",
    "topics": "Topics",
    "queues": "Queues of all topics",
    "min_physical_offset": "Physical offset at which the log begins: records before it have expired",
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
    "disk_free_bytes": "Free space of the store's disk; of several disks, the largest",
    "disk_total_bytes": "Size of that disk",
    "sync_flush": "1 if a write is answered when it is on disk",
    "opened_at_ms": "Time when this daemon opened the store, in milliseconds since 1970",
    "damaged_places": "Places of the log that readers could not read since then",
    "refused_pages": "Pages of the log, queues and index that the disk refused to read, since this daemon began",
    "ignored_errors": "Errors of the disk since then that cost only time or memory: marks or sizes not written",
}
"""Help texts of the figures of `StoreStats`."""

SAMPLE_OF = 64
"""The distance between timed requests of an operation, the first one included; a power of two."""

BUCKETS_S = (0.00001, 0.00003, 0.0001, 0.0003, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0)
"""Upper bounds of the buckets."""


class Histogram:
    """Numbers of requests by duration. Thread safety: none."""

    __slots__ = ("counts", "seconds")

    def __init__(self) -> None:
        self.counts = [0] * (len(BUCKETS_S) + 1)
        """For each bucket alone; the last one has no bound."""
        self.seconds = 0.0

    def took(self, seconds: float) -> None:
        self.counts[bisect_left(BUCKETS_S, seconds)] += 1
        self.seconds += seconds


class RequestFigures:
    """Counters of one mount since this daemon serves it. Thread safety: one thread; others may read copies."""

    def __init__(self) -> None:
        self.name_of: Callable[[int], str] = str
        """The name of an opcode, which the adapter sets."""
        self.counts: defaultdict[int, int] = defaultdict(int)
        """Requests by opcode."""
        self.times: defaultdict[int, Histogram] = defaultdict(Histogram)
        """Durations of timed requests by opcode."""


def metrics_of(
    store: MessageStore,
    complaints: RateLimitedLog,
    memory: MemoryBudget,
    survival: Survival,
    more: Iterable[str] = (),
) -> bytes:
    """Figures in Prometheus' text format; `more` are further lines."""
    bounds = [
        (topic, queue, bounds) for topic, queues in bounds_by_topic(store).items() for queue, bounds in queues.items()
    ]
    lines = [
        *_store_metrics(store.stats()),
        *_retention_metrics(store.retention),
        *_check_metrics(store.last_check()),
        *_figure("memory_budget_bytes", "gauge", "Memory that clients may make the daemon hold", memory.limit_bytes),
        *_header("fsstore_memory_bytes", "gauge", "Memory that clients make the daemon hold"),
        *(f"fsstore_memory_bytes{{{_labels(purpose=purpose)}}} {size}" for purpose, size in memory.used.items()),
        *_figure("memory_refused_total", "counter", "Requests that were answered ENOBUFS", memory.refused),
        *_figure("memory_evicted_total", "counter", "Evictions of data kept for further reads", memory.evicted),
        *_figure("restarts_total", "counter", "Killed daemons that were replaced", survival.restarts),
        *_figure(
            "planned_restarts_total", "counter", "Daemons that mountctl restart replaced", survival.planned_restarts
        ),
        *_figure("complaints_total", "counter", "Requests that failed through no fault of the client", complaints.made),
        *_figure(
            "settings_problems",
            "gauge",
            "Files or entries below config/ that can't be understood",
            len(store.settings_problems()),
        ),
    ]
    for name, text in (
        ("min_offset", "Queue offset of the oldest message"),
        ("max_offset", "Queue offset of the next message"),
    ):
        lines += _header(f"fsstore_queue_{name}", "gauge", text)
        lines += [
            f"fsstore_queue_{name}{{{_labels(topic=topic, queue=queue)}}} {values[name]}"
            for topic, queue, values in bounds
        ]
    return "\n".join([*lines, *_lag_metrics(store, bounds), *more, ""]).encode("utf-8", "replace")


def _retention_metrics(retention: Retention | None) -> Iterator[str]:
    yield from _header("fsstore_retention_info", "gauge", "1 if retention deletes; the labels are its options")
    options = {} if retention is None else options_of(retention)
    yield f"fsstore_retention_info{{{_labels(**options)}}} {int(retention is not None)}"


def _check_metrics(check: CheckNote | None) -> Iterator[str]:
    if check is not None:
        text = "Time when the last check of the mounted store ended, in seconds since 1970; 0 until then"
        yield from _header("fsstore_check_end_time_seconds", "gauge", text)
        yield f"fsstore_check_end_time_seconds {check.ended_ms / 1000:.3f}"
        yield from _figure(
            "check_done_bytes", "gauge", "Bytes of the log that the last check has read so far", check.done_bytes
        )
        yield from _figure("check_total_bytes", "gauge", "Bytes of the log that it reads in total", check.total_bytes)
        yield from _figure("check_findings", "gauge", "Findings of the last check, once it has ended", check.findings)


def refusal_metrics(counts: Mapping[str, int]) -> Iterator[str]:
    yield from _header("fsstore_refused_total", "counter", "Publications that were refused, by reason")
    for reason, count in counts.items():
        yield f"fsstore_refused_total{{{_labels(reason=reason)}}} {count}"


_OF_ACCOUNTS = {
    "limit": ("gauge", "Amount for all users together"),
    "used": ("gauge", "Amount that users hold"),
    "users": ("gauge", "Number of users that hold some"),
    "largest": ("gauge", "Largest amount that one user holds"),
    "refused": ("counter", "Requests beyond their user's share"),
}
"""Help texts of the figures of `ResourceFigures`."""


def account_metrics(figures: Mapping[Resource, ResourceFigures]) -> Iterator[str]:
    """Metrics of the resources that users share."""
    for field, (kind, text) in _OF_ACCOUNTS.items():
        name = f"fsstore_account_{field}" + "_total" * (kind == "counter")
        yield from _header(name, kind, text)
        for resource, row in figures.items():
            yield f"{name}{{{_labels(resource=resource.value)}}} {getattr(row, field)}"


_OF_HANDOVER = {
    "bytes": "Memory that the next daemon would take over",
    "limit_bytes": "Largest size of this memory",
    "live_bytes": "Bytes of live records in it",
    "names": "Inode numbers that the kernel knows, and the next daemon will know",
    "handles": "Open files and directories",
    "handles_lost": "Open files that would answer EIO if this daemon were killed",
    "requests": "Unanswered requests that publish or change something",
}
"""Help texts of the figures of `HandoverFigures`."""


def handover_metrics(figures: HandoverFigures) -> Iterator[str]:
    """Metrics of the memory that outlives this daemon."""
    for name, text in _OF_HANDOVER.items():
        yield from _figure(f"handover_{name}", "gauge", text, getattr(figures, name))


def process_metrics(started_s: float, followed_s: float | None) -> Iterator[str]:
    """Metrics of this daemon: its version, its start, and the age of a follower's view (`followed_s`)."""
    yield from _header("fsstore_build_info", "gauge", "Always 1; the labels are the versions that run")
    yield f"fsstore_build_info{{{_labels(version=VERSION, python=platform.python_version())}}} 1"
    yield from _header("fsstore_start_time_seconds", "gauge", "When this daemon began to serve, in seconds since 1970")
    yield f"fsstore_start_time_seconds {started_s:.3f}"
    if followed_s is not None:
        text = "Seconds since the follower last read the writer's store; later writes are not shown yet"
        yield from _header("fsstore_follow_lag_seconds", "gauge", text)
        yield f"fsstore_follow_lag_seconds {followed_s:.3f}"


def request_metrics(figures: RequestFigures, by_errno: Mapping[int, int]) -> Iterator[str]:
    counts, times = sorted(figures.counts.items()), sorted(figures.times.items())
    yield from _header("fsstore_requests_total", "counter", "Requests of the kernel, by operation")
    for opcode, count in counts:
        yield f"fsstore_requests_total{{{_labels(operation=figures.name_of(opcode))}}} {count}"
    yield from _header("fsstore_request_errors_total", "counter", "Requests that were answered with an errno")
    for number, count in sorted(by_errno.items()):
        name = errno.errorcode.get(number, str(number))
        yield f"fsstore_request_errors_total{{{_labels(errno=name)}}} {count}"
    name = "fsstore_request_duration_seconds"
    sampled = f"of one request in {SAMPLE_OF} of each operation, the first among them, if it succeeds"
    text = f"Time to an answer, {sampled}; a request that waits for the disk is timed until it begins to wait"
    yield from _header(name, "histogram", text)
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
    yield from _figure("read_only", "gauge", "1 if nothing can be published", is_read_only)
    text = "1 if a publication found no space, and there still is none"
    yield from _figure("no_space", "gauge", text, stats.no_space_reason is not None)
    yield from _figure("index_in_use", "gauge", "0 if a follower can't find keys, or not all of them", has_keys)
    text = "1 if queues are made from the log, not read from the writer's files"
    yield from _figure("queues_derived", "gauge", text, stats.queues_derived is not None)
    yield from _figure("not_shown", "gauge", "Kinds of data in the store that are not read", len(stats.not_shown))
    for name, text in _COUNTERS.items():
        yield from _figure(f"{name}_total", "counter", text, getattr(stats, name))
    for name, text in _GAUGES.items():
        yield from _figure(name, "gauge", text, getattr(stats, name))
    recovery = stats.recovery
    yield from _figure("recovered", "gauge", "1 if the last writer had not closed the store", not recovery.clean)
    yield from _header("fsstore_recovery_seconds", "gauge", "Duration of the opening")
    yield f"fsstore_recovery_seconds {recovery.seconds:.3f}"
    yield from _figure("recovery_scanned_bytes", "gauge", "Bytes of the log that it read", recovery.scanned_bytes)
    yield from _figure("recovery_cut_bytes", "gauge", "Bytes of a torn tail that it cut", recovery.cut_bytes)
    text = "Places of the log that it could not read"
    yield from _figure("recovery_damaged", "gauge", text, len(recovery.damaged))


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


def _figure(name: str, kind: str, text: str, value: int) -> list[str]:
    return [*_header(f"fsstore_{name}", kind, text), f"fsstore_{name} {int(value)}"]


def _header(name: str, kind: str, text: str) -> list[str]:
    return [f"# HELP {name} {text}.", f"# TYPE {name} {kind}"]


def _labels(**labels: str) -> str:
    def quoted(value: str) -> str:
        return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")

    return ",".join(f'{name}="{quoted(value)}"' for name, value in labels.items())
