"""Watch: whether a directory may hold other names than before, or a file other bytes, for one stat each."""

from __future__ import annotations

import os
import time
from pathlib import Path

SAME_TICK_NS = 100_000_000
"""What changed so recently may change again without its time changing."""
_MISSING = 0
_UNKNOWN = -1


class Watch:
    """Looks at the modification times of directories or files. Not thread safe."""

    def __init__(self, *paths: Path) -> None:
        self._paths = paths
        self._seen_ns = [_UNKNOWN] * len(paths)

    def changed(self) -> bool:
        """Whether one was changed since the call before, or so lately that it might be changing; True at first."""
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
        """What was to be done about a change failed: the next call says that there was one."""
        self._seen_ns = [_UNKNOWN] * len(self._paths)
