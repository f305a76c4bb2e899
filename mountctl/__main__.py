"""Where the command begins."""

import gc
import os
import signal
import sys


def start() -> None:
    """The console script. Until a verb is loaded Ctrl-C just ends the process: an import that is interrupted prints a
    traceback, or takes the interruption for another error. Nor does the collector look through modules that stay."""
    _open_what_is_closed()
    gc.disable()
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from mountctl.main import main

    main()


def _open_what_is_closed() -> None:
    """Where a shell closed a standard stream (`>&-`), the next file would get its descriptor, and a store's would get
    the output. What is put there fails as if it was closed; errors have nowhere to go."""
    modes = {"stdin": ("r", os.O_WRONLY), "stdout": ("w", os.O_RDONLY), "stderr": ("w", os.O_WRONLY)}
    for descriptor, (name, (mode, way)) in enumerate(modes.items()):
        if getattr(sys, name) is None and os.open(os.devnull, way) == descriptor:
            setattr(sys, name, open(descriptor, mode, closefd=False))  # noqa: SIM115


if __name__ == "__main__":
    start()
