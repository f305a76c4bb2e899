"""Stores of kinds that need settings of their own, which RocketMQ 5.5.0 wrote, read through a mount."""

from __future__ import annotations

import errno
import hashlib
import os
from pathlib import Path
from typing import Any

import pytest

from tests.golden55 import CLIENTS_OWN, Golden55, golden55
from tests.mount.harness import Mounted, extended_attributes, mounted, offset_names, refused_with

FIELDS = {
    "queue_offset": "mqo",
    "physical_offset": "po",
    "store_size": "size",
    "born_time": "born",
    "store_time": "store",
    "sys_flag": "sf",
    "flag": "flag",
    "reconsume_times": "rc",
    "body_crc": "crc",
    "msg_id": "id",
}
"""Attribute, and its name in the client's lines."""


@pytest.mark.parametrize("mode", ["READ_ONLY", "FOLLOW"])
@pytest.mark.parametrize("name", ["dledger"])
def test_every_message_reads_as_the_client_pulled_it(name: str, mode: str, tmp_path: Path) -> None:
    golden = golden55(name, tmp_path)
    with mounted(tmp_path, store=golden.path, config={"mode": mode}) as mount:
        for line in golden.messages:
            assert_message(mount, line)
        assert_queues(mount, golden)


def assert_message(mount: Mounted, line: dict[str, Any]) -> None:
    path = mount.root / line["qt"] / str(line["q"]) / f"{line['qo']:020d}"
    body = path.read_bytes()
    assert (len(body), hashlib.sha256(body).hexdigest()) == (line["len"], line["sha"]), path
    assert path.stat().st_mtime_ns == line["store"] * 1_000_000, path
    found = extended_attributes(path)
    expected = {f"user.mq.{name}": str(line[field]) for name, field in FIELDS.items() if line[field]}
    properties = {name: value for name, value in line["props"].items() if name not in CLIENTS_OWN}
    expected |= {f"user.mq.property.{name}": value for name, value in properties.items()}
    expected |= {"user.mq.born_host": host(line["bh"]), "user.mq.store_host": host(line["sh"])}
    assert {name: found.get(name) for name in expected} == expected, path
    for key in (*line["props"]["KEYS"].split(), line["props"]["UNIQ_KEY"]):
        matches = mount.root / line["qt"] / "keys" / f"{key}@all"
        assert f"{line['q']}-{line['qo']:020d}" in os.listdir(matches)


def host(text: str) -> str:
    address, port = text.split(":")
    return f"{'.'.join(str(byte) for byte in bytes.fromhex(address))}:{port}"


def assert_queues(mount: Mounted, golden: Golden55) -> None:
    for (topic, queue), (first, after) in golden.queues.items():
        folder = mount.root / topic / str(queue)
        assert [int(name) for name in offset_names(folder)] == list(range(first, after))
        bodies = [(folder / f"{number:020d}").read_bytes() for number in range(first, after)]
        assert (mount.root / topic / f"{queue}.log").read_bytes() == b"".join(body + b"\n" for body in bodies)


def test_damage_of_a_ledger_is_an_io_error_of_that_message_alone(tmp_path: Path) -> None:
    golden = golden55("dledger", tmp_path)
    header, record, *others = golden.messages[10:40]
    log = golden.path / "dledger-n0" / "data" / f"{0:020d}"
    flip(log, header["po"] - ENTRY_HEADER_BYTES + ENTRY_PLACE)
    flip(log, record["po"] + record["size"] // 2)
    for mode in ("READ_ONLY", "FOLLOW"):
        with mounted(tmp_path, store=golden.path, config={"mode": mode}) as mount:
            for line in (header, record):
                path = mount.root / line["qt"] / str(line["q"]) / f"{line['qo']:020d}"
                assert refused_with(path.read_bytes) == errno.EIO
            for line in others:
                assert_message(mount, line)
            assert mount.status()["stats"]["commit_log_kind"] == "DLedger"


ENTRY_HEADER_BYTES = 48
ENTRY_PLACE = 31


def flip(path: Path, position: int) -> None:
    with path.open("r+b") as file:
        file.seek(position)
        (byte,) = file.read(1)
        file.seek(position)
        file.write(bytes([byte ^ 1]))
