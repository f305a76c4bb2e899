"""Decoding: a command of the user's turns a stored body into another one, such as text."""

from __future__ import annotations

import os
import selectors
import signal
import subprocess
import time
from typing import IO

_NOT_FOUND = (126, 127)
"""Exit codes of a shell that can't run the command."""
_PIECE_BYTES = 64 << 10
_SAID_BYTES, _SAID_CHARACTERS = 4 << 10, 200
"""Limits of the command's standard error: bytes that are kept, characters in a reason."""


class DecodeError(Exception):
    """The command does not decode a body; `reason` says why."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class NoDecoderError(DecodeError):
    """The command can't be run at all."""


def decode(command: str, body: bytes, slot: tuple[str, int, int], seconds: float, most_bytes: int) -> bytes:
    """The output of a shell's `command` for a body on its standard input. Its environment is this process's, with the
    topic, the queue and the queue offset of `slot` in MQ_TOPIC, MQ_QUEUE and MQ_OFFSET. When this returns, its process
    group is gone. Blocks. NoDecoderError; DecodeError: it fails, takes longer than `seconds`, or prints more than
    `most_bytes`."""
    about = dict(zip(("MQ_TOPIC", "MQ_QUEUE", "MQ_OFFSET"), map(str, slot), strict=True))
    until_s = time.monotonic() + seconds
    with open(os.memfd_create("body"), "w+b") as source:  # bodies reach no disk
        source.write(body)
        source.seek(0)
        process = subprocess.Popen(
            ["/bin/sh", "-c", command], stdin=source, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            env={**os.environ, **about}, process_group=0,
        )  # fmt: skip
    assert process.stdout is not None
    assert process.stderr is not None
    with process.stdout, process.stderr:
        try:
            decoded, said = _outputs(process.pid, process.stdout, process.stderr, until_s, most_bytes)
        except TimeoutError:
            raise DecodeError(f"it took longer than {seconds:g} s") from None
        finally:
            os.killpg(process.pid, signal.SIGKILL)  # the group is there until its first process is waited for
            code = process.wait()
    words = said.decode(errors="replace").strip().splitlines()
    if code in _NOT_FOUND:
        raise NoDecoderError((words or [command])[0])
    if code:
        raise DecodeError(f"it ended with {code}" + (f": {words[0][:_SAID_CHARACTERS]}" if words else ""))
    return decoded


def _outputs(
    process: int, output: IO[bytes], errors: IO[bytes], until_s: float, most_bytes: int
) -> tuple[bytes, bytes]:
    """All of an output, and the begin of what is said beside it, once the process has ended. TimeoutError: it does not
    in time. DecodeError."""
    held = {output.fileno(): bytearray(), errors.fileno(): bytearray()}
    ended = os.pidfd_open(process)
    try:
        with selectors.DefaultSelector() as selector:
            for descriptor in (*held, ended):
                selector.register(descriptor, selectors.EVENT_READ)
            while selector.get_map():
                left_s = until_s - time.monotonic()
                if left_s <= 0 or not (ready := selector.select(left_s)):
                    raise TimeoutError
                for key, _ in ready:
                    piece = os.read(key.fd, _PIECE_BYTES) if key.fd in held else b""
                    if not piece:
                        selector.unregister(key.fd)
                    elif key.fd == output.fileno() or len(held[key.fd]) < _SAID_BYTES:
                        held[key.fd] += piece
                if len(held[output.fileno()]) > most_bytes:
                    raise DecodeError(f"it printed more than {most_bytes:,} bytes")
    finally:
        os.close(ended)
    return bytes(held[output.fileno()]), bytes(held[errors.fileno()])
