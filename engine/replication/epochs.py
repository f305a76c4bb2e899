"""Epochs of a log whose broker has a controller: when which term of a master began, as RocketMQ stores it.

    STORE/epochFileCheckpoint    count \\n checksum \\n, then a line for each epoch: number-begin \\n

The controller counts terms up. Two logs with an epoch of the same number and begin are equal up to its shorter end.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from engine.errors import ConfigFileError
from engine.files.disk import remove_file, replace_file
from engine.files.paths import read_file
from engine.record.header import MAX_OFFSET

if TYPE_CHECKING:
    from engine.files.disk import Disk

MAX_EPOCHS = 65_536
"""Limit of the epochs of a log."""

_MOST_BYTES = MAX_EPOCHS * 32
_UNCHECKED = 0
"""A checksum in place of which RocketMQ accepts any content."""


class Epoch(NamedTuple):
    """A term of a master: its number, and the physical offset of the first byte that was written in it."""

    number: int
    begin: int


def is_rising(epochs: Sequence[Epoch]) -> bool:
    """Whether these are epochs of one log, oldest first."""
    return all(one.number < other.number and one.begin < other.begin for one, other in pairwise(epochs)) and all(
        one.number >= 0 and 0 <= one.begin <= MAX_OFFSET for one in epochs
    )


def shared_end(own: Sequence[Epoch], own_end: int, master: Sequence[Epoch], master_end: int) -> int | None:
    """Physical offset up to which two logs that end at `own_end` and `master_end` are equal by their epochs, oldest
    first; None: they share no epoch."""
    ends = dict(zip(master, [*(one.begin for one in master[1:]), master_end], strict=True))
    for epoch in reversed(own):
        if epoch in ends:
            return min(own_end, ends[epoch])
        own_end = min(own_end, epoch.begin)
    return None


def merged(own: Sequence[Epoch], master: Sequence[Epoch]) -> tuple[Epoch, ...]:
    """The master's epochs, and before them our own ones that it has forgotten with its oldest files."""
    return (*(one for one in own if not master or one.number < master[0].number), *master)


def read_epochs(path: Path) -> tuple[Epoch, ...]:
    """The epochs in the file at `path`, oldest first; none if it is missing. ConfigFileError, OSError."""
    try:
        lines = read_file(path, _MOST_BYTES).decode().splitlines(keepends=True)
        epochs = tuple(Epoch(*map(int, line.split("-", 1))) for line in lines[2:])
        checksum = _checksum("".join(lines[2:]))
        is_whole = [int(line) for line in lines[:2]] in ([len(epochs), checksum], [len(epochs), _UNCHECKED])
    except FileNotFoundError:
        return ()
    except (ValueError, TypeError) as error:
        raise ConfigFileError(path, f"it has no epochs: {error}") from error
    if not is_whole or not is_rising(epochs):
        raise ConfigFileError(path, "its epochs are damaged")
    return epochs


def write_epochs(path: Path, epochs: Sequence[Epoch], disk: Disk) -> None:
    """Durably replace the file at `path`. OSError."""
    if not epochs:
        remove_file(path, disk)
        return
    text = "".join(f"{one.number}-{one.begin}\n" for one in epochs)
    replace_file(path, [f"{len(epochs)}\n{_checksum(text)}\n{text}".encode()], disk, None)


def _checksum(text: str) -> int:
    return zlib.crc32(text.encode()) & 0x7FFF_FFFF
