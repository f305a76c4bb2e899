"""Facts about a topic that take little time however many messages it has: from bounds, the ends of queues, the index of
times, and a few consume-queue entries."""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import suppress
from heapq import nlargest
from typing import Any, NamedTuple

import numpy as np

from engine import MessageStore, QueueState, TopicNotFoundError

RATE_MS = 60_000
"""The rate is that of the last minute."""
_SUMMED = 8_192
"""Entries of a queue whose sizes are added up; of more entries, that many are taken from all over the queue."""
_STRETCHES = 32
MOST_TOPICS = 100
"""The most topics of a store that metrics have facts about."""
LOOKED_AT = 64
"""Queues of a topic that are measured. If it has more, this many evenly spread queues represent them all."""
_SYSTEM = re.compile(
    r"TBW102|SELF_TEST_TOPIC|OFFSET_MOVED_EVENT|BenchmarkTest|SCHEDULE_TOPIC_XXXX|DefaultCluster|DefaultHeartBeatSyncerTopic"
    r"|TRANS_CHECK_MAX_TIME_TOPIC|.*_REPLY_TOPIC|RMQ_SYS_.*|rmq_sys_.*",
    re.DOTALL,
)


class TopicFacts(NamedTuple):
    """A topic: its numbers of queues and messages, the bytes of their records, the store times of its oldest and newest
    message (None: it has none that can be read), and messages a second. Unless `is_exact`, the last four are estimates:
    the topic is too large to look at all of it."""

    topic: str
    queues: int
    messages: int
    stored_bytes: int
    is_exact: bool
    oldest_ms: int | None
    newest_ms: int | None
    per_second: float


def is_system_topic(topic: str) -> bool:
    """Whether RocketMQ makes the topic for itself."""
    return _SYSTEM.fullmatch(topic) is not None


def facts_of(store: MessageStore, topic: str, queues: Sequence[QueueState], now_ms: int) -> TopicFacts:
    """Facts about a topic; `queues` are its own. Messages that expire meanwhile may be missing. TopicNotFoundError."""
    times: list[int] = []
    stored_bytes, recent, summed, looked_at = 0, 0, 0, 0
    filled = [state for state in queues if state.messages]
    for number in range(0, len(filled), -(-len(filled) // LOOKED_AT) or 1):
        _, queue, start, end, *_ = filled[number]
        ends = [store.headers(topic, queue, offset, 1) for offset in (start, end - 1)]
        times += [int(header["store_time_ms"][0]) for header in ends if len(header) and header["ok"][0]]
        if times and max(times) > now_ms - RATE_MS:
            recent += max(end - store.offset_at(topic, queue, now_ms - RATE_MS), 0)
        sizes, count = _sizes(store, topic, queue, start, end)
        stored_bytes += sizes * (end - start) // max(count, 1)
        summed += count
        looked_at += end - start
    messages = sum(state.messages for state in filled)
    share = looked_at / messages if messages else 1
    return TopicFacts(
        topic, len(queues), messages, int(stored_bytes / share), summed == messages,
        oldest_ms=min(times, default=None), newest_ms=max(times, default=None),
        per_second=recent / share * 1000 / RATE_MS,
    )  # fmt: skip


def facts_of_largest(store: MessageStore, queues: Sequence[QueueState], now_ms: int) -> list[TopicFacts]:
    """Facts about the MOST_TOPICS topics with the most messages; `queues` are those of the store."""
    by_topic: dict[str, list[QueueState]] = {}
    for state in queues:
        if state.refused is None:
            by_topic.setdefault(state.topic, []).append(state)
    found = []
    for topic in nlargest(MOST_TOPICS, by_topic, key=lambda one: sum(state.messages for state in by_topic[one])):
        with suppress(TopicNotFoundError):  # it was deleted meanwhile
            found.append(facts_of(store, topic, by_topic[topic], now_ms))
    return found


def _sizes(store: MessageStore, topic: str, queue: int, start: int, end: int) -> tuple[int, int]:
    """The bytes of some of the records [start, end), and their number."""
    found: list[np.ndarray[Any, Any]]
    if end - start <= _SUMMED:
        found = [store.entries(topic, queue, start, end - start)["size"]]
    else:
        begins = np.linspace(start, end - _SUMMED // _STRETCHES, _STRETCHES).astype(np.int64).tolist()
        found = [store.entries(topic, queue, begin, _SUMMED // _STRETCHES)["size"] for begin in begins]
    return sum(int(sizes.sum()) for sizes in found), sum(map(len, found))
