"""The keeper's control socket, without a keeper."""

from __future__ import annotations

import json
import os
import secrets
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from functools import partial

import pytest

from mountctl import control
from mountctl.control import ControlSocket, Request, State
from mountctl.daemon import Report
from mountctl.errors import CommandError

PROGRAM = {"executable": "/usr/bin/python3", "folder": "/", "options": ["a=1"]}


@pytest.fixture
def device() -> str:
    """No mount's."""
    return f"test-{secrets.token_hex(8)}"


@pytest.fixture
def listening(device: str) -> ControlSocket:
    made = ControlSocket()
    made.open(device)
    return made


def connected(device: str) -> socket.socket:
    [name] = control._names(device)
    asking = control._connected(name, os.geteuid())
    assert asking is not None
    asking.settimeout(10)
    return asking


def taken(listening: ControlSocket, looks: int = 4) -> Request | None:
    """The request that is there after so many looks."""
    for _ in range(looks):
        if request := listening.receive():
            return request
    return None


def test_a_request_may_come_in_pieces(listening: ControlSocket, device: str) -> None:
    text = json.dumps({"wish": "restart", "program": PROGRAM}).encode() + b"\n"
    with connected(device) as asking:
        for piece in (text[:7], text[7:20]):
            asking.send(piece)
            assert taken(listening, 2) is None
        asking.send(text[20:])
        request = taken(listening)
    assert request is not None
    assert request.program == control.Program("/usr/bin/python3", "/", ("a=1",))
    assert listening.deadline is None
    request.requester.close()


def test_a_requester_that_has_given_up_gets_no_restart(listening: ControlSocket, device: str) -> None:
    with connected(device) as asking:
        asking.send(json.dumps({"wish": "restart", "program": PROGRAM}).encode() + b"\n")
    assert taken(listening) is None
    assert listening.deadline is None


def test_no_look_waits_for_a_requester(listening: ControlSocket, device: str) -> None:
    with connected(device) as asking:
        asking.send(b"{")
        began = time.monotonic()
        assert listening.receive() is None  # it is accepted
        assert listening.receive() is None
        assert time.monotonic() - began < control.REQUEST_SECONDS / 2
        assert listening.deadline is not None
        assert listening.deadline <= began + control.REQUEST_SECONDS + 0.5
        first_deadline = listening.deadline
        asking.send(b"{")
        assert listening.receive() is None
        assert listening.deadline == first_deadline  # of all that it says
        listening.give_up()
        assert listening.deadline is None
        assert asking.recv(1) == b""


@pytest.mark.parametrize(
    "text",
    [
        b"\n",
        b"[]\n",
        b"{}\n",
        b'{"wish": "restart"}\n',
        b'{"wish": "restart", "program": {}}\n',
        b"[" * 60_000 + b"\n",
        b"x" * 70_000,
    ],
)
def test_nonsense_is_dropped(listening: ControlSocket, device: str, text: bytes) -> None:
    with connected(device) as asking:
        assert listening.receive() is None
        asking.sendall(text)
        deadline = time.monotonic() + 10
        while listening.deadline is not None and time.monotonic() < deadline:
            assert listening.receive() is None
        assert listening.deadline is None
        with suppress(ConnectionResetError):  # where not all of it was read
            assert asking.recv(1) == b""


def test_another_users_request_is_not_read(
    listening: ControlSocket, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    asking = connected(device)
    monkeypatch.setattr(control, "peer_of", lambda _: (1, os.geteuid() + 54321))
    asking.send(json.dumps({"wish": "state"}).encode() + b"\n")
    assert taken(listening) is None
    assert listening.deadline is None
    asking.close()


@contextmanager
def keeper_that(device: str, answers: Callable[[ControlSocket], object]) -> Iterator[None]:
    listening = ControlSocket()
    listening.open(device)
    answering = threading.Thread(target=answers, args=(listening,))
    answering.start()
    try:
        yield
    finally:
        answering.join()


def request_of(listening: ControlSocket) -> Request:
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        if request := listening.receive():
            return request
        time.sleep(0.005)
    raise AssertionError("no request came")


def tell(state: State, listening: ControlSocket) -> None:
    control.answer_state(request_of(listening).requester, state)


def test_the_state_is_told(device: str) -> None:
    state = State(os.getpid(), None, False, "the disk is wet")
    with keeper_that(device, partial(tell, state)):
        assert control.state_of(device, os.geteuid()) == state
    assert control.state_of("no such mount", os.geteuid()) is None


def test_a_keeper_that_does_not_answer_is_given_up(
    listening: ControlSocket, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(control, "ANSWER_SECONDS", 0.1)
    monkeypatch.setattr(control, "STATE_SECONDS", 0.1)
    with pytest.raises(CommandError, match="does not answer"):
        control.restart(device, os.geteuid(), (), lambda: nullcontext(lambda *_: None))
    with pytest.raises(CommandError, match="does not answer"):
        control.state_of(device, os.geteuid())
    assert listening.descriptor is not None


def test_a_keeper_that_hangs_up_is_not_the_mounts(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def hang_up(listening: ControlSocket) -> None:
        request_of(listening).requester.close()

    monkeypatch.setattr(secrets, "token_hex", partial(next, iter("abc")))  # it is asked last
    state = State(os.getpid(), 5, True)
    with keeper_that(device, hang_up), keeper_that(device, hang_up), keeper_that(device, partial(tell, state)):
        assert control.state_of(device, os.geteuid()) == state


@pytest.mark.parametrize(
    ("reports", "words"),
    [
        ([Report("failed", "no room", 75), Report("kept")], "no room: the mount is served as before"),
        ([Report("started", pid=5), Report("failed", "gone", 65), Report("failed", "again", 75), Report("kept")],
         "gone: the mount is served as before"),
        ([Report("accepted"), Report("postponed", "the mount waits")], "could not be started: the mount waits"),
        ([Report("accepted")], "could not be started: the mount has ended"),
    ],
)  # fmt: skip
def test_a_failed_restart_says_what_became_of_the_mount(device: str, reports: list[Report], words: str) -> None:
    def answer(listening: ControlSocket) -> None:
        requester = request_of(listening).requester
        for report in reports:
            control.answer(requester, report)
        requester.close()

    with keeper_that(device, answer), pytest.raises(CommandError, match=words):
        control.restart(device, os.geteuid(), (), lambda: nullcontext(lambda *_: None))
