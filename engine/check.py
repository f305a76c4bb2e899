"""check: re-derive every consume-queue and index byte of a store from its commit log, and say what differs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

from engine.parts import StoreParts
from engine.problem import CheckProgress, Problem


def check_store(path: Path | str, progress: Callable[[CheckProgress], None] | None = None) -> Iterator[Problem]:
    """Check an unmounted store without writing a byte; yields each finding. NotAStoreError, UnsupportedStoreError.

    A live writer is the first finding (LIVE_WRITER), and then the only one: its files change under the reader.
    """
    raise NotImplementedError


def check_parts(
    parts: StoreParts, end: int, progress: Callable[[CheckProgress], None] | None = None
) -> Iterator[Problem]:
    """Check an open store up to the physical offset `end`."""
    return iter(())
