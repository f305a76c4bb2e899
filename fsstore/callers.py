"""Callers: the users and processes that publish and read through a mount, and how much of it each does.

A write counts to the process that opened the file, a read to the process that sends the request. Bytes of messages that
the kernel has in its cache are read without a request.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import NamedTuple

from engine import counter
from fsstore.accounts import Accounts

MOST_PROCESSES = 128
"""Number of processes that are counted separately. One more replaces the process that came first, which returns with
its next request; its user's figures stay."""
MOST_USERS = 64
"""Number of users without such a process that are counted separately; those of the others are counted together."""
OTHERS = None
"""Represents users that are counted together."""
_SYSTEM = Path("/proc")


@dataclass(frozen=True, slots=True)
class CallerFigures:
    """Figures of a user or a process since this daemon began."""

    published_messages: int = counter("Messages that a user published through the mount")
    published_bytes: int = counter("Bytes of these messages, as they were written")
    read_bytes: int = counter("Bytes that a user's requests read; what the kernel has in its cache takes none")


class Caller(NamedTuple):
    """A user id, and a process id in this process's namespace; 0: unknown."""

    user: int
    process: int

    @property
    def name(self) -> str:
        """The process's name; empty if it has ended, or is of another namespace."""
        try:
            return (_SYSTEM / str(self.process) / "comm").read_bytes().rstrip(b"\n").decode(errors="replace")
        except OSError:
            return ""


class Callers:
    """Figures of each caller: messages and bytes published, bytes read. Each call takes constant time, but for
    `by_user` and `by_process`. Thread safety: any."""

    def __init__(self, accounts: Accounts) -> None:
        self._accounts = accounts
        self._lock = threading.Lock()
        self._processes: dict[tuple[int, int], list[int]] = {}
        self._ended: dict[int | None, list[int]] = {}
        """By user, the sums of processes that are no longer counted separately."""

    @property
    def present(self) -> Caller:
        """The sender of the present request."""
        return Caller(self._accounts.caller, self._accounts.process)

    def published(self, caller: Caller, messages: int, written_bytes: int) -> None:
        """Count published messages."""
        with self._lock:
            counts = self._processes.get(caller) or self._added(caller)
            counts[0] += messages
            counts[1] += written_bytes

    def read(self, read_bytes: int) -> None:
        """Count bytes that answer the present request."""
        caller = self._accounts.caller, self._accounts.process  # equals a Caller, and is made in less time
        with self._lock:
            counts = self._processes.get(caller) or self._added(Caller(*caller))
            counts[2] += read_bytes

    def by_user(self) -> dict[int | None, CallerFigures]:
        """Figures of users, and of OTHERS."""
        found: dict[int | None, list[int]] = {}
        with self._lock:
            of_processes = ((user, counts) for (user, _), counts in self._processes.items())
            for user, counts in chain(of_processes, self._ended.items()):
                _add(found.setdefault(user, [0, 0, 0]), counts)
        return {user: CallerFigures(*counts) for user, counts in found.items()}

    def by_process(self) -> Iterator[tuple[Caller, CallerFigures]]:
        with self._lock:
            found = [(Caller(*caller), CallerFigures(*counts)) for caller, counts in self._processes.items()]
        yield from found

    def _added(self, caller: Caller) -> list[int]:
        if len(self._processes) >= MOST_PROCESSES:
            first = next(iter(self._processes))
            user = first[0] if first[0] in self._ended or len(self._ended) < MOST_USERS else OTHERS
            _add(self._ended.setdefault(user, [0, 0, 0]), self._processes.pop(first))
        return self._processes.setdefault(caller, [0, 0, 0])


def _add(counts: list[int], more: list[int]) -> None:
    counts[:] = [one + other for one, other in zip(counts, more, strict=True)]
