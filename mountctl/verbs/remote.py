"""mountctl remote: answers a mountctl on another host."""

from __future__ import annotations

import os
import select
import signal
import sys
import threading
from importlib.metadata import version

import click

from fsstore.options import DISTRIBUTION
from mountctl.answering import answer
from mountctl.errors import exit_code, one_line
from mountctl.frames import PROTOCOL, Frame, Hello, Refused, Request, Row, encode


@click.command("remote", short_help="Answer the verbs of another host, over its ssh.")
def command() -> int:
    """Read one request of a mountctl on another host from standard input, a line of JSON, and answer it on standard
    output. `cat`, `tail`, `grep`, `topics`, `status` and `top` call it by ssh for a place like HOST:/mnt/mq; it has no
    other use. It is read-only. To limit a key to it, put `restrict,command="mountctl remote"` before the key in
    authorized_keys.

    \b
    Example:
      mountctl remote <<< '{"protocol": 2, "kind": "topics", "place": "/mnt/mq"}'
    """
    line = sys.stdin.buffer.readline()
    threading.Thread(target=_end_with_the_reader, daemon=True).start()
    _send(Hello(version(DISTRIBUTION), PROTOCOL))
    try:
        for frame in answer(Request.from_line(line)):
            _send(frame)
    except BrokenPipeError:
        raise
    except Exception as error:  # the one place where an error becomes a frame
        _send(Refused(one_line(error), exit_code(error)))
        return exit_code(error)
    return 0


def _end_with_the_reader() -> None:
    """End this process when its output has no reader any more: while it follows a silent store, it writes nothing, and
    would not notice."""
    closed = select.poll()
    closed.register(sys.stdout.fileno(), 0)  # errors and the end are reported in any case
    closed.poll()
    os.kill(os.getpid(), signal.SIGTERM)


def _send(frame: Frame) -> None:
    sys.stdout.buffer.write(encode(frame) + b"\n")
    if not isinstance(frame, Row):
        sys.stdout.buffer.flush()
