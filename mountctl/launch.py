"""How a keeper starts the next server of its mount: fork, and execution of the program as it is now.

The next server is `python -m mountctl.successor`, which says what it is given (mountctl/successor.py).
"""

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
    """What the keeper has to know of a mount."""

    server: Server
    mountpoint: Path
    log_file: Path
    request: bytes
    """For the next server, which may be of a later version: MountRequest's text."""


@dataclass(slots=True)
class ServerProcess:
    """A server, from its start to its end."""

    pid: int
    link: socket.socket
    """To it."""
    program: Program
    """What it was started as."""
    is_requested: bool = False
    """Whether a restart was requested, and it is to go on instead of a server that serves."""
    descriptor: int = -1
    """Of the process (pidfd): readable when it has ended."""
    started: float = field(default_factory=time.monotonic)
    is_prepared: bool = False
    """Whether it has loaded what it needs, and waits for its turn."""
    has_taken: bool = False
    """Whether it knows that its turn has come."""
    is_stuck: bool = False
    """Whether the keeper has killed it, because it did not see that."""
    serving_since: float | None = None
    refusal: str = ""
    """Why it could not take over, in its own words."""
    is_mute: bool = False
    """Whether it will say nothing more."""

    def __post_init__(self) -> None:
        self.descriptor = os.pidfd_open(self.pid)

    def kill(self) -> None:
        """End it at once."""
        with suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)

    def reap(self) -> int:
        """Its status, of one that has ended; nothing of it is left then."""
        self.link.close()
        os.close(self.descriptor)
        return os.waitpid(self.pid, 0)[1]


class Launcher:
    """Starts the servers of one mount, but for the first."""

    def __init__(self, served: Served, memory: int) -> None:
        self._served = served
        self._memory = memory

    def start(self, program: Program, requester: socket.socket | None, *, is_requested: bool) -> ServerProcess:
        """Start a server, which says `prepared`, and then waits for GO. `requester` is told how it is getting on.
        SIGHUP is held by the caller. OSError: there is no room for it."""
        link, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            signal.pthread_sigmask(signal.SIG_BLOCK, ENDED_BY)  # we ignore them: they wait until the child does not
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
        except OSError:  # no descriptor left to watch it
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            link.close()
            raise

    def _execute(self, program: Program, link: socket.socket, requester: socket.socket | None) -> NoReturn:
        """In the child: become the next server, by the program as it is now."""
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
