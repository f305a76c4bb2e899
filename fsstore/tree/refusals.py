"""Refusals: the reasons of refused publications. A writer gets only an errno; `@store/refusals` has the reason in
words.

    2026-11-24T01:02:03.456Z 4711 orders/0/append@format=json 7 EINVAL illegal message: not JSON: …
    time                     pid  path                        line errno and reason

Refused changes of the tree (rm, rmdir, opening a message for writing) are lines, too, with the way that works. Such a
change is no publication: of those that a process tries in a row, the first one is listed.

Publishers' text is escaped and cut. Each user sees the lines of their own requests; root and the mount's owner see all.
Successful requests cost nothing.
"""

from __future__ import annotations

import errno
from collections import deque
from collections.abc import Callable
from datetime import UTC, datetime
from enum import StrEnum
from functools import lru_cache

MOST_LINES = 256
"""Lines that are kept."""
MOST_PATH_CHARACTERS = 400
MOST_REASON_CHARACTERS = 400


class RefusalKind(StrEnum):
    """Kinds of refusals that are counted: few, and without a publisher's text."""

    MALFORMED = "malformed"
    TOO_LARGE = "too_large"
    NAME = "name"
    """An option of an `append` name, or the name of a topic or queue."""
    NO_TOPIC = "no_topic"
    POSITION = "position"
    """The position in the file can't be written any more."""
    READ_ONLY = "read_only"
    PERMISSION = "permission"
    """The topic accepts no messages."""
    NO_SPACE = "no_space"
    NO_MEMORY = "no_memory"
    FAILED = "failed"
    """The disk failed, or the program has a defect."""
    OTHER = "other"


KINDS = {
    errno.EINVAL: RefusalKind.MALFORMED,
    errno.EFBIG: RefusalKind.TOO_LARGE,
    errno.ENOENT: RefusalKind.NO_TOPIC,
    errno.ESTALE: RefusalKind.NO_TOPIC,
    errno.ESPIPE: RefusalKind.POSITION,
    errno.EPERM: RefusalKind.POSITION,
    errno.EROFS: RefusalKind.READ_ONLY,
    errno.EACCES: RefusalKind.PERMISSION,
    errno.ENOSPC: RefusalKind.NO_SPACE,
    errno.EDQUOT: RefusalKind.NO_SPACE,
    errno.ENOBUFS: RefusalKind.NO_MEMORY,
    errno.EIO: RefusalKind.FAILED,
}


class Refusals:
    """The last refusals of a mount, and their number by kind. Thread safety: the core's thread only."""

    def __init__(self, clock_ns: Callable[[], int]) -> None:
        self._clock_ns = clock_ns
        self._lines: deque[tuple[int, str]] = deque(maxlen=MOST_LINES)
        self._last_change: tuple[int, int, str] | None = None
        """User, process and reason of the newest line, if it is a refused change."""
        self.counts: dict[str, int] = dict.fromkeys(RefusalKind, 0)

    def count(self, number: int, kind: RefusalKind | None = None) -> None:
        """Count a refusal that is not listed, because it follows from an earlier one."""
        self.counts[kind or KINDS.get(number, RefusalKind.OTHER)] += 1

    def note(
        self, user: int, pid: int, path: str, lines: str, number: int, reason: str, kind: RefusalKind | None = None
    ) -> None:
        """List and count a refusal. `pid` and `number` are 0 if there is none. `lines` are the lines written through
        the handle that were refused; empty if there are none."""
        self.count(number, kind)
        self._list(user, pid, path, lines, number, reason)
        self._last_change = None

    def note_change(self, user: int, pid: int, path: str, number: int, reason: str) -> None:
        """List a refused change of the tree, which is no publication and is not counted. `rm -r` of a topic tries one
        for each message: those that follow, of the same process and for the same reason, are not listed."""
        change = (user, pid, reason)
        if change != self._last_change:
            self._list(user, pid, path, "", number, reason)
            self._last_change = change

    def _list(self, user: int, pid: int, path: str, lines: str, number: int, reason: str) -> None:
        name = errno.errorcode.get(number, "-")
        shown_path = escaped(path, MOST_PATH_CHARACTERS).replace(" ", "\\x20")
        shown_reason = escaped(reason, MOST_REASON_CHARACTERS)
        line = f"{time_text(self._clock_ns())} {pid or '-'} {shown_path} {lines or '-'} {name} {shown_reason}\n"
        self._lines.append((user, line))

    def text(self, user: int | None) -> bytes:
        """The refusals of a user (None: of all) as the file shows them, the oldest first."""
        return "".join(line for owner, line in self._lines if user in (None, owner)).encode()


def escaped(text: str, most: int) -> str:
    """`text` on one line for a terminal, unprintable characters escaped, cut to about `most` characters."""
    short = text if len(text) <= most else text[:most] + "…"
    shown = "".join(char if char.isprintable() and char != "\\" else ascii(char)[1:-1] for char in short)
    return shown if len(shown) <= most + 1 else shown[:most] + "…"


def time_text(time_ns: int) -> str:
    """A time in UTC, to the millisecond."""
    seconds, ns = divmod(time_ns, 1_000_000_000)
    return f"{_second_text(seconds)}.{ns // 1_000_000:03d}Z"


@lru_cache(maxsize=1)
def _second_text(seconds: int) -> str:
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H:%M:%S}"
