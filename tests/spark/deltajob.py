"""An export to a Delta table that dies: a line of JSON asks for one, and is answered when it has ended.

    {"mount": …, "table": …, "die": "moved"}     at that point, as by `kill -9`; null: nowhere
    {"mount": …, "table": …, "after_s": 0.1}     at that time, wherever it is

Each export is a process of its own, forked from one that has the libraries loaded and has not used them.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from collections.abc import Callable
from functools import partial
from typing import Any

from deltalake import DeltaTable

import fsstore.jobs.export as exporting
from fsstore.jobs.delta import DeltaFolder
from fsstore.jobs.export import Export, ExportSelection, Threads
from fsstore.jobs.mount import cut

POINTS = {
    "planned": (DeltaTable, "create", False),
    "created": (DeltaTable, "create", True),
    "written": (exporting, "_move", False),
    "moved": (exporting, "_move", True),
    "described": (DeltaTable, "create_write_transaction", False),
    "committed": (DeltaTable, "create_write_transaction", True),
}
"""Where an export may die: a function, and whether it has been called."""

UNIT_MESSAGES = 128


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def die_at(owner: Any, name: str, is_called: bool) -> None:
    call: Callable[..., Any] = getattr(owner, name)

    def last_call(*arguments: Any, **options: Any) -> None:
        if is_called:
            call(*arguments, **options)
        die()

    setattr(owner, name, last_call)


def export(asked: dict[str, Any]) -> None:
    vars(exporting).update(FILE_BYTES=1 << 10, cut=partial(cut, most=UNIT_MESSAGES))
    if asked.get("die"):
        die_at(*POINTS[asked["die"]])
    if asked.get("after_s"):
        threading.Timer(asked["after_s"], die).start()
    Export(asked["mount"], asked["table"], ExportSelection(), DeltaFolder).run(Threads())
    os._exit(0)


def main() -> None:
    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            try:
                export(json.loads(line))
            finally:
                os._exit(1)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)


if __name__ == "__main__":
    main()
