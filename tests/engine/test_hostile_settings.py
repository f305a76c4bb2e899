"""Settings and marks of a foreign store: with any content, it opens or is refused by name, and quickly."""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from engine import (
    ConfigFileError,
    Message,
    MessageStore,
    NotAStoreError,
    ObstructedError,
    OpenMode,
    StoreError,
    TopicPermissionError,
    check_store,
    repair_store,
)
from engine.derived.marks import read_recovery_point
from engine.files.disk import Disk
from engine.files.layout import StoreLayout
from engine.settings.config_file import parse_config, read_config
from engine.settings.consumer_offsets import ConsumerOffsets
from engine.settings.topics_file import MOST_QUEUES, TopicTable
from fsstore.tree.figures import mount_figures
from fsstore.tree.limited_log import RateLimitedLog
from fsstore.tree.memory_budget import MemoryBudget
from fsstore.tree.metrics import metrics_of
from fsstore.tree.status import status_of, to_json
from tests.engine.storetools import SMALL, bodies, opened

pytestmark = pytest.mark.usefixtures("hasty_disk")

FILES = {
    "config/topics.json": {"topicConfigTable": {"T": {"readQueueNums": 1, "writeQueueNums": 1, "perm": 6}}},
    "config/topics.json.bak": {"topicConfigTable": {"T": {"readQueueNums": 1, "writeQueueNums": 1}}},
    "config/sizes.json": {
        "mappedFileSizeCommitLog": 8192,
        "mappedFileSizeConsumeQueue": 640,
        "maxHashSlotNum": 17,
        "maxIndexNum": 48,
    },
    "config/retention.json": {"fileReservedTime": 72, "maxBytes": 1 << 30, "cleanResourceInterval": 10_000},
    "config/consumerOffset.json": {"offsetTable": {"T@group": {"0": 1}}},
    "config/lmqConsumerOffset.json": {"lmqOffsetTable": {"T@group": 1}},
    "fsstore/clean.json": None,
    "fsstore/coverage.json": None,
    "fsstore/deleted.json": {"topics": {"gone": 100}},
}
"""Files that an opening reads, and contents for them; None: as the store wrote it."""

TEXTS: dict[str, bytes] = {
    "empty": b"",
    "zeros": bytes(4096),
    "not UTF-8": b'{"a": "\xff\xfe"}',
    "a list": b"[]",
    "a number": b"5",
    "null": b"null",
    "cut": b'{"topicConfigTable": {"T": {',
    "deep objects": b'{"a":' * 100_000,
    "deep lists": b"[" * 100_000 + b"]" * 100_000,
    "an integer of 5,000 digits": b'{"a": ' + b"9" * 5000 + b"}",
    "a bare key of 5,000 digits": b'{"offsetTable": {"T@g": {' + b"9" * 5000 + b": 1}}}",
    "a string without an end": b'{"a": "' + b'\\"' * 500_000,
    "many strings without an end": b'{"a": ' + b'"\\' * 500_000,
    "duplicate keys": b'{"topicConfigTable": {}, "topicConfigTable": 5, "version": 1, "version": {}}',
    "an unpaired surrogate": b'{"topicConfigTable": {"\\ud800": {}}, "offsetTable": {"T@\\ud800": {"0": 1}}, "x": 1}',
    "not a number": b'{"topicConfigTable": NaN, "offsetTable": Infinity, "topics": {"T": NaN}}',
    "every other key": b'{"topicQueueMappings": {"T": {"9": [[]]}}, "dataVersion": 7}',
}
VALUES: dict[str, Any] = {
    "true": True,
    "negative": -1,
    "a float": 1.5,
    "infinite": float("inf"),
    "text": "16",
    "null": None,
    "a list": [1],
    "an object": {"queue.type": []},
    "a million": 10**6,
    "an int32": 2 * 10**9,
    "over an int64": 10**19,
    "4,000 digits": 10**4000,
}


def leaves(content: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Where values are in a JSON object, those of objects among them."""
    if isinstance(content, dict):
        for name, value in content.items():
            yield (*path, name)
            yield from leaves(value, (*path, name))


def with_value(content: Any, path: tuple[str, ...], value: Any) -> Any:
    first, *rest = path
    return {**content, first: with_value(content[first], tuple(rest), value) if rest else value}


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with every file."""
    path = tmp_path_factory.mktemp("kept") / "store"
    with opened(path) as store:
        for number in range(70):
            store.put(Message("T", b"kept-%d" % number, ["key"]), 0)
    for name, content in FILES.items():
        if content is not None:
            (path / name).write_text(json.dumps(content))
    return path


@contextmanager
def at_once(what: str) -> Iterator[None]:
    """Within a second of this process's time; of five where the address sanitizer watches, which takes some."""
    before = time.thread_time()
    yield
    assert time.thread_time() - before < (5 if "ASAN_OPTIONS" in os.environ else 1), what


def write(path: Path) -> None:
    with MessageStore.open(path, replace(SMALL, sizes=None, preallocate=False)) as store:
        store.put(Message("T", b"new", ["key"]), 0)
        store.create_topic("fresh", 2)
        assert bodies(store, "T", 0)[-1] == b"new"
        assert store.queues("fresh") == [0, 1]
        store.delete_topic("fresh")
        report(store)


def read(mode: OpenMode) -> Callable[[Path], None]:
    def look(path: Path) -> None:
        with MessageStore.open(path, replace(SMALL, sizes=None, mode=mode)) as store:
            store.refresh()
            report(store)
            assert len(bodies(store, "T", 0)) == 70

    return look


def report(store: MessageStore) -> None:
    assert json.loads(to_json(status_of(store)))["topics"]["T"]["queues"]["0"]["max_offset"] >= 70
    assert b"fsstore_settings_problems" in metrics_of(store, mount_figures(RateLimitedLog(), MemoryBudget(), None))
    for topic in store.topics():
        assert len(store.queues(topic)) <= MOST_QUEUES


def use_every_way(kept: Path, path: Path, name: str, content: bytes) -> None:
    """Open for reading, following and writing, check, repair: each works, or names the file."""
    ways: list[Callable[[Path], object]] = [
        lambda path: list(repair_store(path)),
        read(OpenMode.READ_ONLY),
        read(OpenMode.FOLLOW),
        lambda path: list(check_store(path)),
        write,
    ]
    for number, way in enumerate(ways):
        if number < 2:  # the repair may change the store, those that only read do not
            shutil.rmtree(path, ignore_errors=True)
            shutil.copytree(kept, path)
            (path / name).write_bytes(content)
        with at_once(name):
            try:
                way(path)
            except StoreError as error:
                refused = error
            else:
                continue
        if isinstance(refused, TopicPermissionError):  # such a number has no bit for writing
            continue
        assert isinstance(refused, ConfigFileError | ObstructedError)
        assert refused.path == path / name
        assert name in ("config/retention.json", "config/topics.json.bak")


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("name", FILES)
def test_a_file_that_is_no_settings_file_stops_nobody_who_is_not_told_its_name(
    kept: Path, tmp_path: Path, name: str, text: str
) -> None:
    use_every_way(kept, tmp_path / "store", name, TEXTS[text])


@pytest.mark.parametrize("value", VALUES)
@pytest.mark.parametrize("name", FILES)
def test_a_value_that_no_setting_can_have_stops_nobody_who_is_not_told_its_name(
    kept: Path, tmp_path: Path, name: str, value: str
) -> None:
    content = FILES[name] or json.loads((kept / name).read_text().splitlines()[0])
    chosen = list(leaves(content))[:5]
    first = list(VALUES).index(value)
    for path in {chosen[(first + step) % len(chosen)] for step in range(2)}:  # two of them; other values, other two
        changed = json.dumps(with_value(content, path, "\0")).replace(json.dumps("\0"), _text(VALUES[value]))
        use_every_way(kept, tmp_path / "store", name, changed.encode())


def _text(value: Any) -> str:
    return "1e999" if value == float("inf") else "1" + "0" * 4000 if value == 10**4000 else json.dumps(value)


def test_a_topic_with_more_queues_than_a_store_can_have_is_left_out_and_told(kept: Path, tmp_path: Path) -> None:
    shutil.copytree(kept, tmp_path / "store")
    entries = {f"many-{number}": {"readQueueNums": 2 * 10**9} for number in range(150)}
    (tmp_path / "store/config/topics.json").write_text(json.dumps({"topicConfigTable": {**entries, "T": {"perm": 6}}}))
    with at_once("topics"), MessageStore.open(tmp_path / "store", replace(SMALL, mode=OpenMode.READ_ONLY)) as store:
        assert store.topics() == ["T"]
        problems = store.settings_problems()
    assert "the entry of topic 'many-0' is left out" in problems[0]
    assert problems[-1].endswith("50 more entries are left out")


def test_settings_that_are_understood_are_no_problem(kept: Path) -> None:
    with MessageStore.open(kept, replace(SMALL, mode=OpenMode.READ_ONLY)) as store:
        assert store.settings_problems() == []


def test_offsets_of_consumers_that_can_not_be_read_are_told_by_the_status(kept: Path, tmp_path: Path) -> None:
    shutil.copytree(kept, tmp_path / "store")
    file = tmp_path / "store/config/consumerOffset.json"
    file.write_bytes(TEXTS["an integer of 5,000 digits"])
    with MessageStore.open(tmp_path / "store", replace(SMALL, mode=OpenMode.READ_ONLY)) as store:
        (problem,) = store.settings_problems()
        assert str(file) in problem
        assert status_of(store)["groups"] == {}
        assert status_of(store)["settings_problems"] == [problem]
        assert b"\nfsstore_settings_problems 1\n" in metrics_of(
            store, mount_figures(RateLimitedLog(), MemoryBudget(), None)
        )


@pytest.mark.parametrize("queue", ["9" * 5000, "99999999999", "-1", "1.0", "٣"])
def test_a_queue_that_no_topic_has_is_left_out_of_the_offsets(tmp_path: Path, queue: str) -> None:
    path = tmp_path / "consumerOffset.json"
    path.write_text(json.dumps({"offsetTable": {"T@g": {queue: 5, "1": 10**19, "2": 7}}}))
    assert ConsumerOffsets(path, tmp_path / "none").read() == {"g": {"T": {2: 7}}}


def test_a_file_of_any_length_is_not_read(tmp_path: Path) -> None:
    for name in ("topics.json", "coverage.json"):
        with (tmp_path / name).open("wb") as file:
            file.truncate(1 << 40)
    with at_once("a long file"), pytest.raises(ConfigFileError, match="more than"):
        read_config(tmp_path / "topics.json")
    with at_once("a long file"):
        assert read_recovery_point(tmp_path / "coverage.json") is None
        table = TopicTable(tmp_path / "topics.json", Disk(), lambda: 0)
        assert table.names() == []
        assert table.problem is not None


def test_strings_without_an_end_are_looked_at_once() -> None:
    for text in ('{"a": "' + '\\"' * 1_000_000, '"' * 1_000_001, '{"a' + "\\" * 1_000_001):
        with at_once("a string"), pytest.raises(ValueError, match=r"\w"):
            parse_config(text)


def test_a_changed_table_keeps_what_is_not_understood(kept: Path, tmp_path: Path) -> None:
    shutil.copytree(kept, tmp_path / "store")
    layout = StoreLayout(tmp_path / "store")
    odd = {"dataVersion": {"counter": 0}, "x": "\ud800ä", "topicConfigTable": {"odd": 5}}
    layout.topics.write_text(json.dumps(odd).replace('"counter": 0', '"counter": 1' + "0" * 4200))
    table = TopicTable(layout.topics, Disk(), lambda: 0)
    table.create({"odd": 3})
    stored = json.loads(layout.topics.read_text())
    assert stored["x"] == "\ud800ä"
    assert stored["topicConfigTable"]["odd"]["readQueueNums"] == 3


def test_nothing_is_no_store(tmp_path: Path) -> None:
    with pytest.raises(NotAStoreError):
        list(check_store(tmp_path))
