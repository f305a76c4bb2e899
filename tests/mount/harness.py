"""Real mounts for tests: a daemon process each, which is ended in any state."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fsstore.fuse.mount import device_of
from fsstore.tree.xattrs import FIELD_NAMES
from tests import forkserver

REPOSITORY = Path(__file__).parents[2]
PATIENCE_S = 60.0
"""How long anything may take on a busy machine."""

SMALL_SIZES = {"commit_log_bytes": 1 << 20, "consume_queue_entries": 1024, "index_slots": 5000, "index_entries": 20_000}
"""File sizes for stores that are made and thrown away."""


@dataclass
class Mounted:
    """A mount that a daemon process serves."""

    root: Path
    store: Path
    daemon: subprocess.Popen[bytes] | forkserver.Process
    log: Path

    def topic(self, name: str) -> Path:
        """A new topic, of four queues."""
        folder = self.root / name
        folder.mkdir()
        return folder

    def status(self) -> dict[str, Any]:
        """@store/status.json."""
        found: dict[str, Any] = json.loads((self.root / "@store" / "status.json").read_text())
        return found

    def kill(self) -> None:
        """As `kill -9`, and clear the dead mount away."""
        self.daemon.kill()
        self.daemon.wait(PATIENCE_S)
        unmount_lazily(self.root)

    def stop(self, number: int = signal.SIGTERM) -> int:
        """Ask the daemon to end; its exit status."""
        self.daemon.send_signal(number)
        return self.daemon.wait(PATIENCE_S)


@contextmanager
def mounted(
    folder: Path,
    *,
    store: Path | None = None,
    config: dict[str, Any] | None = None,
    options: dict[str, Any] | None = None,
    gate: Path | None = None,
    idle_at_once: bool = False,
) -> Iterator[Mounted]:
    """Mount `store` (default: a new small one) below `folder`; at the end the daemon has to end cleanly, if it lives.

    `config` are fields of StoreConfig, `options` of ServeOptions; `gate` builds faults in (see `tests.mount.daemon`).
    With `idle_at_once` a stream is idle as soon as its last message is there.
    """
    root = folder / "mount"
    root.mkdir(exist_ok=True)
    log = folder / "daemon.log"
    store = store or folder / "store"
    if config is None or not store.exists():
        config = {"sizes": SMALL_SIZES} | (config or {})
    asked = {
        "store": str(store),
        "mountpoint": str(root),
        "config": config,
        "options": options or {},
        "gate": str(gate) if gate else None,
        "idle_at_once": idle_at_once,
    }
    with log.open("ab") as errors:
        daemon = forkserver.start("tests.mount.daemon", [json.dumps(asked)], stderr=errors)
    mount = Mounted(root, store, daemon, log)
    try:
        await_ready(mount)
        yield mount
        if daemon.poll() is None:
            assert mount.stop() == 0, log.read_text()
        assert device_of(root) is None, "the daemon left its mount behind"
    finally:
        end(mount)


def await_ready(mount: Mounted) -> None:
    """Return when the daemon says that it serves."""
    output = mount.daemon.stdout
    assert output is not None
    waiting = select.poll()  # select() takes no descriptor above 1,023, and a long test run has some
    waiting.register(output, select.POLLIN)
    said = output.readline() if waiting.poll(PATIENCE_S * 1000) else b"nothing"
    assert said == b"ready\n", f"the daemon said {said!r}; its log:\n{mount.log.read_text()}"


def end(mount: Mounted) -> None:
    """End it in any state: no process and no mount remain."""
    if mount.daemon.poll() is None:
        mount.daemon.terminate()
        with suppress(subprocess.TimeoutExpired):
            mount.daemon.wait(10)
    if mount.daemon.poll() is None:
        abort(mount.root)
        mount.daemon.kill()
        mount.daemon.wait(PATIENCE_S)
    if mount.daemon.stdout is not None:
        mount.daemon.stdout.close()
    while device_of(mount.root) is not None:
        unmount_lazily(mount.root)


def abort(root: Path) -> None:
    """Fail every request of a mount whose daemon hangs in the kernel: there is no other way to end it, or its users."""
    device = device_of(root)
    control = Path("/sys/fs/fuse/connections")
    if device is None:
        return
    was_there = any(control.iterdir())
    if not was_there:
        subprocess.run(["mount", "-t", "fusectl", "none", str(control)], check=False, capture_output=True)
    (control / device.partition(":")[2] / "abort").write_text("1")
    if not was_there:
        subprocess.run(["umount", str(control)], check=False, capture_output=True)


def unmount_lazily(root: Path) -> None:
    """Take a mount away even when it is busy or its daemon is dead."""
    subprocess.run(["fusermount3", "-u", "-z", str(root)], check=False, capture_output=True)


def publish(path: Path, *requests: bytes) -> None:
    """Open, one write request each, close."""
    fd = os.open(path, os.O_WRONLY | os.O_APPEND)
    try:
        for request in requests:
            assert os.write(fd, request) == len(request)
    finally:
        os.close(fd)


def bodies(queue: Path) -> list[bytes]:
    """The bodies of a queue's messages, in the order of a listing."""
    return [(queue / name).read_bytes() for name in offset_names(queue)]


def offset_names(queue: Path) -> list[str]:
    """The message files that a listing shows, in its order."""
    return [name for name in os.listdir(queue) if name.isdigit()]


def extended_attributes(message: Path) -> dict[str, str]:
    """All attributes of a message by full name: the fields, which answer by their names, and what its list names."""
    found = {}
    for name in {*FIELD_NAMES, *os.listxattr(message)}:
        with suppress(OSError):
            found[name] = os.getxattr(message, name).decode()
    return found


def sh(command: str, folder: Path) -> str:
    """Output of a shell command run in `folder`; it has to succeed."""
    done = subprocess.run(
        ["sh", "-c", command],
        cwd=folder,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert done.returncode == 0, f"{command}: {done.stderr.decode()}"
    return done.stdout.decode()


def as_user(user: int, command: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """A shell command of another user (root may have one run), in a folder of a mount with `allow_other`; paths in it
    are relative: the way to the folder may be closed to that user."""
    who = ["setpriv", f"--reuid={user}", f"--regid={user}", "--clear-groups"]
    return subprocess.run(
        [*who, "sh", "-c", command], cwd=folder, capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )


def refused_with(use: Callable[..., object], *arguments: Any) -> int:
    """The errno of the OSError that `use(*arguments)` raises."""
    try:
        use(*arguments)
    except OSError as error:
        return error.errno or 0
    raise AssertionError("it was not refused")


def until(what: str, true: Callable[..., object], *arguments: Any) -> None:
    """Wait until `true(*arguments)` is true; `what` describes the event."""
    deadline = time.monotonic() + PATIENCE_S
    while not true(*arguments):
        assert time.monotonic() < deadline, f"still not: {what}"
        time.sleep(0.02)


@contextmanager
def small_disk(folder: Path, size_bytes: int) -> Iterator[Path]:
    """A disk of its own of that size, in memory."""
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size_bytes}", "tmpfs", str(folder)], check=True)
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)
