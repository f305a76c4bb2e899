"""News: a writer's word to the processes of this host that follow its store, so that they need not look all the time.

The writer changes a file in STORE/fsstore; inotify(7) tells each follower, which then looks. A word that is lost costs
a follower nothing but the time until its next look.
"""

from __future__ import annotations

import ctypes
import errno
import os
from contextlib import suppress
from pathlib import Path

from engine.files.paths import create_file, open_file

_IN_MODIFY = 0x2
_READ_BYTES = 4_096
_LIBC = ctypes.CDLL(None, use_errno=True)


class News:
    """The writer's side. Thread safety: any thread."""

    def __init__(self, path: Path) -> None:
        """Open the file, and make it first if it is missing. OSError."""
        try:
            self._descriptor = open_file(path, os.O_RDWR)
        except FileNotFoundError:
            self._descriptor = create_file(path)

    def tell(self) -> None:
        """Wake the followers."""
        with suppress(OSError):  # the disk is full: they look at their next interval
            os.pwrite(self._descriptor, b"\n", 0)

    def close(self) -> None:
        """Close the file."""
        os.close(self._descriptor)


class NewsWatch:
    """A follower's side: `descriptor` is readable when a file in a folder was written. Thread safety: one caller."""

    def __init__(self, folder: Path) -> None:
        """OSError: the folder is missing, or the user has too many watches."""
        self.descriptor = _checked(_LIBC.inotify_init1(os.O_CLOEXEC | os.O_NONBLOCK), folder)
        try:
            _checked(_LIBC.inotify_add_watch(self.descriptor, os.fsencode(folder), _IN_MODIFY), folder)
        except OSError:
            self.close()
            raise

    def drain(self) -> None:
        """Forget the news so far."""
        with suppress(BlockingIOError):
            while os.read(self.descriptor, _READ_BYTES):
                pass

    def close(self) -> None:
        """End watching."""
        os.close(self.descriptor)


def _checked(result: int, folder: Path) -> int:
    if result < 0:
        number = ctypes.get_errno() or errno.EIO
        raise OSError(number, os.strerror(number), str(folder))
    return result
