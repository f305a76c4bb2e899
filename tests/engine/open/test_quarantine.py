"""Quarantine: data moved out of a store's way is where the sentence says, and stays there after a power cut."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from engine import DamagedRecordError, Message, MessageStore, check_store, repair_store
from engine.files.disk import Disk
from engine.files.layout import StoreLayout
from engine.open.quarantine import quarantine
from tests.engine.storetools import SMALL, bodies, killed, opened, require_clean

QUEUE_OFFSET_AT, STORE_TIME_AT = 20, 56


class NamesNoted(Disk):
    """Notes the names in each directory that is brought to disk."""

    def __init__(self) -> None:
        self.durable: dict[Path, set[str]] = {}

    def sync_directory(self, path: Path) -> None:
        super().sync_directory(path)
        self.durable[path] = {member.name for member in path.iterdir()}


def test_a_file_is_moved_under_its_path_and_both_names_are_on_disk(tmp_path: Path) -> None:
    odd, disk = tmp_path / "commitlog/notes.txt", NamesNoted()
    odd.parent.mkdir()
    for number in range(2):
        odd.write_text(f"not ours {number}")
        moved = tmp_path / quarantine(StoreLayout(tmp_path), "commitlog/notes.txt", disk)
        assert not odd.exists()
        assert moved.read_text() == f"not ours {number}"
        assert moved.name in disk.durable[moved.parent]
        assert odd.name not in disk.durable[odd.parent]
    assert moved == tmp_path / "fsstore/damaged/commitlog/notes.txt.1"


@pytest.mark.parametrize("folder", ["commitlog", "consumequeue/T/0", "index"])
def test_a_repair_moves_what_is_no_file_of_the_store(tmp_path: Path, folder: str) -> None:
    with opened(tmp_path) as store:
        store.put(Message("T", b"kept", ["key"]), 0)
    (tmp_path / folder / "notes.txt").write_text("not ours")
    assert [problem.path for problem in check_store(tmp_path)] == [f"{folder}/notes.txt"]
    list(repair_store(tmp_path))
    require_clean(check_store(tmp_path))
    assert (tmp_path / "fsstore/damaged" / folder / "notes.txt").read_text() == "not ours"


def damaged_copies(store: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in (store / "fsstore/damaged").glob("*") if path.is_file()}


def test_a_repair_keeps_what_it_frames(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        put = [store.put(Message("T", b"body-%d" % number), 0) for number in range(3)]
    start, end = put[1].physical_offset, put[1].physical_end
    log = tmp_path / "commitlog/00000000000000000000"
    flip(log, log.read_bytes().index(b"body-1"))
    before = log.read_bytes()[start:end]
    list(repair_store(tmp_path))
    assert log.read_bytes()[start:end] != before
    assert damaged_copies(tmp_path) == {f"{start:020d}-{end:020d}": before}
    require_clean(check_store(tmp_path))
    with opened(tmp_path) as store:
        assert [message.body for message in store.read("T", 0, 2)] == [b"body-2"]


def test_recovery_keeps_a_record_that_lost_a_sector_before_it_frames_it(tmp_path: Path) -> None:
    with killed(tmp_path / "store", tmp_path / "crashed") as store:
        lost = store.put(Message("T", b"lost", properties={"long": "x" * 2000}), 0)
        store.put(Message("T", b"kept"), 0)
    crashed = tmp_path / "crashed"
    with (crashed / "commitlog/00000000000000000000").open("r+b") as log:
        log.seek(1024)  # of the properties, which no checksum covers
        log.write(bytes(512))
        log.seek(lost.physical_offset)
        before = log.read(lost.store_size)
    with MessageStore.open(crashed, SMALL) as store:
        assert [bytes(message.body) for message in store.read("T", 0, 1)] == [b"kept"]
        with pytest.raises(DamagedRecordError):
            store.get("T", 0, 0)
    name = f"{lost.physical_offset:020d}-{lost.physical_end:020d}"
    assert damaged_copies(crashed) == {name: before}


@pytest.mark.parametrize("is_whole", [True, False])
def test_recovery_keeps_whole_records_that_it_cuts_off_the_log(tmp_path: Path, is_whole: bool) -> None:
    """Records of an earlier life of the log after its end: stored earlier, with a number that was given since."""
    with killed(tmp_path / "store", tmp_path / "crashed") as store:
        store.put(Message("T", b"kept"), 0)
        stale = store.put(Message("T", b"stale"), 0)
    crashed = tmp_path / "crashed"
    shutil.rmtree(crashed / "consumequeue")
    (crashed / "fsstore/coverage.json").unlink(missing_ok=True)
    with (crashed / "commitlog/00000000000000000000").open("r+b") as log:
        log.seek(stale.physical_offset + QUEUE_OFFSET_AT)
        log.write(bytes(8))
        log.seek(stale.physical_offset + STORE_TIME_AT)
        log.write((1000).to_bytes(8, "big"))
        if not is_whole:
            log.seek(stale.physical_end - len(b"torn"))
            log.write(b"torn")
        log.seek(stale.physical_offset)
        before = log.read(stale.store_size)
    with MessageStore.open(crashed, SMALL) as store:
        assert bodies(store, "T", 0) == [b"kept"]
        assert store.put(Message("T", b"next"), 0).physical_offset == stale.physical_offset
    assert [before in copy for copy in damaged_copies(crashed).values()] == [True] * is_whole


def flip(path: Path, position: int) -> None:
    """Damage one byte."""
    with path.open("r+b") as file:
        file.seek(position)
        [byte] = file.read(1)
        file.seek(position)
        file.write(bytes([byte ^ 1]))
