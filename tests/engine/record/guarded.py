"""Memory between pages without access: a process that reads past it is killed."""

from __future__ import annotations

import ctypes
import mmap
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]


def guarded(data: bytes | bytearray) -> Array:
    """A copy of `data` (uint8) that ends before such a page; of whole pages, it begins after one, too."""
    end = mmap.PAGESIZE - (-len(data) // mmap.PAGESIZE) * mmap.PAGESIZE
    memory = np.frombuffer(mmap.mmap(-1, end + mmap.PAGESIZE), np.uint8)
    libc = ctypes.CDLL(None, use_errno=True)
    for page in (0, end):
        if libc.mprotect(ctypes.c_void_p(memory.ctypes.data + page), mmap.PAGESIZE, 0):
            raise OSError(ctypes.get_errno(), "mprotect")
    copy = memory[end - len(data) : end]
    copy[:] = np.frombuffer(data, np.uint8)
    return copy
