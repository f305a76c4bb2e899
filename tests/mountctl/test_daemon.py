"""How a daemon starts and ends, with servers that only pretend to serve."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path
from typing import cast

import pytest

from engine import MessageStore
from mountctl import daemon, log_file, serving
from mountctl.daemon import Report, Reporter, seconds_in_environment
from tests.mountctl.conftest import DEADLINE_SECONDS, eventually

SCRIPT = """
import faulthandler, logging, os, signal, sys, time
from contextlib import nullcontext
from pathlib import Path
from mountctl.daemon import Report
from mountctl.keeper import start
from mountctl.launch import Served
from mountctl.errors import CommandError

def server(reporter, keeper):
    faulthandler.enable(sys.stderr)
    print("hello from the server", flush=True)
    {body}

try:
    served = Served(server, Path("/nowhere"), Path(sys.argv[1]), b"")
    ready = start(served, lambda: nullcontext(print))
    print(ready.event, ready.pid)
except CommandError as error:
    print("failed", error.exit_code, error)
"""


def start(body: str, log: Path) -> tuple[str, str]:
    """Run a server of that body in a daemon; returns its starter's output, and the log after the daemon's end."""
    command = [sys.executable, "-c", SCRIPT.format(body=body), str(log)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_SECONDS, check=True)
    return done.stdout, done.stderr


def test_its_starter_returns_when_it_says_ready_and_shows_progress_until_then(tmp_path: Path) -> None:
    body = "reporter.tell(Report('progress', 'reading', done=1, total=2)); reporter.tell(Report('ready'))"
    said, _ = start(body, tmp_path / "log")
    assert said.splitlines()[0] == "reading 1 2"
    assert said.splitlines()[1].startswith("ready ")
    assert "hello from the server" in (tmp_path / "log").read_text()


def test_its_error_is_its_starters_and_the_logs(tmp_path: Path) -> None:
    said, _ = start("raise CommandError('the disk is wet', 'dry it', 74)", tmp_path / "log")
    assert said == "failed 74 the disk is wet: dry it\n"
    assert "the daemon ends: the disk is wet: dry it" in (tmp_path / "log").read_text()


def test_an_unforeseen_error_leaves_its_traceback_in_the_log(tmp_path: Path) -> None:
    said, _ = start("{}['missing']", tmp_path / "log")
    assert said == "failed 70 'missing'\n"
    assert "Traceback" in (tmp_path / "log").read_text()


@pytest.mark.parametrize(
    ("body", "words"),
    [("os.kill(os.getpid(), signal.SIGKILL)", "was killed by SIGKILL"), ("os.abort()", "was killed by SIGABRT")],
)
def test_a_violent_end_is_told_by_the_keeper(tmp_path: Path, body: str, words: str) -> None:
    log = tmp_path / "log"
    said, _ = start(body, log)
    assert said == f"failed 69 the daemon died before the mount was ready: look into its log {log}\n"
    eventually(lambda: words in log.read_text(), "the keeper logs")
    assert ("Fatal Python error: Aborted" in log.read_text()) == ("ABRT" in words)


def test_it_holds_no_terminal_no_folder_and_no_output_of_its_starter(tmp_path: Path) -> None:
    body = "reporter.tell(Report('ready')); print(os.getcwd(), os.getsid(0) != int(sys.argv[2])); time.sleep(1)"
    log = tmp_path / "log"
    said, _ = start(body.replace("int(sys.argv[2])", "os.getppid() + 1"), log)  # returns: its pipes are closed
    assert said.startswith("ready ")
    eventually(lambda: "/ True" in log.read_text(), "the server says where it is")


def test_servers_that_never_answer_end_the_mount_after_the_fifth(tmp_path: Path) -> None:
    """The first server serves, and ends by an error of its own; the next ones can't read their request."""
    body = (
        "from fsstore.handover.keeper import KeeperMessage; keeper.keep(os.eventfd(0));"
        " keeper.send(KeeperMessage.SERVING); reporter.tell(Report('ready')); time.sleep(0.1); {}['missing']"
    )
    log = tmp_path / "log"
    said, _ = start(body, log)
    assert said.startswith("ready ")
    eventually(lambda: "the mount ends" in log.read_text(), "the keeper gives up")
    lines = [line for line in log.read_text().splitlines() if "(process" in line]
    pauses = [float(found[1]) if (found := re.search(r"takes over in (\d+) s", line)) else 0 for line in lines[:-1]]
    assert pauses in ([0, 0, 1, 2], [0, 0, 1, 2, 4])  # the first one counts, where it was slow to end
    assert "ended with 70; the mount ends after 5 daemons in a row that died before their first answer" in lines[-1]


@pytest.mark.parametrize("text", ["ten", "", "-1", "nan", "inf", "1e999"])
def test_a_number_of_the_environment_that_is_none_is_the_default(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setenv("FSSTORE_PREPARE_SECONDS", text)
    assert seconds_in_environment("FSSTORE_PREPARE_SECONDS", 60.0) == 60.0


def test_a_number_of_the_environment_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FSSTORE_PREPARE_SECONDS", "2.5")
    assert seconds_in_environment("FSSTORE_PREPARE_SECONDS", 60.0) == 2.5


def test_a_stopped_command_keeps_no_server_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(daemon, "REPORT_SECONDS", 0.1)
    reading, writing = os.pipe()
    reporter = Reporter(writing)
    for number in range(10_000):  # more than a pipe holds
        reporter.tell(Report("progress", "reading", done=number, total=10_000))
    reporter.tell(Report("ready"))
    reporter.close()
    assert b"ready" not in os.read(reading, 1 << 20)
    os.close(reading)


def test_a_complaint_goes_to_the_systems_log_while_the_file_cannot_be_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listening:
        listening.bind(str(tmp_path / "log-socket"))
        listening.setblocking(False)
        monkeypatch.setattr(log_file, "SYSTEM_LOG", tmp_path / "log-socket")
        in_the_way = tmp_path / "file"
        in_the_way.touch()
        log_file.note(in_the_way / "log", "CRITICAL it died")
        assert listening.recv(200).endswith(b"CRITICAL it died")
        for number in range(5_000):  # more than it takes: nothing waits
            log_file.note(in_the_way / "log", str(number))
        in_the_way.unlink()
        log_file.note(in_the_way / "log", "CRITICAL again")
        assert "CRITICAL again" in (in_the_way / "log").read_text()


def test_a_pipe_that_is_not_read_is_no_log(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "log")
    kept = log_file.LogFile(tmp_path / "log")
    kept.use()
    assert kept.problem == f"{tmp_path}/log can't be written: {tmp_path}/log: No such device or address"


def test_a_hangup_is_answered_whatever_came_of_the_one_before(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    class Store:
        def reread_retention(self) -> None:
            raise ZeroDivisionError("a defect, for a test")

    class LastHangup(BaseException):
        pass

    coming = iter([signal.SIGHUP, signal.SIGHUP])

    def wait(_: object) -> signal.Signals:
        try:
            return next(coming)
        except StopIteration:
            raise LastHangup from None

    monkeypatch.setattr(threading.Thread, "start", lambda _: None)
    hangups = serving.Hangups(None)
    hangups.store = cast(MessageStore, Store())
    monkeypatch.setattr(signal, "sigwait", wait)
    with pytest.raises(LastHangup):
        hangups._run()
    assert [record.getMessage() for record in caplog.records] == ["SIGHUP: a defect, for a test"] * 2
