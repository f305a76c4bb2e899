"""The kernel's table of mounts, mountinfo (proc_pid_mountinfo(5)), parsed. Imports nothing of ours."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

MOUNT_TABLE = Path("/proc/self/mountinfo")


class MountRow(NamedTuple):
    """A mount; `device` (major:minor) is unique to it."""

    device: str
    mountpoint: Path
    options: list[str]
    kind: str
    source: Path
    super_options: str


def parse_mounts(table: str) -> Iterator[MountRow]:
    """The rows of a table that was read with surrogateescape, oldest first."""
    for line in table.splitlines():
        # 36 35 98:0 ROOT MOUNTPOINT OPTIONS OPTIONAL... - TYPE SOURCE SUPER_OPTIONS
        before, _, after = line.partition(" - ")
        fields, (kind, source, super_options, *_) = before.split(" "), [*after.split(" "), "", ""]
        yield MountRow(fields[2], _path(fields[4]), fields[5].split(","), kind, _path(source), super_options)


def _path(field: str) -> Path:
    """Decode a path: the table writes space, tab, newline, backslash and '#' as three octal digits."""
    return Path(re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), field))
