"""config/commitlog.json: where a store's log was written, if not where it is by default (docs/format.md, 11). Ours.

    {"storePathCommitLog": ["/disk1/commitlog", "/disk2/commitlog"], "readOnlyCommitLogStorePaths": []}

The names are those of broker.conf. It says what to ask for, and is never followed: whoever may write a store does not
choose which files its reader opens.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from engine.errors import ConfigFileError
from engine.files.disk import Disk
from engine.files.layout import StoreLayout
from engine.settings.config_file import read_config, write_config

WRITABLE = "storePathCommitLog"
READ_ONLY = "readOnlyCommitLogStorePaths"


def read_used_paths(path: Path) -> dict[str, tuple[Path, ...]] | None:
    """The folders that the file at `path` names; None when it is not there or names none. ConfigFileError."""
    content = read_config(path)
    used = {name: _paths(path, name, content.get(name, [])) for name in (WRITABLE, READ_ONLY)}
    return used if any(used.values()) else None


def remember_paths(layout: StoreLayout, disk: Disk) -> None:
    """Remember, durably, where the log of `layout` is written; nothing where it always was by default. OSError."""
    try:
        known = read_used_paths(layout.used_log_paths)
    except ConfigFileError:
        known = {}
    paths = layout.commit_log
    is_default = paths.folders == (layout.default_commit_log,)
    used = {} if is_default else {WRITABLE: paths.writable, READ_ONLY: paths.read_only}
    if used != (known if known is not None else {}):
        write_config(layout.used_log_paths, {name: [str(path) for path in found] for name, found in used.items()}, disk)


def _paths(path: Path, name: str, found: Any) -> tuple[Path, ...]:
    if not isinstance(found, list) or not all(isinstance(one, str) and one.startswith("/") for one in found):
        raise ConfigFileError(path, f"{name} is {found!r}, no list of absolute paths")
    return tuple(Path(one) for one in found)
