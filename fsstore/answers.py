"""How a handler's answer or failure becomes what pyfuse3 sends: the one place where every exception ends.

pyfuse3 allows a handler to raise FUSEError alone; anything else would leave its loop and take the mount down. So each
handler is wrapped: a refusal of the core or the engine becomes its errno, a defect of ours is logged with its traceback
and becomes EIO, and slow work is done in a thread before the handler is called again.
"""

from __future__ import annotations

import errno
import functools
import logging
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, TypeVar

import pyfuse3
from pyfuse3 import EntryAttributes

from fsstore.errnos import errno_of
from fsstore.interface import Attributes, SlowWork, WriteOutcome

if TYPE_CHECKING:
    from fsstore.operations import StoreOperations

log = logging.getLogger(__name__)

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


def answered(handler: Callable[..., R]) -> Callable[..., Coroutine[Any, Any, R]]:
    """Make a pyfuse3 handler of a method that answers at once. pyfuse3 names no arguments."""

    @functools.wraps(handler)
    async def answer(self: StoreOperations, *arguments: Any) -> R:
        try:
            return handler(self, *arguments)
        except Exception as error:
            return await _after(error, handler, self, *arguments)

    return answer


async def _after(error: Exception, handler: Callable[..., R], self: StoreOperations, *arguments: Any) -> R:
    """Raise the refusal that `error` is; or do slow work in a thread and let the handler try again: it may find more
    to do."""
    while isinstance(error, SlowWork):
        try:
            await self.loop.in_thread(error.work)
            return handler(self, *arguments)
        except Exception as more:
            error = more
    raise refusal(error, handler.__name__) from None


def answered_when_durable(handler: Callable[..., WriteOutcome]) -> Callable[..., Coroutine[Any, Any, int]]:
    """Make a pyfuse3 handler of a method that publishes: the kernel hears what has grown, and the answer waits for the
    disk where the outcome says so."""

    @functools.wraps(handler)
    async def answer(self: StoreOperations, *arguments: Any) -> int:
        try:
            taken, physical_end = handler(self, *arguments)
            self.published()
            if physical_end:
                await self.wait_durable(physical_end)
            return taken
        except Exception as error:
            raise refusal(error, handler.__name__) from None

    return answer


def fill(entry: EntryAttributes, attributes: Attributes) -> EntryAttributes:
    """Write `attributes` into a pyfuse3.EntryAttributes and return it."""
    inode, mode, size, mtime_ns, nlink, uid, gid, entry_timeout, attr_timeout, block_bytes = attributes
    entry.st_ino = inode
    entry.st_mode = mode
    entry.st_size = size
    entry.st_blocks = (size + 511) >> 9
    entry.st_blksize = block_bytes
    entry.st_mtime_ns = entry.st_ctime_ns = entry.st_atime_ns = mtime_ns
    entry.st_nlink = nlink
    entry.st_uid = uid
    entry.st_gid = gid
    entry.entry_timeout = entry_timeout
    entry.attr_timeout = attr_timeout
    return entry
