"""Stores that Apache RocketMQ wrote, through every name of the tree."""

from __future__ import annotations

import ipaddress
import zlib
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

from engine import MessageStore, OpenMode, StoreConfig
from fsstore.tree.inodes import MESSAGE
from fsstore.tree.names import encode_key, offset_name
from tests.fsstore.conftest import Mount
from tests.golden import NAMES, Golden, golden


def properties_of(raw: bytes) -> dict[str, str]:
    """Properties as RocketMQ reads them: no empty names or values, the last of equal names wins."""
    items = (item.partition("\x01") for item in raw.decode().split("\x02"))
    return {name: value for name, _, value in items if name and value}


def expected_attributes(message: dict[str, Any]) -> dict[str, str]:
    """What extended attributes are to say, from RocketMQ's own account of the message."""
    properties = properties_of(bytes.fromhex(message["propertiesRaw"]))
    facts = {
        "keys": " ".join(properties.get("KEYS", "").split()),
        "tags": properties.get("TAGS", ""),
        "unique_key": properties.get("UNIQ_KEY", ""),
        "msg_id": message["offsetMsgId"],
        "queue_offset": message["queueOffset"],
        "physical_offset": message["physicalOffset"],
        "store_size": message["storeSize"],
        "born_time": message["bornTimestamp"],
        "store_time": message["storeTimestamp"],
        "born_host": canonical_host(message["bornHost"]),
        "store_host": canonical_host(message["storeHost"]),
        "sys_flag": message["sysFlag"],
        "flag": message["flag"],
        "reconsume_times": message["reconsumeTimes"],
        "body_crc": message["bodyCRC"],
    }
    facts |= {f"property.{name}": value for name, value in properties.items()}
    return {f"user.mq.{name}": str(value) for name, value in facts.items() if value != ""}


def canonical_host(host: str) -> str:
    """`host` as its shortest form: RocketMQ writes IPv6 zeros out."""
    address, _, port = host.rpartition(":")
    if not address.startswith("["):
        return host
    return f"[{ipaddress.ip_address(address.strip('[]')).compressed}]:{port}"


def body_of(message: dict[str, Any]) -> bytes:
    """The body as its publisher gave it."""
    stored = bytes.fromhex(message["body"])
    return zlib.decompress(stored) if message["sysFlag"] & 1 else stored


@pytest.fixture(params=NAMES)
def theirs(request: pytest.FixtureRequest, tmp_path: Path) -> Golden:
    return golden(request.param, tmp_path)


def test_every_message_is_a_file_with_its_body_times_and_attributes(theirs: Golden) -> None:
    with MessageStore.open(theirs.path, StoreConfig(mode=OpenMode.READ_ONLY)) as store:
        mount = Mount(store)
        for message in theirs.messages:
            path = f"{message['topic']}/{message['queueId']}/{message['cqOffset']}"
            body = body_of(message)
            attributes = mount.stat(path)
            assert attributes.inode == MESSAGE | message["physicalOffset"]
            assert (attributes.size, attributes.mtime_ns) == (len(body), message["storeTimestamp"] * 1_000_000)
            assert mount.cat(path) == body
            expected = expected_attributes(message)
            assert {name.decode() for name in mount.fs.listxattr(attributes.inode)} <= set(expected)
            assert {name: mount.fs.getxattr(attributes.inode, name.encode()).decode() for name in expected} == expected
        mount.fs.close()


def test_every_queue_lists_and_streams_its_messages(theirs: Golden) -> None:
    queues: dict[tuple[str, int], dict[int, dict[str, Any]]] = defaultdict(dict)
    for message in theirs.messages:
        queues[message["topic"], message["queueId"]][message["cqOffset"]] = message
    with MessageStore.open(theirs.path, StoreConfig(mode=OpenMode.READ_ONLY)) as store:
        mount = Mount(store)
        assert {topic for topic, _ in queues} <= set(mount.ls("/"))
        for (topic, queue), messages in queues.items():
            listed = mount.entries(f"{topic}/{queue}", limit=100)
            del listed[b"append"]
            assert listed == {
                offset_name(offset): (MESSAGE | message["physicalOffset"], len(body_of(message)))
                for offset, message in sorted(messages.items())
            }
            text = b"".join(body_of(messages[offset]) + b"\n" for offset in sorted(messages))
            assert mount.cat(f"{topic}/{queue}.log") == text
            assert mount.stat(f"{topic}/{queue}.log").size == len(text)
        mount.fs.close()


def test_every_query_that_rocketmq_answered_is_a_directory_of_its_true_matches(theirs: Golden) -> None:
    by_offset = {message["physicalOffset"]: message for message in theirs.messages}
    with MessageStore.open(theirs.path, StoreConfig(mode=OpenMode.READ_ONLY)) as store:
        mount = Mount(store)
        for query in theirs.queries:
            if query["begin"] or query["end"] < 2**62 or len(query["offsets"]) >= query["max"]:
                continue  # a question of a time or of the newest few alone: the tree asks for all
            matches = [by_offset[offset] for offset in query["offsets"] if carries(by_offset.get(offset), query["key"])]
            name = encode_key(query["key"])
            assert name is not None
            if not matches:
                continue
            newest = max(matches, key=lambda message: int(message["physicalOffset"]))
            path = f"{query['topic']}/keys/{name.decode()}"
            assert mount.readlink(path) == f"../{newest['queueId']}/{newest['cqOffset']:020d}"
            assert set(mount.ls(f"{path}@all")) == {
                f"{message['queueId']}-{message['cqOffset']:020d}" for message in matches
            }
        mount.fs.close()


def carries(message: dict[str, Any] | None, key: str) -> bool:
    """Whether a message that a queue leads to has `key`."""
    if message is None:
        return False
    properties = properties_of(bytes.fromhex(message["propertiesRaw"]))
    return key in properties.get("KEYS", "").split(" ") or key == properties.get("UNIQ_KEY")
