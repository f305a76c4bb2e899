"""The daemon: the process behind a mount, how it is started, and how its end comes to be known.

    mountctl mount ──fork──> keeper ──fork──> server
         │                     │                │  opens the store, mounts, serves; its output is the log
         │<──────── reports: started, progress, ready or failed (one JSON line each, over a pipe) ──┘
         └ returns             └ holds /dev/fuse and the shared memory; waits, and when the server is killed
                                 ──fork, exec──> the next server, which goes on (mountctl/successor.py)

The keeper starts that one while the last one serves, so that a death costs nobody the loading of a program. For
`mountctl restart` it starts another one (`restart` below).

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
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, suppress
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from types import FrameType
from typing import NoReturn

from fsstore.handover import Handover, Keeper, Word
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


def _line_of(report: Report) -> bytes:
    return json.dumps(asdict(report)).encode() + b"\n"


class Reporter:
    """Where a server tells how it is getting on: the command that waits for it, or nobody (in the foreground)."""

    def __init__(self, descriptor: int | None = None) -> None:
        self._descriptor = descriptor

    def tell(self, report: Report) -> None:
        """Send `report`; a command that was interrupted no longer listens, and that is no error."""
        if self._descriptor is None:
            return
        try:
            os.write(self._descriptor, _line_of(report))
        except (BrokenPipeError, ConnectionResetError):
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

RESTART_SIGNAL = signal.SIGUSR2
"""To the keeper: a planned restart."""
DOOR_SECONDS = 1.0
"""How long somebody who asks for one may take to say what he wants."""
LARGEST_ASKED_BYTES = 1 << 16
PREPARE_SECONDS = float(os.environ.get("FSSTORE_PREPARE_SECONDS", "60"))
"""How long the next server may take to load what it needs, while the last one serves."""
STANDBY_SECONDS = 5.0
"""So long after a mount was made the next server is started: many a mount is gone by then."""
INTERRUPTED = 128 + signal.SIGINT
"""Status of a server that was asked to end before the store was open."""

ENDED_BY = frozenset((signal.SIGTERM, signal.SIGINT, signal.SIGQUIT, signal.SIGXCPU, signal.SIGPWR))
"""Signals that end a mount: killed by one, a server was asked to end before it could listen."""


@dataclass(frozen=True, slots=True)
class Served:
    """What the keeper has to know of a mount."""

    server: Server
    mountpoint: Path
    log_file: Path
    request: bytes
    """For the next server, which may be of a later version: MountRequest's text."""


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


def restart(keeper: int, options: tuple[str, ...], showing: Callable[[], AbstractContextManager[Show]]) -> int:
    """Have the program that runs here, and these further options, go on with a mount; the new server's pid when it
    serves. CommandError: it does not; the mount may be served as before."""
    with socket.socket(socket.AF_UNIX) as asking:
        try:
            asking.connect(door_of(keeper))
        except OSError as error:
            reason = f"the daemon's keeper (process {keeper}) can't be asked: {one_line(error)}"
            raise CommandError(reason, "umount, then mount anew") from error
        listener, _ = peer_of(asking)
        if listener != keeper:
            raise CommandError(f"process {listener} listens where the keeper (process {keeper}) should")
        asking.send(json.dumps(asdict(this_program(options))).encode() + b"\n")
        with asking.makefile("rb") as reports, showing() as show:
            return _wait_until_served(reports, show)


def _wait_until_served(reports: Iterable[bytes], show: Show) -> int:
    """The last report counts: where the new server fails, the keeper may have one go on as before."""
    pid, failure = 0, Report("failed", "the new daemon died, or could not be started", os.EX_UNAVAILABLE)
    has_failed = False
    with suppress(ConnectionResetError):
        for report in _outcomes(reports, show):
            if report.event == "started":
                pid = report.pid
            elif report.event == "failed":
                failure, has_failed = report, True
            elif not has_failed:
                return pid
    raise CommandError(failure.text, exit_code=failure.code)


def _outcomes(reports: Iterable[bytes], show: Show) -> Iterator[Report]:
    """What a server reports, but for its progress, which is shown."""
    for line in reports:
        report = Report(**json.loads(line))
        if report.event == "progress":
            show(report.text, report.done, report.total)
        else:
            yield report


def _wait_until_ready(reports: Iterable[bytes], log_file: Path, show: Show) -> int:
    pid = 0
    try:
        for report in _outcomes(reports, show):
            if report.event == "started":
                pid = report.pid
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
    with socket.socket(socket.AF_UNIX) as door:
        try:
            door.bind(door_of(os.getpid()))
        except OSError:  # somebody has taken it: nobody will ask
            door.bind("")
        door.listen()
        _Successions(served, memory, door).run(pid, ours)
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


@dataclass(frozen=True, slots=True)
class Program:
    """What a server is started as: an interpreter, the folder of this package, options that changed since the mount."""

    executable: str
    folder: str
    options: tuple[str, ...] = ()


def this_program(options: tuple[str, ...] = ()) -> Program:
    """The one that runs now, as it is installed when it is started again."""
    return Program(sys.executable, str(Path(__file__).resolve().parent.parent), options)


@dataclass(frozen=True, slots=True)
class _Process:
    """A server, the link to it, and what it was started as."""

    pid: int
    link: socket.socket
    program: Program


class _Successions:
    """The servers of one mount, one after the other.

        serving: another one is started, and says `prepared` ──killed────────────────────► go: the next one
           │ restart: another one in its place says `prepared`                             ▲
           └──────────────────────────────────────────────────► leave ──has ended──► go ───┘

    One that waited and ends before it serves is followed by one of the program and the options of before: of another
    version, or the program has changed under it.
    """

    def __init__(self, served: Served, memory: int | None, door: socket.socket) -> None:
        """`door` is where a restart is asked for."""
        self._served = served
        self._memory = memory
        self._door = door
        self._device: int | None = None
        """/dev/fuse, from when the mount outlives its server until that ends by itself."""
        self._deaths: list[float] = []
        self._program = this_program()
        """That has served."""
        self._prepared: _Process | None = None
        """The next server, while it loads what it needs or waits for the last one to end."""
        self._standby_due: float | None = None
        """When one is to be started, in case the last one is killed."""
        self._is_planned = False
        """Whether the last one is to leave when the next one is prepared."""
        self._is_left = False
        """Whether the last one was asked to."""
        self._is_trial = False
        """Whether one that waited has taken over and does not serve yet."""
        self._asker: socket.socket | None = None
        """Who waits for the restart."""
        self._deadline = 0.0
        """Until when a planned one is to be prepared."""
        self._signalled = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)

    def run(self, pid: int, link: socket.socket) -> None:
        """Return when the mount has ended."""
        server = _Process(pid, link, self._program)
        signal.signal(RESTART_SIGNAL, lambda *_: os.eventfd_write(self._signalled, 1))
        while True:
            signal.signal(signal.SIGHUP, partial(_pass_on, server.pid))
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGHUP})
            status = self._wait(server)
            signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGHUP})  # meanwhile it is held for the next one
            server.link.close()
            was_killed = os.WIFSIGNALED(status) and os.WTERMSIG(status) not in ENDED_BY
            if was_killed:
                goes_on = self._goes_on()
                self._tell(server.pid, status, goes_on)
            else:
                was_asked = os.WIFSIGNALED(status) or os.WEXITSTATUS(status) == INTERRUPTED
                goes_on = self._device is not None and (self._is_left or (self._is_trial and not was_asked))
                if not goes_on:
                    self._end()
            if self._is_trial and goes_on:
                self._complain("the new daemon ended before it served: the mount goes on as it was")
            if not goes_on:
                self._drop_prepared()
                return
            server = self._next()

    def _wait(self, server: _Process) -> int:
        """The server's status when it has ended; meanwhile it may have us hold the mount, or let it go, and somebody
        may ask for another one."""
        process = os.pidfd_open(server.pid)
        sources = {process, server.link.fileno(), self._door.fileno(), self._signalled}
        try:
            while True:
                poll = select.poll()
                prepared = -1 if self._prepared is None else self._prepared.link.fileno()
                for descriptor in sources | {prepared} - {-1}:
                    poll.register(descriptor, select.POLLIN)
                ready = {descriptor for descriptor, _ in poll.poll(self._patience_ms())}
                if not ready:
                    self._be_in_time()
                elif server.link.fileno() in ready:
                    if not self._hear(server):
                        sources.remove(server.link.fileno())
                elif process in ready:
                    return os.waitpid(server.pid, 0)[1]
                elif prepared in ready:
                    self._hear_prepared(server)
                elif self._signalled in ready:
                    os.eventfd_read(self._signalled)
                    self._prepare(self._program, None)
                else:
                    self._answer_door()
        finally:
            os.close(process)

    def _hear(self, server: _Process) -> bool:
        """Do what a server asks; False: it will ask for nothing more."""
        try:
            word, descriptors, _, _ = socket.recv_fds(server.link, 16, 1)
        except OSError:
            return False
        if word == Word.KEEP.value:
            [self._device] = descriptors
            os.set_inheritable(self._device, False)
        elif word == Word.RELEASE.value:
            self._let_go()
            with suppress(OSError):
                server.link.send(Word.RELEASED.value)
        elif word == Word.SERVING.value:
            self._program, self._is_trial = server.program, False
            self._let_asker_go()
            self._standby_due = time.monotonic() + (0 if self._deaths else STANDBY_SECONDS)
        return bool(word)

    # a planned restart

    def _answer_door(self) -> None:
        """Somebody asks for a restart: a line with the program and its options."""
        try:
            asker, _ = self._door.accept()
        except OSError:
            return
        if peer_of(asker)[1] not in (0, os.geteuid()):
            asker.close()  # unread: nobody else is to keep us
            return
        try:
            asker.settimeout(DOOR_SECONDS)
            with asker.makefile("rb") as lines:
                asked = json.loads(lines.readline(LARGEST_ASKED_BYTES))
            asker.settimeout(None)
            options = (*self._program.options, *asked["options"])
            program = Program(asked["executable"], asked["folder"], options)
        except (OSError, ValueError, KeyError, TypeError):
            asker.close()
            return
        if self._is_planned or self._is_trial:
            _tell(asker, "the daemon is being restarted already")
            asker.close()
        elif self._device is None:
            _tell(asker, "the mount does not outlive its daemon yet, or not any more")
            asker.close()
        else:
            self._prepare(program, asker)

    def _prepare(self, program: Program, asker: socket.socket | None) -> None:
        """Start the next server: it loads what it needs while the last one serves."""
        if self._device is None or self._is_planned or self._is_trial:
            return
        self._drop_prepared()
        tell_systemd(f"RELOADING=1\nMONOTONIC_USEC={time.monotonic_ns() // 1000}")
        self._asker, self._is_planned = asker, True
        self._deadline = time.monotonic() + PREPARE_SECONDS
        self._start_ahead(program)
        if self._prepared is None:
            self._give_up("the new daemon could not be started: the old one goes on")

    def _start_ahead(self, program: Program) -> None:
        """Start a server while the last one serves. Without room for it, that goes on all the same."""
        self._standby_due = None
        hold_hangups()
        try:
            self._prepared = self._start(program)
        except OSError as error:
            self._log(f"WARNING the next daemon could not be started: {one_line(error)}")
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGHUP})

    def _hear_prepared(self, server: _Process) -> None:
        prepared = self._prepared
        assert prepared is not None
        word = b""
        with suppress(OSError):
            word = prepared.link.recv(16)
        if word and self._is_planned:
            self._is_left = True
            with suppress(OSError):
                server.link.send(Word.LEAVE.value)
        elif not self._is_planned:
            if not word:  # not to be tried again and again: the next one is started when it is needed
                self._drop_prepared()
                self._log("WARNING no daemon waits to replace this one: replacing it will take longer")
        elif self._is_left:
            self._drop_prepared()
            self._complain("the new daemon ended before it served: the mount goes on as it was")
        else:
            self._give_up("the new daemon could not be prepared: the old one goes on")

    def _patience_ms(self) -> int | None:
        due = self._standby_due
        if self._is_planned:
            due = None if self._is_left else self._deadline
        return None if due is None else max(0, int((due - time.monotonic()) * 1000) + 1)

    def _be_in_time(self) -> None:
        """What `_patience_ms` waited for."""
        if self._is_planned:
            self._give_up("the new daemon takes too long to start: the old one goes on")
        elif self._device is not None:
            self._start_ahead(self._program)
        else:
            self._standby_due = None

    def _give_up(self, why: str) -> None:
        """The next server is not there, and the last one was not asked to leave."""
        self._drop_prepared()
        self._standby_due = time.monotonic()
        self._log(f"WARNING {why}")
        tell_systemd("READY=1")
        self._let_asker_go()

    def _drop_prepared(self) -> None:
        prepared, self._prepared, self._is_planned = self._prepared, None, False
        if prepared is not None:
            prepared.link.close()
            with suppress(ProcessLookupError):
                os.kill(prepared.pid, signal.SIGKILL)  # it holds nothing of the mount yet
            os.waitpid(prepared.pid, 0)

    def _complain(self, why: str) -> None:
        """Another server than the one that was asked for goes on."""
        self._log(f"WARNING {why}")
        if self._asker is not None:
            _tell(self._asker, why)

    def _let_asker_go(self) -> None:
        if self._asker is not None:
            self._asker.close()
            self._asker = None

    def _next(self) -> _Process:
        """Have the next server take over."""
        prepared, self._prepared, self._standby_due = self._prepared, None, None
        server = self._start(self._program) if prepared is None else prepared
        self._is_left, self._is_planned, self._is_trial = False, False, prepared is not None
        assert self._device is not None
        with suppress(OSError):  # it is dead, as `_wait` will find out
            socket.send_fds(server.link, [Word.GO.value], [self._device])
        return server

    # one server

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
        self._log(f"CRITICAL the daemon (process {pid}) was killed by {name}; {rest}")

    def _log(self, words: str) -> None:
        text = f"{time.strftime('%Y-%m-%d %H:%M:%S')} {words}\n"
        with suppress(OSError):
            output = os.open(self._served.log_file, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o640)
            os.write(output, text.encode())
            os.close(output)

    def _start(self, program: Program) -> _Process:
        """Start a server, which waits for GO once it is prepared. SIGHUP is held."""
        link, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            signal.pthread_sigmask(signal.SIG_BLOCK, ENDED_BY)  # we ignore them: they wait until the child does not
            pid = os.fork()
            if pid == 0:
                self._exec(theirs, program)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, ENDED_BY)
        return _Process(pid, link, program)

    def _exec(self, link: socket.socket, program: Program) -> NoReturn:
        """In the child: become the next server, by the program as it is now."""
        try:
            log_to_file(self._served.log_file)
            for number in CATCHABLE_SIGNALS - {signal.SIGHUP}:
                signal.signal(number, signal.SIG_DFL)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, ENDED_BY)
            request = os.memfd_create("mount-request", 0)
            os.write(request, self._served.request)
            assert self._memory is not None
            descriptors = [self._memory, link.fileno(), request]
            descriptors += [self._asker.fileno()] if self._asker is not None else []
            for descriptor in descriptors:
                os.set_inheritable(descriptor, True)
            known = os.environ.get("PYTHONPATH")
            folder = program.folder
            environment = {**os.environ, "PYTHONPATH": f"{folder}:{known}" if known else folder}
            asker = "-1" if self._asker is None else ""
            words = [*map(str, descriptors), *filter(None, [asker]), str(self._served.log_file), *program.options]
            os.execve(program.executable, [program.executable, "-m", "mountctl.successor", *words], environment)
        except OSError as error:
            log_line = f"{program.executable}: {one_line(error)}"
            self._log(f"ERROR the new daemon could not be started: {log_line}")
        finally:
            os._exit(os.EX_SOFTWARE)


def _tell(asker: socket.socket, text: str) -> None:
    with suppress(OSError):
        asker.send(_line_of(Report("failed", text, os.EX_TEMPFAIL)))


def peer_of(connected: socket.socket) -> tuple[int, int]:
    """Process and user at the other end of a Unix socket: of who listened there, or who connected."""
    pid, user, _ = struct.unpack("3i", connected.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    return pid, user


def door_of(keeper: int) -> str:
    """The name of the socket where that process may be asked for a restart: no file, it is gone with the process."""
    return f"\0fsstore-keeper-{keeper}"


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
        return INTERRUPTED
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


def tell_systemd(words: str) -> None:
    """Tell the service manager, where one started us with Type=notify (sd_notify(3))."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if address:
        with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notify:
            notify.connect("\0" + address[1:] if address.startswith("@") else address)
            notify.send(words.encode())


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
