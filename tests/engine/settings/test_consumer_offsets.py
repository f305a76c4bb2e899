"""Consumer offsets that we commit: beside a broker's, and so that a broker goes on there."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path

import pytest

from engine import ConfigFileError, ConsumerOffsetError, Message, MessageStore, ReadOnlyStoreError, TopicNotFoundError
from engine.files.disk import Disk
from engine.settings import config_file
from engine.settings.config_file import read_config
from engine.settings.consumer_offsets import ConsumerOffsets
from tests.engine.disks import NotingDisk
from tests.engine.storetools import SMALL, opened

BROKERS = """{
	"dataVersion":{"counter":7,"stateVersion":0,"timestamp":1700000000000},
	"offsetTable":{
		"orders@billing":{0:1,1:2
		},
		"other@billing":{0:9
		}
	}
}"""


def test_an_offset_is_noted_beside_the_others(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        store.create_topic("orders", 2)
        for number in range(8):
            store.put(Message("orders", b"%d" % number))
        path = tmp_path / "config/consumerOffset.json"
        path.write_text(BROKERS)
        store.commit_offset("billing", "orders", 1, 4)
        store.commit_offset("new", "orders", 0, 0)
        assert store.consumer_offsets() == {
            "billing": {"orders": {0: 1, 1: 4}, "other": {0: 9}},
            "new": {"orders": {0: 0}},
        }
        content = read_config(path)
        assert content["dataVersion"]["counter"] == 9
        assert content["dataVersion"]["stateVersion"] == 0
        assert json.loads((tmp_path / "config/consumerOffset.json.bak").read_text())["offsetTable"]["orders@billing"]
    with opened(tmp_path) as store:
        assert store.consumer_offsets()["billing"]["orders"] == {0: 1, 1: 4}


def test_an_offset_is_on_disk_when_the_call_returns(tmp_path: Path) -> None:
    path, lmq_path = tmp_path / "consumerOffset.json", tmp_path / "lmqConsumerOffset.json"
    offsets, disk = ConsumerOffsets(path, lmq_path), NotingDisk(path)
    for offset in (3, 7):
        offsets.commit("billing", "orders", 0, offset, disk, 1_800_000_000_000)
        assert json.loads(disk.durable[-1])["offsetTable"] == {"orders@billing": {"0": offset}}


def test_a_group_goes_on_while_the_disk_refuses_a_file_that_was_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, lmq_path = tmp_path / "consumerOffset.json", tmp_path / "lmqConsumerOffset.json"
    path.write_text(BROKERS)
    offsets = ConsumerOffsets(path, lmq_path)
    offsets.read()

    def refuse(file: Path, most_bytes: int) -> bytes:
        raise OSError(errno.EIO, os.strerror(errno.EIO), str(file))

    with monkeypatch.context() as patched:
        patched.setattr(config_file, "read_file", refuse)
        with pytest.raises(ConfigFileError, match="can't be read"):
            ConsumerOffsets(path, lmq_path).commit("new", "orders", 0, 5, Disk(), 1_800_000_000_000)
        offsets.commit("billing", "orders", 1, 4, Disk(), 1_800_000_000_000)
    content = read_config(path)
    assert content["dataVersion"]["counter"] == 8
    assert content["offsetTable"] == {"orders@billing": {"0": 1, "1": 4}, "other@billing": {"0": 9}}
    assert offsets.read() == {"billing": {"orders": {0: 1, 1: 4}, "other": {0: 9}}}


@pytest.mark.parametrize("group", ["", "no good", "a@b", "x" * 256, "ä"])
def test_a_group_that_no_broker_takes_is_refused(tmp_path: Path, group: str) -> None:
    with opened(tmp_path) as store:
        store.create_topic("orders", 1)
        with pytest.raises(ConsumerOffsetError):
            store.commit_offset(group, "orders", 0, 0)
        assert not (tmp_path / "config/consumerOffset.json").exists()


def test_what_is_no_offset_of_the_queue_is_refused(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        store.create_topic("orders", 1)
        for offset in (-1, 1):
            with pytest.raises(ConsumerOffsetError, match="it ends at 0"):
                store.commit_offset("g", "orders", 0, offset)
        for missing in (("orders", 1), ("missing", 0)):
            with pytest.raises(TopicNotFoundError):
                store.commit_offset("g", *missing, 0)
        (tmp_path / "config/lmqConsumerOffset.json").write_text('{"lmqOffsetTable":{"orders@light":3}}')
        with pytest.raises(ConsumerOffsetError, match="which is not written"):
            store.commit_offset("light", "orders", 0, 0)
        (tmp_path / "config/consumerOffsets").mkdir()
        (tmp_path / "config/consumerOffsets/CURRENT").touch()
        with pytest.raises(ConsumerOffsetError, match="RocksDB"):
            store.commit_offset("g", "orders", 0, 0)
        with (
            MessageStore.open(tmp_path, SMALL.__class__(mode=SMALL.mode.FOLLOW)) as follower,
            pytest.raises(ReadOnlyStoreError),
        ):
            follower.commit_offset("g", "orders", 0, 0)
