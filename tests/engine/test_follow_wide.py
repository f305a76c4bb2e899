"""Following a store of many queues: a look at what changed, and at the others in turn."""

from __future__ import annotations

import gc
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from engine import FileSizes, Message, MessageStore, NoDescriptorError, OpenMode, Retention, StoreListener
from engine.derived.consume_queue import ConsumeQueue
from engine.derived.consume_queues import ConsumeQueues
from engine.derived.round_robin import QUEUES_AT_A_TIME
from engine.open.follower import Follower
from engine.record.kernel.entries import Look
from tests.engine.light_queues import naming, put_as_broker
from tests.engine.storetools import SMALL, bodies

SIZES = FileSizes(commit_log_bytes=1 << 20, consume_queue_entries=32, index_slots=1000, index_entries=4000)
ONE_FILE = replace(SMALL, sizes=SIZES, preallocate=False)
FOLLOW = replace(SMALL, mode=OpenMode.FOLLOW)
QUEUES = 10
"""Queues of each topic."""

Key = tuple[str, int]


class Gone(StoreListener):
    """Remembers the queues that went."""

    def __init__(self) -> None:
        self.keys: list[Key] = []

    def queue_gone(self, topic: str, queue: int) -> None:
        self.keys.append((topic, queue))


def names(topics: int) -> list[str]:
    return [f"topic-{number:04}" for number in range(topics)]


def make(writer: MessageStore, topics: int) -> None:
    """Topics, each queue with a message."""
    for topic in names(topics):
        writer.create_topic(topic, QUEUES)
        for queue in range(QUEUES):
            writer.put(Message(topic, b"first", ["K"]), queue)
    writer.flush()


def settle(path: Path, follower: MessageStore) -> None:
    """Look until nothing is due any more."""
    for member in (path, *path.rglob("*")):
        os.utime(member, (1_600_000_000, 1_600_000_000))  # no directory looks as if it were changing
    for _ in range(1000):
        if not follower.refresh() and not follower._parts.queues.is_behind:
            return
    raise AssertionError("there is always something due")


def sweep(follower: MessageStore, topics: int) -> None:
    """As many looks as give each queue and each topic's folder its turn."""
    for _ in range(-(-topics * (QUEUES + 1) // QUEUES_AT_A_TIME) + 1):
        follower.refresh()


@contextmanager
def wide(path: Path, topics: int, config: Any = ONE_FILE) -> Iterator[tuple[MessageStore, MessageStore]]:
    """A writer, and a follower that has opened every queue and has nothing to look at."""
    with MessageStore.open(path, config, create=True) as writer:
        make(writer, topics)
        with MessageStore.open(path, FOLLOW) as follower:
            for topic in follower.topics():
                assert [follower.bounds(topic, queue).max_offset for queue in follower.queues(topic)] == [1] * QUEUES
            settle(path, follower)
            yield writer, follower


@pytest.fixture
def unswept(monkeypatch: pytest.MonkeyPatch) -> None:
    """No queue is looked at in turn: what is seen was named."""
    monkeypatch.setattr("engine.derived.round_robin.QUEUES_AT_A_TIME", 0)


@pytest.fixture
def looked_at(monkeypatch: pytest.MonkeyPatch) -> list[Key]:
    """The queues that refreshes have looked at."""
    looked: list[Key] = []

    def noting(queue: ConsumeQueue, physical_end: int) -> bool:
        looked.append((queue.topic, queue.queue_id))
        return refresh(queue, physical_end)

    refresh = ConsumeQueue.refresh
    monkeypatch.setattr(ConsumeQueue, "refresh", noting)
    return looked


def calls_of(work: Callable[[], object]) -> int:
    """Number of functions that `work` calls, in Python and C, system calls among them."""
    count = 0

    def note(frame: object, event: str, argument: object) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    gc.collect()
    gc.disable()  # it calls, too
    sys.setprofile(note)
    try:
        work()
    finally:
        sys.setprofile(None)
        gc.enable()
    return count


def entries_of(path: Path, topic: str, queue: int) -> Path:
    """The only file of a queue."""
    (file,) = (path / "consumequeue" / topic / str(queue)).iterdir()
    return file


def written_over(file: Path, content: bytes) -> None:
    """Change a file in place: no directory shows it."""
    with file.open("r+b") as target:
        target.write(content)


# what a look costs


def test_a_look_makes_as_many_calls_with_a_thousand_queues_as_with_ten_and_touches_what_changed(
    tmp_path: Path, unswept: None, looked_at: list[Key], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("engine.open.missing_keys.BEHIND_SECONDS", 3600.0)
    idle, with_news = [], []
    for topics in (1, 100):
        path = tmp_path / str(topics)
        with wide(path, topics) as (writer, follower):
            assert all(follower.topic_stream(topic).size == QUEUES * len(b"first\n") for topic in follower.topics())
            settle(path, follower)
            idle.append(calls_of(follower.refresh))
            assert bodies(follower, "topic-0000", 7) == [b"first"]  # maps its file
            looked_at.clear()
            writer.put(Message("topic-0000", b"news"), 7)
            with_news.append(calls_of(follower.refresh))
            assert bodies(follower, "topic-0000", 7) == [b"first", b"news"]
            assert looked_at == [("topic-0000", 7)]
    assert idle[0] == idle[1] < 200
    assert with_news[0] == with_news[1]


def test_a_look_with_news_looks_at_a_few_others_until_each_had_its_turn(tmp_path: Path, looked_at: list[Key]) -> None:
    with wide(tmp_path, 6) as (writer, follower):
        looked_at.clear()
        writer.put(Message("topic-0000", b"news"), 7)
        follower.refresh()
        assert len(looked_at) <= QUEUES_AT_A_TIME + 1
        settle(tmp_path, follower)
        assert set(looked_at) == {(topic, queue) for topic in names(6) for queue in range(QUEUES)}
        looked_at.clear()
        follower.refresh()
        assert looked_at == []


def test_messages_for_queues_that_nobody_asked_for_open_none(tmp_path: Path) -> None:
    with MessageStore.open(tmp_path, SMALL, create=True) as writer:
        make(writer, 3)
        with MessageStore.open(tmp_path, FOLLOW) as follower:
            for topic in names(3):
                writer.put(Message(topic, b"news"), 3)
                follower.refresh()
            settle(tmp_path, follower)
            assert follower._parts.queues.opened() == []
            assert [bodies(follower, topic, 3) for topic in names(3)] == [[b"first", b"news"]] * 3


def test_no_queue_is_opened_to_begin_or_for_the_states(
    tmp_path: Path, unswept: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    with MessageStore.open(tmp_path, ONE_FILE, create=True) as writer:
        make(writer, 5)
        opened: list[Key] = []
        monkeypatch.setattr(ConsumeQueues, "_found", lambda _, key: opened.append(key))
        with MessageStore.open(tmp_path, FOLLOW) as follower:
            assert [one.max_offset for one in follower.queue_states()] == [1] * 5 * QUEUES
            assert follower.physical_end == writer.physical_end
    assert opened == []


def test_states_of_queues_that_are_not_open_are_found_once_until_they_change(
    tmp_path: Path, unswept: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    with MessageStore.open(tmp_path, SMALL, create=True) as writer:
        make(writer, 3)
        with MessageStore.open(tmp_path, FOLLOW) as follower:
            settle(tmp_path, follower)
            found: list[Key] = []

            def noting(queues: ConsumeQueues, key: Key, count: int) -> Look | None:
                found.append(key)
                return look(queues, key, count)

            look = ConsumeQueues._look
            monkeypatch.setattr(ConsumeQueues, "_look", noting)

            def counts() -> dict[Key, int]:
                found.clear()
                return {(one.topic, one.queue): one.max_offset for one in follower.queue_states()}

            expected = dict.fromkeys(((topic, queue) for topic in names(3) for queue in range(QUEUES)), 1)
            assert counts() == expected
            assert counts() == expected
            assert found == []
            writer.put(Message("topic-0001", b"news"), 4)
            follower.refresh()
            expected["topic-0001", 4] = 2
            assert counts() == expected
            assert found == [("topic-0001", 4)]
            writer.delete_topic("topic-0002")
            writer.create_topic("topic-0002", QUEUES)
            follower.refresh()
            expected.update(dict.fromkeys((("topic-0002", queue) for queue in range(QUEUES)), 0))
            assert counts() == expected
            assert follower._parts.queues.opened() == []


def test_a_state_that_no_record_changes_is_found_again_in_its_turn(tmp_path: Path) -> None:
    with MessageStore.open(tmp_path, ONE_FILE, create=True) as writer:
        make(writer, 6)
        with MessageStore.open(tmp_path, FOLLOW) as follower:
            settle(tmp_path, follower)
            assert {one.max_offset for one in follower.queue_states()} == {1}
            cut = entries_of(tmp_path, "topic-0005", 2)
            written_over(cut, bytes(cut.stat().st_size))
            writer.put(Message("topic-0000", b"news"), 7)
            sweep(follower, 6)
            changed = {(one.topic, one.queue, one.max_offset) for one in follower.queue_states() if one.max_offset != 1}
            assert changed == {("topic-0000", 7, 2), ("topic-0005", 2, 0)}


def test_a_torn_tail_has_all_queues_searched_for_a_tenth_of_the_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with MessageStore.open(tmp_path, SMALL, create=True) as writer:
        end = writer.put(Message("T", b"whole"), 0).physical_end
    now = 1000.0
    searches: list[float] = []

    def search(_: Follower) -> None:
        nonlocal now
        searches.append(now)
        now += 5.0

    with MessageStore.open(tmp_path, FOLLOW) as follower:
        with (tmp_path / "commitlog" / f"{0:020}").open("r+b") as log:
            log.seek(end)
            log.write(b"torn" * 30)
        monkeypatch.setattr(Follower, "_newest_by_files", search)
        monkeypatch.setattr("engine.open.follower.time", SimpleNamespace(monotonic=lambda: now))
        while now < 1100:
            follower.refresh()
            now += 0.125
    assert searches == [1001.0, 1056.0]


# what the news do not name


def test_a_queue_that_its_writer_cut_in_place_is_seen_in_its_turn(tmp_path: Path) -> None:
    with wide(tmp_path, 6) as (writer, follower):
        gone = Gone()
        follower.subscribe(gone)
        cut = entries_of(tmp_path, "topic-0005", 2)
        written_over(cut, bytes(cut.stat().st_size))
        writer.put(Message("topic-0000", b"news"), 7)
        sweep(follower, 6)
        assert gone.keys == [("topic-0005", 2)]
        assert follower.bounds("topic-0005", 2).max_offset == 0
        assert follower.bounds("topic-0005", 3).max_offset == 1


def test_a_queue_folder_that_comes_or_goes_without_a_record_is_seen_in_its_turn(tmp_path: Path) -> None:
    with wide(tmp_path, 6) as (writer, follower):
        shutil.rmtree(tmp_path / "consumequeue/topic-0005/2")
        (tmp_path / "consumequeue/topic-0004/77").mkdir()
        writer.put(Message("topic-0000", b"news"), 7)
        sweep(follower, 6)
        assert follower.bounds("topic-0005", 2).max_offset == 0
        assert 77 in follower.queues("topic-0004")


def test_a_queue_whose_turn_came_in_a_look_that_failed_has_it_in_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with wide(tmp_path, 2) as (writer, follower):
        gone, keys = Gone(), [("topic-0000", 1), ("topic-0000", 2)]
        follower.subscribe(gone)
        for key in keys:
            cut = entries_of(tmp_path, *key)
            written_over(cut, bytes(cut.stat().st_size))
        writer.put(Message("topic-0001", b"news"), 7)

        def failing(queue: ConsumeQueue, physical_end: int) -> bool:
            if (queue.topic, queue.queue_id) == keys[0]:
                raise NoDescriptorError(queue.files.directory)
            return refresh(queue, physical_end)

        refresh = ConsumeQueue.refresh
        with monkeypatch.context() as patch:
            patch.setattr(ConsumeQueue, "refresh", failing)
            with pytest.raises(NoDescriptorError):
                follower.refresh()
        follower.refresh()
        assert gone.keys == keys


@pytest.mark.parametrize("folder_stays", [True, False])
def test_a_topic_that_was_deleted_and_made_anew_empty_is_seen_at_once(
    tmp_path: Path, unswept: None, folder_stays: bool
) -> None:
    with wide(tmp_path, 30) as (writer, follower):
        gone = Gone()
        follower.subscribe(gone)
        if folder_stays:  # as a broker of version 4 does it
            for queue in range(QUEUES):
                shutil.rmtree(tmp_path / "consumequeue/topic-0020" / str(queue))
            os.utime(tmp_path / "config/topics.json")
        else:
            writer.delete_topic("topic-0020")
            writer.create_topic("topic-0020", QUEUES)
        follower.refresh()
        assert sorted(gone.keys) == [("topic-0020", queue) for queue in range(QUEUES)]
        assert [follower.bounds("topic-0020", queue).max_offset for queue in range(QUEUES)] == [0] * QUEUES
        assert follower.bounds("topic-0021", 0).max_offset == 1


def test_first_files_of_queues_without_news_expire_at_once_and_are_let_go_in_turn(tmp_path: Path) -> None:
    retention = Retention(max_bytes=9000, clean_interval_ms=3_600_000, delete_pause_ms=0)
    with wide(tmp_path, 4, replace(SMALL, retention=retention)) as (writer, follower):
        keys = [(topic, queue) for topic in names(4) for queue in range(QUEUES)]
        for topic, queue in keys:
            writer.put_lines(topic, b"line\n" * 70, queue)
        follower.refresh()
        settle(tmp_path, follower)
        writer.clean()
        follower.refresh()
        bounds = {key: writer.bounds(*key) for key in keys}
        assert bounds[keys[0]].min_offset == 71
        assert {key: follower.bounds(*key) for key in keys} == bounds
        sweep(follower, 4)
        for opened in follower._parts.queues.opened():
            assert [file.path for file in opened.files.files] == sorted(opened.files.directory.iterdir())


# what the news name


def hidden(path: Path, keys: list[Key], entry: int) -> Callable[[], None]:
    """Take an entry of each queue away; the returned function writes them, as a writer that dispatches late."""
    files = {entries_of(path, *key): entries_of(path, *key).read_bytes() for key in keys}
    for file, content in files.items():
        written_over(file, content[: 20 * entry] + bytes(20))

    def dispatch() -> None:
        for file, content in files.items():
            written_over(file, content)

    return dispatch


LATE = [("topic-0003", 1), ("topic-0008", 6)]


@pytest.mark.parametrize("looks", [1, 5])
def test_what_a_writer_dispatches_late_is_seen_at_the_look_after_it(tmp_path: Path, unswept: None, looks: int) -> None:
    with wide(tmp_path, 10) as (writer, follower):
        for topic, queue in LATE:
            writer.put(Message(topic, b"late"), queue)
        dispatch = hidden(tmp_path, LATE, 1)
        for _ in range(looks):
            follower.refresh()
        assert [follower.bounds(*key).max_offset for key in LATE] == [1, 1]
        dispatch()
        follower.refresh()
        assert [bodies(follower, *key) for key in LATE] == [[b"first", b"late"]] * 2


def test_what_a_writer_dispatches_during_a_look_is_seen_at_the_next_one(
    tmp_path: Path, unswept: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The newest queue shows that the records before have been dispatched, and these queues were looked at before."""
    with wide(tmp_path, 10) as (writer, follower):
        for topic, queue in LATE:
            writer.put(Message(topic, b"late"), queue)
        dispatch = hidden(tmp_path, LATE, 1)

        def dispatching(queue: ConsumeQueue, physical_end: int) -> bool:
            changed = refresh(queue, physical_end)
            dispatch()
            return changed

        refresh = ConsumeQueue.refresh
        with monkeypatch.context() as patch:
            patch.setattr(ConsumeQueue, "refresh", dispatching)
            follower.refresh()
        assert [follower.bounds(*key).max_offset for key in LATE] == [1, 2]
        follower.refresh()
        assert [bodies(follower, *key) for key in LATE] == [[b"first", b"late"]] * 2


def test_a_named_queue_that_could_not_be_looked_at_is_due_until_it_is(
    tmp_path: Path, unswept: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    with wide(tmp_path, 5) as (writer, follower):
        writer.put(Message("topic-0002", b"news"), 4)

        def no_descriptor(queue: ConsumeQueue, _: int) -> bool:
            raise NoDescriptorError(queue.files.directory)

        with monkeypatch.context() as patch:
            patch.setattr(ConsumeQueue, "refresh", no_descriptor)
            for _ in range(3):
                with pytest.raises(NoDescriptorError):
                    follower.refresh()
        follower.refresh()
        assert bodies(follower, "topic-0002", 4) == [b"first", b"news"]


def test_a_message_of_a_new_queue_or_topic_is_seen_at_the_next_look(tmp_path: Path, unswept: None) -> None:
    with wide(tmp_path, 5) as (writer, follower):
        writer.put(Message("other", b"in a new topic"), 0)
        follower.refresh()
        assert bodies(follower, "other", 0) == [b"in a new topic"]
        settle(tmp_path, follower)
        writer.put(Message("other", b"in a new queue"), 1)
        follower.refresh()
        assert bodies(follower, "other", 1) == [b"in a new queue"]


def test_secondary_queues_of_a_message_are_named_too(tmp_path: Path, unswept: None) -> None:
    with wide(tmp_path, 5) as (writer, follower):
        put_as_broker(writer, naming("%LMQ%a,topic-0003", b"0", topic="topic-0000"), 1)
        follower.refresh()
        assert bodies(follower, "%LMQ%a", 0) == [b"0"]
        put_as_broker(writer, naming("%LMQ%a,topic-0003", b"1", topic="topic-0000"), 1)
        follower.refresh()
        assert bodies(follower, "%LMQ%a", 0) == [b"0", b"1"]
        assert bodies(follower, "topic-0003", 1) == bodies(follower, "topic-0000", 1) == [b"first", b"0", b"1"]


def test_after_damage_was_passed_every_queue_is_looked_at(
    tmp_path: Path, unswept: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("engine.open.follower.STUCK_SECONDS", 0.0)
    with wide(tmp_path, 4) as (writer, follower):
        damaged = writer.put(Message("topic-0000", b"damaged"), 0)
        for topic in names(4):
            for queue in range(QUEUES):
                writer.put(Message(topic, b"more"), queue)
        file = tmp_path / "commitlog" / f"{0:020}"
        with file.open("r+b") as log:
            log.seek(damaged.physical_offset + 90)
            log.write(b"?")
        settle(tmp_path, follower)
        for topic in names(4):
            found = [follower.bounds(topic, queue).max_offset for queue in range(QUEUES)]
            assert found == [3 if (topic, queue) == ("topic-0000", 0) else 2 for queue in range(QUEUES)]
