"""Rules for the deaths of servers."""

from __future__ import annotations

import os

import pytest

from mountctl.deaths import Deaths, may_pass


def test_pauses_grow_where_deaths_follow_each_other() -> None:
    deaths, pauses = Deaths(10.0), []
    for _ in range(20):
        deaths.died(4.0, has_answered=True)
        pauses.append(deaths.pause_seconds)
        assert not deaths.are_too_many
    assert pauses == [0, 0, 1, 2, 4, 8, 16, *[30] * 13]


def test_a_server_that_served_long_begins_a_new_row() -> None:
    deaths = Deaths(10.0)
    for _ in range(5):
        deaths.died(1.0, has_answered=True)
    deaths.died(11.0, has_answered=True)
    assert (deaths.in_a_row, deaths.pause_seconds) == (1, 0)


def test_five_that_answered_nothing_are_too_many() -> None:
    deaths = Deaths(10.0)
    for _ in range(4):
        deaths.died(None, has_answered=False)
    deaths.died(0.5, has_answered=True)
    for served in (None, 0.2, None, 0.9):
        deaths.died(served, has_answered=False)
        assert not deaths.are_too_many
    deaths.put_off()
    assert not deaths.are_too_many
    deaths.died(None, has_answered=False)
    assert deaths.are_too_many


def test_a_server_that_was_asked_nothing_is_not_one_that_died_of_a_request() -> None:
    deaths = Deaths(10.0)
    for _ in range(6):
        deaths.died(4.0, has_answered=False)
    assert not deaths.are_too_many


def test_servers_that_can_not_take_over_never_end_a_mount() -> None:
    deaths = Deaths(10.0)
    for _ in range(100):
        deaths.put_off()
    assert (deaths.are_too_many, deaths.pause_seconds) == (False, 30)


@pytest.mark.parametrize(
    ("status", "passes"),
    [
        (os.EX_DATAERR, True), (os.EX_NOINPUT, True), (os.EX_IOERR, True), (os.EX_TEMPFAIL, True),
        (os.EX_NOPERM, True), (0, False), (1, False), (os.EX_USAGE, False), (os.EX_SOFTWARE, False),
    ],
)  # fmt: skip
def test_reasons_outside_of_the_server_may_pass(status: int, passes: bool) -> None:
    assert may_pass(status) == passes
