"""Metrics: figures of a mount in Prometheus' text format, and the counters of the request loop.

Each request is counted. One in SAMPLE_OF of each operation is timed, because reading the clock twice is measurable in
requests of ten microseconds.
"""

from __future__ import annotations

import errno
import platform
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from importlib.metadata import version
from itertools import accumulate

from engine import MasterFigures, MessageStore, ReplicaNote, options_of, rows_of
from fsstore.callers import OTHERS, Callers
from fsstore.options import DISTRIBUTION
from fsstore.topic_facts import MOST_TOPICS, RATE_MS, TopicFacts, facts_of_largest
from fsstore.tree.figures import MountFigures
from fsstore.tree.status import bounds_by_topic, group_lags

VERSION = version(DISTRIBUTION)
"""The version of the running program, also after another one was installed."""

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


Labels = Mapping[str, str] | None
Samples = Iterable[tuple[Labels, float]]
"""The values of a metric, each with its labels."""


def metrics_of(store: MessageStore, mount: MountFigures, more: Iterable[str] = ()) -> bytes:
    """Figures in Prometheus' text format; `more` are further lines."""
    queues = store.queue_states()
    stats, check, replica, topics = store.stats(queues), store.last_check(), store.replica(), bounds_by_topic(queues)
    retention: list[tuple[Labels, float]] = [({}, 0) if store.retention is None else (options_of(store.retention), 1)]
    groups = group_lags(store, topics).items()
    lags, expired = (
        [row for group, of_group in groups for row in _of_queues(of_group, name, group=group)]
        for name in ("lag", "expired")
    )
    problems = [(None, len(store.settings_problems()))]
    lines = [
        *record_metrics("", [(None, stats)]),
        *record_metrics("", [(None, stats.recovery)]),
        *metric("retention_info", "gauge", "1 if retention deletes; the labels are its options", retention),
        *(() if check is None else record_metrics("check_", [(None, check)])),
        *(() if replica is None else _copy_metrics(replica, store.config.clock())),
        *record_metrics("memory_", [(None, mount.memory)]),
        *record_metrics("", [(None, mount.complaints)]),
        *metric("settings_problems", "gauge", "Files or entries below config/ that can't be understood", problems),
        *metric("queue_min_offset", "gauge", "Queue offset of the oldest message", _of_queues(topics, "min_offset")),
        *metric("queue_max_offset", "gauge", "Queue offset of the next message", _of_queues(topics, "max_offset")),
        *_topic_metrics(facts_of_largest(store, queues, store.config.clock())),
        *metric("group_lag", "gauge", "Messages of a queue that a consumer group has not consumed", lags),
        *metric("group_expired", "gauge", "Messages of group_lag that retention has deleted", expired),
        *record_metrics("account_", [({"resource": name}, row) for name, row in mount.accounts.items()]),
        *(() if mount.handover is None else record_metrics("handover_", [(None, mount.handover)])),
        *_replication_metrics(store.master_figures()),
    ]
    return "\n".join([*lines, *more, ""]).encode("utf-8", "replace")


def _replication_metrics(master: MasterFigures | None) -> Iterator[str]:
    if master is None:
        return
    yield from record_metrics("replicas_", [({"role": master.role}, master)])
    if replicas := [({"replica": one.replica}, one) for one in master.replicas]:
        yield from record_metrics("replica_", replicas)


def _copy_metrics(note: ReplicaNote, now_ms: int) -> Iterator[str]:
    labels = {"master": note.master, "broker": note.broker, "state": note.state.value}
    text = "1 while a replica's process runs; the labels are its master and its last state"
    yield from metric("copy_running", "gauge", text, [(labels, note.is_running(now_ms))])
    text = "Bytes of the master's log that the replica lacks; -1: unknown"
    yield from metric("copy_lag_bytes", "gauge", text, [(None, note.lag_bytes)])
    text = "Age of the replica's newest message while it lacks bytes, by the clocks of both hosts"
    yield from metric("copy_lag_seconds", "gauge", text, [(None, note.lag_ms / 1000)])
    yield from record_metrics("copy_", [(None, note)])


def _topic_metrics(topics: Sequence[TopicFacts]) -> Iterator[str]:
    largest = f"of the {MOST_TOPICS} topics with the most messages; estimated for large ones"
    text = f"Bytes of a topic's records in the log, {largest}"
    yield from metric("topic_stored_bytes", "gauge", text, [({"topic": one.topic}, one.stored_bytes) for one in topics])
    text = f"Messages per second over the last {RATE_MS // 1000} seconds, {largest}"
    rates = [({"topic": one.topic}, one.per_second) for one in topics]
    yield from metric("topic_messages_per_second", "gauge", text, rates)
    for name, what in (("oldest", "oldest_ms"), ("newest", "newest_ms")):
        text = f"Store time of a topic's {name} message in seconds since 1970, {largest}"
        times = [({"topic": one.topic}, getattr(one, what)) for one in topics]
        seconds = [(labels, ms / 1000) for labels, ms in times if ms is not None]
        yield from metric(f"topic_{name}_timestamp_seconds", "gauge", text, seconds)


def _of_queues(topics: Mapping[str, Mapping[str, Mapping[str, int]]], name: str, **labels: str) -> Samples:
    for topic, queues in topics.items():
        for queue, values in queues.items():
            yield {**labels, "topic": topic, "queue": queue}, values[name]


def refusal_metrics(counts: Mapping[str, int]) -> Iterator[str]:
    samples = [({"reason": reason}, count) for reason, count in counts.items()]
    return metric("refused_total", "counter", "Publications that were refused, by reason", samples)


def caller_metrics(callers: Callers) -> Iterator[str]:
    rows = [({"user": "others" if user is OTHERS else str(user)}, row) for user, row in callers.by_user().items()]
    if rows:
        yield from record_metrics("user_", rows)


def process_metrics(started_s: float, followed_s: float | None) -> Iterator[str]:
    """Metrics of this daemon: its version, its start, and the age of a follower's view (`followed_s`)."""
    versions = {"version": VERSION, "python": platform.python_version()}
    yield from metric("build_info", "gauge", "Always 1; the labels are the versions that run", [(versions, 1)])
    text = "When this daemon began to serve, in seconds since 1970"
    yield from metric("start_time_seconds", "gauge", text, [(None, started_s)])
    if followed_s is not None:
        text = "Seconds since the follower last read the writer's store; later writes are not shown yet"
        yield from metric("follow_lag_seconds", "gauge", text, [(None, followed_s)])


def request_metrics(figures: RequestFigures, by_errno: Mapping[int, int]) -> Iterator[str]:
    counts = [({"operation": figures.name_of(opcode)}, count) for opcode, count in sorted(figures.counts.items())]
    yield from metric("requests_total", "counter", "Requests of the kernel, by operation", counts)
    errors = [({"errno": errno.errorcode.get(one, str(one))}, count) for one, count in sorted(by_errno.items())]
    yield from metric("request_errors_total", "counter", "Requests that were answered with an errno", errors)
    name = "fsstore_request_duration_seconds"
    sampled = f"of one request in {SAMPLE_OF} of each operation, the first among them, if it succeeds"
    text = f"Time to an answer, {sampled}; a request that waits for the disk is timed until it begins to wait"
    yield from _header(name, "histogram", text)
    for opcode, histogram in sorted(figures.times.items()):
        yield from _histogram(name, figures.name_of(opcode), histogram)


def _histogram(name: str, operation: str, histogram: Histogram) -> Iterator[str]:
    *totals, count = accumulate(histogram.counts)
    for bound, total in zip(BUCKETS_S, totals, strict=True):
        yield f"{name}_bucket{_labels(operation=operation, le=repr(bound))} {total}"
    yield f"{name}_bucket{_labels(operation=operation, le='+Inf')} {count}"
    yield f"{name}_sum{_labels(operation=operation)} {histogram.seconds:.6f}"
    yield f"{name}_count{_labels(operation=operation)} {count}"


def record_metrics(prefix: str, records: Sequence[tuple[Labels, object]]) -> Iterator[str]:
    """Metrics of one or more records of one class, each with its labels."""
    for name, row in rows_of(type(records[0][1])):
        values = [(labels, getattr(record, name)) for labels, record in records]
        samples: Samples
        if row.label:
            samples = [({**(labels or {}), row.label: key}, one) for labels, by in values for key, one in by.items()]
        else:
            samples = [(labels, row.number(value)) for labels, value in values]
        yield from metric(
            prefix + (row.metric or name) + "_total" * (row.kind == "counter"), row.kind, row.help, samples
        )


def metric(name: str, kind: str, text: str, samples: Samples) -> Iterator[str]:
    """One metric of type `kind`, with the help `text`."""
    yield from _header(f"fsstore_{name}", kind, text)
    for labels, value in samples:
        shown = f"{value:.3f}" if isinstance(value, float) else int(value)
        yield f"fsstore_{name}{'' if labels is None else _labels(**labels)} {shown}"


def _header(name: str, kind: str, text: str) -> list[str]:
    return [f"# HELP {name} {text}.", f"# TYPE {name} {kind}"]


def _labels(**labels: str) -> str:
    def quoted(value: str) -> str:
        return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")

    return "{" + ",".join(f'{name}="{quoted(value)}"' for name, value in labels.items()) + "}"
