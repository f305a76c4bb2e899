"""topics.json: the content that brokers write, and our changes."""

import errno
import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.errors import ConfigFileError, IllegalTopicError, TopicError, TopicExistsError, TopicsRefusedError
from engine.files.disk import Disk, extend_file
from engine.files.paths import link, rename
from engine.settings import config_file, topics_file
from engine.settings.config_file import backup_of, next_version, read_config
from engine.settings.topics_file import MAX_QUEUES, TopicTable
from tests.engine.disks import NotingDisk
from tests.engine.storetools import HastyDisk

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
    table(path).create({"orders": 4})
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
    topics.create({"orders": 4})
    with pytest.raises(TopicExistsError):
        topics.create({"orders": 8})


@pytest.mark.parametrize(
    ("topic", "queues"),
    [("", 4), ("a/b", 4), ("..", 4), ("@store", 4), ("x" * 128, 4), ("größe", 4), ("ok", 0), ("ok", MAX_QUEUES + 1)],
)
def test_illegal_topics_change_nothing(path: Path, topic: str, queues: int) -> None:
    with pytest.raises(IllegalTopicError):
        table(path).create({topic: queues})
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
    topics.create({"orders": 4})
    assert odd.items() <= written(path)["topicConfigTable"].items()


def test_a_damaged_file_is_reported_and_not_written_over(path: Path) -> None:
    path.write_text('{"topicConfigTable": {"orders')
    topics = table(path)
    assert topics.names() == []
    assert isinstance(topics.problem, ConfigFileError)
    with pytest.raises(ConfigFileError):
        topics.create({"orders": 4})
    assert path.read_text() == '{"topicConfigTable": {"orders'


def test_a_change_that_is_not_on_disk_is_not_made(path: Path) -> None:
    class Failing(Disk):
        def sync(self, descriptor: int, path: Path) -> None:
            raise OSError(errno.ENOSPC, "full")

    topics = table(path, Failing())
    with pytest.raises(OSError, match="full"):
        topics.create({"orders": 4})
    assert topics.names() == []
    assert not path.exists()


def test_reload_sees_what_another_process_wrote(path: Path) -> None:
    reader, writer = table(path), table(path)
    assert not reader.reload()
    writer.create({"orders": 4})
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
    topics.create({"orders": 4})
    assert set(names) < written(path)["topicConfigTable"].keys()


def test_a_topic_is_on_disk_when_the_call_returns(path: Path) -> None:
    disk = NotingDisk(path)
    topics = table(path, disk)
    for topic in ("orders", "bills", "refunds", "returns"):
        topics.create({topic: 4})
        assert topic in json.loads(disk.durable[-1])["topicConfigTable"]


# what a change costs, and its bytes


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """The calls that parse or encode an entry, or replace the file."""
    calls: Counter[str] = Counter()

    def counting(name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*arguments: Any) -> Any:
            calls[name] += 1
            return call(*arguments)

        return counted

    for name in ("_parse_entry", "_line", "replace_config", "extend_config", "read_config"):
        monkeypatch.setattr(topics_file, name, counting(name, getattr(topics_file, name)))
    return calls


def fill(path: Path, topics: int, disk: Disk | None = None) -> TopicTable:
    """A table that was read from a file with so many topics, and changed once."""
    table(path).create({f"topic-{number}": 4 for number in range(topics)})
    made = table(path, disk)
    made.create({"first": 1})
    return made


def in_content(entries: dict[str, Any]) -> dict[str, Any]:
    return {"topicConfigTable": entries}


CHANGES: dict[str, tuple[Callable[[TopicTable], object], int]] = {
    "a new topic": (lambda topics: topics.create({"new": 4}), 1),
    "a topic made by publishing": (lambda topics: topics.ensure("new", 4), 1),
    "ten new topics": (lambda topics: topics.create({f"new-{number}": 4 for number in range(10)}), 10),
    "more queues": (lambda topics: topics.ensure("topic-5", 8), 2),  # its old text, too
    "a deleted topic": (lambda topics: topics.discard("topic-5"), 1),
}


@pytest.mark.parametrize("topics", [10, 1_000])
@pytest.mark.parametrize("change", CHANGES)
def test_a_change_encodes_what_changes_however_many_topics_there_are(
    path: Path, counted: Counter[str], change: str, topics: int
) -> None:
    made = fill(path, topics)
    counted.clear()
    make, encoded = CHANGES[change]
    make(made)
    parsed = 0 if change == "a deleted topic" else 10 if change == "ten new topics" else 1
    assert counted == Counter(_line=encoded, _parse_entry=parsed, replace_config=1)
    assert made.names() == table(path).names()


def test_a_batch_is_one_write(path: Path, counted: Counter[str]) -> None:
    topics = table(path)
    topics.create({"old": 1})
    counted.clear()
    topics.create({f"new-{number}": 1 + number % 8 for number in range(1_000)})
    assert counted["replace_config"] == 1
    assert [topics.get(f"new-{number}") for number in range(1_000)] == [
        table(path).get(f"new-{number}") for number in range(1_000)
    ]
    assert written(path)["dataVersion"]["counter"] == 2
    counted.clear()
    topics.create({})
    assert not counted


@pytest.mark.parametrize("topics", [10, 1_000])
def test_a_new_topic_writes_what_is_new_however_many_topics_there_are(
    path: Path, counted: Counter[str], monkeypatch: pytest.MonkeyPatch, topics: int
) -> None:
    disk, texts = Counting(), list[bytes]()
    made = fill(path, topics, disk)
    made.create({"second": 4})

    def noting(path: Path, previous: Path, position: int, content: bytes, disk: Disk) -> None:
        texts.append(content)
        extend_file(path, previous, position, content, disk)

    monkeypatch.setattr(config_file, "extend_file", noting)
    for number in range(5):
        counted.clear()
        disk.calls.clear()
        files, size = {path.stat().st_ino, backup_of(path).stat().st_ino}, path.stat().st_size
        made.create({f"new-{number}": 4})
        assert len(texts.pop()) < 600
        assert path.stat().st_size > size
        assert {path.stat().st_ino, backup_of(path).stat().st_ino} == files
        assert (counted["extend_config"], counted["replace_config"]) == (1, 0)
        assert disk.calls == {"sync": 1, "sync_directory": 1}
        assert table(path).names() == made.names()


class Counting(Disk):
    """Counts the syncs."""

    def __init__(self) -> None:
        self.calls: Counter[str] = Counter()

    def sync(self, descriptor: int, path: Path) -> None:
        self.calls["sync"] += 1

    def sync_directory(self, path: Path) -> None:
        self.calls["sync_directory"] += 1


def extended(path: Path, disk: Disk | None = None) -> TopicTable:
    """A table whose last change was written to the backup, and made it the file."""
    made = fill(path, 10, disk)
    made.create({"second": 4})
    made.create({"third": 4})
    return made


@pytest.mark.parametrize("change", ["more queues", "a deleted topic"])
def test_after_another_change_the_next_new_topic_writes_the_file_whole(
    path: Path, counted: Counter[str], change: str
) -> None:
    made = extended(path)
    make, _ = CHANGES[change]
    make(made)
    for topic in ("next", "later"):
        made.create({topic: 4})
    assert (counted["replace_config"], counted["extend_config"]) == (1 + 2 + 2, 1 + 1)
    assert made.names() == table(path).names()


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
)
NESTED = st.sampled_from([{}, [], {"message.type": "FIFO"}, {"a": {"b": [1, {}]}}, [[2, "\n\t}"]], "{}"])
TOPICS = st.sampled_from(["a", "b", "c", "d", "e", "%RETRY%g"])
ENTRY = st.fixed_dictionaries(
    {"readQueueNums": st.integers(0, 9), "writeQueueNums": st.integers(0, 9)},
    optional={"perm": st.sampled_from([2, 4, 6, "6"]), "attributes": VALUES | NESTED},
)
TABLES = st.dictionaries(TOPICS | st.sampled_from(["größe", "a\nb", '"', "\ud800"]), ENTRY | VALUES, max_size=5)
OTHERS: st.SearchStrategy[dict[str, Any]] = st.dictionaries(
    st.sampled_from(["dataVersion", "topicConfigTable", "new"]), VALUES | st.just({"topicConfigTable": {}}), max_size=3
)


@given(
    st.builds(
        lambda before, table, after: before | table | after, OTHERS, st.just({}) | TABLES.map(in_content), OTHERS
    ),
    st.lists(st.tuples(TOPICS, st.integers(0, 12)), min_size=1),
)
def test_the_file_is_what_a_whole_encoding_writes(content: dict[str, Any], changes: list[tuple[str, int]]) -> None:
    with TemporaryDirectory() as folder:
        path = Path(folder) / "topics.json"
        path.write_text(json.dumps(content))
        topics = table(path, HastyDisk())
        for topic, queues in changes:
            before, known = path.read_bytes(), topics.get(topic)
            if not queues:
                topics.discard(topic)
            else:
                topics.ensure(topic, queues)
                queues = max(queues, known.queues if known is not None else 0)
            if path.read_bytes() != before:
                content = changed(content, topic, queues)
                assert path.read_bytes() == json.dumps(content, indent="\t").encode()
                assert backup_of(path).read_bytes() == before
        again = table(path, HastyDisk())
        assert [topics.get(topic) for topic in topics.names()] == [again.get(topic) for topic in again.names()]
        assert (topics.problems(), topics.unwritable) == (again.problems(), again.unwritable)


def changed(content: dict[str, Any], topic: str, queues: int) -> dict[str, Any]:
    """The content of the file after a change; no queues: after the topic was deleted."""
    found = content.get("topicConfigTable")
    entries = dict(found) if isinstance(found, dict) else {}
    if queues:
        known = entries.get(topic)
        entry = known if isinstance(known, dict) else topics_file._new_entry(topic)
        entries[topic] = {**entry, "readQueueNums": queues, "writeQueueNums": queues}
    else:
        del entries[topic]
    version = next_version(content.get("dataVersion"), 1_800_000_000_000)
    others = {name: value for name, value in content.items() if name != "dataVersion"}
    return {**others, "topicConfigTable": entries, "dataVersion": version}


# all or none


REFUSED: list[tuple[dict[str, int], type[TopicError], str]] = [
    ({"new": 4, "old": 4}, TopicExistsError, "topic 'old' exists"),
    ({"new": 4, "a b": 4}, IllegalTopicError, "illegal topic 'a b': has other characters than a-z A-Z 0-9 % | _ -"),
    ({"new": 0}, IllegalTopicError, f"illegal topic 'new': 0 queues asked for, but a topic has 1 to {MAX_QUEUES}"),
    (
        {"new": 4, "old": 4, "": 4, "other": 4},
        TopicsRefusedError,
        "no topic was made: topic 'old' exists; illegal topic '': has 0 characters, not 1 to 127",
    ),
]


@pytest.mark.parametrize(("asked", "kind", "said"), REFUSED)
def test_a_batch_with_a_topic_that_is_refused_makes_none(
    path: Path, asked: dict[str, int], kind: type[TopicError], said: str
) -> None:
    topics = table(path)
    topics.create({"old": 1})
    before = path.read_bytes()
    with pytest.raises(kind) as refused:
        topics.create(asked)
    assert (str(refused.value), path.read_bytes(), topics.names()) == (said, before, ["old"])
    with pytest.raises(TopicExistsError):
        topics.create({"new": 4, "written": 4}, exists=lambda topic: topic == "written")
    assert (path.read_bytes(), topics.names()) == (before, ["old"])


class Killed(BaseException):
    """The process ends here."""


class FailingDisk(Disk):
    """Fails once, after `fails_at` syncs."""

    def __init__(self, fails_at: int) -> None:
        self.calls = -fails_at

    def _call(self, path: Path) -> None:
        self.calls += 1
        if self.calls == 1:
            raise OSError(errno.ENOSPC, "No space left on device", str(path))

    def sync(self, descriptor: int, path: Path) -> None:
        self._call(path)

    def sync_directory(self, path: Path) -> None:
        self._call(path)


@pytest.mark.parametrize("fails_at", range(2))
def test_a_batch_for_which_the_disk_has_no_space_makes_none(path: Path, fails_at: int) -> None:
    disk = FailingDisk(1_000)
    path.write_text(VERSION_5)
    topics = table(path, disk)
    topics.ensure("orders", 3)
    before = written(path)
    disk.calls = -fails_at
    with pytest.raises(OSError, match="No space left"):
        topics.create({"new": 4, "other": 4})
    assert (topics.names(), written(path)) == (["orders"], before)
    assert table(path).names() == ["orders"]
    topics.create({"new": 4, "other": 4})
    assert topics.names() == table(path).names() == ["new", "orders", "other"]
    assert written(path)["somethingNew"] == {"7": "kept"}


def test_a_file_that_would_be_too_long_to_be_read_is_not_written(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    topics = table(path)
    topics.create({"old": 4})
    before = path.read_bytes()
    monkeypatch.setattr(config_file, "MOST_BYTES", len(before) + 100)
    with pytest.raises(OSError, match=r"more than .* bytes") as refused:
        topics.create({"new": 4})
    assert refused.value.errno == errno.EFBIG
    assert written(path)["topicConfigTable"].keys() == {"old"}
    assert topics.names() == table(path).names() == ["old"]
    assert topics.ensure("old", 9)


# the file before


def test_the_file_before_is_moved_and_not_read_when_this_process_wrote_it(path: Path, counted: Counter[str]) -> None:
    topics = table(path)
    topics.create({"old": 4})
    inode, before = path.stat().st_ino, path.read_bytes()
    with patch.object(config_file, "intact") as intact:
        topics.create({"new": 4})
    assert not intact.called
    assert (backup_of(path).stat().st_ino, backup_of(path).read_bytes()) == (inode, before)


def test_a_file_of_another_process_is_looked_at_before_it_becomes_the_backup(path: Path) -> None:
    topics = table(path)
    topics.create({"old": 4})
    topics.create({"new": 4})
    before = backup_of(path).read_bytes()
    path.write_text('{"cut')
    topics.ensure("new", 5)
    assert backup_of(path).read_bytes() == before
    path.write_text(VERSION_4)
    topics.ensure("new", 6)
    assert backup_of(path).read_text() == VERSION_4
    assert topics.names() == table(path).names() == ["new", "old"]


def test_a_file_that_a_broker_wrote_is_synced_before_it_becomes_the_backup(path: Path) -> None:
    path.write_text(VERSION_4)
    disk = NotingDisk(backup_of(path))
    table(path, disk).ensure("orders", 9)
    assert disk.durable == [VERSION_4.encode()]


def test_the_backup_is_read_between_the_two_renames(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    topics = table(path)
    topics.create({"old": 4})

    def stops(source: Path, target: Path) -> None:
        if target == path:
            raise Killed
        rename(source, target)

    monkeypatch.setattr("engine.files.disk.rename", stops)
    with pytest.raises(Killed):
        topics.create({"new": 4})
    monkeypatch.undo()
    assert not path.exists()
    again = table(path)
    assert again.names() == ["old"]
    again.create({"new": 4})
    assert table(path).names() == ["new", "old"]


# a new topic in place of what the backup lacks

STEPS = ("link", "sync", "rename to topics.json", "rename to topics.json.bak", "sync_directory")


class StoppingDisk(Disk):
    """Raises an error at one of the steps of a change, once; `step` is set after the first changes."""

    def __init__(self, error: BaseException, monkeypatch: pytest.MonkeyPatch) -> None:
        self.step = ""
        self._error = error
        for call in (link, rename):
            monkeypatch.setattr(f"engine.files.disk.{call.__name__}", self._stopping(call))

    def _stopping(self, call: Callable[[Path, Path], None]) -> Callable[[Path, Path], None]:
        def stopping(source: Path, target: Path) -> None:
            self._stop_at(call.__name__, f"{call.__name__} to {target.name}")
            call(source, target)

        return stopping

    def _stop_at(self, *names: str) -> None:
        if self.step in names:
            self.step = ""
            raise self._error

    def sync(self, descriptor: int, path: Path) -> None:
        self._stop_at("sync")
        super().sync(descriptor, path)

    def sync_directory(self, path: Path) -> None:
        self._stop_at("sync_directory")
        super().sync_directory(path)


@pytest.mark.parametrize("step", STEPS)
def test_a_process_that_is_killed_while_it_makes_a_topic_leaves_a_whole_file(
    path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    disk = StoppingDisk(Killed(), monkeypatch)
    topics = extended(path, disk)
    known = topics.names()
    disk.step = step
    with pytest.raises(Killed):
        topics.create({"new": 4})
    assert disk.step == ""
    assert written(path)["topicConfigTable"].keys() - {"new"} == set(known)
    after = table(path)
    after.ensure("new", 4)
    for topic in ("newer", "newest"):
        after.create({topic: 4})
    assert after.names() == table(path).names() == sorted([*known, "new", "newer", "newest"])
    assert sorted(file.name for file in path.parent.iterdir()) == ["topics.json", "topics.json.bak"]


@pytest.mark.parametrize("step", STEPS)
def test_where_the_disk_refuses_to_exchange_the_files_a_new_one_is_written(
    path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    disk = StoppingDisk(OSError(errno.EPERM, "refused"), monkeypatch)
    topics = extended(path, disk)
    disk.step = step
    before = topics.names()
    for topic in ("new", "newer", "newest"):
        topics.create({topic: 4})
        assert topics.names() == table(path).names()
    assert disk.step == ""
    assert topics.names() == sorted([*before, "new", "newer", "newest"])


def test_files_that_another_process_wrote_are_not_extended(path: Path) -> None:
    for file in (path, backup_of(path)):
        topics = extended(path)
        file.write_text(VERSION_4)
        topics.create({"new": 4})
        assert topics.names() == table(path).names()
        assert backup_of(path).read_text() == VERSION_4 or file != path
        path.unlink()
        backup_of(path).unlink()


def test_a_backup_with_another_name_keeps_its_content(path: Path, tmp_path: Path) -> None:
    topics = extended(path)
    (tmp_path / "saved").hardlink_to(path)
    before = path.read_bytes()
    for topic in ("new", "newer", "newest"):
        topics.create({topic: 4})
        assert topics.names() == table(path).names()
    assert (tmp_path / "saved").read_bytes() == before


def test_a_reader_reads_again_what_was_changed_while_it_read(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    topics = extended(path)
    reads: list[dict[str, Any]] = []

    def read_meanwhile(file: Path) -> dict[str, Any]:
        if not reads:
            topics.create({"new": 4})
            reads.append({})
            raise ConfigFileError(file, "cut")
        return read_config(file)

    monkeypatch.setattr(topics_file, "read_config", read_meanwhile)
    reader = table(path)
    assert (reader.names(), reader.problem) == (topics.names(), None)
