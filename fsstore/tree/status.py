"""The state of a store and its mount as JSON: `@store/status.json` and `config.json`, which verbs show.

The figures are those of `engine.StoreStats`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, fields
from typing import Any

from engine import (
    ConfigFileError,
    FlushPolicy,
    Host,
    MasterConfig,
    MessageStore,
    OpenMode,
    QueueState,
    Retention,
    StoreConfig,
    options_of,
)
from fsstore.callers import Callers
from fsstore.interface import FilesystemOptions

_INJECTED = frozenset(("clock", "disk", "progress"))
"""Fields of StoreConfig that are objects, not settings."""


def status_of(store: MessageStore) -> dict[str, object]:
    """The store's state as a JSON object: mode, figures, bounds of every queue, consumer groups with their lag.
    `refused_queues` has a sentence for each queue whose end the disk refuses to read: it has no bounds."""
    queues = store.queue_states()
    topics = bounds_by_topic(queues)
    return {
        "store": str(store.path.absolute()),
        "mode": store.mode.name.lower(),
        "read_only_reason": store.read_only_reason,
        "retention": retention_of(store),
        "stats": asdict(store.stats(queues)),
        "topics": {topic: {"queues": queues} for topic, queues in topics.items()},
        "refused_queues": [f"{one.topic}/{one.queue}: {one.refused}" for one in queues if one.refused is not None],
        "groups": group_lags(store, topics),
        "settings_problems": store.settings_problems(),
        "last_check": last_check_of(store),
        "replication": replication_of(store),
        "replica": replica_of(store),
    }


def retention_of(store: MessageStore) -> dict[str, object]:
    """The retention in force: as a sentence (None: nothing is deleted), its options by name, and whether they were
    given at the opening; otherwise they are from config/retention.json."""
    retention = store.retention
    return {
        "in_force": None if retention is None else str(retention),
        "options": {} if retention is None else options_of(retention),
        "given": store.config.retention is not None,
    }


def replication_of(store: MessageStore) -> dict[str, object] | None:
    """The replicas that the store serves; None: it serves none."""
    figures = store.master_figures()
    return None if figures is None else asdict(figures)


def last_check_of(store: MessageStore) -> dict[str, object] | None:
    """The last check of the mounted store; None: there was none."""
    note = store.last_check()
    return None if note is None else {"state": note.state(store.config.clock()), **asdict(note)}


def replica_of(store: MessageStore) -> dict[str, object] | None:
    """The state of a replica, with `lag_bytes` and `lag_ms`; `is_running` while its process notes it. None: the store
    is no replica. The replicas that it serves itself are in `replication_of`."""
    note = store.replica()
    if note is None:
        return None
    return {
        **{name: value for name, value in asdict(note).items() if name != "serves"},
        "state": note.state.value,
        "is_running": note.is_running(store.config.clock()),
        "lag_bytes": note.lag_bytes,
        "lag_ms": note.lag_ms,
    }


def callers_of(callers: Callers) -> dict[str, object]:
    """The users and the processes that publish and read, the busiest first; `user` is null for all others together."""
    users = [{"user": user, **asdict(figures)} for user, figures in callers.by_user().items()]
    processes = [
        {"user": caller.user, "process": caller.process, "name": caller.name, **asdict(figures)}
        for caller, figures in callers.by_process()
    ]
    return {"users": sorted(users, key=_busy), "processes": sorted(processes, key=_busy)}


def _busy(row: Mapping[str, Any]) -> int:
    return -int(row["published_bytes"] + row["read_bytes"])


def bounds_by_topic(queues: Iterable[QueueState]) -> dict[str, dict[str, dict[str, int]]]:
    """`min_offset` and `max_offset` of each queue, by topic and queue id, without queues that the disk refuses to
    read."""
    found: dict[str, dict[str, dict[str, int]]] = {}
    for topic, queue, min_offset, max_offset, _, refused in queues:
        of_topic = found.setdefault(topic, {})
        if refused is None:
            of_topic[str(queue)] = {"min_offset": min_offset, "max_offset": max_offset}
    return found


def group_lags(
    store: MessageStore, topics: Mapping[str, Mapping[str, Mapping[str, int]]]
) -> dict[str, dict[str, dict[str, dict[str, int]]]]:
    """For each queue of a group: its next offset, `lag`, the number of messages from there on, and `expired`, the
    number of these that retention has deleted."""

    def lag(topic: str, queue: int, offset: int) -> dict[str, int]:
        bounds = topics.get(topic, {}).get(str(queue))
        if bounds is None:
            return {"offset": offset, "lag": 0, "expired": 0}
        expired = max(bounds["min_offset"] - offset, 0)
        return {"offset": offset, "lag": max(bounds["max_offset"] - offset, 0), "expired": expired}

    return {
        group: {
            topic: {str(queue): lag(topic, queue, offset) for queue, offset in offsets.items()}
            for topic, offsets in by_topic.items()
        }
        for group, by_topic in _consumer_offsets(store).items()
    }


def _consumer_offsets(store: MessageStore) -> Mapping[str, Mapping[str, Mapping[int, int]]]:
    try:
        return store.consumer_offsets()
    except ConfigFileError:  # `settings_problems` reports it
        return {}


def config_of(store: MessageStore, options: FilesystemOptions) -> dict[str, object]:
    """The configuration of the store and the mount as a JSON object; sizes are those in use."""
    named = {field.name: getattr(store.config, field.name) for field in fields(StoreConfig)}
    config = {name: _json_value(value) for name, value in named.items() if name not in _INJECTED}
    return {
        "store": config
        | {
            "sizes": asdict(store.sizes),
            "retention": _json_value(store.retention),
            "identity": asdict(store.identity),
        },
        "mount": {name: f"{value:04o}" if name.endswith("_mode") else value for name, value in asdict(options).items()},
    }


def _json_value(value: object) -> object:
    if isinstance(value, OpenMode):
        return value.name.lower()
    if isinstance(value, FlushPolicy | MasterConfig | Retention):
        return asdict(value)
    return str(value) if isinstance(value, Host) else value


def to_json(report: Mapping[str, object]) -> bytes:
    """The text of a report's file: a line for each member of a member, since there may be thousands of topics."""
    members = ",\n".join(f"  {_text(name)}: {_member(value)}" for name, value in report.items())
    return f"{{\n{members}\n}}\n".encode("utf-8", "replace")


def _member(value: object) -> str:
    if not isinstance(value, Mapping) or not value:
        return _text(value)
    members = ",\n".join(f"    {_text(name)}: {_text(member)}" for name, member in value.items())
    return f"{{\n{members}\n  }}"


def _text(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, default=str)
