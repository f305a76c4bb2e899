"""Messages of verbs about a disk that refuses, by a file system that fails by rule (tests/durability/faultfs.c)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from unittest.mock import patch

import pytest

from engine import MessageStore
from mountctl.serving import not_served
from tests.durability.faultfs import CHANGES, FaultyDisk, Rule
from tests.mount.refusing import disk as disk
from tests.mount.refusing import site as site
from tests.mountctl.conftest import Site, succeed

QUEUE = Rule("read", "/store/consumequeue/orders/0/*")
LOG = Rule("read", "/store/commitlog/*")


WRITTEN = [Rule(call, "*") for call in CHANGES]


@pytest.mark.parametrize(
    ("options", "rules", "said"),
    [
        ([], WRITTEN, "the store is only read: the disk refuses to be written: {store}/lock"),
        ([], [QUEUE, LOG], "not served: orders/0: {store}/consumequeue/orders/0/00000000000000000000"),
        (["--read-only"], [QUEUE, LOG], "not served: orders/0: {store}/consumequeue/orders/0/"),
        (["--read-only"], [LOG], "1 place in the log can't be read"),
    ],
    ids=["changes", "queue", "queue-read-only", "log-read-only"],
)
def test_a_mount_says_what_the_disk_keeps_it_from_serving(
    disk: FaultyDisk, site: Site, options: Sequence[str], rules: Sequence[Rule], said: str
) -> None:
    disk.inject(*rules)
    done = site.mount(*options)
    assert done.returncode == 0, done.stderr
    assert f"mountctl: {said.format(store=site.store)}" in done.stderr
    assert "Input/output error" in done.stderr or "can't be read" in done.stderr
    succeed("umount", site.mountpoint)


@pytest.mark.parametrize("options", [[], ["--read-only"], ["--follow"]])
def test_a_mount_over_a_queue_that_the_disk_refuses_serves_its_messages(
    disk: FaultyDisk, site: Site, options: Sequence[str]
) -> None:
    before = succeed("cat", site.store, "orders")
    disk.inject(QUEUE)
    done = site.mount(*options)
    assert (done.returncode, done.stderr) == (0, "")
    assert succeed("cat", site.mountpoint, "orders") == before
    succeed("umount", site.mountpoint)


@pytest.mark.parametrize(("queues", "looks"), [(400, 1), (401, 0)])
def test_a_mount_looks_at_no_queue_of_a_store_with_very_many(tmp_path: Path, queues: int, looks: int) -> None:
    with MessageStore.open(tmp_path, create=True) as store:
        store.create_topics({"one": 600, "other": queues})
        with patch.object(store, "queue_states", return_value=[]) as looked:
            assert (list(not_served(store)), looked.call_count) == ([], looks)


def test_a_mount_of_which_all_is_served_says_nothing_more(site: Site) -> None:
    assert site.mount("--read-only").stderr == ""


def test_a_group_goes_on_while_the_disk_refuses_the_file_of_offsets_that_was_read(disk: FaultyDisk, site: Site) -> None:
    assert site.mount().returncode == 0
    first, *rest = succeed("cat", site.mountpoint, "orders").splitlines()
    consume = ("consume", site.mountpoint, "orders", "-g", "readers")
    assert succeed(*consume, "-n", "1") == f"{first}\n"
    disk.inject(Rule("read", "/store/config/consumerOffset.json*"))
    assert succeed(*consume).splitlines() == rest
    succeed("umount", site.mountpoint)
