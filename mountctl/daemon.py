"""The daemon: the process behind a mount, how it is started, and how its end comes to be known.

    mountctl mount ──fork──> keeper ──fork──> server
         │                     │                │  opens the store, mounts, serves; its output is the log
         │<──────── reports: started, progress, ready or failed (one JSON line each, over a pipe) ──┘
         └ returns             └ holds /dev/fuse and the shared memory; waits, and when the server is killed
                                 ──fork, exec──> the next server, which goes on (mountctl/successor.py)

The store is opened, and so locked, after both forks: a POSIX lock does not survive one. The forks come before the
engine is loaded: its threads would not survive one either.
"""

from __future__ import annotations

import json
import logging
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

from fsstore.handover import Handover, Keeper
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


Server = Callable[[Reporter, Keeper | None], None]
"""Opens, mounts and serves until unmounted; tells `ready` when the mount answers. Errors are raised."""

MOST_DEATHS, DEATHS_SECONDS = int(os.environ.get("FSSTORE_MOST_DEATHS", "3")), 10.0
"""A server that is killed so often within that time is not replaced any more. Proofs kill it more often."""

NO_RESEND = "FSSTORE_NO_RESEND"
"""In the environment: the mount ends with its daemon, as it does where the kernel is older than 6.9."""

ENDED_BY = frozenset((signal.SIGTERM, signal.SIGINT, signal.SIGQUIT, signal.SIGXCPU, signal.SIGPWR))
"""Signals that end a mount: killed by one, a server was asked to end before it could listen."""


@dataclass(frozen=True, slots=True)
class Served:
    """What the keeper has to know of a mount."""

    server: Server
    mountpoint: Path
    log_file: Path
    request: bytes
    """For the next server, which may be of a later version."""


def start(served: Served, showing: Callable[[], AbstractContextManager[Show]]) -> int:
    """Serve in a daemon that logs to its file; returns its pid when it is ready, or raises its error.

    Meanwhile its progress is shown by what `showing` opens: after the fork, which must not carry a display along.
    """
    log_file = served.log_file
    log_file.parent.mkdir(parents=True, exist_ok=True)
    output = os.open(log_file, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o640)
    listening, telling = os.pipe()
    sys.stdout.flush()
    sys.stderr.flush()
    if os.fork() == 0:
        os.close(listening)
        _redirect(output)
        _keep(served, Reporter(telling))
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


def _keep(served: Served, reporter: Reporter) -> NoReturn:
    """The keeper: starts the server, waits for its end, and has another one go on when that was violent."""
    os.setsid()
    os.chdir("/")  # a daemon must not keep somebody's directory busy
    hold_hangups()
    memory = _memory()
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    pid = os.fork()
    if pid == 0:
        ours.close()
        keeper = Keeper(Handover(memory), theirs) if memory is not None else None
        os._exit(serve(served.server, reporter, keeper))
    theirs.close()
    reporter.close()
    for number in CATCHABLE_SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    _redirect(os.open(os.devnull, os.O_WRONLY))  # a log that was rotated away is not to be kept open here
    _Successions(served, memory).run(pid, ours)
    os._exit(0)


def _pass_on(pid: int, number: int, _: FrameType | None) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, number)


def _memory() -> int | None:
    """What a killed server leaves to the next one; None where there is to be none, or no memory for it."""
    if os.environ.get(NO_RESEND):
        return None
    try:
        memory = Handover.create()
        Handover(memory)
    except OSError:
        return None
    return memory


class _Successions:
    """The servers of one mount, one after the other."""

    def __init__(self, served: Served, memory: int | None) -> None:
        self._served = served
        self._memory = memory
        self._device: int | None = None
        """/dev/fuse, from when the mount outlives its server until that ends by itself."""
        self._deaths: list[float] = []

    def run(self, pid: int, link: socket.socket) -> None:
        """Return when the mount has ended."""
        while True:
            signal.signal(signal.SIGHUP, partial(_pass_on, pid))
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGHUP})
            status = self._wait(pid, link)
            signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGHUP})  # meanwhile it is held for the next one
            link.close()
            if not os.WIFSIGNALED(status) or os.WTERMSIG(status) in ENDED_BY:
                self._end()
                return
            goes_on = self._goes_on()
            self._tell(pid, status, goes_on)
            if not goes_on:
                return
            link, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            with theirs:
                pid = os.fork()
                if pid == 0:
                    self._exec(theirs)

    def _wait(self, pid: int, link: socket.socket) -> int:
        """The server's status when it has ended; meanwhile it may have us hold the mount, or let it go."""
        process = os.pidfd_open(pid)
        try:
            poll = select.poll()
            poll.register(process, select.POLLIN)
            poll.register(link, select.POLLIN)
            while True:
                ready = {descriptor for descriptor, _ in poll.poll()}
                if link.fileno() in ready and not self._hear(link):
                    poll.unregister(link)
                elif ready == {process}:
                    return os.waitpid(pid, 0)[1]
        finally:
            os.close(process)

    def _hear(self, link: socket.socket) -> bool:
        """Do what a server asks; False: it will ask for nothing more."""
        try:
            word, descriptors, _, _ = socket.recv_fds(link, 16, 1)
        except OSError:
            return False
        if word == b"keep":
            [self._device] = descriptors
        elif word == b"release":
            self._let_go()
            with suppress(OSError):
                link.send(b"released")
        return bool(word)

    def _let_go(self) -> None:
        if self._device is not None:
            os.close(self._device)
            self._device = None

    def _end(self) -> None:
        """The server ended by itself. One that could not take the mount over has left it in the tree."""
        if self._device is not None:
            self._let_go()
            command = ["fusermount3", "-u", "-q", "-z", "--", str(self._served.mountpoint)]
            subprocess.run(command, check=False, capture_output=True)

    def _goes_on(self) -> bool:
        """Whether there is a mount to go on with, and its servers do not die one after the other."""
        now = time.monotonic()
        self._deaths = [death for death in self._deaths if now - death < DEATHS_SECONDS] + [now]
        if self._device is None or len(self._deaths) >= MOST_DEATHS:
            return False
        poll = select.poll()
        poll.register(self._device, 0)
        return not any(event & select.POLLERR for _, event in poll.poll(0))

    def _tell(self, pid: int, status: int, goes_on: bool) -> None:
        name = signal.Signals(os.WTERMSIG(status)).name
        if goes_on:
            rest = "another one goes on"
        elif self._device is not None and len(self._deaths) >= MOST_DEATHS:
            rest = f"{MOST_DEATHS} deaths within {DEATHS_SECONDS:g} s end the mount; the store was not closed"
        else:
            rest = "the store was not closed"
        stamp = time.strftime("%Y-%m-%d %H:%M:%S")
        text = f"{stamp} CRITICAL the daemon (process {pid}) was killed by {name}; {rest}\n"
        with suppress(OSError):
            output = os.open(self._served.log_file, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o640)
            os.write(output, text.encode())
            os.close(output)

    def _exec(self, link: socket.socket) -> NoReturn:
        """In the child: become the next server, by the program as it is now."""
        try:
            log_to_file(self._served.log_file)
            for number in CATCHABLE_SIGNALS - {signal.SIGHUP}:
                signal.signal(number, signal.SIG_DFL)
            request = os.memfd_create("mount-request", 0)
            os.write(request, self._served.request)
            assert self._device is not None
            assert self._memory is not None
            descriptors = [self._memory, self._device, link.fileno(), request]
            for descriptor in descriptors:
                os.set_inheritable(descriptor, True)
            folder = str(Path(__file__).resolve().parent.parent)
            known = os.environ.get("PYTHONPATH")
            environment = {**os.environ, "PYTHONPATH": f"{folder}:{known}" if known else folder}
            command = [sys.executable, "-m", "mountctl.successor", *map(str, descriptors)]
            os.execve(sys.executable, command, environment)
        finally:
            os._exit(os.EX_SOFTWARE)


def serve(server: Server, reporter: Reporter, keeper: Keeper | None) -> int:
    """The server: whatever ends it, the log and the waiting command say why."""
    reporter.tell(Report("started", pid=os.getpid()))
    try:
        server(reporter, keeper)
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
