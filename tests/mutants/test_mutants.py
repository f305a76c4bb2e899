"""Each mutant can be planted, and its suite exists. `./run mutants` shows that the suites notice them."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.mutants.__main__ import PROJECT
from tests.mutants.mutants import MUTANTS, Mutant


def test_each_has_a_name_of_its_own() -> None:
    assert [name for name, times in Counter(mutant.name for mutant in MUTANTS).items() if times > 1] == []


@pytest.mark.parametrize("mutant", MUTANTS, ids=[mutant.name for mutant in MUTANTS])
def test_it_applies_to_the_code_of_today_and_names_a_suite(mutant: Mutant) -> None:
    path = PROJECT / mutant.path
    before = path.read_text()
    after = mutant.applied_to(before)
    assert after != before
    if path.suffix == ".py":
        compile(after, mutant.path, "exec")
    assert mutant.suite
    for suite in mutant.suite:
        assert (PROJECT / suite.partition("::")[0]).exists()
