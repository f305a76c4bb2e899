"""The keeper of a mount: the process between `mountctl mount` and the servers, which outlives them.

It holds /dev/fuse and the shared memory (fsstore/handover/), and replaces a server that was killed or leaves
(mountctl/supervisor.py).
"""

from __future__ import annotations

import os
import signal
import socket
import sys
import traceback
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import NoReturn

from fsstore.handover.keeper import Keeper
from fsstore.handover.memory import Handover
from mountctl.control import this_program
from mountctl.daemon import CATCHABLE_SIGNALS, Report, Reporter, hold_hangups, outcomes, serve
from mountctl.errors import CommandError
from mountctl.launch import Served, ServerProcess
from mountctl.log_file import note, open_log, redirect
from mountctl.output import Show
from mountctl.supervisor import Supervisor

NO_RESEND = "FSSTORE_NO_RESEND"
"""Environment variable: the mount ends with its daemon, as on kernels before 6.9."""


def start(served: Served, showing: Callable[[], AbstractContextManager[Show]]) -> Report:
    """Serve in a daemon that logs to its file; returns its report, with its pid, when the mount is ready, or raises its
    error. `showing` opens the progress display. It is called after the fork, which must not copy an open display."""
    output = open_log(served.log_file)
    listening, telling = os.pipe()
    sys.stdout.flush()
    sys.stderr.flush()
    if os.fork() == 0:
        os.close(listening)
        redirect(output)
        _keep(served, Reporter(telling))
    os.close(telling)
    os.close(output)
    with open(listening, "rb") as reports, showing() as show:
        return _wait_until_ready(outcomes(reports, show), served)


def _wait_until_ready(reports: Iterable[Report], served: Served) -> Report:
    pid = 0
    try:
        for report in reports:
            if report.event == "started":
                pid = report.pid
            elif report.event == "ready":
                return replace(report, pid=pid)
            else:
                raise CommandError(report.text, exit_code=report.code)
    except KeyboardInterrupt:
        if pid:
            os.kill(pid, signal.SIGTERM)
        raise
    raise CommandError("the daemon died before the mount was ready", f"look into its log {served.log_file}")


def _keep(served: Served, reporter: Reporter) -> NoReturn:
    """Run the keeper: start the first server, then supervise it and its successors."""
    os.setsid()
    os.chdir("/")  # a daemon must not keep a working directory busy
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
    redirect(os.open(os.devnull, os.O_WRONLY))  # a rotated log must not stay open here
    try:
        Supervisor(served, memory).run(ServerProcess(pid, ours, this_program(), has_taken=True))
    except Exception:  # the server goes on without a replacement
        note(served.log_file, f"CRITICAL the keeper ends by a defect: {traceback.format_exc()}")
    os._exit(0)


def _memory() -> int | None:
    """The shared memory for the next server; None: it is switched off, or there is no room for it."""
    if os.environ.get(NO_RESEND):
        return None
    try:
        memory = Handover.create()
        Handover(memory)
    except OSError:
        return None
    return memory
