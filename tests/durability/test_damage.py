"""Damage, the short form: 150 cases, and that the proof would notice."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine import MessageStore, StoreConfig
from tests.durability.damage import KINDS, damage, loss_of
from tests.durability.targets import bases, read_files, write_files

CASES = 150


def test_damage_costs_nothing_but_what_it_hit(tmp_path: Path) -> None:
    tally = damage(tmp_path, CASES, seed=7)
    assert tally.findings == []
    assert tally.cases == CASES
    assert set(tally.damages) == {kind.__name__ for kind in KINDS}, "a kind of damage was not tried"
    assert tally.undamaged_messages_read > 0
    assert tally.damaged_messages_refused > 0


def test_a_missing_file_in_the_middle_of_a_queue_is_made_again(tmp_path: Path) -> None:
    base = bases(tmp_path / "bases")[0]
    write_files(base, tmp_path / "store")
    (tmp_path / "store" / "consumequeue" / "events" / "0" / "00000000000000000640").unlink()
    with MessageStore.open(tmp_path / "store", StoreConfig(sizes=base.sizes, disk=base.disk)) as store:
        assert store.recovery.rebuilt == ("consume queues",)
        for (topic, queue, queue_offset), known in base.messages.items():
            assert bytes(store.get(topic, queue, queue_offset).body) == known.body


@pytest.mark.parametrize("position", [0, 5, 20, 30])
def test_a_flipped_bit_of_a_record_is_damage_that_must_show(tmp_path: Path, position: int) -> None:
    base = bases(tmp_path / "bases")[0]
    write_files(base, tmp_path / "store")
    place, known = next(iter(base.messages.items()))
    content = bytearray(base.files[known.path])
    content[known.start + position] ^= 1
    (tmp_path / "store" / known.path).write_bytes(content)
    loss = loss_of(base, read_files(tmp_path / "store"))
    assert loss.touched == {place}
    assert loss.must_show == f"a protected byte of {place}"
