"""What a row is; the modules beside this one hold the rows."""

from collections.abc import Callable
from dataclasses import dataclass

from tests.bench.measure import Pairs
from tests.bench.room import Room


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table.

    `number` is what people type to run it; several rows may share one. `target` bounds the ratio ours / peer: from
    below, or from above when `at_most`.
    """

    id: str
    work: str
    peer: str
    unit: str
    target: float
    run: Callable[[Room], Pairs]
    at_most: bool = False

    @property
    def number(self) -> str:
        return self.id.split()[0]

    def met(self, ratio: float) -> bool:
        """Whether the target is reached."""
        return ratio <= self.target if self.at_most else ratio >= self.target
