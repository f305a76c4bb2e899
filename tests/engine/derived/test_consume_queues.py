"""All queues of a store: which there are, opening them late, and taking them away."""

from __future__ import annotations

import errno
import os
import threading
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engine import NoDescriptorError, RetiredFileError
from engine.derived.consume_queue import ConsumeQueue
from engine.derived.consume_queues import ConsumeQueues
from engine.files.file_scan import folders_in, scan_directory
from engine.files.mapped_file import PAGE_BYTES, Access, MappedFile
from engine.log.entries import ENTRY

FILE_BYTES = 160


def opened(folder: Path, access: Access = Access.WRITE) -> ConsumeQueues:
    queues = ConsumeQueues(folder / "consumequeue", FILE_BYTES, access)
    queues.load()
    return queues


def put(queues: ConsumeQueues, topic: str, queue_id: int, places: list[int]) -> None:
    queue = queues.get_or_create(topic, queue_id)
    queue.append(queue.max_offset, np.array([(place, 10, 0) for place in places], ENTRY))


def test_queues_are_found_by_their_directories_and_other_names_are_none(tmp_path: Path) -> None:
    writer = opened(tmp_path)
    put(writer, "orders", 0, [0])
    put(writer, "orders", 11, [10])
    put(writer, "%RETRY%group", 0, [20])
    for odd in ("orders/x", "orders/07", "orders/-1", "empty"):
        (tmp_path / "consumequeue" / odd).mkdir()
    (tmp_path / "consumequeue" / "file").write_bytes(b"")
    queues = opened(tmp_path)
    assert queues.topics() == ["%RETRY%group", "orders"]
    assert queues.queue_ids("orders") == [0, 11]
    assert queues.queue_ids("none") == []
    assert queues.get("orders", 7) is None
    assert [(queue.topic, queue.queue_id) for queue in queues] == [("%RETRY%group", 0), ("orders", 0), ("orders", 11)]


def test_a_new_queue_changes_the_generation_once_and_has_no_directory_before_its_first_entry(tmp_path: Path) -> None:
    queues = opened(tmp_path)
    before = queues.generation
    assert queues.get_or_create("t", 0) is queues.get_or_create("t", 0) is queues.get("t", 0)
    assert queues.generation == before + 1
    assert not (tmp_path / "consumequeue").exists()
    put(queues, "t", 0, [5])
    assert (tmp_path / "consumequeue/t/0").is_dir()


def test_many_queues_are_listed_without_opening_any(tmp_path: Path) -> None:
    for number in range(300):
        directory = tmp_path / "consumequeue" / f"topic-{number % 10}" / str(number)
        directory.mkdir(parents=True)
        (directory / f"{0:020d}").write_bytes(bytes(FILE_BYTES))
    queues = opened(tmp_path)
    queues.recover(scan=False)
    queues.expire(0)
    assert sum(len(queues.queue_ids(topic)) for topic in queues.topics()) == 300
    assert queues.opened() == []


@pytest.mark.parametrize("scan", [True, False])
def test_recovery_finds_the_highest_physical_end(tmp_path: Path, scan: bool) -> None:
    writer = opened(tmp_path)
    put(writer, "a", 0, [0, 30])
    put(writer, "b", 0, [10, 20])
    queues = opened(tmp_path)
    assert queues.recover(scan) == (40 if scan else -1)
    assert [queue.max_offset for queue in queues] == [2, 2]
    assert queues.truncate(35) == 1
    assert [queue.max_offset for queue in queues] == [1, 2]


def test_expiry_tells_which_minimums_moved_and_files_go(tmp_path: Path) -> None:
    queues = opened(tmp_path)
    put(queues, "a", 0, [10 * number for number in range(20)])
    put(queues, "b", 0, [500])
    assert [queue.min_offset for queue in queues] == [0, 0]
    (expired,) = queues.expire(175)
    assert (expired.topic, expired.queue, expired.old_min, expired.new_min) == ("a", 0, 0, 18)
    assert expired.physical_offsets.tolist() == [10 * number for number in range(18)]
    assert queues.expire(175) == []
    assert queues.delete_expired(0) == 2
    late = opened(tmp_path)
    late.expire(175)
    queue = late.get("a", 0)
    assert queue is not None
    assert (queue.min_offset, queue.max_offset) == (18, 20)


def test_a_follower_tells_of_what_expired_though_the_files_went_before_it_looked(tmp_path: Path) -> None:
    writer = opened(tmp_path)
    put(writer, "a", 0, [10 * number for number in range(20)])
    follower = opened(tmp_path, Access.READ)
    assert [queue.min_offset for queue in follower] == [0]
    assert len(follower.opened()[0].entries(0, 20)) == 20
    put(writer, "a", 0, [10 * number for number in range(20, 30)])
    follower.refresh(1000)  # a file more
    writer.expire(175)
    assert writer.delete_expired(0) == 2
    (expired,) = follower.expire(175)
    assert (expired.old_min, expired.new_min) == (0, 18)
    assert expired.physical_offsets.tolist() == [10 * number for number in range(18)]


def test_a_follower_tells_of_what_expired_after_it_saw_the_queues_files_go(tmp_path: Path) -> None:
    writer = opened(tmp_path)
    put(writer, "a", 0, [10 * number for number in range(20)])
    follower = opened(tmp_path, Access.READ)
    assert [queue.min_offset for queue in follower] == [0]
    writer.expire(175)
    writer.delete_expired(0)
    follower.refresh(1000)
    assert [queue.min_offset for queue in follower] == [16]  # somebody asks meanwhile
    (expired,) = follower.expire(175)
    assert (expired.old_min, expired.new_min) == (0, 18)


@pytest.mark.parametrize("count", [3, 20, 30])
def test_a_follower_opens_a_queue_anew_that_its_writer_made_anew_between_two_looks(tmp_path: Path, count: int) -> None:
    writer = opened(tmp_path)
    put(writer, "a", 0, [10 * number for number in range(20)])
    follower = opened(tmp_path, Access.READ)
    (before,) = follower
    assert follower.refresh(1000) == []
    writer.remove_topic("a")
    put(writer, "a", 0, [500 + 10 * number for number in range(count)])
    follower.refresh(1000)
    assert follower.gone() == [("a", 0)]
    assert follower.gone() == []
    (queue,) = follower
    assert queue is not before
    assert (queue.min_offset, queue.max_offset) == (0, count)
    assert queue.entries(0, count)["physical_offset"].tolist() == [500 + 10 * number for number in range(count)]
    assert follower.refresh(1000) == []


def test_expiry_that_failed_goes_on_and_tells_of_all_queues(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    queues = opened(tmp_path)
    for queue_id in range(3):
        put(queues, "a", queue_id, [10 * number + queue_id for number in range(4)])
    put(queues, "deleted meanwhile", 1, [5])
    assert [queue.min_offset for queue in queues] == [0, 0, 0, 0]

    def no_descriptor(queue: ConsumeQueue, min_physical_offset: int) -> int:
        if queue.queue_id == 1:
            raise NoDescriptorError(queue.files.directory)
        return found(queue, min_physical_offset)

    found = ConsumeQueue.expire
    with monkeypatch.context() as patch:
        patch.setattr(ConsumeQueue, "expire", no_descriptor)
        for _ in range(2):
            with pytest.raises(NoDescriptorError):
                queues.expire(20)
    queues.remove_topic("deleted meanwhile")
    assert sorted((expired.topic, expired.queue) for expired in queues.expire(20)) == [("a", 0), ("a", 1), ("a", 2)]
    assert [queue.min_offset for queue in queues] == [2, 2, 2]
    assert queues.expire(20) == []


def test_what_expired_is_told_though_reading_where_it_was_failed_at_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    queues = opened(tmp_path)
    put(queues, "a", 0, [0, 10, 20, 30])
    assert [queue.min_offset for queue in queues] == [0]

    def no_descriptor(queue: ConsumeQueue, start: int, end: int) -> None:
        raise NoDescriptorError(queue.files.directory)

    with monkeypatch.context() as patch:
        patch.setattr(ConsumeQueue, "physical_offsets", no_descriptor)
        with pytest.raises(NoDescriptorError):
            queues.expire(20)
    (expired,) = queues.expire(20)
    assert (expired.old_min, expired.new_min, expired.physical_offsets.tolist()) == (0, 2, [0, 10])


def test_a_queue_that_is_opened_while_the_log_loses_its_beginning_begins_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(opened(tmp_path), "a", 0, [0, 10, 20, 30])
    queues = opened(tmp_path)
    expiry = threading.Thread(target=queues.expire, args=(20,))

    def begin_at(queue: ConsumeQueue, min_physical_offset: int) -> None:
        begin(queue, min_physical_offset)
        expiry.start()
        expiry.join(0.2)  # it waits for us, or it is done: then it has not seen this queue

    begin = ConsumeQueue.begin_at
    with monkeypatch.context() as patch:
        patch.setattr(ConsumeQueue, "begin_at", begin_at)
        queue = queues.get("a", 0)
    expiry.join()
    assert queue is not None
    assert queue.min_offset == 2


def test_a_follower_tells_of_all_queues_after_looks_that_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = opened(tmp_path)
    for queue_id in range(3):
        put(writer, "a", queue_id, [queue_id])
    queues = opened(tmp_path, Access.READ)
    assert [queue.max_offset for queue in queues] == [1, 1, 1]
    queues.refresh(1000)
    for queue_id in range(3):
        put(writer, "a", queue_id, [10 * number for number in range(1, 10)])  # a second file
    put(writer, "new", 0, [200])
    for file in tmp_path.rglob("*"):
        os.utime(file, (1_600_000_000, 1_600_000_000))  # no directory looks as if it were changing

    def failing(path: Any, *arguments: Any) -> Any:
        if Path(path).name == failing_name[-1]:
            raise OSError(errno.EMFILE, "none left")
        return (listing if arguments else directories)(path, *arguments)

    listing, directories, failing_name = scan_directory, folders_in, [""]
    with monkeypatch.context() as patch:
        patch.setattr("engine.files.file_queue.scan_directory", failing)
        patch.setattr("engine.derived.consume_queues.folders_in", failing)
        for name in ("consumequeue", "new", "1"):
            failing_name.append(name)
            for _ in range(3):
                with pytest.raises(OSError, match="none left"):
                    queues.refresh(1000)
    assert queues.refresh(1000) == [("a", 0), ("a", 1), ("a", 2)]
    assert queues.topics() == ["a", "new"]
    assert queues.refresh(1000) == []


def test_a_follower_looks_again_at_a_queue_whose_writer_took_a_file_between_two_looks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = opened(tmp_path)
    put(writer, "a", 0, [0])
    queues = opened(tmp_path, Access.READ)
    assert [queue.max_offset for queue in queues] == [1]
    put(writer, "a", 0, [10])

    def taken(queue: ConsumeQueue) -> bool:
        raise RetiredFileError(queue.files.directory)

    with monkeypatch.context() as patch:
        patch.setattr(ConsumeQueue, "_has_next", taken)
        assert (queues.refresh(1000), queues.is_behind) == ([], True)
    assert (queues.refresh(1000), queues.is_behind) == ([("a", 0)], False)


def test_a_removed_topic_is_gone_with_its_directories(tmp_path: Path) -> None:
    queues = opened(tmp_path)
    put(queues, "a", 0, [0])
    put(queues, "a", 1, [10])
    put(queues, "b", 0, [20])
    before = queues.generation
    opened(tmp_path).remove_topic("none")
    queues.remove_topic("a")
    assert queues.generation > before
    assert queues.topics() == ["b"]
    assert queues.get("a", 0) is None
    assert [path.name for path in (tmp_path / "consumequeue").iterdir()] == ["b"]
    put(queues, "a", 0, [30])
    assert queues.get_or_create("a", 0).entry(0) == (30, 10, 0)


def test_a_follower_finds_new_queues_and_entries_and_forgets_removed_ones(tmp_path: Path) -> None:
    writer, follower = opened(tmp_path), opened(tmp_path, Access.READ)
    assert follower.refresh(0) == []
    waiting = follower.get_or_create("a", 0)
    before = follower.generation
    assert follower.refresh(0) == []
    assert (follower.generation, follower.topics()) == (before, [])
    put(writer, "a", 0, [0, 10])
    put(writer, "a", 1, [20])
    assert follower.refresh(15) == [("a", 0)]
    assert follower.generation == before + 1
    assert waiting is follower.get("a", 0)
    assert waiting.max_offset == 1
    late = follower.get("a", 1)
    assert late is not None
    assert late.max_offset == 0
    assert follower.refresh(30) == [("a", 0), ("a", 1)]
    assert (waiting.max_offset, late.max_offset) == (2, 1)
    writer.remove_topic("a")
    follower.refresh(30)
    assert follower.topics() == []
    assert follower.get("a", 1) is None


def test_an_entry_is_read_alone_and_not_the_zeros_behind_it(tmp_path: Path) -> None:
    size = 20 << 16
    with closing(ConsumeQueues(tmp_path, size, Access.WRITE)) as writer:
        put(writer, "a", 0, [500])
    path = tmp_path / "a/0" / f"{0:020d}"
    with path.open("rb") as file:
        os.fsync(file)
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    with closing(ConsumeQueues(tmp_path, size, Access.WRITE)) as queues:
        queues.load()
        found = [queues.is_on_disk("a", 0, queue_offset, 500) for queue_offset in (0, 1, size // 20, -1, 1 << 62)]
    assert found == [True, False, False, False, False]
    with closing(MappedFile(path, size, Access.READ)) as mapped:
        assert sum(end - start for start, end in mapped.cached_ranges()) <= PAGE_BYTES
