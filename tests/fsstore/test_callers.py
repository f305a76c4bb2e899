"""Callers: the figures of users and processes, and how many of them there are at most."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from fsstore import callers as callers_module
from fsstore.accounts import Accounts
from fsstore.callers import OTHERS, Caller, CallerFigures, Callers
from tests.fsstore.conftest import Mount, open_small


@pytest.fixture
def accounts() -> Accounts:
    return Accounts(0)


def test_more_processes_than_are_told_apart_stay_in_their_users_figures(
    accounts: Accounts, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(callers_module, "MOST_PROCESSES", 4)
    monkeypatch.setattr(callers_module, "MOST_USERS", 3)
    callers = Callers(accounts)
    for number in range(1, 13):
        callers.published(Caller(1, number), 1, 10)
    assert callers.by_user() == {1: CallerFigures(12, 120, 0)}
    assert [caller.process for caller, _ in callers.by_process()] == [9, 10, 11, 12]
    callers.published(Caller(1, 1), 1, 10)
    assert [caller.process for caller, _ in callers.by_process()] == [10, 11, 12, 1], "it comes again"
    for user in range(2, 20):
        callers.published(Caller(user, 100), 1, 10)
    found = callers.by_user()
    assert len(found) == 3 + 4 + 1
    assert found[1] == CallerFigures(13, 130, 0)
    assert sum(figures.published_messages for figures in found.values()) == 13 + 18
    assert found[OTHERS].published_messages == 18 - 2 - 4


def test_a_read_counts_to_the_process_that_asks(accounts: Accounts) -> None:
    callers = Callers(accounts)
    accounts.caller, accounts.process = 5, 6
    callers.read(100)
    callers.read(1)
    assert dict(callers.by_process()) == {Caller(5, 6): CallerFigures(0, 0, 101)}


def test_a_process_has_a_name_while_it_runs() -> None:
    assert Caller(0, os.getpid()).name == Path("/proc/self/comm").read_text().strip()
    assert Caller(0, 0).name == ""


@pytest.mark.parametrize(
    ("name", "written", "messages"),
    [
        ("append", b"a\nbc\n", 2),
        ("append@frame=file", b"whole", 1),
        ("append@format=json", b'{"body": "x"}\n\n{"body": "y"}\n', 2),
        ("append", b"\n\nabc\nrest", 2),
    ],
)
def test_what_a_write_publishes_counts_to_the_process_that_opened(
    tmp_path: Path, name: str, written: bytes, messages: int
) -> None:
    with open_small(tmp_path / "store") as store:
        mount = Mount(store)
        store.create_topic("t")
        mount.fs.accounts.caller, mount.fs.accounts.process = 7, 8
        mount.publish(f"t/{name}", written)
        (row,) = mount.fs.callers.by_process()
        assert row[0] == Caller(7, 8)
        assert row[1].published_messages == messages
        assert row[1].published_bytes == len(written)
        metrics = mount.cat("@store/metrics").decode()
        assert f'fsstore_user_published_messages_total{{user="7"}} {messages}' in metrics.splitlines()
