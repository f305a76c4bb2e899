"""Damage of the newest messages: records covered by a mark, or by the queues of a closed store, are no torn tail."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from engine import DamagedRecordError, Message, MessageStore, OpenMode, ProblemKind, check_store
from engine.files.disk import Disk
from engine.repair import repair_store
from tests.engine.pairs import pairs
from tests.engine.records import encoder
from tests.engine.storetools import SMALL, bodies, contents, killed, require_clean

Place = tuple[int, int]
"""Physical offset and size."""


def fill(store: MessageStore) -> list[Place]:
    """Eight messages, the last but one alone in queue 1."""
    puts = [store.put(Message("T", b"body-%d" % number, [f"k{number}"]), int(number == 6)) for number in range(8)]
    return [(put.physical_offset, put.store_size) for put in puts]


def closed_by_us(path: Path) -> list[Place]:
    with MessageStore.open(path, SMALL, create=True) as store:
        return fill(store)


def closed_by_rocketmq(path: Path) -> list[Place]:
    places = closed_by_us(path)
    shutil.rmtree(path / "fsstore")
    return places


def killed_behind_the_mark(path: Path) -> list[Place]:
    with killed(path.with_name("living"), path) as store:
        places = fill(store)
        store.flush()
    return places


def killed_before_a_mark(path: Path) -> list[Place]:
    with killed(path.with_name("living"), path) as store:
        return fill(store)


WRITERS = [closed_by_us, closed_by_rocketmq, killed_behind_the_mark, killed_before_a_mark]
FIELDS = {"body": 89, "crc": 8, "size": 3, "magic": 4, "physical offset": 35}


def change(path: Path, physical_offset: int, *, keep_time: bool, count: int = 2) -> None:
    """Change bytes of the log, none to zero."""
    file = path / "commitlog" / f"{0:020d}"
    status = file.stat()
    content = bytearray(file.read_bytes())
    for position in range(physical_offset, physical_offset + count):
        content[position] = content[position] ^ 0x55 or 1
    file.write_bytes(content)
    if keep_time:
        os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))


def require_damaged(path: Path, lost: set[int]) -> None:
    """Messages of `fill` that are lost read as damaged, and they keep their numbers."""
    with MessageStore.open(path, SMALL) as store:
        for number in range(8):
            place = ("T", int(number == 6), 0 if number == 6 else min(number, 6))
            if number in lost:
                with pytest.raises(DamagedRecordError):
                    store.get(*place)
            else:
                assert bytes(store.get(*place).body) == b"body-%d" % number
        assert [store.bounds("T", queue).max_offset for queue in (0, 1)] == [7, 1]


LOST = [{7}, {6}, {6, 7}, {4, 5, 6, 7}, set(range(8))]
AFTER = ["open", "read only", "repair"]


@pytest.mark.parametrize(
    ("writer", "lost", "field", "keep_time", "after"), pairs(WRITERS, LOST, list(FIELDS), [True, False], AFTER)
)
def test_damaged_newest_messages_stay_damaged_and_keep_their_numbers(
    tmp_path: Path, writer: Callable[[Path], list[Place]], lost: set[int], field: str, keep_time: bool, after: str
) -> None:
    path = tmp_path / "store"
    places = writer(path)
    for number in lost:
        change(path, places[number][0] + FIELDS[field], keep_time=keep_time)
    found = {problem.kind for problem in check_store(path)}
    assert ProblemKind.BAD_RECORD in found
    assert ProblemKind.STALE_TAIL not in found
    if after == "read only":
        before = contents(path)
        with MessageStore.open(path, replace(SMALL, mode=OpenMode.READ_ONLY)) as store:
            assert [store.bounds("T", queue).max_offset for queue in (0, 1)] == [7, 1]
        assert contents(path) == before
    if after.startswith("repair"):
        list(repair_store(path))
        assert list(check_store(path)) == []
    require_damaged(path, lost)
    with MessageStore.open(path, SMALL) as store:
        assert store.put(Message("T", b"next"), 0).queue_offset == 7
        assert store.put(Message("T", b"next"), 1).queue_offset == 1
    require_next(path)


def require_next(path: Path) -> None:
    with MessageStore.open(path, SMALL) as store:
        assert bytes(store.get("T", 0, 7).body) == bytes(store.get("T", 1, 1).body) == b"next"


@pytest.mark.parametrize("keep_time", [True, False], ids=["time kept", "time changed"])
def test_recovery_tells_of_the_newest_damage(tmp_path: Path, keep_time: bool) -> None:
    places = closed_by_us(tmp_path / "store")
    change(tmp_path / "store", places[7][0] + 89, keep_time=keep_time)
    with MessageStore.open(tmp_path / "store", SMALL) as store:
        assert store.recovery.damaged == (places[7][0],)
        assert store.recovery.notes
        assert store.recovery.cut_bytes == 0


# the tail that is cut is kept


class FullDisk(Disk):
    """No room for copies."""

    def sync(self, descriptor: int, path: Path) -> None:
        """Refused because of the kept tail."""
        if "damaged" in str(path):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))


def with_a_whole_record_behind_the_end(path: Path) -> int:
    """A store whose log ends before bytes that are no record, and a whole one behind these; where it ends."""
    with killed(path.with_name("living"), path) as store:
        fill(store)
        end = store.physical_end
    record = encoder.encode(Message("T", b"whole"), 0, 1)
    record.place(7, end + 50, 1)
    with (path / "commitlog" / f"{0:020d}").open("r+b") as log:
        log.seek(end + 10)
        log.write(b"x" * 40 + bytes(record.buffer))
    return end


def test_whole_records_are_copied_before_they_are_cut(tmp_path: Path) -> None:
    path = tmp_path / "left"
    end = with_a_whole_record_behind_the_end(path)
    tail = (path / "commitlog" / f"{0:020d}").read_bytes()[end:].rstrip(b"\0")
    before = contents(path)
    with pytest.raises(OSError, match="No space"):
        MessageStore.open(path, replace(SMALL, disk=FullDisk()))
    after = contents(path)
    log = f"commitlog/{0:020d}"
    assert after[log] == before[log]
    with MessageStore.open(path, SMALL) as store:
        assert store.physical_end == end
        assert [note for note in store.recovery.notes if "damaged/" in note]
        assert len(bodies(store, "T", 0)) == 7
    (kept,) = (path / "fsstore" / "damaged").iterdir()
    assert kept.read_bytes().startswith(tail)


def test_a_copy_that_is_there_is_not_written_over(tmp_path: Path) -> None:
    path = tmp_path / "left"
    with_a_whole_record_behind_the_end(path)
    shutil.copytree(path, tmp_path / "first")
    with MessageStore.open(path, SMALL):
        pass
    (kept,) = (path / "fsstore" / "damaged").iterdir()
    target = tmp_path / "first" / "fsstore" / "damaged" / kept.name
    target.parent.mkdir(parents=True)
    target.write_bytes(b"something else")
    with MessageStore.open(tmp_path / "first", SMALL):
        pass
    assert target.read_bytes() == b"something else"
    assert target.with_name(f"{kept.name}.1").read_bytes() == kept.read_bytes()


def test_a_queue_that_repair_removes_gets_back_all_that_the_log_has_of_it(tmp_path: Path) -> None:
    path = tmp_path / "store"
    with MessageStore.open(path, SMALL, create=True) as store:
        places = [store.put(Message("orders", b"%d" % number), queue=0).physical_offset for number in range(4)]
    log = path / "commitlog" / "00000000000000000000"
    content = bytearray(log.read_bytes())
    content[content.index(b"orders", places[1])] ^= 2  # a good record still, and another topic's
    log.write_bytes(content)
    list(repair_store(path))
    require_clean(check_store(path))
    with MessageStore.open(path, SMALL) as store:
        assert [bytes(store.get("orders", 0, number).body) for number in (0, 2, 3)] == [b"0", b"2", b"3"]
        assert store.put(Message("orders", b"next"), queue=0).queue_offset == 4
