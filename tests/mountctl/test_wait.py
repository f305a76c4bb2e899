"""mountctl wait: it returns when a message comes, and says which."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from engine import Message, MessageStore
from tests.mountctl.conftest import DEADLINE_SECONDS, Site, fill, mountctl, succeed


def waiting(*arguments: str | Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "mountctl", "wait", *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


@pytest.mark.parametrize("target", ["orders", "orders/2"])
def test_it_returns_when_a_message_comes_and_says_where(site: Site, target: str) -> None:
    fill(site.store)
    site.mounted()
    with waiting(site.mountpoint, target) as waiter:
        # it has looked at the queues once it asks for the second time, whenever that is: go on until it returns
        published = 0
        while waiter.poll() is None:
            (site.mountpoint / "orders/2/append").write_bytes(b"new\n")
            published += 1
        assert waiter.stdout is not None
        topic, queue, offset = waiter.stdout.read().strip().split("/")
    assert (waiter.returncode, topic, queue) == (0, "orders", "2")
    assert int(offset) < published
    assert succeed("cat", site.mountpoint, f"orders/2/{offset}").strip() == "new"


def test_a_message_that_is_there_is_not_waited_for(site: Site) -> None:
    fill(site.store)
    assert succeed("wait", site.store, "orders/0/9") == "orders/0/9\n"
    site.mounted()
    assert succeed("wait", site.mountpoint, "orders/0/3") == "orders/0/3\n"


def test_it_gives_up_when_it_is_told_to(site: Site) -> None:
    fill(site.store)
    done = mountctl("wait", site.store, "orders/0/10", "--timeout", "0.3")
    assert (done.returncode, done.stdout) == (os.EX_TEMPFAIL, "")
    assert "no message came to orders/0/10 within 0.3 s" in done.stderr


def test_it_sees_what_a_writer_beside_it_publishes(site: Site) -> None:
    with MessageStore.open(site.store, create=True) as store:
        store.create_topic("orders", 1)
        with waiting(site.store, "orders/0/0") as waiter:
            store.put(Message("orders", b"first"), 0)
            assert waiter.stdout is not None
            assert waiter.stdout.read() == "orders/0/0\n"
            assert waiter.wait(DEADLINE_SECONDS) == 0
