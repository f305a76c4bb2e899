"""Stores whose commit log is DLedger's: read and followed, damage kept to the message that it hit, writing refused."""

from __future__ import annotations

import os
import shutil
import struct
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engine import (
    DamagedRecordError,
    Message,
    MessageNotFoundError,
    MessageStore,
    OpenMode,
    ProblemKind,
    StoreConfig,
    UnsupportedStoreError,
    check_store,
    repair_store,
)
from tests.engine.ledgers import HEADER, Ledger
from tests.engine.storetools import SMALL, SMALL_SIZES, bodies, nothing_left_open
from tests.engine.test_store_follow import refreshed
from tests.golden55 import Golden55, golden55, require_same, traces

READING = (OpenMode.READ_ONLY, OpenMode.FOLLOW)
BOTH = pytest.mark.parametrize("mode", READING, ids=lambda mode: mode.value)


@pytest.fixture
def golden(tmp_path: Path) -> Golden55:
    """The store of a DLedger broker."""
    return golden55("dledger", tmp_path)


def ledger_at(path: Path) -> Ledger:
    """The broker of a new store with small files."""
    (path / "config").mkdir(parents=True)
    return Ledger(path, SMALL_SIZES.commit_log_bytes, SMALL_SIZES.consume_queue_bytes)


def fill(ledger: Ledger, count: int, first: int = 0) -> list[int]:
    """Append `count` messages to queue 0 of topic T, and dispatch them; their physical offsets."""
    places = [
        ledger.append(Message("T", body(number), tags="red"), 0, number, 1_700_000_000_000 + number)
        for number in range(first, first + count)
    ]
    ledger.dispatch()
    ledger.commit()
    return places


def body(number: int) -> bytes:
    return b"%d " % number + bytes([number % 251]) * (number * 37 % 300)


def reading(path: Path, mode: OpenMode) -> MessageStore:
    return MessageStore.open(path, replace(SMALL, mode=mode))


def assert_as_pulled(store: MessageStore, golden: Golden55) -> None:
    """Every message is as the client pulled it, by queue, offset, key and time; there are no others."""
    require_same(store, golden)
    for line in golden.messages:
        assert store.at(line["po"]).msg_id == line["id"]
        assert store.offset_at(line["qt"], line["q"], line["store"]) == first_since(golden, line)
        found = store.newest_with_key(line["qt"], line["props"]["UNIQ_KEY"])
        assert found is not None
        assert found.physical_offset == line["po"]
    assert store.stats().messages == len(golden.messages)


def first_since(golden: Golden55, line: dict[str, Any]) -> int:
    """The queue's first message that was stored when `line` was, or later. DLedger's store times may step back."""
    queue = (line["qt"], line["q"])
    times: dict[int, int] = {one["qo"]: one["store"] for one in golden.messages if (one["qt"], one["q"]) == queue}
    return min(queue_offset for queue_offset, time in times.items() if time >= line["store"])


@BOTH
def test_every_message_of_a_broker_is_what_its_client_pulled(golden: Golden55, mode: OpenMode) -> None:
    with MessageStore.open(golden.path, StoreConfig(mode=mode)) as store:
        assert_as_pulled(refreshed(store), golden)
        assert store.stats().commit_log_kind == "DLedger"
        assert store.index_state.state == "in use"
        assert (store.recovery.damaged, store.recovery.rebuilt, store.recovery.notes) == ((), (), ())
    assert list(check_store(golden.path)) == []


def test_queues_and_index_that_are_lost_are_derived_from_the_ledger(golden: Golden55) -> None:
    (golden.path / "abort").touch()
    with MessageStore.open(golden.path, StoreConfig(mode=OpenMode.READ_ONLY)) as store:
        assert_as_pulled(store, golden)
    shutil.rmtree(golden.path / "consumequeue")
    shutil.rmtree(golden.path / "index")
    with MessageStore.open(golden.path, StoreConfig(mode=OpenMode.READ_ONLY)) as store:
        assert_as_pulled(store, golden)
        assert not (golden.path / "consumequeue").exists()


def test_a_follower_of_a_broker_sees_what_it_appends_once_it_is_dispatched(golden: Golden55) -> None:
    newest = max(golden.messages, key=lambda line: line["po"])
    end = newest["po"] + newest["size"]
    ledger = Ledger(golden.path, 1 << 30, 6_000_000, end=end, entry=590)
    topic, queue = newest["qt"], newest["q"]
    first = golden.queues[topic, queue][1]
    with MessageStore.open(golden.path, StoreConfig(mode=OpenMode.FOLLOW)) as follower:
        for number in range(first, first + 30):
            place = ledger.append(Message(topic, b"more %d" % number), queue, number, newest["store"] + number)
            refreshed(follower)
            with pytest.raises(MessageNotFoundError):
                follower.get(topic, queue, number)
            ledger.dispatch()
            refreshed(follower)
            message = follower.get(topic, queue, number)
            assert (message.physical_offset, bytes(message.body)) == (place, b"more %d" % number)
        assert follower.log_generation == 0
    assert list(check_store(golden.path)) == []


@BOTH
def test_entries_of_several_files_terms_and_kinds_are_read(tmp_path: Path, mode: OpenMode) -> None:
    ledger = ledger_at(tmp_path)
    for number in range(0, 200, 10):
        fill(ledger, 10, number)
        ledger.term += number % 20 // 10
        ledger.append_noop()
    fill(ledger, 1, 200)
    ledger.append_noop()
    assert len(os.listdir(tmp_path / "dledger-n0" / "data")) > 3
    with reading(tmp_path, mode) as store:
        assert bodies(refreshed(store), "T", 0) == [body(number) for number in range(201)]
        assert store.physical_end == ledger.end
        assert (store.recovery.damaged, store.recovery.rebuilt) == ((), ())
        assert list(store.check()) == []
    shutil.rmtree(tmp_path / "consumequeue")
    with reading(tmp_path, OpenMode.READ_ONLY) as store:
        assert bodies(store, "T", 0) == [body(number) for number in range(201)]
        assert store.physical_end == ledger.end


def test_a_follower_comes_before_the_first_entry_and_goes_from_file_to_file(tmp_path: Path) -> None:
    ledger = ledger_at(tmp_path)
    with reading(tmp_path, OpenMode.FOLLOW) as follower:
        for first in range(0, 300, 7):
            fill(ledger, 7, first)
            assert bodies(refreshed(follower), "T", 0) == [body(number) for number in range(first + 7)]
        assert (follower.log_generation, follower.physical_end) == (0, ledger.end)


# damage


def corrupt(path: Path, position: int) -> None:
    with path.open("r+b") as file:
        file.seek(position)
        (byte,) = file.read(1)
        file.seek(position)
        file.write(bytes([byte ^ 0x10]))


HEADER_BYTES = {"magic": 3, "size": 6, "position": 30, "body size": 46}
RECORD_BYTES = {"record size": 2, "record magic": 5, "record place": 34, "record body": 93}
DAMAGE = HEADER_BYTES | {name: HEADER.size + byte for name, byte in RECORD_BYTES.items()}


@pytest.mark.parametrize("what", DAMAGE)
@BOTH
def test_damage_costs_the_message_that_it_hit_however_it_is_read(tmp_path: Path, what: str, mode: OpenMode) -> None:
    places = fill(ledger_at(tmp_path), 100)
    hit = 61
    entry = places[hit] - HEADER.size
    file_bytes = SMALL_SIZES.commit_log_bytes
    file = tmp_path / "dledger-n0" / "data" / f"{entry // file_bytes * file_bytes:020d}"
    corrupt(file, entry % file_bytes + DAMAGE[what])
    whole = [body(number) for number in range(100) if number != hit]
    with reading(tmp_path, mode) as store:
        refreshed(store)
        with pytest.raises(DamagedRecordError):
            store.get("T", 0, hit)
        with pytest.raises(DamagedRecordError):
            store.at(places[hit])
        assert [bytes(store.get("T", 0, number).body) for number in range(100) if number != hit] == whole
        assert bodies(store, "T", 0) == whole
        assert np.flatnonzero(~store.headers("T", 0, 0, 100)["ok"]).tolist() in ([hit], [])  # no CRC is checked
        assert sum(map(len, store.blocks("T", 0, 0, 100))) == len(whole)
        held = list(store.holding("T", 0, 0, 100, [b" "]))
        assert [one.bodies[row] for one in held for row in range(len(one.bodies))] == whole
        assert bytes(store.stream("T", 0).read(0, 1 << 20)) == b"".join(one + b"\n" for one in whole)
        assert store.bounds("T", 0).max_offset == 100
    (problem,) = check_store(tmp_path)
    assert (problem.kind, problem.path) == (ProblemKind.BAD_RECORD, str(file.relative_to(tmp_path)))
    (tmp_path / "abort").touch()
    for lost in ("nothing", "consumequeue"):
        shutil.rmtree(tmp_path / lost, ignore_errors=True)
        with reading(tmp_path, OpenMode.READ_ONLY) as store:
            assert bodies(store, "T", 0) == whole
            assert store.bounds("T", 0).max_offset == 100


@BOTH
def test_a_key_leads_to_no_message_whose_entry_is_damaged(golden: Golden55, mode: OpenMode) -> None:
    hit, other = golden.messages[100], golden.messages[101]
    corrupt(golden.path / "dledger-n0" / "data" / f"{0:020d}", hit["po"] - HEADER.size + HEADER_BYTES["position"])
    with MessageStore.open(golden.path, StoreConfig(mode=mode)) as store:
        refreshed(store)
        assert store.query(hit["qt"], hit["props"]["KEYS"]) == []
        assert store.newest_with_key(hit["qt"], hit["props"]["UNIQ_KEY"]) is None
        assert [match.physical_offset for match in store.query(other["qt"], other["props"]["KEYS"])] == [other["po"]]
    found = [(problem.kind, problem.path) for problem in check_store(golden.path)]
    assert (ProblemKind.BAD_RECORD, f"dledger-n0/data/{0:020d}") in found


@pytest.mark.parametrize("field", [12, 20], ids=["number", "term"])
@pytest.mark.parametrize("hit", [0, 7, 19])
@BOTH
def test_a_wrong_number_of_an_entry_costs_no_message(tmp_path: Path, field: int, hit: int, mode: OpenMode) -> None:
    places = fill(ledger_at(tmp_path), 20)
    corrupt(tmp_path / "dledger-n0" / "data" / f"{0:020d}", places[hit] - HEADER.size + field)
    with reading(tmp_path, mode) as store:
        assert bodies(refreshed(store), "T", 0) == [body(number) for number in range(20)]
        assert store.bounds("T", 0).max_offset == 20


def test_entries_that_a_later_term_overwrote_do_not_come_back(tmp_path: Path) -> None:
    ledger = ledger_at(tmp_path)
    fill(ledger, 3)
    end, entry = ledger.end, ledger.entry
    for number in range(3, 9):  # as long as what comes in their place, and with the same numbers
        ledger.append(Message("T", b"stale %d" % number), 0, number)
    old = (tmp_path / "dledger-n0" / "data" / f"{0:020d}").read_bytes()
    ledger.end, ledger.entry, ledger.term = end, entry, 1
    for number in range(3, 5):
        ledger.append(Message("T", b"newer %d" % number), 0, number)
    assert old[: ledger.end] != (tmp_path / "dledger-n0" / "data" / f"{0:020d}").read_bytes()[: ledger.end]
    wanted = [*(body(number) for number in range(3)), b"newer 3", b"newer 4"]
    for lost in ("nothing", "consumequeue"):
        shutil.rmtree(tmp_path / lost, ignore_errors=True)
        for is_closed in (True, False):
            (tmp_path / "abort").unlink(missing_ok=True)
            if not is_closed:
                (tmp_path / "abort").touch()
            with reading(tmp_path, OpenMode.READ_ONLY) as store:
                assert bodies(store, "T", 0) == wanted
                assert store.physical_end == ledger.end


@pytest.mark.parametrize("written", [8, 47, 48, 60, 150])
def test_an_entry_that_is_written_just_now_is_not_shown_and_then_is(tmp_path: Path, written: int) -> None:
    ledger = ledger_at(tmp_path)
    fill(ledger, 3)
    end, file = ledger.end, tmp_path / "dledger-n0" / "data" / f"{0:020d}"
    ledger.append(Message("T", b"y" * 100), 0, 3)
    whole = file.read_bytes()
    file.write_bytes(whole[: end + written].ljust(len(whole), b"\0"))
    with reading(tmp_path, OpenMode.READ_ONLY) as store:
        assert (store.physical_end, store.bounds("T", 0).max_offset) == (end, 3)
    with reading(tmp_path, OpenMode.FOLLOW) as follower:
        assert (refreshed(follower).physical_end, follower.bounds("T", 0).max_offset) == (end, 3)
        with file.open("r+b") as mapped:
            mapped.write(whole)
        ledger.dispatch()
        assert bodies(refreshed(follower), "T", 0)[3:] == [b"y" * 100]


def test_entries_behind_the_committed_one_are_shown_and_counted(tmp_path: Path) -> None:
    ledger = ledger_at(tmp_path)
    fill(ledger, 10)
    for number in range(10, 13):
        ledger.append(Message("T", body(number)), 0, number, 1_700_000_000_000 + number)
    with reading(tmp_path, OpenMode.READ_ONLY) as store:
        assert bodies(store, "T", 0) == [body(number) for number in range(13)]
        (note,) = store.recovery.notes
        assert note.startswith("the newest 3 entries of the ledger are behind entry 9,")
    with reading(tmp_path, OpenMode.FOLLOW) as follower:
        assert bodies(refreshed(follower), "T", 0) == [body(number) for number in range(10)]


# refusals


def spoil(path: Path) -> dict[str, Callable[[], object]]:
    log = path / "dledger-n0" / "data"
    return {
        "more than one DLedger log": (path / "dledger-n1").mkdir,
        "from before DLedger's": lambda: shutil.copytree(log, path / "commitlog"),
        "storePathDLedgerCommitLog": lambda: shutil.rmtree(log),
    }


@BOTH
@pytest.mark.parametrize("reason", spoil(Path()))
def test_what_is_not_read_is_refused_by_name(tmp_path: Path, reason: str, mode: OpenMode) -> None:
    fill(ledger_at(tmp_path), 5)
    spoil(tmp_path)[reason]()
    with nothing_left_open(), pytest.raises(UnsupportedStoreError, match=reason):
        reading(tmp_path, mode)
    with nothing_left_open(), pytest.raises(UnsupportedStoreError, match=reason):
        list(check_store(tmp_path))


def test_writing_and_repairing_are_refused_with_what_to_do_instead(tmp_path: Path) -> None:
    fill(ledger_at(tmp_path), 5)
    before = traces(tmp_path)
    for way in (lambda: MessageStore.open(tmp_path, SMALL), lambda: list(repair_store(tmp_path))):
        with nothing_left_open(), pytest.raises(UnsupportedStoreError, match=r"dledger-n0.*--read-only"):
            way()
    assert traces(tmp_path) == before


def test_a_follower_that_came_before_the_ledger_says_so(tmp_path: Path) -> None:
    (tmp_path / "config").mkdir()
    with reading(tmp_path, OpenMode.FOLLOW) as follower:
        refreshed(follower)
        fill(Ledger(tmp_path, SMALL_SIZES.commit_log_bytes, SMALL_SIZES.consume_queue_bytes), 5)
        for _ in range(2):
            with pytest.raises(UnsupportedStoreError, match="mount the store again"):
                follower.refresh()


def test_no_bytes_of_a_header_end_a_read_otherwise_than_as_damage(tmp_path: Path) -> None:
    places = fill(ledger_at(tmp_path), 12)
    file = tmp_path / "dledger-n0" / "data" / f"{0:020d}"
    good = file.read_bytes()
    entry = places[5] - HEADER.size
    for field, kind in ((0, ">i"), (4, ">i"), (8, ">q"), (16, ">q"), (24, ">q"), (44, ">i")):
        for value in (0, -1, 1, 47, 48, 0x7FFFFFFF, -0x80000000):
            spoiled = bytearray(good)
            struct.pack_into(kind, spoiled, entry + field, value)
            file.write_bytes(spoiled)
            for mode in READING:
                with reading(tmp_path, mode) as store:
                    refreshed(store)
                    assert bodies(store, "T", 0)[:5] == [body(number) for number in range(5)]
                    assert [bytes(store.get("T", 0, number).body) for number in range(6, 12)] == [
                        body(number) for number in range(6, 12)
                    ]
                    with suppress(DamagedRecordError):
                        assert bytes(store.get("T", 0, 5).body) == body(5)
            assert len(list(check_store(tmp_path))) <= 1


def test_damage_that_comes_to_what_is_followed_leaves_the_message_out_of_its_stream(tmp_path: Path) -> None:
    ledger = ledger_at(tmp_path)
    with reading(tmp_path, OpenMode.FOLLOW) as follower:
        places = fill(ledger, 20)
        refreshed(follower)
        corrupt(tmp_path / "dledger-n0" / "data" / f"{0:020d}", places[12] - HEADER.size + HEADER_BYTES["position"])
        text = b"".join(body(number) + b"\n" for number in range(20) if number != 12)
        assert bytes(follower.stream("T", 0).read(0, 1 << 20)) == text
