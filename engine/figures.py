"""Records of figures: a field that `counter` or `gauge` makes is a row, which says all about one figure.

Its name is the key in the status, and ends with its unit: `_bytes`, `_ms`, `_seconds`; other figures are counts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import MISSING, dataclass, field, fields
from typing import Any


@dataclass(frozen=True, slots=True)
class Figure:
    """A row. `help` is a sentence without its full stop; `metric` the name without `_total`, if not the field's own."""

    kind: str
    help: str
    metric: str = ""
    number: Callable[[Any], float] = int
    """The metric's value for that of the field. A float is shown with milliseconds."""
    label: str = ""
    """Name of the label whose values are the keys of the field's value."""
    notice: str = ""
    """Shown by `mountctl status` while the number is not 0: a label, the counted noun, and the rest of the sentence,
    with other fields of the record in braces."""


def counter(text: str, **more: Any) -> Any:
    """A field for a number that only grows while its process lives. `more` are fields of Figure, and `default`."""
    return gauge(text, kind="counter", **more)


def gauge(text: str, *, kind: str = "gauge", default: Any = MISSING, **more: Any) -> Any:
    """A field for a number that grows and falls; as `counter`."""
    return field(default=default, metadata={"figure": Figure(kind, text, **more)})


def rows_of(record: type) -> Iterator[tuple[str, Figure]]:
    """The rows of a record by name, in the order of its fields."""
    yield from ((one.name, one.metadata["figure"]) for one in fields(record) if one.metadata)
