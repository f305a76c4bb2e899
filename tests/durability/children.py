"""Work in a child process: it may die by a signal, or hang, and the test goes on and says so.

A fork of a process that has loaded what the work needs is ready ten times sooner than a new interpreter.
"""

from __future__ import annotations

import contextlib
import faulthandler
import io
import os
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass

PATIENCE_S = 60.0
HANGS = -signal.SIGKILL


@dataclass(frozen=True)
class Ended:
    """How a child ended: `code` is its exit code, or the negative number of the signal that killed it; HANGS: it was
    killed because it took longer than it may."""

    code: int
    out: str
    err: str

    @property
    def death(self) -> str:
        """Why that is no way to end; empty: it is one."""
        if self.code == HANGS:
            return "hangs"
        if self.code < 0:
            return f"dies by {signal.Signals(-self.code).name}"
        return "prints a traceback" if "Traceback (most recent call last)" in self.err else ""

    @property
    def last_words(self) -> str:
        """The last line of its standard error."""
        return (self.err.strip().splitlines() or [""])[-1]


def in_child(work: Callable[[], int], patience_s: float = PATIENCE_S) -> Ended:
    """Run `work`, which returns an exit code and may print, in a fork."""
    with tempfile.TemporaryFile("w+b") as out, tempfile.TemporaryFile("w+b") as err:
        child = os.fork()
        if child == 0:
            os._exit(_work(work, out.fileno(), err.fileno()))
        code = _await(child, patience_s)
        return Ended(code, *(_text_of(file) for file in (out, err)))


def type_in_child(words: Sequence[str], patience_s: float = PATIENCE_S) -> Ended:
    """Type a command line of mountctl."""
    from mountctl.main import run

    return in_child(lambda: run(words), patience_s)


def _work(work: Callable[[], int], out: int, err: int) -> int:
    """In the child: the exit code. Nothing of the parent's buffers is written by it."""
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(out, 1)
    os.dup2(err, 2)
    os.setsid()
    faulthandler.disable()
    said, complained = (io.TextIOWrapper(os.fdopen(number, "wb", closefd=False), "utf-8") for number in (1, 2))
    sys.stdin = open(0, closefd=False)  # noqa: SIM115
    code = 1
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(complained):
        try:
            code = work()
        except BaseException:
            traceback.print_exc()
        for stream in (said, complained):
            with contextlib.suppress(OSError):
                stream.flush()
    return code


def _await(child: int, patience_s: float) -> int:
    """Its exit code; a child that takes longer is killed."""
    deadline, wait_s = time.monotonic() + patience_s, 0.001
    while True:
        pid, status = os.waitpid(child, os.WNOHANG)
        if pid:
            return os.waitstatus_to_exitcode(status)
        if time.monotonic() > deadline:
            os.kill(child, signal.SIGKILL)
        time.sleep(wait_s)
        wait_s = min(wait_s * 1.5, 0.05)


def _text_of(file: io.BufferedRandom) -> str:
    file.seek(0)
    return file.read().decode(errors="replace")
