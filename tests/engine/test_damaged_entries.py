"""A damaged entry of a consume queue costs its own message at most, and only until a repair: none that comes later, and
no number."""

from __future__ import annotations

import os
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from engine import DamagedRecordError, Message, MessageStore, OpenMode
from engine.repair import repair_store
from tests.engine.storetools import SMALL, killed

COUNT = 6
FOLLOW = replace(SMALL, mode=OpenMode.FOLLOW)
ELSEWHERE = {"far behind the log": (2, 0x10), "nowhere": (0, 0x80), "just behind the log": (6, 0x40)}
"""A byte of an entry's physical offset, and the value to change it by."""


def fill(path: Path) -> None:
    with MessageStore.open(path, SMALL, create=True) as store:
        for number in range(COUNT):
            store.put(Message("T", b"%d" % number), 0)


def change_entry(path: Path, number: int, byte: int, mask: int) -> None:
    """Change a byte of an entry of T/0; sizes and times stay."""
    change(path / "consumequeue/T/0" / f"{0:020d}", number * 20 + byte, mask)


def change(file: Path, position: int, mask: int) -> None:
    status = file.stat()
    content = bytearray(file.read_bytes())
    content[position] ^= mask
    file.write_bytes(content)
    os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))


def require(store: MessageStore, lost: int) -> None:
    """All messages of `fill` but the lost one, which is damaged."""
    for number in range(COUNT):
        if number == lost:
            with pytest.raises(DamagedRecordError):
                store.get("T", 0, number)
        else:
            assert bytes(store.get("T", 0, number).body) == b"%d" % number


@pytest.mark.parametrize("place", ELSEWHERE)
@pytest.mark.parametrize("number", [0, COUNT // 2, COUNT - 1])
def test_what_is_published_behind_an_entry_that_leads_astray_is_there(tmp_path: Path, number: int, place: str) -> None:
    fill(tmp_path)
    change_entry(tmp_path, number, *ELSEWHERE[place])
    with MessageStore.open(tmp_path, SMALL) as store:
        require(store, number)
        assert store.put(Message("T", b"6"), 0).queue_offset == 6
        assert store.put_batch([Message("T", b"7"), Message("T", b"8")], 0).queue_offset == 7
        assert [bytes(store.get("T", 0, offset).body) for offset in (6, 7, 8)] == [b"6", b"7", b"8"]
    with MessageStore.open(tmp_path, SMALL) as store:
        require(store, number)
        assert [bytes(store.get("T", 0, offset).body) for offset in (6, 7, 8)] == [b"6", b"7", b"8"]
    list(repair_store(tmp_path))
    with MessageStore.open(tmp_path, SMALL) as store:
        assert [bytes(store.get("T", 0, offset).body) for offset in range(9)] == [b"%d" % one for one in range(9)]


@pytest.mark.parametrize("mode", [OpenMode.READ_ONLY, OpenMode.WRITE])
@pytest.mark.parametrize("number", range(COUNT))
def test_an_entry_whose_size_is_damaged_ends_no_closed_queue(tmp_path: Path, number: int, mode: OpenMode) -> None:
    fill(tmp_path)
    change_entry(tmp_path, number, 8, 0x80)
    with MessageStore.open(tmp_path, replace(SMALL, mode=mode)) as store:
        assert store.bounds("T", 0).max_offset == COUNT
        assert [bytes(store.get("T", 0, one).body) for one in range(COUNT)] == [b"%d" % one for one in range(COUNT)]
        if mode is OpenMode.WRITE:
            assert store.put(Message("T", b"next"), 0).queue_offset == COUNT


@pytest.mark.parametrize("end", [0, 1, COUNT - 1, COUNT + 1, 10**15])
def test_a_mark_that_says_another_end_of_a_queue_is_not_believed(tmp_path: Path, end: int) -> None:
    fill(tmp_path)
    mark = tmp_path / "fsstore/clean.json"
    text = mark.read_text()
    assert '"T":{"0":[0,6]}' in text
    mark.write_text(text.replace('"T":{"0":[0,6]}', f'"T":{{"0":[0,{end}]}}'))
    with MessageStore.open(tmp_path, SMALL) as store:
        require(store, -1)
        assert store.put(Message("T", b"next"), 0).queue_offset == COUNT


@pytest.mark.parametrize("place", ELSEWHERE)
@pytest.mark.parametrize("number", range(COUNT - 1))
def test_a_follower_passes_an_entry_that_leads_astray(tmp_path: Path, number: int, place: str) -> None:
    fill(tmp_path)
    change_entry(tmp_path, number, *ELSEWHERE[place])
    with MessageStore.open(tmp_path, FOLLOW) as follower:
        require(follower, number)


def test_a_damaged_number_of_a_new_queues_first_message_stops_no_opening(tmp_path: Path) -> None:
    with killed(tmp_path / "living", tmp_path / "left") as store:
        store.put(Message("T", b"0"), 0)
        store.flush()
        place = store.put(Message("U", b"first"), 0).physical_offset
        store.put(Message("U", b"second"), 0)
        store.put(Message("T", b"1"), 0)
    change(tmp_path / "left/commitlog" / f"{0:020d}", place + 22, 1)
    with MessageStore.open(tmp_path / "left", SMALL) as store:
        assert bytes(store.get("U", 0, 1).body) == b"second"
        with pytest.raises(DamagedRecordError):
            store.get("U", 0, 0)
        assert [bytes(message.body) for message in store.read("T", 0, 0)] == [b"0", b"1"]
        assert store.put(Message("U", b"third"), 0).queue_offset == 2


def test_a_damaged_queue_number_that_made_a_queue_of_its_own_is_damage(tmp_path: Path) -> None:
    with MessageStore.open(tmp_path, SMALL, create=True) as store:
        place = [store.put(Message("T", b"%d" % number), 0).physical_offset for number in range(COUNT)][1]
    change(tmp_path / "commitlog" / f"{0:020d}", place + 12, 0xFF)  # it is below 0 then
    shutil.rmtree(tmp_path / "consumequeue")
    with MessageStore.open(tmp_path, replace(SMALL, mode=OpenMode.READ_ONLY)) as store:
        assert bytes(store.get("T", 0, 2).body) == b"2"
        (made,) = set(store.queues_by_topic()["T"]).difference(range(4))
        with pytest.raises(DamagedRecordError):
            store.get("T", made, 1)
        assert list(store.read("T", made, 0)) == []
