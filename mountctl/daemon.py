"""The daemon: the process that serves a mount, its start, its end, and its reports to the starting command.

    mountctl mount ──fork──> keeper ──fork──> server
         │                     │                │  opens the store, mounts, serves; its output is the log
         │<──────── reports: started, progress, ready or failed (one JSON line each, over a pipe) ──┘
         └ returns             └ the supervisor: mountctl/supervisor.py

The store is opened and locked after both forks, since a POSIX lock does not survive a fork. The engine is loaded after
them, too, since its threads would not survive one either.
"""

from __future__ import annotations

import json
import logging
import math
import os
import select
import signal
import socket
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from fsstore.handover.keeper import Keeper
from mountctl.errors import exit_code, one_line
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
"""Signals that a process raises by its own defect."""
ENDED_BY = frozenset((signal.SIGTERM, signal.SIGINT, signal.SIGQUIT, signal.SIGXCPU, signal.SIGPWR))
"""Signals that end a mount. A server killed by one was asked to end before it had a handler."""
INTERRUPTED = 128 + signal.SIGINT
"""Exit status of a server that was asked to end before the store was open."""
REPORT_SECONDS = 5.0
"""Time limit for sending a report: the command that reads it may be stopped."""
SYSTEMD_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class Report:
    """A report to a waiting command. `event`: started, progress, ready or failed from a server; accepted, kept or
    postponed from the keeper."""

    event: str
    text: str = ""
    code: int = 0
    pid: int = 0
    done: int = 0
    total: int = 0

    def to_line(self) -> bytes:
        """The report as one line of JSON."""
        return json.dumps(asdict(self)).encode() + b"\n"


def outcomes(reports: Iterable[bytes], show: Show) -> Iterator[Report]:
    """The reports other than progress, which `show` displays."""
    for line in reports:
        report = Report(**json.loads(line))
        if report.event == "progress":
            show(report.text, report.done, report.total)
        else:
            yield report


class Reporter:
    """Sends a server's reports to the command that waits for it, if any (none in the foreground)."""

    def __init__(self, descriptor: int | None = None) -> None:
        self._descriptor = descriptor
        if descriptor is not None:
            os.set_blocking(descriptor, False)

    @property
    def is_heard(self) -> bool:
        """Whether a command waits for the reports."""
        return self._descriptor is not None

    def tell(self, report: Report) -> None:
        """Send `report`. A command that has ended is no error; a stopped one misses progress, and after REPORT_SECONDS
        all reports."""
        if self._descriptor is None:
            return
        try:
            if report.event != "progress":
                _wait_for_room(self._descriptor)
            os.write(self._descriptor, report.to_line())
        except BlockingIOError:
            pass
        except (BrokenPipeError, ConnectionResetError):
            self.close()

    def close(self) -> None:
        """End reporting."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


def _wait_for_room(descriptor: int) -> None:
    poll = select.poll()
    poll.register(descriptor, select.POLLOUT)
    poll.poll(REPORT_SECONDS * 1000)


Server = Callable[[Reporter, Keeper | None], None]
"""Opens, mounts and serves until the unmount; reports `ready` when the mount answers. Errors are raised."""


def serve(server: Server, reporter: Reporter, keeper: Keeper | None) -> int:
    """Run the server; returns its exit status. The log and the waiting command get the reason for its end."""
    reporter.tell(Report("started", pid=os.getpid()))
    try:
        server(reporter, keeper)
    except Exception as error:  # the process ends here: no caller could report the error
        code = exit_code(error)
        log.critical("the daemon ends: %s", one_line(error), exc_info=code == os.EX_SOFTWARE)
        reporter.tell(Report("failed", one_line(error), code))
        return code
    except KeyboardInterrupt:
        log.critical("the daemon ends: a signal came before the store was open")
        reporter.tell(Report("failed", "a signal ended the daemon before the store was open", os.EX_TEMPFAIL))
        return INTERRUPTED
    finally:
        logging.shutdown()
        sys.stdout.flush()
        sys.stderr.flush()
    return 0


def tell_systemd(words: str) -> None:
    """Notify the service manager, if it started this process with Type=notify (sd_notify(3))."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if address:
        with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notify:
            notify.settimeout(SYSTEMD_SECONDS)
            notify.connect("\0" + address[1:] if address.startswith("@") else address)
            notify.send(words.encode())


def hold_hangups() -> None:
    """Block SIGHUP in this thread and in those that it starts; the hangup thread waits for the pending signal."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGHUP})


def seconds_in_environment(name: str, default: float) -> float:
    """An environment variable's number of seconds; `default` if it is unset or no number."""
    try:
        seconds = float(os.environ.get(name, default))
    except ValueError:
        return default
    return seconds if math.isfinite(seconds) and seconds >= 0 else default


def default_cache() -> Path:
    """The default directory for derived data of stores that are not written."""
    cache = os.environ.get("XDG_CACHE_HOME")
    if cache:
        return Path(cache) / "fsstore"
    return Path("/var/cache/fsstore") if os.geteuid() == 0 else Path.home() / ".cache/fsstore"
