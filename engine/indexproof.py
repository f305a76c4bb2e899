"""Index proof: finds the slot and entry counts of an index file, which no file states, and proves them (docs/format.md, 7)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path


def prove_index_sizes(
    paths: Sequence[Path],
    candidates: Iterable[tuple[int, int]],
    keys_at: Callable[[int], Sequence[str]],
) -> tuple[int, int] | None:
    """(slots, entries) of these index files, or None when nothing proves one.

    `candidates` are tried first (remembered and default sizes). `keys_at` gives the index keys (topic#key) of the record at a physical
    offset, empty when it can't be read.
    """
    raise NotImplementedError
