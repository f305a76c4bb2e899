"""Entry point of the command."""

import gc
import os
import signal
import sys


def start() -> None:
    """The console script. Until a verb is loaded, Ctrl-C ends the process by the signal's default: an interrupted
    import would print a traceback, or take the interrupt for another error. The collector is off meanwhile, since
    modules stay."""
    _open_what_is_closed()
    gc.disable()
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from mountctl.main import main

    main()


def _open_what_is_closed() -> None:
    """Open /dev/null for standard streams that a shell closed (`>&-`), in a mode in which their use fails.

    Otherwise a store's file would get the descriptor, and the output. Errors are then printed nowhere.
    """
    modes = {"stdin": ("r", os.O_WRONLY), "stdout": ("w", os.O_RDONLY), "stderr": ("w", os.O_WRONLY)}
    for descriptor, (name, (mode, way)) in enumerate(modes.items()):
        if getattr(sys, name) is None and os.open(os.devnull, way) == descriptor:
            setattr(sys, name, open(descriptor, mode, closefd=False))  # noqa: SIM115


if __name__ == "__main__":
    start()
