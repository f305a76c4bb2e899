"""Log pages: the mapped files of the log that entries of a consume queue lead into, as arrays."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import numpy as np

from engine.errors import ReadError
from engine.files.file_queue import FileQueue
from engine.log.entries import Entries

Array = np.ndarray[Any, Any]


def runs_by_file(log: FileQueue, entries: Entries, most_rows: int | None = None) -> Iterator[tuple[Array, int, Array]]:
    """(pages, physical offset of their first byte, physical offsets of the records) for each run of `entries` in one
    file, and of `most_rows` at most.

    `pages` is what can be read of the file (uint8), physical offsets are int64 (n,). A file that is missing, or can't
    be read, has no pages: no record is found in it.
    """
    places = entries["physical_offset"].astype(np.int64)
    bounds = {0, *_borders(places, log.file_bytes), len(places)}
    bounds.update(range(0, len(places), most_rows or len(places) or 1))
    for start, end in pairwise(sorted(bounds)):
        base = int(places[start]) // log.file_bytes * log.file_bytes
        yield _pages(log, base), base, places[start:end]


def _borders(places: Array, file_bytes: int) -> list[int]:
    """The rows whose record is in another file than the one before."""
    if not len(places) or places.min() // file_bytes == places.max() // file_bytes:  # as it mostly is
        return []
    found: list[int] = (np.flatnonzero(np.diff(places // file_bytes)) + 1).tolist()
    return found


def _pages(log: FileQueue, base: int) -> Array:
    file = log.find(base)
    try:
        return np.frombuffer(file.pages() if file is not None else b"", np.uint8)
    except ReadError:
        return np.empty(0, np.uint8)
