"""Directory watch: whether a directory may hold other names than before, for one stat instead of a listing."""

from __future__ import annotations

import os
from pathlib import Path

_LOOKS = 2
"""Looks until a time is believed: a name can come in the same tick of the clock, just after a listing."""


class DirectoryWatch:
    """Looks at a directory's modification time. Not thread safe."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._seen_ns: int | None = None
        self._looks = 0

    def changed(self) -> bool:
        """Whether names may have come or gone since the call before (also said once too often); True at first."""
        try:
            found_ns: int | None = os.stat(self._path).st_mtime_ns
        except FileNotFoundError:
            found_ns = None
        if found_ns != self._seen_ns:
            self._seen_ns, self._looks = found_ns, 0
        self._looks += 1
        return self._looks <= _LOOKS
