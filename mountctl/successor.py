"""The next server of a mount: `python -m mountctl.successor MEMORY LINK REQUEST REPORTS LOG_FILE [OPTION...]`.

The keeper starts it (mountctl/keeper.py) while the last server serves, so that it is loaded when that one is killed or
leaves. The first four arguments are descriptors: the shared memory, the link to the keeper, a file with the
MountRequest's text, and a pipe for reports to the waiting command (-1: there is none). The options change the request;
later ones take precedence.

While it waits, it holds no part of the mount except the shared memory, which it does not change. The message GO brings
/dev/fuse.
"""

from __future__ import annotations

import errno
import os
import socket
import sys
from contextlib import suppress
from pathlib import Path

from fsstore.handover.keeper import LARGEST_MESSAGE_BYTES, Keeper, KeeperMessage
from fsstore.handover.memory import Handover
from mountctl import daemon
from mountctl.errors import one_line
from mountctl.log_file import LogFile, redirect
from mountctl.options import MountRequest, parse
from mountctl.process import set_up_allocator

OOM_SCORE = Path("/proc/self/oom_score_adj")


def main() -> int:
    """Take over and serve; returns the exit status."""
    memory, link, text, reports = descriptors = [int(word) for word in sys.argv[1:5]]
    for descriptor in descriptors[: 3 if reports < 0 else 4]:
        os.set_inheritable(descriptor, False)
    log_file, options = LogFile(Path(sys.argv[5])), sys.argv[6:]
    to_keeper = socket.socket(fileno=link)

    def server(reporter: daemon.Reporter, _: Keeper | None) -> None:
        set_up_allocator()  # before a thread starts
        from mountctl.serving import prepare, serve_request

        with os.fdopen(text, "rb") as file:
            file.seek(0)
            asked = MountRequest.from_text(file.read()).changed_by(parse(options))
        prepare(asked, memory)
        device = _wait(to_keeper)
        log_file.use()  # the log file may have been rotated since the start
        try:
            handed_over = Handover(memory)
            handed_over.take_over()
            serve_request(asked, reporter, log_file, Keeper(handed_over, to_keeper, device))
        except Exception as error:
            _refuse(to_keeper, error)
            raise

    return daemon.serve(server, daemon.Reporter(reports if reports >= 0 else None), None)


def _refuse(keeper: socket.socket, error: Exception) -> None:
    """Send the keeper the reason why this server can't take over."""
    reason = one_line(error).encode(errors="replace")[: LARGEST_MESSAGE_BYTES // 2]
    with suppress(OSError):
        keeper.send(b"%b %b" % (KeeperMessage.REFUSED.value, reason))


def _wait(keeper: socket.socket) -> int:
    """Wait for GO and return /dev/fuse. Until then this process is the first that the kernel kills for want of
    memory."""
    before = OOM_SCORE.read_text()
    with suppress(OSError):
        OOM_SCORE.write_text("1000")
    redirect(os.open(os.devnull, os.O_WRONLY))
    keeper.send(KeeperMessage.PREPARED.value)
    word, descriptors, _, _ = socket.recv_fds(keeper, 16, 1)
    with suppress(OSError):
        OOM_SCORE.write_text(before)
    if word != KeeperMessage.GO.value:
        raise ConnectionResetError(errno.ECONNRESET, "the keeper is gone")
    [device] = descriptors
    os.set_inheritable(device, False)
    keeper.send(KeeperMessage.TAKEN.value)
    return device


if __name__ == "__main__":
    os._exit(main())  # everything is closed, and the interpreter's shutdown takes as long as a restart
