"""The error of a user's file that can't be used: tokens, certificates, groups of places."""

from __future__ import annotations

from pathlib import Path


class UnusableFileError(Exception):
    """The file at `path` can't be used; `reason` says why, without any secret that is in it."""

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(path, reason)
        self.path = path
        self.reason = reason

    def __str__(self) -> str:
        return f"{self.path}: {self.reason}"
