"""Commands and daemons for tests in a fraction of the time: a process that has loaded this project forks for each.

A run of the tests starts hundreds of them. A new process loads Python, numpy, trio and this project first, which takes
half a second of a processor: more than most tests take. A forked process differs from a new one in its command line (in
/proc), and it shares pages with the server, so a test of memory starts a new process. So do the tests of `mount -f`, of
signals at the start, of hosts over ssh, and of the examples in the help.

    test ──request: a file, three streams, a socket──> server ──fork──> command
      └────────────── its pid, and its wait status at its end ─┘

The server is `python -m tests.forkserver CONTROL`, started at the first use; it ends when its socket CONTROL is closed.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import IO, Any, NamedTuple

LOADED = ("tests.mount.daemon", "mountctl.main", "mountctl.verbs.mount", "mountctl.verbs.serve", "mountctl.serving")
MAIN = {"mountctl": ("mountctl.__main__", "start"), "tests.mount.daemon": ("tests.mount.daemon", "main")}
"""What `python -m NAME` runs: module and function."""
REPOSITORY = Path(__file__).parents[1]


class Process:
    """A process that runs; as subprocess.Popen."""

    def __init__(self, words: Sequence[str], pid: int, link: socket.socket, stdout: IO[bytes] | None) -> None:
        self.args = words
        self.pid = pid
        self.stdout = stdout
        self.returncode: int | None = None
        self._link = link

    def poll(self) -> int | None:
        """The exit status, -N after the signal N; None while it runs."""
        return self._ended(0)

    def wait(self, timeout: float | None = None) -> int:
        """Wait for its end; its exit status. TimeoutExpired."""
        code = self._ended(timeout)
        if code is None:
            assert timeout is not None
            raise subprocess.TimeoutExpired(self.args, timeout)
        return code

    def _ended(self, timeout: float | None) -> int | None:
        if self.returncode is None:
            waiting = select.poll()
            waiting.register(self._link, select.POLLIN)
            if waiting.poll(None if timeout is None else timeout * 1000):
                self.returncode = os.waitstatus_to_exitcode(_heard(self._link))
                self._link.close()
        return self.returncode

    def send_signal(self, number: int) -> None:
        """Send a signal, unless it has ended."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        """Send SIGTERM."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """Send SIGKILL."""
        self.send_signal(signal.SIGKILL)


def run(
    module: str, words: Sequence[str], *, text: str, cwd: Path | None, timeout: float
) -> subprocess.CompletedProcess[str]:
    """`python -m MODULE WORDS` with `text` as its input, to its end and that of its output. TimeoutExpired."""
    (given, giving), (out, printing), (err, saying) = os.pipe(), os.pipe(), os.pipe()
    parts: dict[int, bytes] = {}

    def read(descriptor: int) -> None:
        with open(descriptor, "rb") as file:
            parts[descriptor] = file.read()

    def write() -> None:
        with suppress(BrokenPipeError), open(giving, "wb") as file:  # it may need no more
            file.write(text.encode())

    threads = [threading.Thread(target=read, args=(end,), daemon=True) for end in (out, err)]
    threads.append(threading.Thread(target=write, daemon=True))
    process = _forked(module, words, (given, printing, saying), cwd=cwd)
    for descriptor in (given, printing, saying):
        os.close(descriptor)
    for thread in threads:
        thread.start()
    deadline = time.monotonic() + timeout
    try:
        code = process.wait(timeout)
        for thread in threads:
            thread.join(max(0.0, deadline - time.monotonic()))
            if thread.is_alive():  # somebody holds its output
                raise subprocess.TimeoutExpired(process.args, timeout)
    finally:
        process.kill()
    return subprocess.CompletedProcess(process.args, code, parts[out].decode(), parts[err].decode())


def start(module: str, words: Sequence[str], *, stderr: IO[bytes]) -> Process | subprocess.Popen[bytes]:
    """`python -m MODULE WORDS` with a pipe for its output; by fork within `available`, else a new process."""
    if not _is_available:
        command = [sys.executable, "-m", module, *words]
        return subprocess.Popen(
            command, cwd=REPOSITORY, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=stderr
        )
    out, printing = os.pipe()
    with open(os.devnull, "rb") as nothing:
        process = _forked(module, words, (nothing.fileno(), printing, stderr.fileno()), stdout=open(out, "rb"))  # noqa: SIM115
    os.close(printing)
    return process


_is_available = False


@contextmanager
def available() -> Iterator[None]:
    """Let `start` fork, within the block."""
    global _is_available  # noqa: PLW0603
    before, _is_available = _is_available, True
    try:
        yield
    finally:
        _is_available = before


class Request(NamedTuple):
    """What a process is to be."""

    module: str
    words: list[str]
    cwd: str
    environment: dict[str, str]


def _forked(
    module: str,
    words: Sequence[str],
    streams: tuple[int, int, int],
    *,
    cwd: Path | None = None,
    stdout: IO[bytes] | None = None,
) -> Process:
    request = os.memfd_create("request")
    with open(request, "wb") as file:
        asked = Request(module, list(words), str(cwd or Path.cwd()), dict(os.environ))
        file.write(json.dumps(asked).encode())
        file.flush()
        link, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            with _starting:
                server = _server()
            socket.send_fds(server, [b"request"], [request, *streams, theirs.fileno()])
    return Process([module, *words], _heard(link), link, stdout)


def _heard(link: socket.socket) -> int:
    """A number from the server."""
    message = link.recv(64)
    assert message, "the fork server has ended"
    return int(message)


_starting = threading.Lock()


@cache
def _server() -> socket.socket:
    """The socket to the server, which it starts. The server ends with the last process that has the socket."""
    control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        command = [sys.executable, "-m", "tests.forkserver", str(theirs.fileno())]
        environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1"}  # a thread would not survive the fork
        process = subprocess.Popen(command, cwd=REPOSITORY, env=environment, pass_fds=[theirs.fileno()])
    process.returncode = 0  # nobody waits for it: it ends after this process
    return control


def main() -> None:
    """Be the server; returns from here in each process that it forks, too, once that one has done its work."""
    for module in LOADED:
        importlib.import_module(module)
    assert threading.active_count() == len(os.listdir("/proc/self/task")) == 1
    gc.collect()
    gc.freeze()
    work = _serve(socket.socket(fileno=int(sys.argv[1])))
    if work is not None:
        work()


def _serve(control: socket.socket) -> Callable[[], Any] | None:
    """Fork for each request; returns None at the socket's end, and the work to do in each child."""
    children: dict[int, tuple[int, socket.socket]] = {}
    waiting = select.poll()
    waiting.register(control, select.POLLIN)
    while True:
        for descriptor, _ in waiting.poll():
            if descriptor != control.fileno():
                pid, link = children.pop(descriptor)
                waiting.unregister(descriptor)
                os.close(descriptor)
                with link:
                    _tell(link, os.waitpid(pid, 0)[1])
                continue
            message, received, _, _ = socket.recv_fds(control, 64, 5)
            if not message:
                return None
            request, *streams, link_to_test = received
            pid = os.fork()
            if pid == 0:
                return _work(request, streams)
            for other in (request, *streams):
                os.close(other)
            link = socket.socket(fileno=link_to_test)
            _tell(link, pid)
            descriptor = os.pidfd_open(pid)
            children[descriptor] = pid, link
            waiting.register(descriptor, select.POLLIN)


def _tell(link: socket.socket, number: int) -> None:
    with suppress(BrokenPipeError):  # the test does not wait for it
        link.send(str(number).encode(), socket.MSG_NOSIGNAL)


def _work(request: int, streams: Sequence[int]) -> Callable[[], Any]:
    """Make this process one that has just loaded its program."""
    with open(request, "rb", closefd=False) as file:
        file.seek(0)
        module, words, cwd, environment = Request(*json.load(file))
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
    os.closerange(3, os.sysconf("SC_OPEN_MAX"))
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(environment)
    time.tzset()
    sys.argv = [module, *words]
    loaded, function = MAIN[module]
    work: Callable[[], Any] = getattr(importlib.import_module(loaded), function)
    return work


if __name__ == "__main__":
    main()
