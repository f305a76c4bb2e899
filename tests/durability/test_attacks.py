"""The attacks are as described: otherwise the proofs that withstand them prove nothing."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest

from engine import Message, MessageStore
from engine.record.log_framing import record_problem
from tests.durability.attacks import FORGER, HEADER, Attacker, Planter, Queue, Sight, bordered, ending, planted
from tests.engine.storetools import SMALL, letting_forgeries_in

VICTIM = Queue("orders", 0)


@pytest.mark.parametrize("kind", [planted, bordered, ending])
def test_a_planted_record_passes_for_one_where_it_stands(tmp_path: Path, kind: Callable[..., bytes]) -> None:
    found = 0
    with MessageStore.open(tmp_path / "store", SMALL, create=True) as store:
        store.create_topic("hostile", 1)
        for seed in range(20):
            end = store.physical_end
            sight = Sight.of(store, [VICTIM], 1_700_000_000_000)
            planter = Planter(random.Random(seed), [VICTIM], "hostile", b"\x07hostile\0\0")
            body = kind(planter, sight, end + HEADER.size)
            with letting_forgeries_in():
                put = store.put(Message("hostile", body), 0)
            path = tmp_path / "store" / "commitlog" / f"{put.physical_offset // 8192 * 8192:020d}"
            log = path.read_bytes()
            found += put.physical_offset == end and planted_records(log, put.physical_offset, put.store_size) > 0
    assert found > 5


def planted_records(log: bytes, physical_offset: int, size: int) -> int:
    """How many forged records are in the record there, in a file of 8,192 bytes."""
    first = physical_offset % 8192
    starts = [at for at in range(first + HEADER.size, first + size) if log[at + 4 : at + 6] == b"\xda\xa3"]
    file_start = physical_offset - first
    good = [at for at in starts if record_problem(memoryview(log)[at:], file_start + at) is None]
    return sum(b"%d." % FORGER in log[at : at + 120] for at in good)


def test_an_attacker_is_known_by_his_seed() -> None:
    sight = Sight(1_000, 8_192, {VICTIM: 7}, 1_700_000_000_000)
    attacks = [Attacker(random.Random(3), "hostile", [VICTIM]).attack(sight) for _ in range(2)]
    assert attacks[0] == attacks[1]
