"""config/sizes.json: the file sizes that a store was made with (docs/format.md, 11). Ours; a broker ignores it.

    {"mappedFileSizeCommitLog": 16777216, "mappedFileSizeConsumeQueue": 1310720, "maxHashSlotNum": 100000, ...}

The names are those of broker.conf, so that the same numbers open the store in a broker.
"""

from pathlib import Path
from typing import Any

from engine.errors import ConfigFileError
from engine.files.disk import Disk
from engine.settings.config import CONSUME_QUEUE_ENTRY_BYTES, FileSizes
from engine.settings.config_file import read_config, write_config

COMMIT_LOG_BYTES = "mappedFileSizeCommitLog"
CONSUME_QUEUE_BYTES = "mappedFileSizeConsumeQueue"
INDEX_SLOTS = "maxHashSlotNum"
INDEX_ENTRIES = "maxIndexNum"


def read_sizes(path: Path) -> FileSizes | None:
    """The sizes that the file at `path` names; None when it is not there. ConfigFileError."""
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
    """Remember `sizes`, durably. OSError."""
    content = {
        COMMIT_LOG_BYTES: sizes.commit_log_bytes,
        CONSUME_QUEUE_BYTES: sizes.consume_queue_bytes,
        INDEX_SLOTS: sizes.index_slots,
        INDEX_ENTRIES: sizes.index_entries,
    }
    write_config(path, content, disk)


def _number(path: Path, content: dict[str, Any], name: str) -> int:
    number = content.get(name)
    if not isinstance(number, int) or isinstance(number, bool):
        raise ConfigFileError(path, f"{name} is {number!r}, not a number")
    return number
