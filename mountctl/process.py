"""Processes: what one that opens a store needs of the system (open files, an allocator for a long life with threads),
and whether another one is stopped."""

from __future__ import annotations

import ctypes
import mmap
import os
import resource
import threading
import time
from contextlib import suppress
from io import FileIO
from pathlib import Path

_M_ARENA_MAX, _M_MMAP_THRESHOLD, _M_TRIM_THRESHOLD = -8, -3, -1  # from glibc's malloc.h
_LARGE_BYTES = 1 << 20
"""From this size on memory is mapped on its own. Less costs: from 128 KiB on, a `.log` is read half as fast."""
_SPARE_BYTES = 32 << 20
"""So much at the heap's end is kept for what comes next."""
_TRIM_INTERVAL_SECONDS = 1.0


def set_up_allocator() -> None:
    """Have all threads that start from now on allocate from the same memory. Without effect where there is no glibc.

    Otherwise each thread has an arena of its own, which keeps the most that was ever freed in it: what rendering takes,
    or Python's table of names, a megabyte that is recreated every twenty minutes by whichever thread comes to it. So a
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


def start_trimming() -> None:
    """Have a thread give free pages inside the heap back to the system, for as long as the process lives. Without
    effect where there is no glibc of 2.33 or later.

    What clients begin and drop, such as lines without an end, comes in pieces that are too small to be mapped on their
    own. When it is freed it leaves holes, and they would count beside all that the next clients may hold.
    """
    libc = ctypes.CDLL(None)
    with suppress(AttributeError):
        libc.mallinfo2.restype = _MallocInfo
        threading.Thread(target=_trim, args=(libc,), name="allocator-trim", daemon=True).start()


_MALLOC_INFO = "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost"


class _MallocInfo(ctypes.Structure):
    """struct mallinfo2, glibc's malloc.h; sizes in bytes."""

    _fields_ = [(name, ctypes.c_size_t) for name in _MALLOC_INFO.split()]


def _trim(libc: ctypes.CDLL) -> None:
    """Trim when the process has much more memory than is in use, and more than trimming left the last time."""
    with Path("/proc/self/statm").open("rb", buffering=0) as statm:  # for good: there may be no descriptor left one day
        least = _unused_bytes(libc, statm)
        while True:
            time.sleep(_TRIM_INTERVAL_SECONDS)
            least = min(least, _unused_bytes(libc, statm))
            if _unused_bytes(libc, statm) - least > _SPARE_BYTES:
                libc.malloc_trim(_SPARE_BYTES)
                least = _unused_bytes(libc, statm)


def _unused_bytes(libc: ctypes.CDLL, statm: FileIO) -> int:
    """Private memory that is not allocated by way of glibc: its holes, and what Python has mapped itself."""
    _, resident, shared, *_ = map(int, os.pread(statm.fileno(), 256, 0).split())
    info = libc.mallinfo2()
    in_use: int = info.uordblks + info.hblkhd
    return (resident - shared) * mmap.PAGESIZE - in_use


def raise_open_files() -> None:
    """Allow as many descriptors as the system lets us have: the more there are, the more files a store keeps mapped."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def is_stopped(pid: int) -> bool:
    """Whether somebody has stopped that process (SIGSTOP, a debugger)."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in ("T", "t")
    except OSError:
        return False
