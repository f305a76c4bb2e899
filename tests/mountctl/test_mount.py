"""mount and umount for real: readiness, the daemon's own errors, its end, and its remains."""

from __future__ import annotations

import errno
import fcntl
import itertools
import json
import os
import pty
import resource
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from engine import writer_of
from fsstore.fuse.mount import ENDING_SIGNALS
from mountctl.daemon import CATCHABLE_SIGNALS, CRASHES
from mountctl.places import mount_at
from mountctl.verbs.umount import _holders_of
from tests.mountctl.conftest import DEADLINE_SECONDS, Site, eventually, fill, is_mounted, mountctl, succeed, tree


def daemon_pid(site: Site) -> int:
    return int(json.loads((site.mountpoint / "@store/status.json").read_text())["pid"])


def gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):  # it may end between the opening and the reading
        return True


@contextmanager
def ended(process: subprocess.Popen[bytes]) -> Iterator[subprocess.Popen[bytes]]:
    """`process`, killed at the end if it lives."""
    try:
        yield process
    finally:
        process.kill()
        process.wait(DEADLINE_SECONDS)


def locked(store: Path) -> bool:
    with open(store / "lock", "r+b") as lock:
        try:
            fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 0)
        except OSError:
            return True
    return False


def test_mount_creates_a_store_and_returns_when_it_can_be_used(site: Site) -> None:
    done = site.mount()
    assert done.returncode == 0, done.stderr
    assert f"{site.store} is mounted at {site.mountpoint} (process {daemon_pid(site)}, log {site.log})" in done.stdout
    (site.mountpoint / "orders").mkdir()
    (site.mountpoint / "orders/0/append").write_text("12 apples\n")
    assert (site.mountpoint / "orders/0/0").read_text() == "12 apples"


def test_umount_returns_when_the_store_is_closed(site: Site) -> None:
    site.mounted()
    succeed("put", site.mountpoint, "orders", "12 apples")
    assert (site.store / "abort").exists()
    pid = daemon_pid(site)
    succeed("umount", site.mountpoint)
    assert not is_mounted(site.mountpoint)
    assert gone(pid)
    assert not locked(site.store)
    assert not (site.store / "abort").exists()
    assert f"closed {site.store}" in site.log_text()


def test_the_stores_own_directory_names_the_mount_to_umount(site: Site) -> None:
    site.mounted()
    succeed("umount", site.store)
    assert not is_mounted(site.mountpoint)


def test_relative_paths_work(site: Site) -> None:
    folder = site.store.parent
    succeed("mount", "--log-file", "mount.log", "store", "mnt", cwd=folder)
    assert is_mounted(site.mountpoint)
    succeed("put", "mnt", "orders", "hello", cwd=folder)
    succeed("umount", "mnt", cwd=folder)
    assert succeed("cat", "store", "orders", cwd=folder) == "hello\n"


@pytest.mark.parametrize("number", ENDING_SIGNALS, ids=lambda number: number.name)
def test_a_signal_ends_the_daemon_cleanly(site: Site, number: signal.Signals) -> None:
    site.mounted()
    succeed("put", site.mountpoint, "orders", "12 apples")
    pid = daemon_pid(site)
    while not gone(pid):  # an impatient person
        with suppress(ProcessLookupError):  # gone since that look
            os.kill(pid, number)
        time.sleep(0.01)
    assert not is_mounted(site.mountpoint)
    assert not (site.store / "abort").exists()
    assert f"closed {site.store}" in site.log_text()
    assert succeed("cat", site.store, "orders") == "12 apples\n"


IMPATIENT = """
import signal, sys
from pathlib import Path
from mountctl import serving
from mountctl.daemon import Reporter
from mountctl.options import MountRequest

def serve_mount(store, mountpoint, options, ready, keeper, facts):
    ready()
    for number in serving.ENDING_SIGNALS:
        signal.raise_signal(number)

assert callable(serving.serve_mount)
serving.serve_mount = serve_mount
serving.serve_request(MountRequest(Path(sys.argv[1]), Path(sys.argv[2])), Reporter(), None)
"""


def test_a_signal_between_the_end_of_serving_and_the_closing_interrupts_neither(site: Site) -> None:
    command: list[str | Path] = [sys.executable, "-c", IMPATIENT, site.store, site.mountpoint]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert f"closed {site.store}" in done.stderr


def test_no_other_signal_that_can_be_caught_ends_it(site: Site) -> None:
    site.mounted()
    pid = daemon_pid(site)
    keeper = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    for number in CATCHABLE_SIGNALS - CRASHES - set(ENDING_SIGNALS):
        os.kill(pid, number)
        succeed("put", site.mountpoint, "orders/0", str(int(number)))
    for number in CATCHABLE_SIGNALS:
        os.kill(keeper, number)
        succeed("put", site.mountpoint, "orders/0", str(int(number)))
    succeed("umount", site.mountpoint)
    eventually(lambda: gone(keeper), "the keeper ends")
    assert not (site.store / "abort").exists()
    assert "killed" not in site.log_text()


def hang_up(site: Site, pid: int, log: Path, answer: str) -> None:
    """SIGHUP to `pid`, and wait for the daemon's answer in `log`."""
    before = log.read_text().count(answer) if log.exists() else 0
    os.kill(pid, signal.SIGHUP)
    eventually(lambda: log.exists() and log.read_text().count(answer) > before, f"the log says: {answer}")


def test_a_hangup_opens_a_log_that_was_rotated_away_anew(site: Site) -> None:
    site.mounted()
    pid = daemon_pid(site)
    keeper = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    rotated = site.log.with_suffix(".1")
    for told in (pid, keeper):
        site.log.rename(rotated)
        hang_up(site, told, site.log, f"SIGHUP: the log goes on in {site.log}")
        opened = {os.readlink(link) for who in (pid, keeper) for link in Path(f"/proc/{who}/fd").iterdir()}
        assert str(rotated) not in opened
    site.log.rename(rotated)
    os.kill(pid, signal.SIGKILL)
    eventually(lambda: "was killed by SIGKILL" in site.log_text(), "the keeper says so, in the new log")


def test_a_hangup_reads_the_stores_retention_again(site: Site) -> None:
    site.mounted()
    asked = site.store / "config/retention.json"
    pid = daemon_pid(site)
    hang_up(site, pid, site.log, "SIGHUP: retention is off")
    asked.write_text('{"fileReservedTime": 72}')
    hang_up(site, pid, site.log, "SIGHUP: retention is on: files older than 72 h are deleted at 04 o'clock; ")
    asked.write_text('{"fileReservedTime": "three days"}')
    hang_up(site, pid, site.log, f"ERROR SIGHUP: {asked}: ")
    asked.unlink()
    hang_up(site, pid, site.log, "SIGHUP: retention is off")


def test_options_of_the_mount_stay_whatever_the_stores_retention_says(site: Site) -> None:
    site.mounted("-o", "fileReservedTime=72")
    (site.store / "config/retention.json").write_text('{"fileReservedTime": 1}')
    hang_up(
        site, daemon_pid(site), site.log, "SIGHUP: retention is on: files older than 72 h are deleted at 04 o'clock; "
    )


def test_a_mount_in_the_foreground_ends_with_its_terminal(site: Site) -> None:
    terminal, theirs = pty.openpty()
    command = [sys.executable, "-m", "mountctl", "mount", "-f", str(site.store), str(site.mountpoint)]
    with ended(subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs)) as served:
        os.close(theirs)
        eventually((site.mountpoint / "@store/status.json").exists, "the mount answers")
        served.send_signal(signal.SIGHUP)
        os.close(terminal)
        eventually(lambda: gone(served.pid), "it ends")
    assert not is_mounted(site.mountpoint)
    assert not (site.store / "abort").exists()


@pytest.fixture
def ends_with_its_daemon(monkeypatch: pytest.MonkeyPatch) -> None:
    """A mount that does, as where the kernel is older than 6.9."""
    monkeypatch.setenv("FSSTORE_NO_RESEND", "1")


@pytest.mark.usefixtures("ends_with_its_daemon")
def test_a_killed_daemon_is_told_of_in_the_log_and_its_mount_point_is_used_again(site: Site) -> None:
    site.mounted()
    succeed("put", site.mountpoint, "orders", "12 apples")
    pid = daemon_pid(site)
    os.kill(pid, signal.SIGKILL)
    eventually(lambda: f"process {pid}) was killed by SIGKILL" in site.log_text(), "the keeper says so")
    assert is_mounted(site.mountpoint)
    assert "dead (mountctl umount" in succeed("status")
    site.mounted()
    assert (site.mountpoint / "orders").is_dir()
    assert succeed("cat", site.mountpoint, "orders") == "12 apples\n"
    assert "was not closed by its last writer" in site.log_text()


@pytest.mark.usefixtures("ends_with_its_daemon")
def test_recovery_is_shown_on_a_terminal_and_the_log_stays_text(site: Site) -> None:
    site.mounted()
    succeed("put", site.mountpoint, "orders", "12 apples")
    os.kill(daemon_pid(site), signal.SIGKILL)
    terminal, theirs = pty.openpty()
    paths = [str(path) for path in (site.log, site.store, site.mountpoint)]
    command = [sys.executable, "-m", "mountctl", "mount", "--log-file", *paths]
    environment = {**os.environ, "TERM": "xterm"}  # one with TERM=dumb shows no progress
    with subprocess.Popen(
        command, stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True, env=environment
    ) as mounting:
        os.close(theirs)
        shown = b"".join(iter(lambda: read_terminal(terminal), b"")).decode()
    os.close(terminal)
    assert mounting.returncode == 0, shown
    assert "recovering" in shown
    assert "is mounted at" in shown
    assert "recovering" in site.log_text()
    assert "\x1b" not in site.log_text()


def read_terminal(terminal: int) -> bytes:
    """The received bytes; empty after the last process has closed the other side."""
    try:
        return os.read(terminal, 65536)
    except OSError:
        return b""


def test_a_daemon_that_hangs_hangs_nobody_else(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mountctl.places.PATIENCE_SECONDS", 0.5)
    monkeypatch.setattr("mountctl.control.STATE_SECONDS", 0.5)
    site.mounted()
    pid = daemon_pid(site)
    os.kill(pid, signal.SIGSTOP)
    try:
        assert "not answering" in succeed("status")
        refused = mountctl("umount", site.mountpoint)
        assert refused.returncode == 75
        assert "is not answering" in refused.stderr
        hangs = mountctl("status", site.mountpoint)
        assert (hangs.returncode, "is not answering" in hangs.stderr) == (75, True)
    finally:
        os.kill(pid, signal.SIGCONT)


def test_umount_waits_for_the_close_also_when_the_daemon_has_no_descriptor_left(site: Site) -> None:
    site.mounted()
    succeed("put", site.mountpoint, "orders", "12 apples")
    pid = daemon_pid(site)
    os.statvfs(site.mountpoint)  # libfuse answers it by a pipe, which fills the gap below the device's descriptor

    def is_refused() -> bool:
        used = {int(number) for number in os.listdir(f"/proc/{pid}/fd")}
        lowest_free = next(number for number in itertools.count() if number not in used)
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (lowest_free, lowest_free))
        try:
            (site.mountpoint / "@store/status.json").read_bytes()
        except OSError as error:
            return "open files" in str(error)
        return False  # the daemon closed one of them meanwhile

    eventually(is_refused, "the daemon has no descriptor left")
    succeed("umount", site.mountpoint)
    assert f"closed {site.store}" in site.log_text()
    assert not locked(site.store)


def test_umount_needs_no_status_of_a_mount_that_is_not_written(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(site.store)
    site.mounted("--read-only")
    status = json.loads((site.mountpoint / "@store/status.json").read_bytes())

    def refused(text: bytes) -> None:
        raise OSError(errno.EIO, "Input/output error", "@store/status.json")

    monkeypatch.setattr("mountctl.verbs.umount.json", SimpleNamespace(loads=refused))
    assert (done := mountctl("umount", site.mountpoint)).returncode == 0, done.stderr
    assert gone(status["pid"])
    assert gone(status["keeper_pid"])


def test_umount_names_another_mount_namespace_that_holds_the_mount(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mountctl.verbs.umount.NAMESPACE_SECONDS", 0.2)
    site.mounted()
    mount = mount_at(site.mountpoint)
    assert mount is not None
    pid = daemon_pid(site)
    # a copy of every mount would keep the daemons of tests that run beside this one
    others = f"findmnt -rn -t fuse.fsstore -o TARGET | grep -vxF {site.mountpoint} | xargs -r -n 1 umount -cil"
    command = ["unshare", "-m", "--propagation", "private", "sh", "-c", f"{others}; exec sleep 60"]
    with ended(subprocess.Popen(command)) as other:
        ours = os.readlink("/proc/self/ns/mnt")
        eventually(lambda: os.readlink(f"/proc/{other.pid}/ns/mnt") != ours, "it has its namespace")
        eventually(lambda: Path(f"/proc/{other.pid}/comm").read_text() == "sleep\n", "it sleeps")
        began = time.monotonic()
        refused = mountctl("umount", site.mountpoint)
        assert time.monotonic() - began < 30
        assert refused.returncode == 75
        assert f"the mount namespace of sleep ({other.pid}) holds it" in refused.stderr
        reused = replace(mount, store=Path("/another"))
        assert list(_holders_of(reused)) == [], "a mount that has the device's number by now holds another store"
        eventually(lambda: "is unmounted here, but still in use" in site.log_text(), "the log says so")
        assert not gone(pid)
    eventually(lambda: gone(pid), "the daemon closes the store")
    assert f"closed {site.store}" in site.log_text()


@pytest.mark.usefixtures("ends_with_its_daemon")
def test_umount_clears_away_a_dead_mount(site: Site) -> None:
    site.mounted()
    os.kill(daemon_pid(site), signal.SIGKILL)
    succeed("umount", site.mountpoint)
    assert not is_mounted(site.mountpoint)
    assert list(site.mountpoint.iterdir()) == []


def test_umount_names_who_uses_the_mount(site: Site) -> None:
    site.mounted()
    with subprocess.Popen(["sleep", "60"], cwd=site.mountpoint) as user:
        try:
            eventually(lambda: os.readlink(f"/proc/{user.pid}/cwd") == str(site.mountpoint), "it is there")
            refused = mountctl("umount", site.mountpoint)
            is_left = is_mounted(site.mountpoint)
            lazily = succeed("umount", "--lazy", site.mountpoint)
            is_open = writer_of(site.store) is not None
        finally:
            user.terminate()
    assert refused.returncode == 75
    assert f"is in use by sleep ({user.pid}): end these, or add" in refused.stderr
    assert (is_left, is_open, is_mounted(site.mountpoint)) == (True, True, False)
    assert f"the store is closed when sleep ({user.pid}) has ended" in lazily
    eventually(lambda: writer_of(site.store) is None, "the store is closed")


def test_umount_waits_for_who_only_looks_at_the_mount(site: Site) -> None:
    site.mounted()
    with subprocess.Popen(["sleep", "0.4"], cwd=site.mountpoint) as user:
        eventually(lambda: os.readlink(f"/proc/{user.pid}/cwd") == str(site.mountpoint), "it is there")
        succeed("umount", site.mountpoint)
    assert not is_mounted(site.mountpoint)


def test_a_mounted_store_names_its_mount(site: Site) -> None:
    site.mounted()
    second = site.mountpoint.parent / "second"
    second.mkdir()
    for options in ([], ["--read-only"]):
        refused = mountctl("mount", "--log-file", site.log, *options, site.store, second)
        assert refused.returncode == 75, refused.stderr
        assert f"{site.store} is mounted at {site.mountpoint}: use that, or `mountctl umount" in refused.stderr
        assert not is_mounted(second)


def test_a_locked_store_names_the_process_that_has_it(site: Site) -> None:
    opening = f"store = MessageStore.open({str(site.store)!r}, create=True)"
    program = f"from engine import MessageStore; {opening}; print(flush=True); input()"
    command = [sys.executable, "-c", program]
    with ended(subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)) as writer:
        assert writer.stdout is not None
        assert writer.stdout.readline() == b"\n"
        for options in ([], ["--read-only"]):
            refused = site.mount(*options)
            assert refused.returncode == 75, refused.stderr
            assert f"process {writer.pid}" in refused.stderr
            assert not is_mounted(site.mountpoint)


def test_a_busy_mount_point_names_what_is_mounted_there(site: Site, tmp_path: Path) -> None:
    site.mounted()
    refused = mountctl("mount", tmp_path / "other", site.mountpoint)
    assert refused.returncode == 69
    assert f"busy: {site.store} is mounted there: mountctl umount {site.mountpoint}" in refused.stderr


def test_a_directory_that_is_no_store_is_refused_and_left_alone(site: Site) -> None:
    site.store.mkdir()
    (site.store / "holiday.jpg").write_bytes(b"\xff\xd8")
    before = tree(site.store)
    refused = site.mount()
    assert refused.returncode == 65
    assert "is not a message store" in refused.stderr
    assert len(refused.stderr.splitlines()) == 1
    assert tree(site.store) == before
    assert "the daemon ends:" in site.log_text()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["-o", "fileReservedTme=72"], "did you mean fileReservedTime"),
        (["-o", "nonsense"], "unknown option: -o nonsense"),
        (["--append-mode", "rw"], "invalid file mode"),
        (["--read-only"], "a read-only mount creates nothing"),
    ],
)
def test_what_makes_no_sense_is_one_line_and_nothing_is_mounted(site: Site, options: list[str], words: str) -> None:
    refused = site.mount(*options)
    assert refused.returncode not in (0, 70)
    assert words in refused.stderr
    assert len(refused.stderr.splitlines()) == 1
    assert not is_mounted(site.mountpoint)


def test_a_read_only_mount_changes_no_byte_of_the_store(site: Site) -> None:
    succeed("init", site.store)
    succeed("put", site.store, "orders/0", "12 apples", "--key", "ORDER-1")
    before = tree(site.store)
    site.mounted("--read-only")
    assert (site.mountpoint / "orders/keys/ORDER-1").read_text() == "12 apples"
    with pytest.raises(OSError, match="Read-only file system"):
        (site.mountpoint / "orders/0/append").write_text("x\n")
    succeed("umount", site.mountpoint)
    assert tree(site.store) == before


def test_a_following_mount_shows_what_another_mount_publishes(site: Site) -> None:
    site.mounted()
    succeed("put", site.mountpoint, "orders/0", "first")
    second = site.mountpoint.parent / "second"
    second.mkdir()
    try:
        succeed("mount", "--follow", "--log-file", site.log, site.store, second)
        assert (second / "orders/0/0").read_text() == "first"
        (site.mountpoint / "orders/0/append").write_text("second\n")
        eventually((second / "orders/0/1").exists, "the second message shows")
        assert (second / "orders/0/1").read_text() == "second"
    finally:
        succeed("umount", second)


def test_a_foreground_mount_serves_in_that_very_process_and_logs_to_standard_error(site: Site) -> None:
    command = [sys.executable, "-m", "mountctl", "mount", "--foreground", str(site.store), str(site.mountpoint)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True) as served:
        eventually((site.mountpoint / "@store/status.json").exists, "the mount answers")
        assert daemon_pid(site) == served.pid
        succeed("umount", site.mountpoint)
        _, said = served.communicate(timeout=DEADLINE_SECONDS)
    assert served.returncode == 0
    assert f"{site.store} is mounted at {site.mountpoint}" in said
    assert f"closed {site.store}" in said


def test_a_signal_that_comes_as_soon_as_it_is_mounted_leaves_no_mount(site: Site, tmp_path: Path) -> None:
    helper = tmp_path / "fusermount3"
    real = shutil.which("fusermount3")
    helper.write_text(f'#!/bin/sh\n{real} "$@"\ncode=$?\n[ "$1" = -u ] || kill -TERM $PPID\nexit $code\n')
    helper.chmod(0o755)
    environment = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    command = [sys.executable, "-m", "mountctl", "mount", "-f", str(site.store), str(site.mountpoint)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment) as served:
        _, said = served.communicate(timeout=DEADLINE_SECONDS)
    assert not is_mounted(site.mountpoint)
    assert served.returncode == 0, said
    assert "SIGTERM: unmounting" in said
    assert f"closed {site.store}" in said


def test_a_service_manager_is_told_when_the_mount_is_ready(site: Site, tmp_path: Path) -> None:
    address = tmp_path / "notify"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listening:
        listening.bind(str(address))
        listening.settimeout(DEADLINE_SECONDS)
        command = [sys.executable, "-m", "mountctl", "mount", "-f", str(site.store), str(site.mountpoint)]
        environment = {**os.environ, "NOTIFY_SOCKET": str(address)}
        with subprocess.Popen(command, stderr=subprocess.DEVNULL, env=environment) as served:
            assert listening.recv(100) == b"READY=1"
            served.terminate()
    assert served.returncode == 0


def test_store_options_reach_the_store(site: Site) -> None:
    site.mounted("-o", "fileReservedTime=72,maxMessageSize=1K", "--sync-flush", "--append-mode", "222", "--allow-other")
    config = json.loads((site.mountpoint / "@store/config.json").read_text())
    assert config["store"]["retention"]["max_age_hours"] == 72
    assert config["store"]["max_message_bytes"] == 1024
    assert config["store"]["flush"]["sync"] is True
    (site.mountpoint / "orders").mkdir()
    assert (site.mountpoint / "orders/append").stat().st_mode & 0o777 == 0o222


def test_it_answers_to_mount_8s_name_for_fstab(site: Site) -> None:
    code = "import sys; sys.argv[0] = '/sbin/mount.fsstore'; from mountctl.main import main; main()"
    options = f"rw,nodev,log_file={site.log}"
    done = subprocess.run(
        [sys.executable, "-c", code, str(site.store), str(site.mountpoint), "-o", options],
        capture_output=True, text=True, timeout=DEADLINE_SECONDS, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert is_mounted(site.mountpoint)
