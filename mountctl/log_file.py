"""The log of a long-lived process: its lines, and LogFile, the daemon's log file.

The system's log replaces the file while that can't be opened (its folder is gone, its disk is read-only): serving needs
no log. `status.json` reports it. The daemon tries again at each SIGHUP, and so does each next server."""

from __future__ import annotations

import logging
import os
import socket
import sys
import time
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import TypeAlias

from mountctl.errors import one_line
from mountctl.output import visible

SYSTEM_LOG = Path("/dev/log")
LOG_MODE = 0o640
_DAEMON_FACILITY, _ERROR_SEVERITY = 3, 3  # syslog(3)


class LogFile:
    """The log file of this process."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.problem: str | None = None
        """The reason why it is not written."""

    def use(self) -> None:
        """Redirect this process's output to the file; a renamed old file is closed. If it can't be opened, the output
        goes on where it went, and `problem` says why."""
        try:
            output = open_log(self.path)
        except OSError as error:
            self.problem = f"{self.path} can't be written: {one_line(error)}"
        else:
            redirect(output)
            self.problem = None


def open_log(path: Path) -> int:
    """A descriptor of the log file for appending; missing folders are made. OSError, also for a pipe without a
    reader."""
    path.parent.mkdir(parents=True, exist_ok=True)
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOCTTY | os.O_NONBLOCK
    output = os.open(path, flags, LOG_MODE)
    os.set_blocking(output, True)
    return output


def redirect(output: int) -> None:
    """Redirect standard input from /dev/null, standard output and error to `output`, which is closed."""
    nowhere = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nowhere, 0)
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.close(nowhere)
    os.close(output)


SysExcInfo: TypeAlias = tuple[type[BaseException], BaseException, TracebackType | None] | tuple[None, None, None]


class LogFormatter(logging.Formatter):
    """Formats a record as one line, even with names and texts from outside in it; a traceback is indented."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(message)s")

    def formatMessage(self, record: logging.LogRecord) -> str:
        return visible(super().formatMessage(record))

    def formatException(self, ei: SysExcInfo) -> str:
        return "\n".join(f"  {visible(line)}" for line in super().formatException(ei).split("\n"))


def log_to_stderr() -> None:
    """Log to standard error, from INFO on."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(LogFormatter())
    logging.basicConfig(handlers=[handler], level=logging.INFO)


class SystemLog(logging.Handler):
    """Sends warnings and errors to the system's log while the log file can't be written."""

    def __init__(self, log_file: LogFile) -> None:
        super().__init__(logging.WARNING)
        self._log_file = log_file

    def emit(self, record: logging.LogRecord) -> None:
        """Send one record; without effect if the system's log is missing or full."""
        if self._log_file.problem is not None:
            send_to_system_log(visible(f"{record.levelname} {record.getMessage()}"))


def note(path: Path, words: str) -> None:
    """Append a line to a log that this process keeps closed otherwise; if that fails, send it to the system's log."""
    try:
        output = open_log(path)
    except OSError:
        send_to_system_log(words)
        return
    try:
        os.write(output, f"{time.strftime('%Y-%m-%d %H:%M:%S')} {words}\n".encode(errors="replace"))
    except OSError:
        send_to_system_log(words)
    finally:
        os.close(output)


def send_to_system_log(text: str) -> None:
    """Send a line to syslogd or journald, if one runs, without waiting."""
    line = f"<{_DAEMON_FACILITY << 3 | _ERROR_SEVERITY}>fsstore[{os.getpid()}]: {text}"
    with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sending:
        sending.setblocking(False)
        sending.connect(str(SYSTEM_LOG))
        sending.send(line.encode(errors="replace"))


def default_log_file(store: Path) -> Path:
    """The default log file: outside the store, which a read-only mount must not change."""
    state = os.environ.get("XDG_STATE_HOME")
    if state:
        folder = Path(state)
    elif os.geteuid() == 0:
        folder = Path("/var/log")
    else:
        folder = Path.home() / ".local/state"
    return folder / "fsstore" / f"{str(store).strip('/').replace('/', '-')}.log"
