"""The C library's allocator, set up for a process that lives long and has a few threads."""

from __future__ import annotations

import ctypes
from contextlib import suppress

_M_ARENA_MAX, _M_MMAP_THRESHOLD, _M_TRIM_THRESHOLD = -8, -3, -1  # from glibc's malloc.h
_LARGE_BYTES = 1 << 20
"""From this size on memory is mapped on its own. Less costs: from 128 KiB on, a `.log` is read half as fast."""
_SPARE_BYTES = 64 << 20
"""So much at the heap's end is kept for what comes next."""


def set_up_allocator() -> None:
    """Have all threads that start from now on allocate from the same memory. Without effect where there is no glibc.

    Otherwise each thread has an arena of its own, which keeps the most that was ever freed in it: what rendering takes,
    or Python's table of names, a megabyte that is made anew every twenty minutes by whichever thread comes to it. So a
    daemon would grow for hours, until it has happened to each of them. That all wait for one lock costs nothing:
    who allocates holds Python's already.

    What is large is mapped on its own, and given back when it is freed. Otherwise glibc takes pieces of up to 32 MiB
    from the heap as soon as one was freed, and decompressed bodies leave holes there, as large as all that clients may
    hold.
    """
    with suppress(AttributeError):
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(_M_ARENA_MAX, 1)
        mallopt(_M_MMAP_THRESHOLD, _LARGE_BYTES)
        mallopt(_M_TRIM_THRESHOLD, _SPARE_BYTES)
