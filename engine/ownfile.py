"""Small JSON files of ours below STORE/fsstore: written whole, durably, or not at all."""

import json
from pathlib import Path
from typing import Any

from engine.durable import Disk, make_directory, replace_file


def write_own_file(path: Path, content: Any, disk: Disk) -> None:
    """Store `content` as JSON; makes the directory when it is missing. OSError."""
    for changed in make_directory(path.parent):
        disk.sync_directory(changed)
    replace_file(path, json.dumps(content, ensure_ascii=False, separators=(",", ":")).encode(), disk)
