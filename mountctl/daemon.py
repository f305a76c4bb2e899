"""The daemon: the process behind a mount, how it is started, and how its end comes to be known.

    mountctl mount ──fork──> keeper ──fork──> server
         │                     │                │  opens the store, mounts, serves; its output is the log
         │<──────── reports: started, progress, ready or failed (one JSON line each, over a pipe) ──┘
         └ returns             └ waits, and logs what killed the server, which then could not say it itself

The store is opened, and so locked, after both forks: a POSIX lock does not survive one. The forks come before the
engine is loaded: its threads would not survive one either.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import sys
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NoReturn

from mountctl.errors import CommandError, exit_code, one_line
from mountctl.output import Show

log = logging.getLogger("mountctl")

CATCHABLE_SIGNALS = frozenset(
    number
    for number in signal.valid_signals()
    if number not in (signal.SIGKILL, signal.SIGSTOP, signal.SIGCHLD, signal.SIGCONT)
)
CRASHES = frozenset(
    (signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGABRT, signal.SIGTRAP, signal.SIGSYS)
)
"""What a process does to itself: it can't go on."""


@dataclass(frozen=True, slots=True)
class Report:
    """What the server tells the command that started it. `event`: started, progress, ready or failed."""

    event: str
    text: str = ""
    code: int = 0
    pid: int = 0
    done: int = 0
    total: int = 0


class Reporter:
    """Where a server tells how it is getting on: the command that waits for it, or nobody (in the foreground)."""

    def __init__(self, descriptor: int | None = None) -> None:
        self._descriptor = descriptor

    def tell(self, report: Report) -> None:
        """Send `report`; a command that was interrupted no longer listens, and that is no error."""
        if self._descriptor is None:
            return
        try:
            os.write(self._descriptor, json.dumps(asdict(report)).encode() + b"\n")
        except BrokenPipeError:
            self.close()

    def close(self) -> None:
        """Nothing more will be reported."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


Server = Callable[[Reporter], None]
"""Opens, mounts and serves until unmounted; tells `ready` when the mount answers. Errors are raised."""


def start(server: Server, log_file: Path, showing: Callable[[], AbstractContextManager[Show]]) -> int:
    """Run `server` in a daemon that logs to `log_file`; returns its pid when it is ready, or raises its error.

    Meanwhile its progress is shown by what `showing` opens: after the fork, which must not carry a display along.
    """
    log_file.parent.mkdir(parents=True, exist_ok=True)
    output = os.open(log_file, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o640)
    listening, telling = os.pipe()
    sys.stdout.flush()
    sys.stderr.flush()
    if os.fork() == 0:
        os.close(listening)
        _redirect(output)
        _keep(server, Reporter(telling), log_file)
    os.close(telling)
    os.close(output)
    with open(listening, "rb") as reports, showing() as show:
        return _wait_until_ready(reports, log_file, show)


def _wait_until_ready(reports: Any, log_file: Path, show: Show) -> int:
    pid = 0
    try:
        for line in reports:
            report = Report(**json.loads(line))
            if report.event == "started":
                pid = report.pid
            elif report.event == "progress":
                show(report.text, report.done, report.total)
            elif report.event == "ready":
                return pid
            else:
                raise CommandError(report.text, exit_code=report.code)
    except KeyboardInterrupt:
        if pid:
            os.kill(pid, signal.SIGTERM)
        raise
    raise CommandError("the daemon died before the mount was ready", f"its last words are in {log_file}")


def _keep(server: Server, reporter: Reporter, log_file: Path) -> NoReturn:
    """The keeper: starts the server, waits for its end, and puts a violent one into the log."""
    os.setsid()
    os.chdir("/")  # a daemon must not keep somebody's directory busy
    hold_hangups()
    pid = os.fork()
    if pid == 0:
        os._exit(_serve(server, reporter))
    reporter.close()
    for number in CATCHABLE_SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    signal.signal(signal.SIGHUP, lambda number, frame: os.kill(pid, number))
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGHUP})
    _redirect(os.open(os.devnull, os.O_WRONLY))  # a log that was rotated away is not to be kept open here
    _, status = os.waitpid(pid, 0)
    if os.WIFSIGNALED(status):
        _tell_violent_end(pid, status, log_file)
    os._exit(0)


def _tell_violent_end(pid: int, status: int, log_file: Path) -> None:
    name = signal.Signals(os.WTERMSIG(status)).name
    stamp = time.strftime("%Y-%m-%d %H:%M:%S")
    log_to_file(log_file)
    os.write(
        2, f"{stamp} CRITICAL the daemon (process {pid}) was killed by {name}; the store was not closed\n".encode()
    )


def _serve(server: Server, reporter: Reporter) -> int:
    """The server: whatever ends it, the log and the waiting command say why."""
    reporter.tell(Report("started", pid=os.getpid()))
    try:
        server(reporter)
    except Exception as error:  # the process ends here: nobody above could say what happened
        code = exit_code(error)
        log.critical("the daemon ends: %s", one_line(error), exc_info=code == os.EX_SOFTWARE)
        reporter.tell(Report("failed", one_line(error), code))
        return code
    except KeyboardInterrupt:
        log.critical("the daemon ends: a signal came before the store was open")
        reporter.tell(Report("failed", "a signal ended the daemon before the store was open", os.EX_TEMPFAIL))
        return os.EX_TEMPFAIL
    finally:
        logging.shutdown()
        sys.stdout.flush()
        sys.stderr.flush()
    return 0


def _redirect(output: int) -> None:
    """Standard input from nowhere; standard output and error into the log."""
    nowhere = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nowhere, 0)
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.close(nowhere)
    os.close(output)


def hold_hangups() -> None:
    """Keep SIGHUP pending from here on, in this thread and those that it starts, for who waits for it."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGHUP})


def log_to_file(log_file: Path) -> None:
    """Send this process's own output to `log_file` from here on; a file that was renamed is closed."""
    log_file.parent.mkdir(parents=True, exist_ok=True)
    _redirect(os.open(log_file, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o640))


def default_cache() -> Path:
    """Where derived data of stores that are not written goes when nobody says."""
    cache = os.environ.get("XDG_CACHE_HOME")
    if cache:
        return Path(cache) / "fsstore"
    return Path("/var/cache/fsstore") if os.geteuid() == 0 else Path.home() / ".cache/fsstore"


def default_log_file(store: Path) -> Path:
    """Where a daemon logs when nobody says: outside the store, which a read-only mount must not touch."""
    state = os.environ.get("XDG_STATE_HOME")
    if state:
        folder = Path(state)
    elif os.geteuid() == 0:
        folder = Path("/var/log")
    else:
        folder = Path.home() / ".local/state"
    return folder / "fsstore" / f"{str(store).strip('/').replace('/', '-')}.log"
