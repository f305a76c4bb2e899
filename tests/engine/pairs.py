"""Tables of cases that meet each pair of values, where all combinations are too many."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations, product
from typing import Any


def pairs(*values: Sequence[Any]) -> list[tuple[Any, ...]]:
    """Cases, one value of each sequence in each: any two values of two sequences stand together in one case at least.

    The same sequences make the same cases. Keep the product of the sequences' lengths below some ten thousands.
    """
    columns = list(combinations(range(len(values)), 2))
    candidates = list(product(*(range(len(column)) for column in values)))
    missing = {(a, b, case[a], case[b]) for case in candidates for a, b in columns}
    chosen = []
    while missing:
        best = max(candidates, key=lambda case: sum((a, b, case[a], case[b]) in missing for a, b in columns))
        missing -= {(a, b, best[a], best[b]) for a, b in columns}
        chosen.append(tuple(column[row] for column, row in zip(values, best, strict=True)))
    return chosen
