"""Replication: what docs/replication.md does not number."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.mount.claims import carried, promised
from tests.mountctl.conftest import Site, eventually, mountctl, succeed
from tests.mountctl.test_replication_promises_master import served, synced

HERE = Path(__file__).parent
DOCUMENT = HERE.parents[1] / "docs/replication.md"


def test_each_promise_of_the_page_has_its_test() -> None:
    assert carried(HERE / "test_replication_promises_*.py") == promised(DOCUMENT)


def test_a_port_that_is_taken_ends_the_mount_by_name(site: Site) -> None:
    port = served(site).address.port
    other = site.store.with_name("other"), site.store.with_name("elsewhere")
    other[1].mkdir()
    done = mountctl("mount", "-o", f"brokerRole=ASYNC_MASTER,haListenPort={port}", *other)
    assert done.returncode == os.EX_UNAVAILABLE
    assert f"127.0.0.1:{port}: Address already in use" in done.stderr


def test_two_mounts_publish_here_and_read_there(site: Site, tmp_path: Path) -> None:
    """A fsync on one returns when the other's store has its messages, and they are read through its mount."""
    master, copy = served(site, "SYNC_MASTER"), tmp_path / "copy"
    words = [sys.executable, "-m", "mountctl", "replicate", str(master.address), str(copy)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as replica:
        try:
            assert replica.stdout is not None
            assert "is a replica of" in replica.stdout.readline()
            synced(master, b"paid\n")
            there = tmp_path / "there"
            there.mkdir()
            succeed("mount", "--follow", copy, there)
            try:
                synced(master, b"shipped\n")
                eventually(lambda: (there / "orders/0.log").read_bytes() == b"paid\nshipped\n", "they are there")
            finally:
                succeed("umount", there)
            assert master.replication()["in_sync"] == 1
        finally:
            replica.terminate()


@pytest.mark.parametrize("verb", ["put", "check", "status"])
def test_no_other_verb_serves_replicas(store: Path, verb: str) -> None:
    done = mountctl(verb, "-o", "brokerRole=ASYNC_MASTER", store, *(["orders", "x"] if verb == "put" else []))
    assert done.returncode == os.EX_USAGE
    assert "-o brokerRole: only mount and replicate serve replicas" in done.stderr


@pytest.mark.parametrize("how", ["--read-only", "--follow"])
def test_a_mount_that_only_reads_serves_no_replicas(site: Site, store: Path, how: str) -> None:
    assert store == site.store
    done = site.mount(how, "-o", "brokerRole=ASYNC_MASTER")
    assert done.returncode == os.EX_USAGE
    assert "only a store that is opened to write serves replicas" in done.stderr
