"""The short form of tests.durability.powerpair, and proof that it would notice."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

from tests.durability.powerpair import Pair, Tally, cut_power
from tests.durability.recorder import Recorder

IMAGES = 60


def test_no_power_cut_costs_what_a_master_and_its_replica_acknowledged(tmp_path: Path) -> None:
    tally = cut_power(tmp_path, IMAGES, seed=5)
    assert tally.findings == []
    assert tally.images_of_the_master == tally.images_of_the_replica == IMAGES // 2
    assert tally.bytes_required > IMAGES * 10_000
    assert tally.images_with_more_than_required > 0


class Liar(Recorder):
    """Says that it synced a file, and did nothing."""

    def sync(self, descriptor: int, path: Path) -> None:
        self.note("nothing was done")


@pytest.mark.parametrize(("waits", "recorder"), [(True, Liar), (False, Recorder)])
def test_a_replica_that_has_not_what_was_acknowledged_is_found_out(
    tmp_path: Path, waits: bool, recorder: type[Recorder]
) -> None:
    """Its disk only claims to sync, or its master does not wait for it."""
    pair, tally = Pair(tmp_path, 1, waits=waits, recorder=recorder), Tally()
    with closing(pair.recorders[0]), closing(pair.recorders[1]):
        pair.run()
        for number in range(1, 41, 2):
            pair.cut(number, tally)
    assert tally.findings
