"""The next server of a mount whose server was killed: `python -m mountctl.successor MEMORY DEVICE LINK REQUEST`.

The keeper starts it (mountctl/daemon.py). The four are descriptors: the shared memory, /dev/fuse, the link to the
keeper, and a file with the mount as it was asked for.
"""

from __future__ import annotations

import os
import pickle
import socket
import sys

from fsstore.handover import Handover, Keeper
from mountctl import daemon
from mountctl.process import set_up_allocator


def main() -> int:
    """Serve on; the exit status."""
    memory, device, link, request = map(int, sys.argv[1:])
    for descriptor in (memory, device, link, request):
        os.set_inheritable(descriptor, False)
    os.lseek(request, 0, os.SEEK_SET)
    with os.fdopen(request, "rb") as text:
        asked, log_file = pickle.load(text)  # written by our own keeper, into memory that nobody else has

    def server(reporter: daemon.Reporter, keeper: Keeper | None) -> None:
        set_up_allocator()  # before anything starts a thread
        from mountctl.serving import serve_request

        serve_request(asked, reporter, log_file, keeper)

    handed_over = Handover(memory)
    handed_over.count_restart()
    return daemon.serve(server, daemon.Reporter(), Keeper(handed_over, socket.socket(fileno=link), device))


if __name__ == "__main__":
    sys.exit(main())
