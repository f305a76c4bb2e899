"""Round robin: a follower looks at all queues in turn, a few with each refresh, because no record names some changes.

A writer that repairs a queue, cuts it or deletes its first files writes no record of that. So after each change of the
store a round goes once through the queues in use.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import islice

Key = tuple[str, int]

QUEUES_AT_A_TIME = 16
"""Number of queues in a part: about 1 ms of work."""


class RoundRobin:
    """The turns of the queues. Thread safety: one caller at a time."""

    def __init__(self) -> None:
        self._rest: Iterator[Key] = iter(())
        self._is_running = False
        self._is_due = False

    @property
    def is_behind(self) -> bool:
        """Whether some queues were not looked at since the last change."""
        return self._is_running or self._is_due

    def begin_again(self) -> None:
        """The store has changed: look at all queues once more, after those that are left."""
        self._is_due = True

    def next_part(self, everything: Callable[[], Iterable[Key]]) -> list[Key]:
        """The queues whose turn it is, a few; `everything` has all of them when a round begins."""
        part = list(islice(self._rest, QUEUES_AT_A_TIME))
        if not part and self._is_due:
            self._is_due = False
            self._rest = iter(everything())
            part = list(islice(self._rest, QUEUES_AT_A_TIME))
        self._is_running = bool(part)
        return part
