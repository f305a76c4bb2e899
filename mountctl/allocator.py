"""The C library's allocator, set up for a process that lives long and has a few threads."""

from __future__ import annotations

import ctypes
from contextlib import suppress

_M_ARENA_MAX = -8  # from glibc's malloc.h


def share_one_arena() -> None:
    """Have all threads that start from now on allocate from the same memory. Without effect where there is no glibc.

    Otherwise each thread has an arena of its own, which keeps the most that was ever freed in it: what rendering takes,
    or Python's table of names, a megabyte that is made anew every twenty minutes by whichever thread comes to it. So a
    daemon would grow for hours, until it has happened to each of them. That all wait for one lock costs nothing:
    who allocates holds Python's already.
    """
    with suppress(AttributeError):
        ctypes.CDLL(None).mallopt(_M_ARENA_MAX, 1)
