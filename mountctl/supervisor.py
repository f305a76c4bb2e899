"""The supervisor: replaces a mount's server after its death, or for a requested restart.

It starts the next server (the standby) while the last one serves, so that a replacement waits for no program to load.

    TAKING_OVER ──serving──► SERVING ──killed─────────────────► PAUSED ──► TAKING_OVER ...
                                │ a restart is requested          ▲ killed
                                └► PREPARING ──prepared──► LEAVING ──ended──► TAKING_OVER ...

A server that can't take over is replaced in turn. Only MOST_UNANSWERED consecutive deaths before the first answer end a
mount (mountctl/deaths.py). The supervisor waits for no other process without a deadline.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from enum import Enum
from functools import partial
from types import FrameType

from fsstore.handover.keeper import LARGEST_MESSAGE_BYTES, KeeperMessage
from fsstore.handover.memory import Handover
from mountctl.control import ControlSocket, Program, State, Wish, answer, answer_state, this_program
from mountctl.daemon import ENDED_BY, INTERRUPTED, Report, hold_hangups, seconds_in_environment, tell_systemd
from mountctl.deaths import MOST_UNANSWERED, Deaths, may_pass
from mountctl.errors import one_line
from mountctl.launch import Launcher, Served, ServerProcess
from mountctl.log_file import note
from mountctl.places import mount_at

RESTART_SIGNAL = signal.SIGUSR2
"""Signal to the keeper: restart the mount."""
PREPARE_SECONDS = 60.0
"""Time limit for the next server's preparation; FSSTORE_PREPARE_SECONDS overrides it."""
HANDOVER_SECONDS = 5.0
"""Time limit for a prepared server to acknowledge GO."""
LEAVE_SECONDS = 60.0
"""After this time a requester gets the report that the last server still closes the store."""
STANDBY_SECONDS = 5.0
"""The first standby is started this long after the mount: many mounts are short-lived."""
STEADY_SECONDS = 10.0
"""The death of a server that has served for so long begins a new row of deaths. FSSTORE_STEADY_SECONDS overrides it in
tests that kill many servers."""
UNMOUNT_SECONDS = 10.0
REAP_SECONDS = 5.0
ABORTED = signal.SIGABRT
"""The signal as which an exit by an error of the server's own is recorded."""


class Phase(Enum):
    """The state of a mount's servers."""

    TAKING_OVER = "taking over"
    SERVING = "serving"
    PREPARING = "preparing"
    """One server serves, and a requested one prepares."""
    LEAVING = "leaving"
    """The serving one was asked to leave."""
    PAUSED = "paused"
    """No server runs until a pause is over."""
    OVER = "over"


class Supervisor:
    """Runs the servers of one mount, one after the other."""

    def __init__(self, served: Served, memory: int | None) -> None:
        self._served = served
        self._memory = memory
        self._launcher = Launcher(served, memory) if memory is not None else None
        self._control = ControlSocket()
        self._device: int | None = None
        """/dev/fuse, from KEEP until RELEASE: while the mount outlives its server."""
        self._phase = Phase.TAKING_OVER
        self._deaths = Deaths(seconds_in_environment("FSSTORE_STEADY_SECONDS", STEADY_SECONDS))
        self._prepare_seconds = seconds_in_environment("FSSTORE_PREPARE_SECONDS", PREPARE_SECONDS)
        self._program = this_program()
        """The program of the newest server that served."""
        self._server: ServerProcess | None = None
        self._standby: ServerProcess | None = None
        """The next server, while it prepares or waits for GO."""
        self._standby_due: float | None = None
        """When to start a standby for the case of a death."""
        self._deadline: float | None = None
        """Time limit of the phase."""
        self._dying: dict[int, ServerProcess] = {}
        """Servers killed before they took over, by pidfd."""
        self._requester: socket.socket | None = None
        """The requester of the restart that is under way."""
        self._reason = ""
        """Why the mount is not served; empty while it is."""
        self._is_ending = False
        """Whether a requester has asked to end the mount, which is not served."""
        self._signalled = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)

    def run(self, first: ServerProcess) -> None:
        """Run until the mount has ended."""
        signal.signal(RESTART_SIGNAL, lambda *_: os.eventfd_write(self._signalled, 1))
        self._server = first
        self._pass_hangups_to(first)
        while self._phase is not Phase.OVER:
            self._turn()
        self._control.close()
        self._drop_standby()
        self._let_requester_go()
        deadline = time.monotonic() + REAP_SECONDS
        while self._dying and time.monotonic() < deadline:
            self._take_event(REAP_SECONDS)

    # events

    def _turn(self) -> None:
        due = [when for when, _ in self._deadlines()]
        self._take_event(max(0.0, min(due) - time.monotonic()) if due else None)
        for when, act in list(self._deadlines()):
            if when <= time.monotonic():
                act()
                break

    def _take_event(self, seconds: float | None) -> None:
        """Wait up to `seconds` for events, and handle them."""
        sources = {descriptor: act for descriptor, act in self._sources() if descriptor >= 0}
        poll = select.poll()
        for descriptor in sources:
            poll.register(descriptor, 0 if descriptor == self._device else select.POLLIN)
        ready = {descriptor for descriptor, _ in poll.poll(None if seconds is None else int(seconds * 1000) + 1)}
        for descriptor, act in sources.items():
            if descriptor in ready:
                act()
                return

    def _sources(self) -> Iterator[tuple[int, Callable[[], None]]]:
        """Descriptors to poll, each with its handler, in the order of handling."""
        server, standby = self._server, self._standby
        if server is not None:
            if not server.is_mute:  # its messages are handled before its end
                yield server.link.fileno(), partial(self._hear_server, server)
            yield server.descriptor, partial(self._server_ended, server)
        elif self._device is not None and self._phase is Phase.PAUSED:
            yield self._device, self._mount_is_gone
        if standby is not None:
            yield standby.link.fileno(), partial(self._hear_standby, standby)
        for descriptor in self._dying:
            yield descriptor, partial(self._reap, descriptor)
        yield self._signalled, self._restart_by_signal
        if self._control.descriptor is not None:
            yield self._control.descriptor, self._answer_requester

    def _deadlines(self) -> Iterator[tuple[float, Callable[[], None]]]:
        """Pending time limits, each with its handler."""
        if self._deadline is not None:
            yield self._deadline, self._phase_takes_too_long
        if self._standby_due is not None and self._phase is Phase.SERVING:
            yield self._standby_due, self._start_standby
        if self._control.deadline is not None:
            yield self._control.deadline, self._control.give_up

    def _phase_takes_too_long(self) -> None:
        self._deadline = None
        if self._phase is Phase.PAUSED:
            self._take_over()
        elif self._phase is Phase.PREPARING:
            self._give_up("the new daemon takes too long to start: the old one goes on")
        elif self._phase is Phase.LEAVING and self._server is not None:
            self._postpone(f"process {self._server.pid} still closes the store: the new daemon goes on when it has")
        elif self._phase is Phase.TAKING_OVER and self._server is not None:
            self._log(f"WARNING the next daemon (process {self._server.pid}) does not take over: it is killed")
            self._server.is_stuck = True
            self._server.kill()

    def _hear_server(self, server: ServerProcess) -> None:
        """Handle one message of the server."""
        try:
            message, descriptors, _, _ = socket.recv_fds(server.link, LARGEST_MESSAGE_BYTES, 1)
        except OSError:
            message, descriptors = b"", []
        word, _, text = message.partition(b" ")
        if not word:
            server.is_mute = True
        elif word == KeeperMessage.KEEP.value:
            self._hold(*descriptors)
        elif word == KeeperMessage.RELEASE.value:
            self._let_go()
            with suppress(OSError):
                server.link.send(KeeperMessage.RELEASED.value, socket.MSG_DONTWAIT)
        elif word == KeeperMessage.TAKEN.value:
            server.has_taken, self._deadline = True, None
        elif word == KeeperMessage.REFUSED.value:
            server.refusal = text.decode(errors="replace")
        elif word == KeeperMessage.SERVING.value:
            self._serves(server)

    def _hold(self, device: int) -> None:
        self._device = device
        os.set_inheritable(device, False)
        mount = mount_at(self._served.mountpoint)
        try:
            if mount is None:
                raise FileNotFoundError(f"{self._served.mountpoint} is not in the table of mounts")
            self._control.open(mount.device)
        except OSError as error:
            self._log(f"WARNING the mount can't be restarted by mountctl: {one_line(error)}")

    def _serves(self, server: ServerProcess) -> None:
        self._phase, self._deadline, self._reason = Phase.SERVING, None, ""
        self._program, server.serving_since = server.program, time.monotonic()
        if self._requester is not None and not server.is_requested:
            answer(self._requester, Report("kept"))
        self._let_requester_go()
        self._standby_due = time.monotonic() + (0 if self._deaths.in_a_row else STANDBY_SECONDS)

    # a planned restart

    def _answer_requester(self) -> None:
        request = self._control.receive()
        if request is None:
            return
        if self._device is None or is_gone(self._device):
            request.requester.close()  # another mount may have the device number by now
        elif request.program is None:
            answer_state(request.requester, self._state())
            if request.wish is Wish.END and not self._is_serving:
                self._end_unserved()
        elif self._phase is not Phase.SERVING:
            answer(request.requester, Report("failed", "the daemon is being restarted already", os.EX_TEMPFAIL))
            answer(request.requester, Report("kept"))
            request.requester.close()
        else:
            answer(request.requester, Report("accepted"))
            options = (*self._program.options, *request.program.options)
            program = Program(request.program.executable, request.program.folder, options)
            self._prepare(program, request.requester)

    def _state(self) -> State:
        server = self._server.pid if self._server is not None else None
        return State(os.getpid(), server, self._is_serving, self._reason)

    @property
    def _is_serving(self) -> bool:
        return self._phase in (Phase.SERVING, Phase.PREPARING, Phase.LEAVING)

    def _end_unserved(self) -> None:
        """End a mount that no server serves; its pending requests fail."""
        self._log("WARNING the mount is ended before the next daemon took over; the store was not closed")
        self._is_ending = True
        if self._server is None:
            self._end()
        else:
            self._server.kill()

    def _restart_by_signal(self) -> None:
        os.eventfd_read(self._signalled)
        if self._phase is Phase.SERVING and self._device is not None:
            self._prepare(self._program, None)

    def _prepare(self, program: Program, requester: socket.socket | None) -> None:
        """Start the requested next server; it prepares while the last one serves."""
        self._drop_standby()
        tell_systemd(f"RELOADING=1\nMONOTONIC_USEC={time.monotonic_ns() // 1000}")
        self._requester, self._phase = requester, Phase.PREPARING
        self._deadline = time.monotonic() + self._prepare_seconds
        self._standby = self._start_ahead(program, is_requested=True)
        if self._standby is None:
            self._give_up("the new daemon could not be started: the old one goes on")

    def _start_standby(self) -> None:
        self._standby_due = None
        if self._device is not None:
            self._standby = self._start_ahead(self._program)

    def _start_ahead(self, program: Program, *, is_requested: bool = False) -> ServerProcess | None:
        """Start a server while the last one serves; None: it can't be started, and the last one goes on."""
        hold_hangups()
        try:
            return self._start(program, is_requested=is_requested)
        except OSError as error:
            self._log(f"WARNING the next daemon could not be started: {one_line(error)}")
            return None
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGHUP})

    def _start(self, program: Program, *, is_requested: bool = False) -> ServerProcess:
        assert self._launcher is not None
        return self._launcher.start(program, self._requester if is_requested else None, is_requested=is_requested)

    def _hear_standby(self, standby: ServerProcess) -> None:
        word = b""
        with suppress(OSError):
            word = standby.link.recv(LARGEST_MESSAGE_BYTES)
        if word:
            standby.is_prepared = True
            if self._phase is Phase.PREPARING:
                self._have_left()
        elif self._phase is Phase.PREPARING:
            self._give_up("the new daemon could not be prepared: the old one goes on")
        else:
            self._drop_standby()
            if self._phase is Phase.LEAVING:
                self._complain("the new daemon ended before it served: the mount goes on as it was")
            else:  # no retry now: the next server is started when it is needed
                self._log("WARNING no daemon waits to replace this one: replacing it will take longer")

    def _have_left(self) -> None:
        assert self._server is not None
        self._phase, self._deadline = Phase.LEAVING, time.monotonic() + LEAVE_SECONDS
        with suppress(OSError):
            self._server.link.send(KeeperMessage.LEAVE.value, socket.MSG_DONTWAIT)

    def _give_up(self, why: str) -> None:
        """Abandon a requested restart before the last server was asked to leave."""
        self._drop_standby()
        self._phase, self._deadline, self._standby_due = Phase.SERVING, None, time.monotonic()
        self._complain(why)
        tell_systemd("READY=1")
        if self._requester is not None:
            answer(self._requester, Report("kept"))
        self._let_requester_go()

    def _complain(self, why: str) -> None:
        """Report that the requested server does not go on."""
        self._log(f"WARNING {why}")
        if self._requester is not None:
            answer(self._requester, Report("failed", why, os.EX_TEMPFAIL))

    def _postpone(self, why: str) -> None:
        """Report that the mount is not served now, and don't let the requester wait for it."""
        if self._requester is not None:
            answer(self._requester, Report("postponed", why))
        self._let_requester_go()

    def _let_requester_go(self) -> None:
        if self._requester is not None:
            self._requester.close()
            self._requester = None

    def _drop_standby(self) -> None:
        standby, self._standby, self._standby_due = self._standby, None, None
        if standby is not None:
            standby.kill()  # no part of the mount is in it yet
            self._dying[standby.descriptor] = standby

    def _reap(self, descriptor: int) -> None:
        self._dying.pop(descriptor).reap()

    # a server's end, and its successor

    def _server_ended(self, server: ServerProcess) -> None:
        hold_hangups()  # until there is a next server
        self._server, self._deadline = None, None
        status = server.reap()
        number = os.WTERMSIG(status) if os.WIFSIGNALED(status) else None
        exit_status = os.WEXITSTATUS(status) if number is None else None
        is_over = self._device is None or is_gone(self._device)
        was_asked = self._is_ending or number in ENDED_BY or exit_status == INTERRUPTED
        if was_asked or (exit_status == 0 and is_over):
            self._end()
        elif number is None and self._phase is Phase.LEAVING and not is_over:
            self._take_over()
        elif is_over:
            if number is not None:
                how = f"was killed by {signal.Signals(number).name}; the store was not closed"
                self._log(f"CRITICAL the daemon (process {server.pid}) {how}")
            self._phase = Phase.OVER
        else:
            self._replace(server, number, exit_status)

    def _replace(self, server: ServerProcess, number: int | None, exit_status: int | None) -> None:
        """Replace a server that was killed or ended by an error."""
        assert self._memory is not None
        served = None if server.serving_since is None else time.monotonic() - server.serving_since
        has_answered = Handover.has_answered(self._memory)
        is_death = server.has_taken and (number is not None or served is not None)
        if is_death:
            Handover.note_death(self._memory, number if number is not None else ABORTED)
        how = f"ended with {exit_status}" if number is None else f"was killed by {signal.Signals(number).name}"
        self._reason = server.refusal or f"the daemon (process {server.pid}) {how}"
        if served is None and server.refusal:
            how = f"can't take over: {server.refusal}"
        if server.is_requested and served is None:
            self._complain("the new daemon ended before it served: the mount goes on as it was")
            self._take_over()
            return
        if server.is_stuck or (served is None and exit_status is not None and may_pass(exit_status)):
            self._deaths.put_off()
        else:
            self._deaths.died(served, has_answered=has_answered)
        what = f"{'CRITICAL' if is_death else 'WARNING'} the daemon (process {server.pid}) {how}"
        if self._deaths.are_too_many:
            last = f"the mount ends after {MOST_UNANSWERED} daemons in a row that died before their first answer"
            self._log(f"{what}; {last}; the store was not closed")
            self._phase = Phase.OVER
        else:
            self._pause(what)

    def _pause(self, what: str) -> None:
        """Have the next server take over after the pause that is due. `what` describes the last one's end."""
        seconds = self._deaths.pause_seconds
        self._log(f"{what}; the next one takes over" + (f" in {seconds:g} s" if seconds else ""))
        if seconds:
            self._postpone(f"the mount waits for the next daemon, which takes over in {seconds:g} s: {self._reason}")
            self._phase, self._deadline = Phase.PAUSED, time.monotonic() + seconds
        else:
            self._take_over()

    def _take_over(self) -> None:
        """Send GO to the next server, starting one if none is prepared."""
        assert self._device is not None
        server, self._standby, self._standby_due = self._standby, None, None
        try:
            server = server or self._start(self._program)
        except OSError as error:
            self._deaths.put_off()
            self._reason = f"the next daemon could not be started: {one_line(error)}"
            self._phase, self._deadline = Phase.PAUSED, time.monotonic() + max(1.0, self._deaths.pause_seconds)
            self._log(f"WARNING {self._reason}")
            return
        self._server, self._phase = server, Phase.TAKING_OVER
        now = time.monotonic()
        self._deadline = max(
            now + HANDOVER_SECONDS, 0 if server.is_prepared else server.started + self._prepare_seconds
        )
        with suppress(OSError):  # it is dead: its pidfd is readable
            socket.send_fds(server.link, [KeeperMessage.GO.value], [self._device])
        self._pass_hangups_to(server)

    def _pass_hangups_to(self, server: ServerProcess) -> None:
        signal.signal(signal.SIGHUP, partial(_pass_on, server.pid))
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGHUP})

    def _mount_is_gone(self) -> None:
        """End: the mount was unmounted while no server ran."""
        self._log("WARNING the mount was unmounted before the next daemon took over; the store was not closed")
        self._phase = Phase.OVER

    def _let_go(self) -> None:
        if self._device is not None:
            os.close(self._device)
            self._device = None

    def _end(self) -> None:
        """End after the server's own end. Unmount if it could not take the mount over."""
        self._phase = Phase.OVER
        if self._device is not None:
            self._let_go()
            command = ["fusermount3", "-u", "-q", "-z", "--", str(self._served.mountpoint)]
            with suppress(OSError, subprocess.TimeoutExpired):
                subprocess.run(command, check=False, capture_output=True, timeout=UNMOUNT_SECONDS)

    def _log(self, words: str) -> None:
        note(self._served.log_file, words)


def is_gone(device: int) -> bool:
    """Whether the mount of this /dev/fuse descriptor is gone everywhere."""
    poll = select.poll()
    poll.register(device, 0)
    return any(event & select.POLLERR for _, event in poll.poll(0))


def _pass_on(pid: int, number: int, _: FrameType | None) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, number)
