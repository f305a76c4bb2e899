"""repair: rebuild what is derived, cut or mark what is damaged, never touch a good record."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

from engine.problem import CheckProgress


def repair_store(path: Path | str, progress: Callable[[CheckProgress], None] | None = None) -> Iterator[str]:
    """Repair an unmounted store, yielding a sentence for each thing done; nothing when nothing was wrong.

    Takes the store's lock (StoreLockedError). Safe to stop at any point and to run again.
    """
    raise NotImplementedError
