"""The state of a queue for reports that show all queues, found without an object for the queue where possible."""

from __future__ import annotations

import os
from pathlib import Path

from engine.errors import ObstructedError
from engine.files.file_scan import file_name
from engine.files.paths import open_file
from engine.log.entries import ENTRY, ENTRY_STRUCT, starts_from


def glimpse(directory: Path, file_bytes: int, max_offset: int | None, log_begin: int) -> tuple[int, int, int] | None:
    """Oldest and next queue offset, and number of files, of the queue in `directory`. None: it must be opened to tell,
    because it has several files, its first message has expired, it can't be read, or it is unknown whether its files
    are as they were at a clean close, when it ended at `max_offset`."""
    try:
        names = os.listdir(directory)
        if not names:
            return 0, 0, 0
        start = int(names[0]) if names[0].isdecimal() else -1
        first = start // ENTRY.itemsize
        is_only = len(names) == 1 and names[0] == file_name(start)
        if max_offset is None or not is_only or not first < max_offset <= first + file_bytes // ENTRY.itemsize:
            return None
        size, entry = _size_and_entry(Path(f"{directory}/{names[0]}"))
    except (OSError, ObstructedError):
        return None
    is_whole = size == file_bytes and starts_from(ENTRY_STRUCT.unpack(entry), log_begin)
    return (first, max_offset, 1) if is_whole else None


def _size_and_entry(path: Path) -> tuple[int, bytes]:
    """Bytes of a file, and its first entry. ObstructedError, OSError."""
    descriptor = open_file(path)
    try:
        return os.fstat(descriptor).st_size, os.pread(descriptor, ENTRY.itemsize, 0)
    finally:
        os.close(descriptor)
