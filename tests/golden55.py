"""Stores that a RocketMQ 5.5 broker wrote, with the messages that its client pulled (tests/data/golden55/README.md)."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from engine import MessageStore, StoredMessage
from tests.golden import json_lines, unpacked

ARCHIVES = Path(__file__).parent / "data" / "golden55"
MOST_BYTES = 1 << 20
CLIENTS_OWN = ("MIN_OFFSET", "MAX_OFFSET")


@dataclass(frozen=True)
class Golden55:
    """One unpacked archive: `path` is the store (a copy to spoil), other folders may lie beside it."""

    name: str
    folder: Path

    @property
    def path(self) -> Path:
        """The store directory."""
        return self.folder / self.name

    @cached_property
    def lines(self) -> list[dict[str, Any]]:
        """Every line of the client's output."""
        return json_lines(ARCHIVES / f"{self.name}.jsonl")

    @property
    def messages(self) -> list[dict[str, Any]]:
        """The messages, by queue."""
        return [line for line in self.lines if "qo" in line]

    @property
    def queues(self) -> dict[tuple[str, int], tuple[int, int]]:
        """Bounds of each queue by topic and queue id."""
        return {(line["queue"], line["q"]): (line["min"], line["max"]) for line in self.lines if "queue" in line}


def golden55(name: str, folder: Path) -> Golden55:
    """Unpack the archive `name` into a fresh folder below `folder`."""
    return Golden55(name, unpacked(ARCHIVES / f"{name}.tar.xz", folder / f"golden55-{name}"))


def traces(folder: Path) -> dict[str, tuple[int, int, bytes]]:
    """Of every file what shows that it was written: size and time; and its bytes, but for queues and index, which are
    hundreds of sparse megabytes."""
    found = {}
    for file in folder.rglob("*"):
        if file.is_file():
            facts = file.stat()
            content = file.read_bytes() if facts.st_size <= MOST_BYTES else b""
            found[str(file.relative_to(folder))] = (facts.st_size, facts.st_mtime_ns, content)
    return found


def require_same(store: MessageStore, given: Golden55) -> None:
    """Each message that the client pulled is in the store, the same in all that it said, and found by its keys."""
    assert given.messages
    for line in given.messages:
        message = store.get(line["qt"], line["q"], line["qo"])
        assert seen(message) == expected(line)
        for key in message.keys:
            assert line["po"] in [one.physical_offset for one in store.query(line["qt"], key, 10_000)], key
    for (topic, queue), (least, most) in given.queues.items():
        bounds = store.bounds(topic, queue)
        assert (bounds.min_offset, bounds.max_offset) == (least, most)


def expected(line: dict[str, Any]) -> dict[str, Any]:
    """The client's values for a message."""
    named = {"topic", "mq", "mqo", "po", "size", "crc", "sf", "flag", "born", "store", "rc", "pto", "len", "sha", "id"}
    hosts = {name: line[name] for name in ("bh", "sh")}
    properties = {name: value for name, value in line["props"].items() if name not in CLIENTS_OWN}
    return {name: line[name] for name in named} | hosts | {"props": properties}


def seen(message: StoredMessage) -> dict[str, Any]:
    """The same of a message of ours."""
    return {
        "topic": message.topic,
        "mq": message.queue,
        "mqo": message.queue_offset,
        "po": message.physical_offset,
        "size": message.store_size,
        "crc": message.body_crc,
        "sf": message.sys_flag,
        "flag": message.flag,
        "born": message.born_time_ms,
        "store": message.store_time_ms,
        "rc": message.reconsume_times,
        "pto": message.prepared_transaction_offset,
        "len": len(message.body),
        "sha": hashlib.sha256(message.body).hexdigest(),
        "id": message.msg_id,
        "bh": f"{message.born_host.address.hex()}:{message.born_host.port}",
        "sh": f"{message.store_host.address.hex()}:{message.store_host.port}",
        "props": dict(message.properties),
    }
