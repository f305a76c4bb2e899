"""Shape files: the file sizes and log folders that a store was made with (docs/format.md, 11). Ours; a broker ignores
them.

    config/sizes.json       {"mappedFileSizeCommitLog": 16777216, "mappedFileSizeConsumeQueue": 1310720, ...}
    config/commitlog.json   {"storePathCommitLog": ["/disk1/commitlog", "/disk2/commitlog"], ...}

The names are those of broker.conf, so that the same values open the store in a broker. The folders are only used to
name the missing option, and are never opened: a store's writer must not choose the files that its readers open.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from engine.errors import ConfigFileError
from engine.files.disk import Disk, is_whole_number
from engine.files.layout import StoreLayout
from engine.settings.config import (
    COMMIT_LOG_BYTES,
    CONSUME_QUEUE_BYTES,
    CONSUME_QUEUE_ENTRY_BYTES,
    INDEX_ENTRIES,
    INDEX_SLOTS,
    READ_ONLY_PATHS,
    WRITABLE_PATHS,
    FileSizes,
)
from engine.settings.config_file import read_config, write_config


def read_sizes(path: Path) -> FileSizes | None:
    """The sizes in the file at `path`; None when it is missing. ConfigFileError."""
    content = read_config(path)
    if not content:
        return None
    numbers = [
        _number(path, content, name) for name in (COMMIT_LOG_BYTES, CONSUME_QUEUE_BYTES, INDEX_SLOTS, INDEX_ENTRIES)
    ]
    if numbers[1] % CONSUME_QUEUE_ENTRY_BYTES:
        raise ConfigFileError(path, f"{CONSUME_QUEUE_BYTES} is no multiple of {CONSUME_QUEUE_ENTRY_BYTES}")
    try:
        return FileSizes(numbers[0], numbers[1] // CONSUME_QUEUE_ENTRY_BYTES, numbers[2], numbers[3])
    except ValueError as error:
        raise ConfigFileError(path, str(error)) from error


def write_sizes(path: Path, sizes: FileSizes, disk: Disk) -> None:
    """Durably store `sizes`. OSError."""
    content = {
        COMMIT_LOG_BYTES: sizes.commit_log_bytes,
        CONSUME_QUEUE_BYTES: sizes.consume_queue_bytes,
        INDEX_SLOTS: sizes.index_slots,
        INDEX_ENTRIES: sizes.index_entries,
    }
    write_config(path, content, disk)


def _number(path: Path, content: dict[str, Any], name: str) -> int:
    number = content.get(name)
    if not is_whole_number(number):
        raise ConfigFileError(path, f"{name} is {number!r}, not a number")
    return number


def read_used_paths(path: Path) -> dict[str, tuple[Path, ...]] | None:
    """The folders in the file at `path`; None when it is missing or has none. ConfigFileError."""
    content = read_config(path)
    used = {name: _paths(path, name, content.get(name, [])) for name in (WRITABLE_PATHS, READ_ONLY_PATHS)}
    return used if any(used.values()) else None


def remember_paths(layout: StoreLayout, disk: Disk) -> None:
    """Durably store the folders of the log, unless they have always been the default. OSError."""
    try:
        known = read_used_paths(layout.used_log_paths)
    except ConfigFileError:
        known = {}
    paths = layout.commit_log
    is_default = paths.folders == (layout.default_commit_log,)
    used = {} if is_default else {WRITABLE_PATHS: paths.writable, READ_ONLY_PATHS: paths.read_only}
    if used != (known if known is not None else {}):
        write_config(layout.used_log_paths, {name: [str(path) for path in found] for name, found in used.items()}, disk)


def _paths(path: Path, name: str, found: Any) -> tuple[Path, ...]:
    if not isinstance(found, list) or not all(isinstance(one, str) and one.startswith("/") for one in found):
        raise ConfigFileError(path, f"{name} is {found!r}, no list of absolute paths")
    return tuple(Path(one) for one in found)
