"""Small JSON files of ours below STORE/fsstore: written whole, durably, or not at all."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from engine.errors import ObstructedError
from engine.files.disk import Disk, make_directory, replace_file
from engine.files.file_scan import MAX_OFFSET
from engine.files.paths import read_file

MOST_BYTES = 256 << 20
"""A mark has about a hundred bytes for each file of a store: what is longer was not written by us."""


def write_own_file(path: Path, content: Any, disk: Disk) -> None:
    """Store `content` as JSON; makes the directory when it is missing. OSError."""
    for changed in make_directory(path.parent):
        disk.sync_directory(changed)
    replace_file(path, json.dumps(content, separators=(",", ":")).encode(), disk)


def read_own_file(path: Path) -> Any:
    """What the file at `path` holds; None when it is missing, or holds what we can't have written."""
    try:
        return json.loads(read_file(path, MOST_BYTES))
    except (OSError, ObstructedError, ValueError, RecursionError):
        return None


def whole_number(stored: Any, least: int = 0) -> int:
    """A number from a file of ours, from `least` to the greatest offset there can be. ValueError."""
    if not isinstance(stored, int) or isinstance(stored, bool) or not least <= stored <= MAX_OFFSET:
        raise ValueError("no number that we write")
    return stored
