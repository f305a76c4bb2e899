"""Hanging mounts, and other users' mounts: no verb waits for them for ever, or gives them a message."""

from __future__ import annotations

import ctypes
import json
import os
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests import forkserver
from tests.mountctl.conftest import Run, Site, eventually, fill, mountctl, succeed

LIBC = ctypes.CDLL(None, use_errno=True)
MNT_DETACH = 2
PATIENCE_SECONDS = 60.0
"""More than any verb may take: it waits for 2 s, once or twice."""


@contextmanager
def silent_mount(mountpoint: Path, store: Path, user: int) -> Iterator[None]:
    """A mount that says it is of `store`, made by `user`, whose daemon has never answered anything."""
    device = os.open("/dev/fuse", os.O_RDWR)
    options = f"fd={device},rootmode=40000,user_id={user},group_id={user},allow_other"
    words = [os.fsencode(word) for word in (str(store), str(mountpoint), "fuse.fsstore", options)]
    try:
        if LIBC.mount(words[0], words[1], words[2], 0, words[3]):
            raise OSError(ctypes.get_errno(), "mount")
        try:
            yield
        finally:
            LIBC.umount2(words[1], MNT_DETACH)
    finally:
        os.close(device)


@pytest.fixture
def filled(site: Site) -> Site:
    fill(site.store)
    return site


@dataclass
class Begun:
    """A command line that was typed in a process of its own, beside others."""

    words: tuple[str | Path, ...]
    thread: threading.Thread
    done: Run | None = None


def begin(*words: str | Path) -> Begun:
    def run() -> None:
        begun.done = forkserver.run("mountctl", [*map(str, words)], text="", cwd=None, timeout=PATIENCE_SECONDS)

    begun = Begun(words, threading.Thread(target=run))
    begun.thread.start()
    return begun


def end(begun: Begun) -> Run:
    """The output of a process, which has to end soon."""
    begun.thread.join()
    assert begun.done is not None, f"it did not end: {begun.words}"
    return begun.done


def quick(*words: str | Path) -> Run:
    return end(begin(*words))


def test_a_verb_says_that_a_mount_does_not_answer(filled: Site) -> None:
    with silent_mount(filled.mountpoint, filled.store, os.geteuid()):
        places = (filled.mountpoint, filled.store)
        waiting = [
            begin(*words)
            for place in places
            for words in (
                ("status", place),
                ("topics", place),
                ("topics", "create", place, "new"),
                ("put", place, "orders", "x"),
                ("cat", place, "orders"),
                ("tail", "-f", place, "orders"),
                ("umount", place),
            )
        ]
        for process in waiting:
            done = end(process)
            assert done.returncode == 75, (done.args, done.stderr)
            assert f"the daemon of {filled.mountpoint} is not answering" in done.stderr


def test_nobody_waits_for_a_path_below_a_mount_that_hangs(filled: Site) -> None:
    with silent_mount(filled.mountpoint, filled.store, os.geteuid()):
        below, checked = begin("status", filled.mountpoint / "orders/0"), begin("check", filled.store)
        again, listed = begin("mount", filled.store, filled.mountpoint), begin("status")
        assert end(below).returncode == 75
        assert "not answering" in end(checked).stderr
        assert "busy" in end(again).stderr
        assert "not answering" in end(listed).stdout


def test_a_dead_mount_is_said_to_be_dead(filled: Site) -> None:
    with silent_mount(filled.mountpoint, filled.store, os.geteuid()):
        subprocess.run(["true"], check=True)
        device = os.stat("/dev/fuse").st_rdev
        for descriptor in os.listdir("/proc/self/fd"):
            try:
                if os.fstat(int(descriptor)).st_rdev == device:
                    os.dup2(os.open(os.devnull, os.O_RDWR), int(descriptor))
            except OSError:
                continue
        for verb in (["status"], ["topics"]):
            done = mountctl(*verb, filled.mountpoint)
            assert (done.returncode, done.stderr) == (
                69, f"mountctl: the mount at {filled.mountpoint} is dead: mountctl umount {filled.mountpoint}\n",
            )  # fmt: skip


def test_a_mount_that_somebody_else_made_of_a_store_gets_nothing(filled: Site) -> None:
    with silent_mount(filled.mountpoint, filled.store, 65534):
        word = f"{filled.mountpoint} was mounted by user 65534, who is neither you nor root nor the owner of"
        done = quick("put", filled.store, "orders/1", "secret")
        assert (done.returncode, word in done.stderr) == (0, True), done.stderr
        done = quick("cat", filled.store, "orders/1")
        assert (done.returncode, done.stdout) == (0, "secret\n")
        for verb in ("status", "topics"):
            refused = quick(verb, filled.mountpoint)
            assert (refused.returncode, word in refused.stderr) == (77, True)
        listed = quick("status")
        assert "not asked: mounted by user 65534" in listed.stdout
        answers = {row["mountpoint"]: row["answers"] for row in json.loads(quick("status", "--json").stdout)}
        assert answers[str(filled.mountpoint)] == "not asked"


def test_a_store_that_is_only_followed_is_written_beside_its_mount(filled: Site) -> None:
    filled.mounted("--follow")
    succeed("put", filled.store, "orders/1", "beside")
    eventually(lambda: succeed("cat", filled.store, "orders/1") == "beside\n", "the mount shows it")
    refused = mountctl("put", filled.mountpoint, "orders/1", "into")
    assert (refused.returncode, refused.stderr) == (
        77, f"mountctl: {filled.mountpoint} is read-only: name a mount that can be written\n",
    )  # fmt: skip


def test_a_store_that_is_mounted_read_only_is_not_written_beside_its_mount(filled: Site) -> None:
    filled.mounted("--read-only")
    refused = mountctl("put", filled.store, "orders/1", "beside")
    assert refused.returncode == 75
    assert f"mounted at {filled.mountpoint}, which relies on it not to change" in refused.stderr
