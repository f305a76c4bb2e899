"""The short form of tests.durability.mountmodel."""

from __future__ import annotations

from tests.durability.mountmodel import compare, dealt, pieces


def test_a_mount_does_as_its_model() -> None:
    counts = compare(examples=12, steps=40)
    assert counts["steps"] > 100
    assert counts["publishings"] > 10
    assert counts["looks"] > 20
    assert counts["attacks"]
    assert counts["kills"]
    assert counts["clean ends"]


def test_the_model_deals_in_turn() -> None:
    assert [dealt(5, 4, start) for start in range(4)] == [[2, 1, 1, 1], [1, 2, 1, 1], [1, 1, 2, 1], [1, 1, 1, 2]]
    assert b"".join(pieces(b"abcdef", [2, 2, 9])) == b"abcdef"
