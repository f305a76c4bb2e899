"""The control socket of a mount's keeper: where a restart is requested, and the state of a mount that does not answer.

It is an abstract Unix socket, no file: it goes with its process, and needs no folder that can be written. Its name has
the mount's device number, by which requesters find it in /proc/net/unix, and a random part, so that no other user can
take the name first. Each end asks the kernel which user the other one is (SO_PEERCRED): a name that another user made
up leads to nothing, and a request of another user is not read.

A request is one line of JSON, at most LARGEST_REQUEST_BYTES, sent within REQUEST_SECONDS; the answer is lines of
reports. The keeper waits for none of it: it has a server to look after.
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
"""How long a requester may take to say what it wants, all of it."""
LARGEST_REQUEST_BYTES = 1 << 16
ANSWER_SECONDS = 10.0
"""How long a keeper may take to accept a restart."""
STATE_SECONDS = 2.0
SILENCE_SECONDS = 180.0
"""How long nothing may come during a restart: longer than the next server may take to load, and the last one to
leave."""
SOCKETS = Path("/proc/net/unix")


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
class State:
    """What a keeper says of its mount."""

    keeper: int
    """Its process."""
    server: int | None
    """The process that serves or is about to; None: the keeper waits before it starts another one."""
    is_serving: bool
    reason: str = ""
    """Why it is not serving: what the last server said, or died of."""


class Wish(Enum):
    """What may be requested."""

    STATE = "state"
    RESTART = "restart"
    END = "end"
    """Of a mount that is not served: one that is ends when it is unmounted."""


@dataclass(frozen=True, slots=True)
class Request:
    """What a requester wants; `program` is to go on at a restart. `requester` is to be answered and closed."""

    requester: socket.socket
    wish: Wish
    program: Program | None


class ControlSocket:
    """The keeper's end. Nothing here waits."""

    def __init__(self) -> None:
        self._listening: socket.socket | None = None
        self._asking: socket.socket | None = None
        """A requester that has not said all yet. Others queue up meanwhile."""
        self._text = b""
        self.deadline: float | None = None
        """When that one is given up, by the monotonic clock."""

    def open(self, device: str) -> None:
        """Listen, for the mount of this device number (`major:minor`). OSError."""
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
        """Readable when there is something to `receive`; None: it is not open."""
        source = self._asking or self._listening
        return None if source is None else source.fileno()

    def receive(self) -> Request | None:
        """Take what is there: a requester, or more of what one says; the request, once that is whole."""
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
            asking.close()  # unread
            return
        self._asking, self.deadline = asking, time.monotonic() + REQUEST_SECONDS

    def close(self) -> None:
        """Listen no longer: the mount has ended."""
        self.give_up()
        if self._listening is not None:
            self._listening.close()
            self._listening = None

    def give_up(self) -> None:
        """Drop a requester that takes too long."""
        if self._asking is not None:
            self._asking.close()
        self._reset()

    def _reset(self) -> None:
        self._asking, self._text, self.deadline = None, b"", None


def _request_in(requester: socket.socket, asked: dict[str, Any]) -> Request:
    """ValueError, KeyError, TypeError: it makes no sense."""
    wish, program = Wish(asked["wish"]), None
    if wish is Wish.RESTART:
        said = asked["program"]
        program = Program(str(said["executable"]), str(said["folder"]), tuple(map(str, said["options"])))
    return Request(requester, wish, program)


def _listens(requester: socket.socket) -> bool:
    """Whether a requester is still there: one may have given up while the keeper was stopped."""
    poll = select.poll()
    poll.register(requester, select.POLLRDHUP)
    return not poll.poll(0)


def answer(requester: socket.socket, report: Report) -> None:
    """Tell a requester something, if it listens. It is not waited for."""
    with suppress(OSError):
        requester.send(report.to_line(), socket.MSG_DONTWAIT)


def answer_state(requester: socket.socket, state: State) -> None:
    """Tell a requester how the mount is, and let it go."""
    with suppress(OSError):
        requester.send(json.dumps(asdict(state)).encode() + b"\n", socket.MSG_DONTWAIT)
    requester.close()


def peer_of(connected: socket.socket) -> tuple[int, int]:
    """Process and user at the other end of a Unix socket: of who listened there, or who connected."""
    pid, user, _ = struct.unpack("3i", connected.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    return pid, user


# the requester's end


def restart(
    device: str, user: int, options: tuple[str, ...], showing: Callable[[], AbstractContextManager[Show]]
) -> int:
    """Have the program that runs here, and these further options, go on with the mount of that device number, which
    `user` made; the new server's pid when it serves. CommandError: it does not, and what became of the mount."""
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
    """The first failure counts: what comes after it says what became of the mount."""
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
    """What the keeper of the mount of that device number, which `user` made, says of it; None where there is none.
    With Wish.END it then ends the mount, if that is not served. CommandError: it does not answer."""
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
    """Request something of the keeper, which has begun to answer; None: there is none. CommandError: it says nothing
    for so long.

    The keeper of a mount that has just ended hangs up: its device number may be another mount's by now.
    """
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
    """A connection to the process that listens by that name, if it may be the keeper of a mount of `user`."""
    asking = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
    with suppress(OSError):
        asking.connect(name)
        if peer_of(asking)[1] in (0, os.geteuid(), user):
            return asking
    asking.close()
    return None


def _names(device: str) -> list[str]:
    """Names of sockets that claim to be the keeper's."""
    begin = f"@{_prefix(device)}"
    rows = [row.split(maxsplit=7) for row in SOCKETS.read_text(errors="replace").splitlines()]
    return sorted({f"\0{row[7][1:]}" for row in rows if len(row) == 8 and row[7].startswith(begin)})


def _prefix(device: str) -> str:
    return f"fsstore/{device}/"
