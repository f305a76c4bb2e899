"""The one table from engine errors to errnos."""

from __future__ import annotations


def errno_of(error: Exception) -> int | None:
    """The errno that answers `error`; None for an exception that is a defect of ours (log it, answer EIO)."""
    raise NotImplementedError
