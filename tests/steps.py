"""Counts the work of a call, so that a test can say that it is the same in a small store and in a large one."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any


def steps(work: Callable[[], object]) -> int:
    """Number of bytecode instructions that this thread runs for `work`, without those of the garbage collector's
    callbacks."""
    count = 0

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal count
        frame.f_trace_opcodes = True
        count += event == "opcode"
        return trace

    before, collects = sys.gettrace(), gc.isenabled()
    gc.disable()
    sys.settrace(trace)
    try:
        work()
    finally:
        sys.settrace(before)
        if collects:
            gc.enable()
    return count


def require_flat(few: int, many: int) -> None:
    """The steps among many things are those among few, but for a tenth."""
    assert many <= 1.1 * few, f"{few:,} steps among few, {many:,} among many"
