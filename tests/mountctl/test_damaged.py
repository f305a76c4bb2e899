"""Damaged messages: every verb that reads leaves them out with a word, and an exit code of its own."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from engine import Message, MessageStore, OpenMode, StoreConfig
from mountctl.local_store import LocalStore
from tests.mountctl.conftest import Site, clear, eventually, mountctl, succeed

DAMAGED = 3
COUNT = 60
"""So many that some are read one by one and others together."""
LOST = (2, 41)


@pytest.fixture(params=["mounted", "not mounted"], scope="module")
def place(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A store with COUNT messages in one queue, of which LOST have another body than they should."""
    folder = tmp_path_factory.mktemp("damaged").resolve()
    site = Site(folder / "store", folder / "mnt", folder / "mount.log")
    site.mountpoint.mkdir()
    fill(site.store)
    if request.param == "not mounted":
        yield site.store
        return
    site.mounted()
    yield site.mountpoint
    clear([site.mountpoint])


def fill(path: Path) -> None:
    """COUNT messages, and then another body for each of LOST."""
    succeed("init", path)
    succeed("topics", "create", path, "orders", "--queues", "1")
    succeed("put", path, "orders", *[f"body {number}" for number in range(COUNT)], "--key", "all")
    with MessageStore.open(path, StoreConfig(mode=OpenMode.READ_ONLY)) as store:
        places = [store.get("orders", 0, offset).physical_offset for offset in LOST]
    for physical_offset in places:
        with (path / "commitlog" / f"{0:020d}").open("r+b") as file:
            file.seek(physical_offset)
            at = physical_offset + file.read(300).index(b"body ")
            file.seek(at)
            file.write(b"b0dy")


GOOD = [f"body {number}" for number in range(COUNT) if number not in LOST]
TOLD = "mountctl: 2 damaged messages left out: orders/0/2, orders/0/41 (see mountctl check)\n"


@pytest.mark.parametrize(
    "verb",
    [
        ["cat", "orders"],
        ["cat", "orders", "--json"],
        ["tail", "orders", "-n", "100"],
        ["tail", "orders", "--from", "0"],
        ["grep", "b.dy", "orders"],
        ["grep", "b.dy", "orders", "--json"],
        ["grep", "-v", "nothing like that", "orders"],
        ["grep", "KEYS=all", "orders", "--in", "properties"],
    ],
    ids=" ".join,
)
def test_damaged_messages_are_counted_on_standard_error_and_in_the_exit_code(place: Path, verb: list[str]) -> None:
    done = mountctl(verb[0], place, *verb[1:])
    bodies = [line if not line.startswith("{") else json.loads(line)["body"] for line in done.stdout.splitlines()]
    assert bodies == GOOD
    assert done.stderr == TOLD
    assert done.returncode == DAMAGED


def test_a_damaged_message_under_a_key_is_counted(tmp_path: Path) -> None:
    path = tmp_path / "store"
    fill(path)
    done = mountctl("cat", path, "orders", "--key", "all")
    assert (done.stdout.splitlines(), done.stderr, done.returncode) == (GOOD, TOLD, DAMAGED)


def test_a_copy_counts_them_too(place: Path, tmp_path: Path) -> None:
    succeed("init", tmp_path / "copy")
    done = mountctl("copy", place, "orders", tmp_path / "copy")
    assert (done.returncode, done.stderr) == (DAMAGED, TOLD)
    assert succeed("cat", tmp_path / "copy", "orders").splitlines() == GOOD


def test_rows_of_sql_are_without_them_with_a_word(place: Path) -> None:
    for query in ("select body from orders order by queue_offset", "select body from messages order by queue_offset"):
        done = mountctl("sql", place, query, "--csv")
        assert done.stdout.splitlines()[1:] == GOOD
        assert done.stderr == "mountctl: 2 damaged messages left out (see mountctl check)\n"
        assert done.returncode == DAMAGED
    assert mountctl("sql", place, "select 1").returncode == 0, "no table is asked for"


def test_a_body_without_the_texts_that_are_looked_for_is_not_read(place: Path) -> None:

    done = mountctl("grep", place, "-c", "body 5", "orders")
    assert done.stdout == "11\n"


def test_a_group_passes_a_damaged_message_with_a_word(place: Path) -> None:
    done = mountctl("consume", place, "orders", "-g", "billing", "-n", "30")
    assert done.stdout.splitlines() == GOOD[:30]
    assert done.stderr == (
        "mountctl: orders/0/2 is damaged, and left out\nmountctl: 1 damaged message left out (see mountctl check)\n"
    )
    assert done.returncode == DAMAGED
    done = mountctl("consume", place, "orders", "-g", "billing")
    assert done.stdout.splitlines() == GOOD[30:]
    assert done.stderr.startswith("mountctl: orders/0/41 is damaged, and left out\n")
    assert done.returncode == DAMAGED
    assert mountctl("consume", place, "orders", "-g", "billing").returncode == 0, "nothing is left, damaged or not"
    again = mountctl("consume", place, "orders", "-g", "another", "--", "cat", stdin=" ")
    assert again.returncode == DAMAGED
    assert "orders/0/2 is damaged" in again.stderr
    assert "orders/0/41 is damaged" in again.stderr


def test_tail_that_follows_tells_of_each_as_it_meets_it(place: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "mountctl", "tail", "-f", str(place), "orders", "--from", "0"]
    with (tmp_path / "said").open("w+") as said:
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=said)
        try:
            eventually(lambda: "orders/0/41 is damaged" in (tmp_path / "said").read_text(), "it is told")
        finally:
            process.send_signal(signal.SIGINT)
            assert process.wait() == 130
    assert re.findall(r"orders/0/(\d+) is damaged", (tmp_path / "said").read_text()) == ["2", "41"]


def test_what_is_whole_ends_with_0_and_in_silence(store: Path) -> None:
    for verb in (["cat"], ["tail"], ["consume", "-g", "g"]):
        done = mountctl(verb[0], store, "orders", *verb[1:])
        assert (done.returncode, done.stderr) == (0, "")


def test_a_log_that_is_cut_while_it_is_read_shows_no_zeros(tmp_path: Path) -> None:
    bodies = [b"%d " % number + b"x" * 1_000 for number in range(300)]
    with MessageStore.open(tmp_path / "store", create=True) as store:
        for body in bodies:
            store.put(Message("orders", body), 0)
    with MessageStore.open(tmp_path / "store", StoreConfig(mode=OpenMode.READ_ONLY)) as store:
        local = LocalStore(store)
        rows = local.messages("orders", 0, 0, None, attributes=False)
        shown = [next(rows).body for _ in range(100)]
        os.truncate(tmp_path / "store/commitlog" / f"{0:020d}", 150_000)
        shown += [row.body for row in rows]
    assert shown == bodies[: len(shown)]
    assert len(shown) + len(local.left_out) == len(bodies)
    assert len(local.left_out) > 100
