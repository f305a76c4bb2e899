"""The short form of tests.durability.readerrors."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.durability.readerrors import Case, sweep

SHORT = (
    "middle page of the log refused, closed store, cat",
    "middle page of the log refused, closed store, check",
    "middle page of the log refused, closed store, write mount, fault later, files",
    "middle page of the log refused, killed store, read-only mount, fault first, files",
    "newest page of the log refused, closed store, follow mount, fault later, files",
    "header of the index refused, closed store, write mount, fault first, files",
    "middle page of the log refused, closed store, repair",
    "first page of the log refused, closed store, backup",
    "newest page of the log refused, closed store, sql",
    "entries of the index refused, closed store, check",
    "topics.json refused, closed store, write mount, fault first, files",
    "topics.json and its .bak refused, closed store, topics",
    "sizes.json refused, closed store, put",
    "checkpoint refused, killed store, check",
    "consumerOffset.json refused, closed store, consume",
    "consumerOffset.json refused, closed store, backup",
    "all of fsstore/ refused, closed store, repair",
    "lock refused, closed store, put",
    "first page of a later log file not opened, closed store, write mount, fault first, files",
    "page after the log's end refused, killed store, write mount, fault first, verbs",
    "all of fsstore/ refused, closed store, write mount, fault later, verbs",
    "newest page of the log not opened, killed store, write mount, fault first, verbs",
    "first page of the log not opened, closed store, export",
    "checkpoint not opened, killed store, check",
)


@pytest.mark.parametrize("half", [0, 1])
def test_a_page_that_cannot_be_read_costs_what_is_in_it(tmp_path: Path, half: int) -> None:
    def choose(cases: list[Case]) -> list[Case]:
        return [case for case in cases if str(case) in SHORT[half::2]]

    tally = sweep(tmp_path, choose, lambda tally, wrong: None)
    assert tally.findings == []
    assert tally.cases == len(SHORT[half::2])
    assert sum(times for state, times in tally.reached.times.items() if state.startswith("met: ")) == tally.cases
