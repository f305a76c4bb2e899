"""The control socket of a mount's keeper. It takes requests for a restart, and for the state of the mount.

It is an abstract Unix socket: it ends with its process, and needs no writable folder. Its name contains the mount's
device number, by which requesters find it in /proc/net/unix, and a random part, so that no other user can take the name
first. Each end checks the other one's user (SO_PEERCRED): requesters ignore other users' sockets, and the keeper reads
no request of another user.

A request is one line of JSON, at most LARGEST_REQUEST_BYTES, sent within REQUEST_SECONDS; the answer is lines of
reports. The keeper never waits for a requester, since it supervises a server.
"""

from __future__ import annotations

import json
import os
import secrets
import select
import socket
import struct
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, suppress
from dataclasses import asdict, dataclass
from enum import Enum
from pathlib import Path
from typing import Any

from mountctl.daemon import Report, outcomes
from mountctl.errors import CommandError
from mountctl.output import Show
from mountctl.process import is_stopped

REQUEST_SECONDS = 1.0
"""Time limit for receiving a whole request."""
LARGEST_REQUEST_BYTES = 1 << 16
ANSWER_SECONDS = 10.0
"""Time limit for the keeper to accept a restart."""
STATE_SECONDS = 2.0
SILENCE_SECONDS = 180.0
"""Longest silence during a restart: more than the next server's loading and the last one's closing may take."""
SOCKETS = Path("/proc/net/unix")


@dataclass(frozen=True, slots=True)
class Program:
    """The program that a server runs: an interpreter, this package's folder, and options changed since the mount."""

    executable: str
    folder: str
    options: tuple[str, ...] = ()


def this_program(options: tuple[str, ...] = ()) -> Program:
    """The installed version of the program that runs now."""
    return Program(sys.executable, str(Path(__file__).resolve().parent.parent), options)


@dataclass(frozen=True, slots=True)
class State:
    """A keeper's description of its mount."""

    keeper: int
    """Pid of the keeper."""
    server: int | None
    """Pid of the process that serves or is about to; None: the keeper pauses before it starts the next server."""
    is_serving: bool
    reason: str = ""
    """The reason for not serving: the last server's error or signal."""


class Wish(Enum):
    """The kinds of requests."""

    STATE = "state"
    RESTART = "restart"
    END = "end"
    """End the mount, if no server serves it. A mount that is served ends by umount."""


@dataclass(frozen=True, slots=True)
class Request:
    """A received request. `program` is the one to restart with. `requester` must be answered and closed."""

    requester: socket.socket
    wish: Wish
    program: Program | None


class ControlSocket:
    """The keeper's side of the control socket. No method waits."""

    def __init__(self) -> None:
        self._listening: socket.socket | None = None
        self._asking: socket.socket | None = None
        """A requester whose request is incomplete. Further requesters wait in the socket's queue."""
        self._text = b""
        self.deadline: float | None = None
        """Monotonic time at which the incomplete request is dropped."""

    def open(self, device: str) -> None:
        """Listen for requests to the mount with this device number (`major:minor`). OSError."""
        listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        try:
            listening.bind(f"\0{_prefix(device)}{secrets.token_hex(16)}")
            listening.listen()
        except OSError:
            listening.close()
            raise
        self._listening = listening

    @property
    def descriptor(self) -> int | None:
        """A descriptor that is readable when `receive` should be called; None: the socket is closed."""
        source = self._asking or self._listening
        return None if source is None else source.fileno()

    def receive(self) -> Request | None:
        """Accept a requester, or read more of its request; returns the request once it is complete."""
        if self._asking is None:
            self._accept()
            return None
        try:
            data = self._asking.recv(LARGEST_REQUEST_BYTES, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return None
        except OSError:
            data = b""
        self._text += data
        if not self._text.endswith(b"\n"):
            if not data or len(self._text) > LARGEST_REQUEST_BYTES:
                self.give_up()
            return None
        requester, text = self._asking, self._text
        self._reset()
        with suppress(ValueError, KeyError, TypeError, RecursionError):
            request = _request_in(requester, json.loads(text))
            if _listens(requester):
                return request
        requester.close()
        return None

    def _accept(self) -> None:
        assert self._listening is not None
        try:
            asking, _ = self._listening.accept()
        except OSError:
            return
        if peer_of(asking)[1] not in (0, os.geteuid()):
            asking.close()  # its request was not read
            return
        self._asking, self.deadline = asking, time.monotonic() + REQUEST_SECONDS

    def close(self) -> None:
        """Stop listening, after the mount's end."""
        self.give_up()
        if self._listening is not None:
            self._listening.close()
            self._listening = None

    def give_up(self) -> None:
        """Drop a requester that exceeded its time limit."""
        if self._asking is not None:
            self._asking.close()
        self._reset()

    def _reset(self) -> None:
        self._asking, self._text, self.deadline = None, b"", None


def _request_in(requester: socket.socket, asked: dict[str, Any]) -> Request:
    """Decode a request. ValueError, KeyError, TypeError: it is malformed."""
    wish, program = Wish(asked["wish"]), None
    if wish is Wish.RESTART:
        said = asked["program"]
        program = Program(str(said["executable"]), str(said["folder"]), tuple(map(str, said["options"])))
    return Request(requester, wish, program)


def _listens(requester: socket.socket) -> bool:
    """Whether the requester is still connected: it may have given up while the keeper was stopped."""
    poll = select.poll()
    poll.register(requester, select.POLLRDHUP)
    return not poll.poll(0)


def answer(requester: socket.socket, report: Report) -> None:
    """Send a report to a requester, without waiting; one that is gone is ignored."""
    with suppress(OSError):
        requester.send(report.to_line(), socket.MSG_DONTWAIT)


def answer_state(requester: socket.socket, state: State) -> None:
    """Send the mount's state to a requester and close the connection."""
    with suppress(OSError):
        requester.send(json.dumps(asdict(state)).encode() + b"\n", socket.MSG_DONTWAIT)
    requester.close()


def peer_of(connected: socket.socket) -> tuple[int, int]:
    """Pid and user of the other end of a Unix socket: the listener's or the connecting process's."""
    pid, user, _ = struct.unpack("3i", connected.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    return pid, user


# the requester's side


def restart(
    device: str, user: int, options: tuple[str, ...], showing: Callable[[], AbstractContextManager[Show]]
) -> int:
    """Replace the server of the mount with that device number, made by `user`, by the program that runs here. `options`
    are added to the mount's. Returns the new server's pid when it serves. CommandError: the restart failed; it says
    whether the mount goes on."""
    asking = _asked(device, user, _line(Wish.RESTART, this_program(options)), ANSWER_SECONDS)
    if asking is None:
        reason = "the keeper of the mount can't be found: it was killed, or runs in another network namespace"
        raise CommandError(reason, "umount, then mount anew")
    with asking, asking.makefile("rb") as reports, showing() as show:
        try:
            return _wait_until_served(asking, outcomes(reports, show))
        except TimeoutError:
            raise _silent(asking) from None


def _wait_until_served(asking: socket.socket, reports: Iterator[Report]) -> int:
    """Wait for `ready`. The first failure is the error's reason; later reports describe the mount's state."""
    pid, failure = 0, None
    with suppress(ConnectionResetError):
        for report in reports:
            asking.settimeout(SILENCE_SECONDS)
            if report.event == "started":
                pid = report.pid
            elif report.event == "ready":
                return pid
            elif report.event == "failed":
                failure = failure or report
            elif report.event != "accepted":
                raise _failed(failure, report)
    raise _failed(failure, Report("ended"))


def _failed(failure: Report | None, then: Report) -> CommandError:
    failure = failure or Report("failed", "the new daemon died, or could not be started", os.EX_UNAVAILABLE)
    if then.event == "kept":
        return CommandError(failure.text, "the mount is served as before", failure.code)
    if then.event == "postponed":
        return CommandError(failure.text, then.text, os.EX_TEMPFAIL)
    return CommandError(failure.text, "the mount has ended; its log says why")


def _silent(asking: socket.socket) -> CommandError:
    keeper, _ = peer_of(asking)
    if is_stopped(keeper):
        reason = f"the keeper of the mount (process {keeper}) is stopped"
        return CommandError(reason, f"kill -CONT {keeper}", os.EX_TEMPFAIL)
    reason = f"the keeper of the mount (process {keeper}) does not answer"
    return CommandError(reason, "look into the daemon's log", os.EX_TEMPFAIL)


def state_of(device: str, user: int, wish: Wish = Wish.STATE) -> State | None:
    """The keeper's description of the mount with that device number, made by `user`; None: there is no keeper. Wish.END
    then ends the mount, if no server serves it. CommandError: the keeper does not answer."""
    asking = _asked(device, user, _line(wish), STATE_SECONDS)
    if asking is None:
        return None
    with asking, asking.makefile("rb") as lines:
        try:
            return State(**json.loads(lines.readline()))
        except TimeoutError:
            raise _silent(asking) from None
        except (OSError, ValueError, TypeError):
            return None


def _line(wish: Wish, program: Program | None = None) -> bytes:
    asked = {"wish": wish.value, "program": None if program is None else asdict(program)}
    return json.dumps(asked).encode() + b"\n"


def _asked(device: str, user: int, line: bytes, seconds: float) -> socket.socket | None:
    """A connection to the keeper, on which it has begun to answer the request; None: there is no keeper. CommandError:
    the keeper sent nothing within `seconds`. The keeper of a mount that has just ended hangs up, since another mount
    may have its device number."""
    silent: CommandError | None = None
    for name in _names(device):
        asking = _connected(name, user)
        if asking is None:
            continue
        asking.settimeout(seconds)
        try:
            asking.send(line)
            if asking.recv(1, socket.MSG_PEEK):
                return asking
        except TimeoutError:
            silent = _silent(asking)
        except OSError:
            pass
        asking.close()
    if silent is not None:
        raise silent
    return None


def _connected(name: str, user: int) -> socket.socket | None:
    """A connection to that socket, if its listener runs as root, as this user or as `user`; None otherwise."""
    asking = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
    with suppress(OSError):
        asking.connect(name)
        if peer_of(asking)[1] in (0, os.geteuid(), user):
            return asking
    asking.close()
    return None


def _names(device: str) -> list[str]:
    """Names of sockets that may be the keeper's."""
    begin = f"@{_prefix(device)}"
    rows = [row.split(maxsplit=7) for row in SOCKETS.read_text(errors="replace").splitlines()]
    return sorted({f"\0{row[7][1:]}" for row in rows if len(row) == 8 and row[7].startswith(begin)})


def _prefix(device: str) -> str:
    return f"fsstore/{device}/"
