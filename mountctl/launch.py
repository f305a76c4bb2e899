"""Starting a mount's next server: fork, then execute the program in its installed version. The next server is `python
-m mountctl.successor`, which documents its arguments (mountctl/successor.py)."""

from __future__ import annotations

import os
import signal
import socket
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn

from mountctl.control import Program
from mountctl.daemon import CATCHABLE_SIGNALS, ENDED_BY, Server
from mountctl.errors import one_line
from mountctl.log_file import LogFile, note


@dataclass(frozen=True, slots=True)
class Served:
    """Facts of a mount that its keeper needs."""

    server: Server
    mountpoint: Path
    log_file: Path
    request: bytes
    """Text of the MountRequest for the next server, which may be of a later version."""


@dataclass(slots=True)
class ServerProcess:
    """A server process, from its start to its end."""

    pid: int
    link: socket.socket
    """The keeper's end of the socket to the server."""
    program: Program
    """The program it runs."""
    is_requested: bool = False
    """Whether a requested restart started it, so that it replaces a server that still serves."""
    has_taken: bool = False
    """Whether it has acknowledged GO."""
    descriptor: int = field(init=False, default=-1)
    """The process's pidfd: readable after its end."""
    started: float = field(init=False, default_factory=time.monotonic)
    is_prepared: bool = field(init=False, default=False)
    """Whether it has loaded everything and waits for GO."""
    is_stuck: bool = field(init=False, default=False)
    """Whether the keeper killed it because it did not acknowledge GO."""
    serving_since: float | None = field(init=False, default=None)
    refusal: str = field(init=False, default="")
    """Its own message about why it could not take over."""
    is_mute: bool = field(init=False, default=False)
    """Whether its socket is at its end."""

    def __post_init__(self) -> None:
        self.descriptor = os.pidfd_open(self.pid)

    def kill(self) -> None:
        """Kill it."""
        with suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)

    def reap(self) -> int:
        """Wait for the ended process, close its descriptors and return its wait status."""
        self.link.close()
        os.close(self.descriptor)
        return os.waitpid(self.pid, 0)[1]


class Launcher:
    """Starts a mount's servers, except the first."""

    def __init__(self, served: Served, memory: int) -> None:
        self._served = served
        self._memory = memory

    def start(self, program: Program, requester: socket.socket | None, *, is_requested: bool) -> ServerProcess:
        """Start a server, which reports `prepared` and then waits for GO. `requester` gets its reports. The caller has
        blocked SIGHUP. OSError: a resource for the process is missing."""
        link, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            signal.pthread_sigmask(signal.SIG_BLOCK, ENDED_BY)  # pending in the child until it handles them
            try:
                pid = os.fork()
                if pid == 0:
                    self._execute(program, theirs, requester)
            except OSError:
                link.close()
                raise
            finally:
                signal.pthread_sigmask(signal.SIG_UNBLOCK, ENDED_BY)
        try:
            return ServerProcess(pid, link, program, is_requested)
        except OSError:  # no descriptor is left for its pidfd
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            link.close()
            raise

    def _execute(self, program: Program, link: socket.socket, requester: socket.socket | None) -> NoReturn:
        """In the child: execute the next server's program."""
        try:
            LogFile(self._served.log_file).use()
            for number in CATCHABLE_SIGNALS - {signal.SIGHUP}:
                signal.signal(number, signal.SIG_DFL)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, ENDED_BY)
            request = os.memfd_create("mount-request", 0)
            os.write(request, self._served.request)
            descriptors = [self._memory, link.fileno(), request]
            descriptors += [] if requester is None else [requester.fileno()]
            for descriptor in descriptors:
                os.set_inheritable(descriptor, True)
            words = [*map(str, descriptors), *(["-1"] if requester is None else [])]
            words += [str(self._served.log_file), *program.options]
            known = os.environ.get("PYTHONPATH")
            environment = {**os.environ, "PYTHONPATH": f"{program.folder}:{known}" if known else program.folder}
            os.execve(program.executable, [program.executable, "-m", "mountctl.successor", *words], environment)
        except OSError as error:
            note(
                self._served.log_file,
                f"ERROR the new daemon could not be started: {program.executable}: {one_line(error)}",
            )
        finally:
            os._exit(os.EX_OSERR)
