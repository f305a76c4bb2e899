"""States that a long run must have reached: one that never was proves nothing about them.

A proof declares its states and notes them as it sees them, from outside of the program: in logs, status, files, and in
what clients were answered.
"""

from __future__ import annotations


class Reached:
    """How often each state was. Thread safety: none."""

    def __init__(self, *states: str) -> None:
        self.times = dict.fromkeys(states, 0)

    def note(self, state: str, times: int = 1) -> None:
        """It was, so many times more. KeyError when it was not declared."""
        self.times[state] += times

    def missed(self) -> list[str]:
        """A finding for each that never was."""
        return [f"never reached: {state}" for state, times in self.times.items() if not times]
