"""Fuzzing, the short form: the kept corpus, and some thousand changes of it, the same each time."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.durability.fuzz import CORPUS, NAMES, mutated, samples
from tests.durability.parsers import KERNEL_MODULES, PARSERS

CHANGES = 300


@pytest.mark.parametrize("name", NAMES)
def test_no_parser_breaks_a_promise_on_its_corpus_or_on_changes_of_it(name: str) -> None:
    chance = random.Random(1)
    known = samples(name)
    for data in (*known, *(mutated(chance.choice(known), chance) for _ in range(CHANGES))):
        PARSERS[name](data)


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=40)
@given(data=st.binary(max_size=1_500))
def test_no_parser_breaks_a_promise_on_any_bytes(name: str, data: bytes) -> None:
    PARSERS[name](data)


def test_every_parser_has_a_corpus() -> None:
    assert sorted(path.name for path in CORPUS.iterdir()) == sorted(PARSERS) == sorted(NAMES)


def test_every_module_of_the_kernel_has_a_parser() -> None:
    kernel = Path(__file__).parents[2] / "engine/record/kernel"
    assert sorted(KERNEL_MODULES) == sorted(path.stem for path in kernel.glob("*.pyx"))
    assert set().union(*KERNEL_MODULES.values()) <= set(PARSERS.values())
