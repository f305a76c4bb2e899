"""Stores that Apache RocketMQ wrote, read through a mount: every message, every field of it, every key."""

from __future__ import annotations

import hashlib
import os
import zlib
from pathlib import Path
from typing import Any

import pytest

from engine import Host
from tests.golden import NAMES, Golden, golden
from tests.mount.harness import Mounted, extended_attributes, mounted, offset_names

FIELDS = {
    "queue_offset": "queueOffset",
    "physical_offset": "physicalOffset",
    "store_size": "storeSize",
    "born_time": "bornTimestamp",
    "store_time": "storeTimestamp",
    "born_host": "bornHost",
    "store_host": "storeHost",
    "sys_flag": "sysFlag",
    "flag": "flag",
    "reconsume_times": "reconsumeTimes",
    "body_crc": "bodyCRC",
    "msg_id": "offsetMsgId",
}
"""Attribute, and its name in dump.jsonl."""

PROPERTY_FIELDS = {"tags": "TAGS", "unique_key": "UNIQ_KEY"}


@pytest.mark.parametrize("mode", ["WRITE", "READ_ONLY"])
@pytest.mark.parametrize("name", NAMES)
def test_every_message_reads_as_rocketmq_dumped_it(name: str, mode: str, tmp_path: Path) -> None:
    store = golden(name, tmp_path)
    before = digests(store.path)
    with mounted(tmp_path, store=store.path, config={"mode": mode, "sizes": sizes_of(store)}) as mount:
        assert_messages(mount, store)
        assert_queues(mount, store)
        assert_keys(mount, store)
    if mode == "READ_ONLY":
        assert digests(store.path) == before


def sizes_of(store: Golden) -> dict[str, int]:
    sizes = store.sizes
    return {field: getattr(sizes, field) for field in sizes.__slots__}


def digests(folder: Path) -> dict[str, str]:
    """The content of every file below a folder."""
    files = (path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def assert_messages(mount: Mounted, store: Golden) -> None:
    """Body, size, mtime and attributes of each message in the dump."""
    for dumped in store.messages:
        path = mount.root / dumped["topic"] / str(dumped["queueId"]) / f"{dumped['queueOffset']:020d}"
        body = body_of(dumped)
        assert path.read_bytes() == body, path
        found = path.stat()
        assert (found.st_size, found.st_mtime_ns) == (len(body), dumped["storeTimestamp"] * 1_000_000), path
        assert extended_attributes(path) == attributes(dumped), path


def body_of(dumped: dict[str, Any]) -> bytes:
    """The body as its publisher wrote it: the dump has it as it is stored."""
    stored = bytes.fromhex(dumped["body"])
    return zlib.decompress(stored) if dumped["sysFlag"] & 0x1 else stored


def attributes(dumped: dict[str, Any]) -> dict[str, str]:
    """The extended attributes that a message of the dump is to have."""
    properties: dict[str, str] = dumped["properties"]
    fields = {name: str(dumped[field]) for name, field in FIELDS.items()}
    fields |= {name: str(Host.parse(fields[name])) for name in ("born_host", "store_host")}  # one spelling of IPv6
    fields["keys"] = " ".join(properties.get("KEYS", "").split())
    fields |= {name: properties[key] for name, key in PROPERTY_FIELDS.items() if properties.get(key)}
    fields |= {f"property.{name}": value for name, value in properties.items()}
    return {f"user.mq.{name}": value for name, value in fields.items() if value}


def assert_queues(mount: Mounted, store: Golden) -> None:
    """The listing of each queue, and its stream."""
    by_queue: dict[tuple[str, int], list[bytes]] = {}
    for dumped in store.messages:
        by_queue.setdefault((dumped["topic"], dumped["queueId"]), []).append(body_of(dumped))
    assert sum(map(len, by_queue.values())) == len(store.messages)
    for (topic, queue), bodies in by_queue.items():
        folder = mount.root / topic / str(queue)
        assert len(offset_names(folder)) == len(bodies)
        text = b"".join(body + b"\n" for body in bodies)
        log = mount.root / topic / f"{queue}.log"
        assert log.read_bytes() == text
        assert log.stat().st_size == len(text)


def assert_keys(mount: Mounted, store: Golden) -> None:
    """Each query of RocketMQ that wants all messages, without matches by hash only."""
    at = {dumped["physicalOffset"]: dumped for dumped in store.messages}
    for query in store.queries:
        matches = mount.root / query["topic"] / "keys" / f"{query['key'].replace('/', '%2F')}@all"
        expected = {
            f"{at[offset]['queueId']}-{at[offset]['queueOffset']:020d}"
            for offset in set(query["offsets"])
            if offset in at and at[offset]["topic"] == query["topic"] and carries(at[offset], query["key"])
        }
        found = set(os.listdir(matches)) if matches.exists() else set()
        assert expected <= found, query


def carries(dumped: dict[str, Any], key: str) -> bool:
    properties = dumped["properties"]
    return key in properties.get("KEYS", "").split(" ") or key == properties.get("UNIQ_KEY")
