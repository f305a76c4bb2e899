"""The next server of a mount: `python -m mountctl.successor MEMORY LINK REQUEST REPORTS LOG_FILE [OPTION...]`.

The keeper starts it (mountctl/keeper.py) while the last server serves, so that it has loaded what it needs when that
one is killed or leaves. The first four are descriptors: the shared memory, the link to the keeper, a file with the
mount as it was asked for, and who waits for it (-1: nobody). The options change that mount, the last one first.

While it waits it holds nothing of the mount but the shared memory, which it does not change. /dev/fuse comes with the
word to go on.
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
    """Serve on; the exit status."""
    memory, link, text, reports = descriptors = [int(word) for word in sys.argv[1:5]]
    for descriptor in descriptors[: 3 if reports < 0 else 4]:
        os.set_inheritable(descriptor, False)
    log_file, options = LogFile(Path(sys.argv[5])), sys.argv[6:]
    to_keeper = socket.socket(fileno=link)

    def server(reporter: daemon.Reporter, _: Keeper | None) -> None:
        set_up_allocator()  # before anything starts a thread
        from mountctl.serving import prepare, serve_request

        with os.fdopen(text, "rb") as file:
            file.seek(0)
            asked = MountRequest.from_text(file.read()).changed_by(parse(options))
        prepare(asked, memory)
        device = _wait(to_keeper)
        log_file.use()  # what it was when we started may have been rotated away
        try:
            handed_over = Handover(memory)
            handed_over.take_over()
            serve_request(asked, reporter, log_file, Keeper(handed_over, to_keeper, device))
        except Exception as error:
            _refuse(to_keeper, error)
            raise

    return daemon.serve(server, daemon.Reporter(reports if reports >= 0 else None), None)


def _refuse(keeper: socket.socket, error: Exception) -> None:
    """Tell the keeper why it needs another server."""
    reason = one_line(error).encode(errors="replace")[: LARGEST_MESSAGE_BYTES // 2]
    with suppress(OSError):
        keeper.send(b"%b %b" % (KeeperMessage.REFUSED.value, reason))


def _wait(keeper: socket.socket) -> int:
    """/dev/fuse, when it is our turn. Until then we are the first to go where memory is short: nobody would miss us."""
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
    os._exit(main())  # all is closed, and taking the interpreter down takes as long as a restart
