"""Memory whose last byte stands before a page that nobody may read: who reads on is killed."""

from __future__ import annotations

import ctypes
import mmap
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]


def guarded(data: bytes | bytearray) -> Array:
    """A copy of `data` (uint8) that ends before such a page."""
    size = -(-len(data) // mmap.PAGESIZE) * mmap.PAGESIZE
    pages = mmap.mmap(-1, size + mmap.PAGESIZE)
    memory = np.frombuffer(pages, np.uint8)
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mprotect(ctypes.c_void_p(memory.ctypes.data + size), mmap.PAGESIZE, 0):
        raise OSError(ctypes.get_errno(), "mprotect")
    copy = memory[size - len(data) : size]
    copy[:] = np.frombuffer(data, np.uint8)
    return copy
