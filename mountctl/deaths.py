"""What follows the death of a server: another one, sooner or later, or the end of the mount."""

from __future__ import annotations

import os

MOST_UNANSWERED = 5
"""So many servers in a row that die before their first answer end a mount."""
QUIET_SECONDS = 1.0
"""A server that was asked nothing for so long is not one that died of its first request."""
PAUSES_SECONDS = (0, 0, 1, 2, 4, 8, 16, 30)
"""Before the next server is started, after the first, second, third … death in a row; the last one for all others."""


def may_pass(exit_status: int) -> bool:
    """Whether a server that could not take over ended for a reason outside of it: a store that is not there, a disk
    that refuses, another process that has the lock."""
    return exit_status > os.EX_USAGE and exit_status != os.EX_SOFTWARE  # else an option or a defect: the next meets it


class Deaths:
    """How the servers of one mount have ended, one after the other."""

    def __init__(self, steady_seconds: float) -> None:
        """A server that has served for `steady_seconds` begins a new row."""
        self._steady_seconds = steady_seconds
        self.in_a_row = 0
        self._unanswered = 0

    def died(self, served_seconds: float | None, *, has_answered: bool) -> None:
        """A server died, so long after it began to serve (None: it never did)."""
        if served_seconds is not None and served_seconds >= self._steady_seconds:
            self.in_a_row = 0
        self.in_a_row += 1
        has_lived = served_seconds is not None and (has_answered or served_seconds >= QUIET_SECONDS)
        self._unanswered = 0 if has_lived else self._unanswered + 1

    def put_off(self) -> None:
        """A server could not take over, for a reason outside of it. That alone never ends a mount."""
        self.in_a_row += 1

    @property
    def are_too_many(self) -> bool:
        """Whether the mount ends."""
        return self._unanswered >= MOST_UNANSWERED

    @property
    def pause_seconds(self) -> float:
        """How long to wait before the next server takes over."""
        return PAUSES_SECONDS[min(self.in_a_row, len(PAUSES_SECONDS)) - 1] if self.in_a_row else 0
