"""The type of a row; the modules beside this one define the rows."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from tests.bench.measure import Pairs
from tests.bench.room import Room


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table.

    `number` is what people type to run it; several rows may share one. `target` bounds the ratio ours / peer: from
    below, or from above when `at_most`. A row that is not `judged` is reported beside that aim, without a verdict.
    `by_cpu`: the verdict is that of the processor time a piece, the peer's / ours, because rates on a shared machine
    move too much.
    """

    id: str
    work: str
    peer: str
    unit: str
    target: float
    run: Callable[[Room], Pairs]
    at_most: bool = False
    judged: bool = True
    by_cpu: bool = False

    @property
    def number(self) -> str:
        return self.id.split()[0]

    def met(self, ratio: float) -> bool:
        """Whether the target is reached."""
        return ratio <= self.target if self.at_most else ratio >= self.target


def order(row_id: str) -> tuple[bool, int]:
    """Rows by number, those that have a name behind them."""
    first = row_id.split()[0]
    return (not first.isdigit(), int(first) if first.isdigit() else 0)


class MountedRun(Protocol):
    """A row's `run` against a mount of the C peer, which may be given options (peer/peer.c)."""

    def __call__(self, room: Room, *peer_options: str) -> Pairs: ...


POLLING = "C libfuse that polls"
LOOK_US = 30
"""As long as our loop looks for a request before it goes to sleep for one (fsstore/fuse/session.py, LOOKS)."""


def polling(run: MountedRun) -> Callable[[Room], Pairs]:
    """The same beside a peer that polls as our loop does."""
    return lambda room: run(room, "--poll", str(LOOK_US))


def busy(run: MountedRun) -> Callable[[Room], Pairs]:
    """The same while every core is kept busy by other work."""

    def run_busy(room: Room) -> Pairs:
        with room.client().busy_cores():
            return run(room)

    return run_busy
