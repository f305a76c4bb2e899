"""Small bodies go into the kernel's cache at `open`, so that reading them costs no request.

Only when no other handle is open on the inode: otherwise the kernel may hold that page locked for a read that waits for
us, while we would wait for the page. So opens and releases are counted.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable

PUSHED_INODES = 65_521
"""Places in the memory of pushed inodes: a prime, because records begin at like distances."""


class OpenBodies:
    """The open handles on inodes that never change. Thread safety: the request loop's thread only."""

    def __init__(self, push: Callable[[int, bytes], bool]) -> None:
        """`push(inode, body)` puts a body into the kernel's cache; False: it would not have it."""
        self._push = push
        self._inode_of: dict[int, int] = {}
        self._open: dict[int, int] = {}
        self._pushed = array("Q", bytes(8 * PUSHED_INODES))
        """At `inode % PUSHED_INODES` the newest one of those that share the place: a body may be pushed twice."""

    def opened(self, inode: int, handle: int, body: bytes | None) -> None:
        """A handle is about to be answered; `body` is the whole of the file when it is small."""
        others = self._open.get(inode, 0)
        if body and not others:
            place = inode % PUSHED_INODES
            if self._pushed[place] != inode and self._push(inode, body):
                self._pushed[place] = inode
        self._inode_of[handle] = inode
        self._open[inode] = others + 1

    def released(self, handle: int) -> None:
        """A handle is closed."""
        inode = self._inode_of.pop(handle, None)
        if inode is None:
            return
        left = self._open[inode] - 1
        if left:
            self._open[inode] = left
        else:
            del self._open[inode]

    def forget(self, inode: int) -> None:
        """The kernel dropped the inode, its cached body with it."""
        place = inode % PUSHED_INODES
        if self._pushed[place] == inode:
            self._pushed[place] = 0
