"""How a handler's answer or failure becomes what pyfuse3 sends: the one place where every exception ends.

pyfuse3 allows a handler to raise FUSEError alone; anything else would leave its loop and take the mount down. So each
handler is wrapped: a refusal of the core or the engine becomes its errno, a defect of ours is logged with its traceback
and becomes EIO, and slow work is done in a thread before the handler is called again.
"""

from __future__ import annotations

import errno
import functools
import logging
from collections.abc import Awaitable, Callable, Coroutine
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar

import pyfuse3
from pyfuse3 import EntryAttributes

from fsstore.errnos import errno_of
from fsstore.interface import Attributes, SlowWork

if TYPE_CHECKING:
    from fsstore.operations import StoreOperations

log = logging.getLogger(__name__)

P = ParamSpec("P")
R = TypeVar("R")


def refusal(error: Exception, during: str) -> Exception:
    """The FUSEError that answers `error`. A defect is logged with its traceback, damage in a line."""
    if isinstance(error, pyfuse3.FUSEError):
        return error
    number = errno_of(error)
    if number is None:
        log.error("%s failed, answered EIO", during, exc_info=error)
        number = errno.EIO
    elif number == errno.EIO:
        log.warning("%s answered EIO: %s", during, error)
    refused: Exception = pyfuse3.FUSEError(number)
    return refused


def answered(
    handler: Callable[Concatenate[StoreOperations, P], R],
) -> Callable[Concatenate[StoreOperations, P], Coroutine[Any, Any, R]]:
    """Make a pyfuse3 handler of a method that answers at once."""

    @functools.wraps(handler)
    async def answer(self: StoreOperations, /, *arguments: P.args, **named: P.kwargs) -> R:
        try:
            return handler(self, *arguments, **named)
        except Exception as error:
            if not isinstance(error, SlowWork):
                raise refusal(error, handler.__name__) from None
            work = error.work
        return await _after(work, handler, self, *arguments, **named)

    return answer


async def _after(
    work: Callable[[], object],
    handler: Callable[Concatenate[StoreOperations, P], R],
    self: StoreOperations,
    /,
    *arguments: P.args,
    **named: P.kwargs,
) -> R:
    """Do slow work in a thread, then let the handler try again; it may find more to do."""
    while True:
        try:
            await self.loop.in_thread(work)
            return handler(self, *arguments, **named)
        except SlowWork as more:
            work = more.work
        except Exception as error:
            raise refusal(error, handler.__name__) from None


def answered_later(
    handler: Callable[Concatenate[StoreOperations, P], Awaitable[R]],
) -> Callable[Concatenate[StoreOperations, P], Coroutine[Any, Any, R]]:
    """Make a pyfuse3 handler of a coroutine method that may wait for the disk."""

    @functools.wraps(handler)
    async def answer(self: StoreOperations, /, *arguments: P.args, **named: P.kwargs) -> R:
        try:
            return await handler(self, *arguments, **named)
        except Exception as error:
            raise refusal(error, handler.__name__) from None

    return answer


def fill(entry: EntryAttributes, attributes: Attributes) -> EntryAttributes:
    """Write `attributes` into a pyfuse3.EntryAttributes and return it."""
    inode, mode, size, mtime_ns, nlink, uid, gid, entry_timeout, attr_timeout = attributes
    entry.st_ino = inode
    entry.st_mode = mode
    entry.st_size = size
    entry.st_blocks = (size + 511) >> 9
    entry.st_mtime_ns = entry.st_ctime_ns = entry.st_atime_ns = mtime_ns
    entry.st_nlink = nlink
    entry.st_uid = uid
    entry.st_gid = gid
    entry.entry_timeout = entry_timeout
    entry.attr_timeout = attr_timeout
    return entry
