"""Where the command begins."""

import gc
import signal


def start() -> None:
    """The console script. Until a verb is loaded Ctrl-C just ends the process: an import that is interrupted prints a
    traceback, or takes the interruption for another error. Nor does the collector look through modules that stay."""
    gc.disable()
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from mountctl.main import main

    main()


if __name__ == "__main__":
    start()
