"""A copy of a broker that has a controller: its epochs, what is confirmed of its log, and changes of its master."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import pytest

from engine import StoreConfig, promote
from engine.files.layout import StoreLayout
from engine.replication.epochs import Epoch, read_epochs
from engine.settings.notes import ReplicaState
from tests.engine.replication.masters import ScriptedMaster, eventually
from tests.engine.replication.test_replica import (
    COPY,
    SIZES,
    bring_up_to_date,
    caught_up,
    copy,
    log_of,
    master,
    publish,
    refused,
    replicating,
    require_equal,
)
from tests.engine.storetools import HastyDisk

__all__ = ["copy", "master"]


def epochs_of(copy: Path) -> list[tuple[int, int]]:
    return [(one.number, one.begin) for one in read_epochs(StoreLayout(copy).epochs)]


def elect(master: ScriptedMaster, number: int) -> None:
    """Begin an epoch at the log's end. As RocketMQ, end all connections."""
    master.epochs.append((number, master.store.physical_end))
    master.hang_up()


def test_a_copy_has_the_log_over_many_epochs_and_their_file(master: ScriptedMaster, copy: Path) -> None:
    elect(master, 1)
    for number in (2, 3, 7):
        publish(master.store, 40, f"epoch{number}")
        elect(master, number)
    publish(master.store, 40)
    note = bring_up_to_date(master, copy)
    require_equal(master, copy)
    assert epochs_of(copy) == master.epochs
    assert (note.epoch, note.confirmed_end) == (7, master.store.physical_end)
    publish(master.store, 100, "later")
    bring_up_to_date(master, copy)
    require_equal(master, copy)


def test_an_epoch_that_begins_while_the_copy_is_connected_is_taken_over(master: ScriptedMaster, copy: Path) -> None:
    elect(master, 1)
    with replicating(copy, master.options):
        for number in (2, 3):
            publish(master.store, 40, f"epoch{number}")
            eventually(caught_up(master))
            master.epochs.append((number, master.store.physical_end))
            master.hang_up()
            publish(master.store, 40, f"in{number}")
            eventually(caught_up(master))
    require_equal(master, copy)
    assert epochs_of(copy) == master.epochs


def test_an_epoch_that_no_handshake_had_ends_the_connection(master: ScriptedMaster, copy: Path) -> None:
    elect(master, 1)
    publish(master.store, 20)
    changed: list[int] = []

    def another_epoch(physical_offset: int, frame: bytes) -> bytes:
        if changed:
            return frame
        changed.append(physical_offset)
        return frame[:16] + bytes((0, 0, 0, 9)) + frame[20:]

    master.tamper = another_epoch
    bring_up_to_date(master, copy)
    require_equal(master, copy)
    assert len(master.requests) == 2
    assert epochs_of(copy) == master.epochs


def test_only_what_is_confirmed_is_stored(master: ScriptedMaster, copy: Path) -> None:
    elect(master, 1)
    publish(master.store, 20)
    confirmed = master.store.physical_end
    publish(master.store, 20, "unconfirmed")
    master.confirmed_end = confirmed + 5  # not a record's end
    with replicating(copy, master.options) as running:
        eventually(lambda: running.note.physical_end == confirmed and running.note.lag_bytes > 0)
        assert (running.note.state, running.note.confirmed_end) == (ReplicaState.CATCHING_UP, confirmed + 5)
        assert max(master.reports) == confirmed
        assert log_of(copy, 1 << 40).rstrip(b"\0") == log_of(master.folder, confirmed).rstrip(b"\0")
        master.confirmed_end = None
        eventually(caught_up(master))
    require_equal(master, copy)


def test_too_much_that_is_not_confirmed_is_not_held(
    master: ScriptedMaster, copy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("engine.replication.replica.HELD_BYTES", 10_000)
    elect(master, 1)
    publish(master.store, 100)
    master.confirmed_end = 0
    with replicating(copy, master.options) as running:
        eventually(lambda: "are not confirmed" in running.note.reason)
        master.confirmed_end = None
        eventually(caught_up(master))
    require_equal(master, copy)


def test_without_remoting_the_copy_begins_where_the_log_answers(master: ScriptedMaster, copy: Path) -> None:
    elect(master, 1)
    publish(master.store, 200)
    master.options = replace(master.options, remoting=None, has_controller=True)
    with replicating(copy, master.options, replace(COPY, sizes=SIZES)):
        eventually(caught_up(master))
    require_equal(master, copy)


# changes of the master


def test_epochs_that_the_master_has_forgotten_stay(master: ScriptedMaster, copy: Path) -> None:
    elect(master, 1)
    publish(master.store, 40)
    elect(master, 2)
    publish(master.store, 40)
    bring_up_to_date(master, copy)
    forgotten = master.epochs.pop(0)
    bring_up_to_date(master, copy)
    assert epochs_of(copy) == [forgotten, *master.epochs]


def test_an_epoch_that_begins_before_the_copys_end_is_refused(master: ScriptedMaster, copy: Path) -> None:
    elect(master, 1)
    publish(master.store, 40)
    with refused(master, copy, "epochs are the same up to"):
        master.epochs.append((2, master.store.physical_end - 1_000))
        publish(master.store, 40)


def test_epochs_of_which_none_is_the_copys_are_refused(master: ScriptedMaster, copy: Path) -> None:
    elect(master, 1)
    publish(master.store, 40)
    with refused(master, copy, "no epoch is the same"):
        master.epochs = [(5, 0)]


def test_a_promoted_copy_has_the_epochs_that_begin_within_its_log(master: ScriptedMaster, copy: Path) -> None:
    elect(master, 1)
    publish(master.store, 40)
    elect(master, 2)
    bring_up_to_date(master, copy)
    assert epochs_of(copy)[-1] == (2, master.store.physical_end)
    promote(copy, StoreConfig(disk=HastyDisk()))
    assert epochs_of(copy) == [(1, 0)]


# tampered bytes


@pytest.mark.parametrize("field", range(4))
def test_a_tampered_handshake_changes_nothing(master: ScriptedMaster, copy: Path, field: int) -> None:
    """Each field in turn: the connection ends, and the next one brings the true epochs."""
    elect(master, 1)
    publish(master.store, 40)
    elect(master, 2)
    publish(master.store, 40)
    bring_up_to_date(master, copy)
    publish(master.store, 40, "later")
    chance, spots, changed = random.Random(field), [range(4), range(4, 8), range(8, 16), range(16, 44)][field], [0]

    def tamper(answer: bytes) -> bytes:
        changed[0] += 1
        if changed[0] > 1:
            return answer
        spot = chance.choice(spots)
        return answer[:spot] + bytes([answer[spot] ^ 0x80]) + answer[spot + 1 :]

    master.tamper_handshake = tamper
    master.options = replace(master.options, silence_seconds=0.5)
    bring_up_to_date(master, copy)
    require_equal(master, copy)
    assert epochs_of(copy) == master.epochs == [Epoch(1, 0), *master.epochs[1:]]


@pytest.mark.parametrize("seed", range(6))
def test_a_tampered_header_changes_nothing(master: ScriptedMaster, copy: Path, seed: int) -> None:
    elect(master, 1)
    publish(master.store, 40)
    elect(master, 2)
    publish(master.store, 60)
    master.options = replace(master.options, silence_seconds=0.5)
    chance, changed, newest = random.Random(seed), list[int](), [0]
    first, after = [(0, 4), (4, 8), (8, 16), (16, 20), (20, 28), (28, 29)][seed]

    def tamper(physical_offset: int, frame: bytes) -> bytes:
        is_new = physical_offset > max(newest)
        newest.append(physical_offset)
        if is_new and len(changed) < 3 and chance.random() < 0.3:
            spot = chance.randrange(first, after)
            changed.append(spot)
            return frame[:spot] + bytes([frame[spot] ^ 0x80 >> chance.randrange(8)]) + frame[spot + 1 :]
        return frame

    master.tamper = tamper
    bring_up_to_date(master, copy)
    assert changed
    require_equal(master, copy)
    assert epochs_of(copy) == master.epochs
