"""Stores of RocketMQ 5.5 whose queues are derived from the log, through a mount: all that its client got."""

from __future__ import annotations

import hashlib
import os
import time
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

from engine import Message, MessageStore, OpenMode, StoreConfig
from mountctl.main import cli
from tests.engine.test_store_kinds import COMPACTED, DERIVED, NAMES, Broker, batches, state, wrapped
from tests.golden55 import Golden55, expected, golden55
from tests.mount.harness import Mounted, extended_attributes, mounted, offset_names, until

LATEST_SECONDS = 1.0
"""How far a follower may be behind the log."""


@pytest.mark.parametrize("mode", ["READ_ONLY", "FOLLOW"])
@pytest.mark.parametrize("name", NAMES)
def test_every_message_reads_as_the_client_pulled_it(name: str, mode: str, tmp_path: Path) -> None:
    given = golden55(name, tmp_path)
    before = state(given.path)
    with mounted(tmp_path, store=given.path, config={"mode": mode}) as mount:
        for line in given.messages:
            require_file(mount, line)
        for (topic, queue), (_, end) in given.queues.items():
            assert len(offset_names(mount.root / topic / str(queue))) == end
        require_keys(mount, given)
        require_told(mount, name, mode)
    assert state(given.path) == before


def require_file(mount: Mounted, line: dict[str, Any]) -> None:
    """Body, size, time and attributes of one message."""
    path = mount.root / line["qt"] / str(line["q"]) / f"{line['qo']:020d}"
    body, found = path.read_bytes(), path.stat()
    assert hashlib.sha256(body).hexdigest() == line["sha"]
    assert (found.st_size, found.st_mtime_ns) == (line["len"], line["store"] * 1_000_000)
    said = {name.removeprefix("user.mq."): value for name, value in extended_attributes(path).items()}
    properties = expected(line)["props"]
    assert {name: value for name, value in said.items() if name.startswith("property.")} == {
        f"property.{name}": value for name, value in properties.items()
    }
    told = {
        "queue_offset": line["mqo"],
        "physical_offset": line["po"],
        "store_size": line["size"],
        "body_crc": line["crc"],
        "sys_flag": line["sf"],
        "born_time": line["born"],
        "store_time": line["store"],
        "msg_id": line["id"],
        "keys": properties["KEYS"],
        "tags": properties["TAGS"],
        "unique_key": properties["UNIQ_KEY"],
    }
    if line["qt"] == COMPACTED:
        del told["physical_offset"], told["msg_id"]
    assert {name: said[name] for name in told} == {name: str(value) for name, value in told.items()}


def require_keys(mount: Mounted, given: Golden55) -> None:
    """Every key leads to the newest message that carries it."""
    newest = {(line["qt"], key): line for line in given.messages for key in line["props"]["KEYS"].split()}
    for (topic, key), line in newest.items():
        body = (mount.root / topic / "keys" / key).read_bytes()
        assert hashlib.sha256(body).hexdigest() == line["sha"], key


def require_told(mount: Mounted, name: str, mode: str) -> None:
    """Status, metrics, log and the command name derived queues and data that is not shown."""
    stats, reason = mount.status()["stats"], DERIVED.get(name)
    assert stats["queues_derived"] == reason
    metrics = (mount.root / "@store" / "metrics").read_text()
    assert f"fsstore_queues_derived {int(reason is not None)}" in metrics
    assert f"fsstore_not_shown {len(stats['not_shown'])}" in metrics
    assert "fsstore_index_in_use 1" in metrics
    shown = CliRunner().invoke(cli, ["status", str(mount.root)]).output
    assert (f"queues     derived from the log: {reason}" in shown) == (reason is not None)
    for sentence in stats["not_shown"]:
        assert f"not shown  {sentence}" in shown
    if reason is not None and mode == "FOLLOW":
        until("the log says so", lambda: f"queues: derived from the log: {reason}" in mount.log.read_text())


@pytest.mark.parametrize("name", sorted(DERIVED))
def test_what_the_broker_appends_shows_soon(name: str, tmp_path: Path) -> None:
    given = golden55(name, tmp_path)
    with MessageStore.open(given.path, StoreConfig(mode=OpenMode.READ_ONLY)) as store:
        broker, first = Broker(given.path, store.physical_end), store.bounds(f"va-{name}", 0).max_offset
    waits = []
    with mounted(tmp_path, store=given.path, config={"mode": "FOLLOW"}) as mount:
        topic = mount.root / f"va-{name}"
        for number in range(20):
            broker.put(Message(f"va-{name}", b"new %d" % number, [f"new-{number}"]), 0, first + number)
            began = time.monotonic()
            path = topic / "0" / str(first + number)
            until("the message is there", path.exists)
            assert path.read_bytes() == b"new %d" % number
            assert (topic / "keys" / f"new-{number}").read_bytes() == b"new %d" % number
            waits.append(time.monotonic() - began)
    assert sorted(waits)[len(waits) // 2] < LATEST_SECONDS  # the machine may be busy once


@pytest.mark.parametrize("mode", ["READ_ONLY", "FOLLOW"])
def test_messages_of_a_batch_in_one_record_are_files(mode: str, tmp_path: Path) -> None:
    given = golden55("bcq", tmp_path)
    with MessageStore.open(given.path, StoreConfig(mode=OpenMode.FOLLOW)) as store:
        broker, first = Broker(given.path, store.physical_end), store.bounds("va-bcq", 0).max_offset
    start = first
    for batch in batches(20, first):
        broker.put(wrapped(batch, start), 0, start)
        start += len(batch)
    sent = dict(enumerate((item for batch in batches(20, first) for item in batch), first))
    with mounted(tmp_path, store=given.path, config={"mode": mode}) as mount:
        topic = mount.root / "va-bcq"
        listed = {entry.name: entry.inode() for entry in os.scandir(topic / "0") if entry.name.isdigit()}
        assert len(set(listed.values())) == len(listed) == start
        for number, item in sent.items():
            path = topic / "0" / f"{number:020d}"
            assert path.read_bytes() == item.body
            assert (path.stat().st_ino, path.stat().st_size) == (listed[path.name], len(item.body))
            assert os.getxattr(path, "user.mq.keys").decode().split() == list(item.keys)
            assert (topic / "keys" / f"I{number}").read_bytes() == item.body
        text = (topic / "0.log").read_bytes()
        assert text.endswith(b"".join(bytes(item.body) + b"\n" for item in sent.values()))
        rows = pq.read_table(mount.root / "@parquet" / "topic=va-bcq" / "queue=0", partitioning=None).to_pylist()
        shown = {row["queue_offset"]: row["body"] for row in rows}
        assert {number: shown[number] for number in sent} == {number: item.body for number, item in sent.items()}
        assert mount.status()["stats"]["damaged_places"] == 0
