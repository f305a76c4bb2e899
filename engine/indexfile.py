"""Index file: a hash table of message keys over a part of the commit log (docs/format.md, 7).

    [header 40][slots 4*S][entries 20*N]        big-endian; S and N are not recorded in the file
    header  begin_time_ms i64 | end_time_ms i64 | begin_physical_offset i64 | end_physical_offset i64 | used_slots i32 | next_entry i32
    entry   key_hash i32 | physical_offset i64 | time_diff_s i32 | previous i32        entry 0 is never used
"""

from __future__ import annotations

from typing import Any

import numpy as np

HEADER = np.dtype(
    [
        ("begin_time_ms", ">i8"),
        ("end_time_ms", ">i8"),
        ("begin_physical_offset", ">i8"),
        ("end_physical_offset", ">i8"),
        ("used_slots", ">i4"),
        ("next_entry", ">i4"),
    ]
)
assert HEADER.itemsize == 40
INDEX_ENTRY = np.dtype(
    [("key_hash", ">i4"), ("physical_offset", ">i8"), ("time_diff_s", ">i4"), ("previous", ">i4")]
)
assert INDEX_ENTRY.itemsize == 20

Array = np.ndarray[Any, Any]


def index_file_bytes(slots: int, entries: int) -> int:
    """Size of an index file with S slots and N entries."""
    return HEADER.itemsize + 4 * slots + INDEX_ENTRY.itemsize * entries


class IndexFile:
    """One mapped index file. Thread safety: one writer, any readers."""
