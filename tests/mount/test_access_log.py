"""`@store/accesslog`: each request with its user, line by line, while a client reads the log."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Thread
from typing import NamedTuple

import pytest

from tests.mount.daemon import HELD_LISTINGS
from tests.mount.harness import PATIENCE_S, Mounted, mounted, publish, refused_with, until


class Line(NamedTuple):
    """A line of the log."""

    time: str
    uid: str
    gid: str
    pid: str
    operation: str
    path: str
    position: str
    size: str
    result: str
    seconds: str


class Reader:
    """Has the log open, and reads its lines without waiting."""

    def __init__(self, root: Path) -> None:
        self.descriptor = os.open(root / "@store" / "accesslog", os.O_RDONLY | os.O_NONBLOCK)
        self.text = b""

    def lines(self) -> list[Line]:
        """All so far."""
        while True:
            try:
                self.text += os.read(self.descriptor, 1 << 17)
            except BlockingIOError:
                return [Line(*line.split(" ")) for line in self.text.decode().splitlines()]

    def told(self, **wanted: str) -> list[Line]:
        """The lines with those fields."""
        return [line for line in self.lines() if all(getattr(line, name) == value for name, value in wanted.items())]


@contextmanager
def reading(mount: Mounted) -> Iterator[Reader]:
    reader = Reader(mount.root)
    try:
        yield reader
    finally:
        os.close(reader.descriptor)


def test_a_line_says_who_asked_what_of_which_file_and_how_it_ended(mount: Mounted, queue: Path) -> None:
    topic = queue.parent.name
    with reading(mount) as log:
        publish(queue / "append@tags=a b", b"one\n")
        assert (queue / "0").read_bytes() == b"one"
        assert refused_with((queue / "77").stat) == errno.ENOENT
        os.listdir(queue)
        os.listxattr(queue / "0")
        until("the release is there", lambda: log.told(operation="releasedir", path=f"{topic}/0"))
        (wrote,) = log.told(operation="write")
        (missed,) = log.told(path=f"{topic}/0/77")
        message = f"{topic}/0/{0:020d}"
        (opened,) = log.told(operation="open", path=message)
        assert log.told(operation="readdirplus", path=f"{topic}/0")[0].position == "0"
        assert log.told(operation="listxattr", path=message)
    who = (str(os.getuid()), str(os.getgid()), str(os.getpid()))
    assert wrote[1:9] == (*who, "write", f"{topic}/0/append@tags=a\\x20b", "-", "4", "OK")
    assert missed[1:9] == (*who, "lookup", f"{topic}/0/77", "-", "-", "ENOENT")
    assert opened.result == "OK"
    assert 0 < float(wrote.seconds) < 10


def test_nothing_is_logged_of_what_was_before_or_of_reading_the_log(mount: Mounted, queue: Path) -> None:
    publish(queue / "append", b"one\n")
    with reading(mount) as first, reading(mount) as second:
        assert not (queue / "5.none").exists()
        for log in (first, second, first, second):
            log.lines()
        os.fstat(first.descriptor)
        for log in (first, second):
            until("the look-up is there", lambda log=log: log.told(path=f"{queue.parent.name}/0/5.none"))
            assert len(log.told(path=f"{queue.parent.name}/0/5.none")) == 1
            assert {line.operation for line in log.lines()} == {"lookup"}
    with reading(mount) as log:
        assert log.lines() == []


def test_a_reader_waits_for_lines_and_others_are_served(mount: Mounted, queue: Path) -> None:
    cat = subprocess.Popen(["cat", mount.root / "@store" / "accesslog"], stdout=subprocess.PIPE)
    try:
        assert cat.stdout is not None
        until("cat has it open", lambda: blocked_in_read(cat.pid))
        publish(queue / "append", b"one\n")
        lines = [cat.stdout.readline() for _ in range(3)]
        assert all(line.endswith(b"\n") for line in lines)
        until("cat waits again", lambda: blocked_in_read(cat.pid))
        began = time.monotonic()
        cat.send_signal(signal.SIGINT)
        assert cat.wait(PATIENCE_S) == -signal.SIGINT
        assert time.monotonic() - began < 5
    finally:
        cat.kill()
        cat.wait()
        assert cat.stdout is not None
        cat.stdout.close()
    publish(queue / "append", b"two\n")


def blocked_in_read(pid: int) -> bool:
    """Whether a process sleeps in a request to a mount."""
    stack = Path(f"/proc/{pid}/wchan").read_text()
    return "fuse" in stack or "request_wait" in stack


def test_a_killed_reader_ends_at_once(mount: Mounted, queue: Path) -> None:
    cat = subprocess.Popen(["cat", mount.root / "@store" / "accesslog"], stdout=subprocess.DEVNULL)
    until("cat waits", lambda: blocked_in_read(cat.pid))
    cat.kill()
    assert cat.wait(10) == -signal.SIGKILL
    publish(queue / "append", b"one\n")


def test_a_writer_who_waits_for_the_disk_is_timed_until_it_has_it(tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    with mounted(tmp_path, gate=gate) as mount:
        gate.touch()
        queue = mount.topic("orders") / "0"
        (queue / "append").write_bytes(b"zero\n")  # so that the log's first file need not be made
        gate.unlink()
        with reading(mount) as log:

            def write() -> None:
                descriptor = os.open(queue / "append", os.O_WRONLY | os.O_APPEND | os.O_DSYNC)
                os.write(descriptor, b"one\n")
                os.close(descriptor)

            writer = Thread(target=write)
            writer.start()
            until("it is open", lambda: log.told(operation="open", path="orders/0/append"))
            time.sleep(0.3)
            assert log.told(operation="write") == []
            gate.touch()
            writer.join(PATIENCE_S)
            until("it is told", lambda: log.told(operation="write"))
            (wrote,) = log.told(operation="write")
            assert wrote.result == "OK"
            assert float(wrote.seconds) >= 0.25


def test_what_takes_a_thread_is_one_line_timed_until_it_is_answered(tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    gate.touch()
    with mounted(tmp_path, gate=gate) as mount:
        queue = mount.topic("orders") / "0"
        with reading(mount) as log:
            (tmp_path / HELD_LISTINGS).touch()
            asker = Thread(target=lambda: os.listdir(queue))
            asker.start()
            until("it is held", (tmp_path / "held").exists)
            time.sleep(0.3)
            assert log.told(path="orders/0", operation="readdirplus") == []
            (tmp_path / HELD_LISTINGS).unlink()
            (tmp_path / "answered").touch()
            asker.join(PATIENCE_S)
            until("it is told", lambda: log.told(path="orders/0", operation="readdirplus"))
            (line,) = log.told(path="orders/0", operation="readdirplus")
            assert line.result == "OK"
            assert float(line.seconds) >= 0.25


def test_a_reader_hears_the_end_of_the_mount(tmp_path: Path) -> None:
    with mounted(tmp_path) as mount:
        cat = subprocess.Popen(["cat", mount.root / "@store" / "accesslog"])
        until("cat waits", lambda: blocked_in_read(cat.pid))
        mount.stop()
        assert cat.wait(PATIENCE_S) == 0


@pytest.mark.skipif(os.getuid() != 0, reason="takes another user")
def test_only_the_owner_reads_it(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    with mounted(tmp_path, options={"allow_other": True}) as mount:
        path = mount.root / "@store" / "accesslog"
        assert path.stat().st_mode & 0o7777 == 0o400
        program = "import os, sys; os.setuid(65534); os.open(sys.argv[1], os.O_RDONLY | os.O_NONBLOCK)"
        for folder in tmp_path.parents:
            if folder.stat().st_mode & 0o005 != 0o005:
                program = program.replace("os.setuid", "os.chdir(os.path.dirname(sys.argv[1])); os.setuid")
                program = program.replace("os.open(sys.argv[1]", "os.open('accesslog'")
                break
        done = subprocess.run([sys.executable, "-c", program, path], capture_output=True, text=True, check=False)
        assert "PermissionError" in done.stderr
        assert refused_with(os.open, path, os.O_WRONLY) == errno.EPERM


def test_metrics_count_requests_whether_or_not_somebody_reads_the_log(mount: Mounted, queue: Path) -> None:
    def figure(name: str) -> float:
        lines = (mount.root / "@store" / "metrics").read_text().splitlines()
        return next((float(line.split()[1]) for line in lines if line.startswith(name)), 0.0)

    wrote = figure('fsstore_requests_total{operation="write"}')
    missed = figure('fsstore_request_errors_total{errno="ENOENT"}')
    publish(queue / "append", *[b"one\n"] * 65)
    with reading(mount):
        publish(queue / "append", b"two\n")
    assert not (queue / "none").exists()
    assert figure('fsstore_requests_total{operation="write"}') == wrote + 66
    assert figure('fsstore_request_errors_total{errno="ENOENT"}') > missed
    assert figure('fsstore_request_duration_seconds_count{operation="write"}') >= 1
    assert figure("fsstore_start_time_seconds") == pytest.approx(time.time(), abs=3600)
