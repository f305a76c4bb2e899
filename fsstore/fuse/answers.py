"""How a failure becomes an errno: the one place where every exception of a handler ends.

Nothing else may leave a handler, or it would take the mount down: a refusal of the core or the engine has its errno, a
defect of ours is logged with its traceback and answered EIO.
"""

from __future__ import annotations

import errno
import functools
import logging
from collections.abc import Callable, Coroutine
from typing import Any, Concatenate, ParamSpec, TypeVar

import pyfuse3
import trio

from fsstore.fuse.errnos import errno_of
from fsstore.interface import SlowWork
from fsstore.tree.complaints import COMPLAINTS

log = logging.getLogger(__name__)

O = TypeVar("O")  # noqa: E741
P = ParamSpec("P")
R = TypeVar("R")


def errno_for(error: BaseException, during: str) -> int:
    """The errno that answers `error`. A defect is logged with its traceback, damage in a line, as often as
    `Complaints` lets them."""
    number = errno_of(error)
    if number is None:
        defect = during, type(error), _place_of(error)
        COMPLAINTS.tell(log, logging.ERROR, defect, f"{during} failed, answered EIO", error)
        return errno.EIO
    if number == errno.EIO:
        text = f"{during} answered EIO: {error}"
        COMPLAINTS.tell(log, logging.WARNING, text, text)
    return number


def _place_of(error: BaseException) -> tuple[str, int] | None:
    """File and line where it was raised."""
    trace = error.__traceback__
    if trace is None:
        return None
    while trace.tb_next is not None:
        trace = trace.tb_next
    return trace.tb_frame.f_code.co_filename, trace.tb_lineno


def answered(
    handler: Callable[Concatenate[O, P], R],
) -> Callable[Concatenate[O, P], Coroutine[Any, Any, R]]:
    """Make a pyfuse3 handler of a plain method. Slow work is done in a thread, then the method is called again."""

    @functools.wraps(handler)
    async def answer(self: O, /, *arguments: P.args, **named: P.kwargs) -> R:
        try:
            while True:
                try:
                    return handler(self, *arguments, **named)
                except SlowWork as slow:
                    work = slow.work
                await trio.to_thread.run_sync(work)
        except Exception as error:
            raise pyfuse3.FUSEError(errno_for(error, handler.__name__)) from None

    return answer
