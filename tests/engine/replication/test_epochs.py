"""Epochs: up to where two logs are the same, and the file that RocketMQ has of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine.errors import ConfigFileError
from engine.replication.epochs import Epoch, merged, read_epochs, shared_end, write_epochs
from tests.engine.storetools import HastyDisk

MASTER = (Epoch(1, 0), Epoch(2, 500))


@pytest.mark.parametrize(
    ("own", "own_end", "end"),
    [
        ([(1, 0), (2, 500)], 900, 900),
        ([(1, 0), (2, 500)], 2_000, 1_000),
        ([(1, 0)], 700, 500),
        ([(1, 0)], 300, 300),
        ([(1, 0), (2, 450)], 900, 450),
        ([(1, 0), (3, 400)], 300, 300),
        ([(1, 7)], 900, None),
        ([], 0, None),
    ],
)
def test_epochs_tell_up_to_where_two_logs_are_the_same(
    own: list[tuple[int, int]], own_end: int, end: int | None
) -> None:
    assert shared_end([Epoch(*one) for one in own], own_end, MASTER, 1_000) == end


def test_epochs_that_the_master_has_forgotten_are_kept() -> None:
    own = (Epoch(1, 0), Epoch(2, 500), Epoch(4, 800))
    assert merged(own, (Epoch(2, 500), Epoch(5, 900))) == (Epoch(1, 0), Epoch(2, 500), Epoch(5, 900))
    assert merged((), MASTER) == MASTER


def test_the_file_is_rocketmqs(tmp_path: Path) -> None:
    path = tmp_path / "epochFileCheckpoint"
    assert read_epochs(path) == ()
    write_epochs(path, MASTER, HastyDisk())
    assert path.read_text() == "2\n441882442\n1-0\n2-500\n"
    assert read_epochs(path) == MASTER
    path.write_text("1\n0\n1-0\n")  # a checksum that RocketMQ does not compare
    assert read_epochs(path) == (Epoch(1, 0),)
    write_epochs(path, (), HastyDisk())
    assert not path.exists()


@pytest.mark.parametrize(
    "text", ["", "1\n", "2\n0\n1-0\n", "1\n5\n1-0\n", "1\n0\nx\n", "1\n0\n5\n", "2\n0\n2-0\n1-5\n", "1\n0\n-1-5\n"]
)
def test_a_damaged_file_is_refused_by_name(tmp_path: Path, text: str) -> None:
    path = tmp_path / "epochFileCheckpoint"
    path.write_text(text)
    with pytest.raises(ConfigFileError, match="epochFileCheckpoint"):
        read_epochs(path)
