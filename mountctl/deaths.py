"""Rules for a server's death: when the next server starts, and when the mount ends."""

from __future__ import annotations

import os

MOST_UNANSWERED = 5
"""A mount ends after this many consecutive servers died before their first answer."""
QUIET_SECONDS = 1.0
"""A server without requests for this long counts as one that answers."""
PAUSES_SECONDS = (0, 0, 1, 2, 4, 8, 16, 30)
"""Pauses before the next server, after the first, second, third … consecutive death; the last one is for all
further."""


def may_pass(exit_status: int) -> bool:
    """Whether a server could not take over for an external reason: a missing store, a disk that refuses, or a lock that
    another process holds."""
    return exit_status > os.EX_USAGE and exit_status != os.EX_SOFTWARE  # else an option or a defect: the next has it


class Deaths:
    """The consecutive deaths of one mount's servers."""

    def __init__(self, steady_seconds: float) -> None:
        """A server that has served for `steady_seconds` ends the row of consecutive deaths."""
        self._steady_seconds = steady_seconds
        self.in_a_row = 0
        self._unanswered = 0

    def died(self, served_seconds: float | None, *, has_answered: bool) -> None:
        """Record a death, and the time for which the server served (None: it never did)."""
        if served_seconds is not None and served_seconds >= self._steady_seconds:
            self.in_a_row = 0
        self.in_a_row += 1
        has_lived = served_seconds is not None and (has_answered or served_seconds >= QUIET_SECONDS)
        self._unanswered = 0 if has_lived else self._unanswered + 1

    def put_off(self) -> None:
        """Record a server that could not take over for an external reason. That alone never ends a mount."""
        self.in_a_row += 1

    @property
    def are_too_many(self) -> bool:
        """Whether the mount has to end."""
        return self._unanswered >= MOST_UNANSWERED

    @property
    def pause_seconds(self) -> float:
        """The pause before the next server takes over."""
        return PAUSES_SECONDS[min(self.in_a_row, len(PAUSES_SECONDS)) - 1] if self.in_a_row else 0
