"""Settings of this process (open files, an allocator for a long-lived process with threads), and the state of
another."""

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
"""Larger allocations are mapped separately. A limit of 128 KiB or less would halve the speed of reading a `.log`."""
_SPARE_BYTES = 32 << 20
"""Free memory that stays at the heap's end for later allocations."""
_TRIM_INTERVAL_SECONDS = 1.0


def set_up_allocator() -> None:
    """Have all threads started later share one malloc arena. Without effect without glibc.

    Otherwise each thread's arena keeps the most that was ever freed in it: rendering buffers, or Python's table of
    names, a megabyte that one thread or another recreates every twenty minutes. A daemon would grow for hours. The
    shared lock costs nothing, since an allocating thread holds Python's lock already.

    Large allocations are mapped separately and unmapped when they are freed. Otherwise glibc would take blocks of up to
    32 MiB from the heap once one was freed. Decompressed bodies would leave holes there, as large as all that clients
    may hold.
    """
    with suppress(AttributeError):
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(_M_ARENA_MAX, 1)
        mallopt(_M_MMAP_THRESHOLD, _LARGE_BYTES)
        mallopt(_M_TRIM_THRESHOLD, _SPARE_BYTES)


def start_trimming() -> None:
    """Start a thread that returns free heap pages to the system. Without effect before glibc 2.33. Unfinished lines of
    clients and the like are allocated in pieces too small to be mapped separately. Freed, they leave holes, which would
    count in addition to all that the next clients may hold."""
    libc = ctypes.CDLL(None)
    with suppress(AttributeError):
        libc.mallinfo2.restype = _MallocInfo
        threading.Thread(target=_trim, args=(libc,), name="allocator-trim", daemon=True).start()


_MALLOC_INFO = "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost"


class _MallocInfo(ctypes.Structure):
    """struct mallinfo2, glibc's malloc.h; sizes in bytes."""

    _fields_ = [(name, ctypes.c_size_t) for name in _MALLOC_INFO.split()]


def _trim(libc: ctypes.CDLL) -> None:
    """Trim when much more memory is resident than in use, and more than the last trim left."""
    with Path("/proc/self/statm").open("rb", buffering=0) as statm:  # kept open: later there may be no free descriptor
        least = _unused_bytes(libc, statm)
        while True:
            time.sleep(_TRIM_INTERVAL_SECONDS)
            least = min(least, _unused_bytes(libc, statm))
            if _unused_bytes(libc, statm) - least > _SPARE_BYTES:
                libc.malloc_trim(_SPARE_BYTES)
                least = _unused_bytes(libc, statm)


def _unused_bytes(libc: ctypes.CDLL, statm: FileIO) -> int:
    """Private memory that glibc has not allocated to a caller: its holes, and Python's own mappings."""
    _, resident, shared, *_ = map(int, os.pread(statm.fileno(), 256, 0).split())
    info = libc.mallinfo2()
    in_use: int = info.uordblks + info.hblkhd
    return (resident - shared) * mmap.PAGESIZE - in_use


def raise_open_files() -> None:
    """Raise the limit of open files to the maximum: it bounds how many files stay mapped."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def is_stopped(pid: int) -> bool:
    """Whether the process is stopped (SIGSTOP, a debugger)."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in ("T", "t")
    except OSError:
        return False
