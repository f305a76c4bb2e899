"""A command line to type at, and stores that are unmounted, closed and checked when a test is over."""

from __future__ import annotations

import contextlib
import io
import os
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from engine import Message, MessageStore
from mountctl.main import run
from tests import forkserver

DEADLINE_SECONDS = 60

Run = subprocess.CompletedProcess[str]


@pytest.fixture(scope="package", autouse=True)
def quick_starts() -> Iterator[None]:
    """Daemons and servers of these tests are forked."""
    with forkserver.available():
        yield


def mountctl(*arguments: str | Path, stdin: str = "", cwd: Path | None = None) -> Run:
    """Type a command line. Verbs that fork, or read their input, get a process of their own; the rest is quicker
    without."""
    words = [str(argument) for argument in arguments]
    if words[0] != "mount" and not stdin and cwd is None:
        return _type_here(words)
    return forkserver.run("mountctl", words, text=stdin, cwd=cwd, timeout=DEADLINE_SECONDS)


def _type_here(words: list[str]) -> Run:
    out, err = (io.TextIOWrapper(io.BytesIO(), encoding="utf-8", write_through=True) for _ in range(2))
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = run(words)
    return Run(words, code, *(said.buffer.getvalue().decode() for said in (out, err)))


def succeed(*arguments: str | Path, stdin: str = "", cwd: Path | None = None) -> str:
    """As `mountctl`, which has to succeed; returns its output."""
    done = mountctl(*arguments, stdin=stdin, cwd=cwd)
    assert done.returncode == 0, done.stderr
    return done.stdout


def eventually(happened: Callable[[], bool], what: str) -> None:
    """Wait until it happened, or fail."""
    deadline = time.monotonic() + DEADLINE_SECONDS
    while not happened():
        assert time.monotonic() < deadline, f"waited {DEADLINE_SECONDS} s: {what}"
        time.sleep(0.02)


@dataclass(frozen=True)
class Site:
    """Where a test mounts: nothing is there yet but the empty mount point."""

    store: Path
    mountpoint: Path
    log: Path

    def mount(self, *options: str) -> Run:
        """Mount, and unmount at the end in any case."""
        return mountctl("mount", "--log-file", self.log, *options, self.store, self.mountpoint)

    def mounted(self, *options: str) -> Site:
        """Mount, and it has to work."""
        done = self.mount(*options)
        assert done.returncode == 0, done.stderr + self.log_text()
        return self

    def log_text(self) -> str:
        return self.log.read_text() if self.log.exists() else ""


def clear(mountpoints: Sequence[Path]) -> None:
    """Unmount all mounts, in any state."""
    for mountpoint in mountpoints:
        for _ in range(3):
            if not is_mounted(mountpoint):
                break
            done = mountctl("umount", mountpoint)
            if done.returncode:
                print(done.stderr, end="")  # pytest shows it with what fails because of it
                subprocess.run(["fusermount3", "-u", "-z", str(mountpoint)], check=False, capture_output=True)


def is_mounted(mountpoint: Path) -> bool:
    """Whether the mount table names it; a dead mount too."""
    return f" {mountpoint} " in Path("/proc/self/mountinfo").read_text()


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    """A place to mount; the store that a test leaves there has to pass `check`."""
    yield from site_in(tmp_path)


def site_in(folder: Path) -> Iterator[Site]:
    """The same as a fixture of any scope."""
    folder = folder.resolve()
    made = Site(folder / "store", folder / "mnt", folder / "mount.log")
    made.mountpoint.mkdir()
    yield made
    clear([made.mountpoint])
    if (made.store / "commitlog").is_dir():
        succeed("check", made.store)


def fill(path: Path) -> None:
    """Make a store: ten keyed messages in queue 0 of `orders`."""
    with MessageStore.open(path, create=True) as store:
        for number in range(10):
            store.put(Message("orders", f"order {number}".encode(), keys=[f"ORDER-{number}"], tags="paid"), queue=0)


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """An unmounted store, filled."""
    path = tmp_path.resolve() / "store"
    fill(path)
    return path


def tree(folder: Path) -> dict[str, tuple[int, int, bytes]]:
    """Every file below `folder`: size, modification time, bytes."""
    found = {}
    for name in sorted(folder.rglob("*")):
        if name.is_file():
            facts = os.stat(name)
            found[str(name.relative_to(folder))] = (facts.st_size, facts.st_mtime_ns, name.read_bytes())
    return found
