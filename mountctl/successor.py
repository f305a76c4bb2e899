"""The next server of a mount: `python -m mountctl.successor MEMORY DEVICE LINK REQUEST REPORTS LOG_FILE [OPTION...]`.

The keeper starts it (mountctl/daemon.py), when the last server was killed, or before that one leaves. The first five
are descriptors: the shared memory, /dev/fuse, the link to the keeper, a file with the mount as it was asked for, and
who waits for it (-1: nobody). The options change that mount, the last one first.
"""

from __future__ import annotations

import errno
import os
import socket
import sys
from pathlib import Path

from fsstore.handover import Handover, Keeper, Word
from mountctl import daemon
from mountctl.options import MountRequest, parse
from mountctl.process import set_up_allocator


def main() -> int:
    """Serve on; the exit status."""
    memory, device, link, text, reports = descriptors = [int(word) for word in sys.argv[1:6]]
    for descriptor in descriptors[: 4 if reports < 0 else 5]:
        os.set_inheritable(descriptor, False)
    log_file, options = Path(sys.argv[6]), sys.argv[7:]
    to_keeper = socket.socket(fileno=link)

    def server(reporter: daemon.Reporter, _: Keeper | None) -> None:
        set_up_allocator()  # before anything starts a thread
        from mountctl.serving import prepare, serve_request

        with os.fdopen(text, "rb") as file:
            file.seek(0)
            asked = MountRequest.from_text(file.read()).changed_by(parse(options))
        prepare(asked, memory)
        to_keeper.send(Word.PREPARED.value)
        if to_keeper.recv(16) != Word.GO.value:
            raise ConnectionResetError(errno.ECONNRESET, "the keeper is gone")
        handed_over = Handover(memory)
        handed_over.take_over()
        serve_request(asked, reporter, log_file, Keeper(handed_over, to_keeper, device))

    return daemon.serve(server, daemon.Reporter(reports if reports >= 0 else None), None)


if __name__ == "__main__":
    os._exit(main())  # all is closed, and taking the interpreter down takes as long as a restart
