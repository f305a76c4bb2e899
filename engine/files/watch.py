"""Watch: detects with one stat each whether a directory's names or a file's bytes may have changed."""

from __future__ import annotations

import os
import time
from pathlib import Path

SAME_TICK_NS = 100_000_000
"""A file changed more recently than this may change again without a new modification time."""
_MISSING = 0
_UNKNOWN = -1


class Watch:
    """Compares the modification times of directories or files. Not thread safe."""

    __slots__ = ("_paths", "_seen_ns")  # there may be thousands

    def __init__(self, *paths: Path | str) -> None:
        self._paths = paths
        self._seen_ns = [_UNKNOWN] * len(paths)

    def changed(self) -> bool:
        """Whether a path changed since the previous call, or within SAME_TICK_NS; True at the first call."""
        is_changed = False
        for number, path in enumerate(self._paths):
            try:
                changed_ns = os.stat(path).st_mtime_ns
            except FileNotFoundError:
                changed_ns = _MISSING
            if changed_ns != self._seen_ns[number]:
                is_settled = abs(time.time_ns() - changed_ns) > SAME_TICK_NS
                self._seen_ns[number] = changed_ns if is_settled else _UNKNOWN
                is_changed = True
        return is_changed

    def forget(self) -> None:
        """Make the next `changed` return True, because the caller failed to handle a change."""
        self._seen_ns = [_UNKNOWN] * len(self._paths)
