"""topics.json: the content that brokers write, and our changes."""

import errno
import json
from pathlib import Path
from typing import Any

import pytest

from engine.errors import ConfigFileError, IllegalTopicError, TopicExistsError
from engine.files.disk import Disk
from engine.settings.topics_file import MAX_QUEUES, TopicTable
from tests.engine.disks import NotingDisk

VERSION_4 = """{
	"dataVersion":{
		"counter":3,
		"timestamp":1700000000000
	},
	"topicConfigTable":{
		"orders":{
			"order":false,
			"perm":6,
			"readQueueNums":8,
			"topicFilterType":"SINGLE_TAG",
			"topicName":"orders",
			"topicSysFlag":0,
			"writeQueueNums":4
		},
		"%RETRY%group":{"order":false,"perm":6,"readQueueNums":1,"topicName":"%RETRY%group","writeQueueNums":1}
	}
}"""
VERSION_5 = """{
	"dataVersion":{"counter":9,"stateVersion":2,"timestamp":1700000000000},
	"topicConfigTable":{
		"orders":{
			"attributes":{"message.type":"FIFO"},
			"order":true,
			"perm":4,
			"readQueueNums":2,
			"topicFilterType":"MULTI_TAG",
			"topicName":"orders",
			"topicSysFlag":0,
			"writeQueueNums":2
		}
	},
	"somethingNew":{"7":"kept"}
}"""


def table(path: Path, disk: Disk | None = None) -> TopicTable:
    return TopicTable(path, disk or Disk(), lambda: 1_800_000_000_000)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    (tmp_path / "config").mkdir()
    return tmp_path / "config" / "topics.json"


def written(path: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(path.read_bytes())
    return content


def test_a_version_4_file_is_read(path: Path) -> None:
    path.write_text(VERSION_4)
    topics = table(path)
    assert topics.names() == ["%RETRY%group", "orders"]
    orders = topics.get("orders")
    assert orders is not None
    assert (orders.read_queues, orders.write_queues, orders.queues, orders.permission) == (8, 4, 8, 6)
    assert topics.get("nobody") is None


def test_a_version_5_file_is_read_with_its_attributes(path: Path) -> None:
    path.write_text(VERSION_5)
    orders = table(path).get("orders")
    assert orders is not None
    assert (orders.attributes, orders.permission) == ({"message.type": "FIFO"}, 4)


def test_a_change_keeps_every_field_that_this_engine_does_not_know(path: Path) -> None:
    path.write_text(VERSION_5)
    before = json.loads(VERSION_5)
    table(path).ensure("orders", 5)
    after = written(path)
    entry = {**before["topicConfigTable"]["orders"], "readQueueNums": 5, "writeQueueNums": 5}
    version = {"counter": 10, "stateVersion": 2, "timestamp": 1_800_000_000_000}
    assert after == {**before, "dataVersion": version, "topicConfigTable": {"orders": entry}}


def test_a_created_topic_is_as_a_broker_writes_it_and_survives(path: Path) -> None:
    table(path).create("orders", 4)
    assert written(path)["topicConfigTable"]["orders"] == {
        "order": False,
        "perm": 6,
        "readQueueNums": 4,
        "topicFilterType": "SINGLE_TAG",
        "topicName": "orders",
        "topicSysFlag": 0,
        "writeQueueNums": 4,
    }
    orders = table(path).get("orders")
    assert orders is not None
    assert orders.queues == 4


def test_a_topic_is_created_once(path: Path) -> None:
    topics = table(path)
    topics.create("orders", 4)
    with pytest.raises(TopicExistsError):
        topics.create("orders", 8)


@pytest.mark.parametrize(
    ("topic", "queues"),
    [("", 4), ("a/b", 4), ("..", 4), ("@store", 4), ("x" * 128, 4), ("größe", 4), ("ok", 0), ("ok", MAX_QUEUES + 1)],
)
def test_illegal_topics_change_nothing(path: Path, topic: str, queues: int) -> None:
    with pytest.raises(IllegalTopicError):
        table(path).create(topic, queues)
    assert not path.exists()


def test_ensure_makes_grows_and_never_shrinks(path: Path) -> None:
    topics = table(path)
    assert topics.ensure("orders", 4)
    assert topics.ensure("orders", 6)
    before = path.read_bytes()
    assert not topics.ensure("orders", 3)
    assert path.read_bytes() == before
    orders = topics.get("orders")
    assert orders is not None
    assert orders.queues == 6


def test_a_removed_topic_is_gone_from_the_file(path: Path) -> None:
    path.write_text(VERSION_4)
    topics = table(path)
    topics.discard("orders")
    assert table(path).names() == topics.names() == ["%RETRY%group"]
    topics.discard("orders")


def test_entries_that_make_no_sense_are_left_out_and_kept_in_the_file(path: Path) -> None:
    odd = {"../escape": {"readQueueNums": 1}, "text": "?", "negative": {"readQueueNums": -1}, "defaults": {}}
    path.write_text(json.dumps({"topicConfigTable": odd}))
    topics = table(path)
    assert topics.names() == ["defaults"]
    topics.create("orders", 4)
    assert odd.items() <= written(path)["topicConfigTable"].items()


def test_a_damaged_file_is_reported_and_not_written_over(path: Path) -> None:
    path.write_text('{"topicConfigTable": {"orders')
    topics = table(path)
    assert topics.names() == []
    assert isinstance(topics.problem, ConfigFileError)
    with pytest.raises(ConfigFileError):
        topics.create("orders", 4)
    assert path.read_text() == '{"topicConfigTable": {"orders'


def test_a_change_that_is_not_on_disk_is_not_made(path: Path) -> None:
    class Failing(Disk):
        def sync(self, descriptor: int, path: Path) -> None:
            raise OSError(errno.ENOSPC, "full")

    topics = table(path, Failing())
    with pytest.raises(OSError, match="full"):
        topics.create("orders", 4)
    assert topics.names() == []
    assert not path.exists()


def test_reload_sees_what_another_process_wrote(path: Path) -> None:
    reader, writer = table(path), table(path)
    assert not reader.reload()
    writer.create("orders", 4)
    assert reader.reload()
    assert reader.names() == ["orders"]
    path.write_text("{half a fi")  # a broker of version 5 writes in place
    path.with_name("topics.json.bak").unlink(missing_ok=True)
    assert not reader.reload()
    assert reader.names() == ["orders"]


def test_topics_that_only_a_broker_can_make_are_read_and_not_made(path: Path) -> None:
    names = ["%RETRY%readers+orders", "%RETRY%readers_" + "x" * 200]
    others = ["", "..", "a/b", "a\0b", "\ud800", "x" * 256]
    entry = {"readQueueNums": 1, "writeQueueNums": 1, "perm": 6}
    path.write_text(json.dumps({"topicConfigTable": {**dict.fromkeys(names, entry), **dict.fromkeys(others, entry)}}))
    topics = table(path)
    assert topics.names() == names
    assert len(topics.problems()) == len(others)
    for name in names:
        with pytest.raises(IllegalTopicError):
            topics.ensure(name, 4)
    topics.create("orders", 4)
    assert set(names) < written(path)["topicConfigTable"].keys()


def test_a_topic_is_on_disk_when_the_call_returns(path: Path) -> None:
    disk = NotingDisk(path)
    topics = table(path, disk)
    for topic in ("orders", "bills"):
        topics.create(topic, 4)
        assert topic in json.loads(disk.durable[-1])["topicConfigTable"]
