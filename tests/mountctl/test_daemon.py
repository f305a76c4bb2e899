"""How a daemon starts and ends, with servers that only pretend to serve."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.mountctl.conftest import DEADLINE_SECONDS, eventually

SCRIPT = """
import faulthandler, logging, os, signal, sys, time
from contextlib import nullcontext
from pathlib import Path
from mountctl import daemon
from mountctl.daemon import Report
from mountctl.errors import CommandError

def server(reporter, keeper):
    faulthandler.enable(sys.stderr)
    print("hello from the server", flush=True)
    {body}

try:
    served = daemon.Served(server, Path("/nowhere"), Path(sys.argv[1]), b"")
    pid = daemon.start(served, lambda: nullcontext(print))
    print("ready", pid)
except CommandError as error:
    print("failed", error.exit_code, error)
"""


def start(body: str, log: Path) -> tuple[str, str]:
    """Run a server of that body in a daemon; returns what its starter printed, and the log once the daemon is gone."""
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
    assert said == f"failed 69 the daemon died before the mount was ready: its last words are in {log}\n"
    eventually(lambda: words in log.read_text(), "the keeper logs")
    assert ("Fatal Python error: Aborted" in log.read_text()) == ("ABRT" in words)


def test_it_holds_no_terminal_no_folder_and_no_output_of_its_starter(tmp_path: Path) -> None:
    body = "reporter.tell(Report('ready')); print(os.getcwd(), os.getsid(0) != int(sys.argv[2])); time.sleep(1)"
    log = tmp_path / "log"
    said, _ = start(body.replace("int(sys.argv[2])", "os.getppid() + 1"), log)  # returns: its pipes are closed
    assert said.startswith("ready ")
    eventually(lambda: "/ True" in log.read_text(), "the server says where it is")
