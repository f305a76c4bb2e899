"""Places: what a path on the command line means, a mounted store or a store's own directory.

The kernel's mount table knows both: a mount of ours has type `fuse.fsstore` and the store's path as its source, so a
person may name either side, and the verb finds the other.
"""

from __future__ import annotations

import errno
import os
import re
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from queue import Empty, SimpleQueue

from mountctl.errors import CommandError

FILESYSTEM_TYPE = "fuse.fsstore"
MOUNT_TABLE = Path("/proc/self/mountinfo")
PATIENCE_SECONDS = 2.0


@dataclass(frozen=True, slots=True)
class Mount:
    """A store mounted on this machine, as the mount table shows it."""

    mountpoint: Path
    store: Path
    read_only: bool


@dataclass(frozen=True, slots=True)
class Place:
    """What a path means: a store, and the mount to reach it through when there is one."""

    store: Path
    mount: Mount | None


def mounts(table: Path = MOUNT_TABLE) -> list[Mount]:
    """Every mounted store, oldest first."""
    return list(_parse(table.read_text(errors="surrogateescape")))


def _parse(table: str) -> Iterator[Mount]:
    for line in table.splitlines():
        # 36 35 98:0 ROOT MOUNTPOINT OPTIONS OPTIONAL... - TYPE SOURCE SUPER_OPTIONS   (proc_pid_mountinfo(5))
        before, _, after = line.partition(" - ")
        fields, (kind, source, *_) = before.split(" "), after.split(" ")
        if kind == FILESYSTEM_TYPE:
            read_only = "ro" in fields[5].split(",")
            yield Mount(Path(_unescape(fields[4])), Path(_unescape(source)), read_only)


def _unescape(field: str) -> str:
    """The table writes space, tab, newline, backslash and '#' as three octal digits."""
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), field)


def absolute(path: str | Path) -> Path:
    """`path` as the mount table would spell it; works for a mount whose daemon is gone, where lstat fails."""
    return Path(os.path.realpath(path))


def mount_at(mountpoint: Path, table: Path = MOUNT_TABLE) -> Mount | None:
    """The store mounted on exactly this directory (the newest, when they are stacked)."""
    return next((mount for mount in reversed(mounts(table)) if mount.mountpoint == mountpoint), None)


def mount_of(store: Path, table: Path = MOUNT_TABLE) -> Mount | None:
    """Where `store` is mounted: for writing when it is, otherwise the newest mount."""
    found = [mount for mount in mounts(table) if mount.store == store]
    return next((mount for mount in found if not mount.read_only), found[-1] if found else None)


class Answer(Enum):
    """How a mount answers: YES; NO, its daemon is gone; LATE, not within a moment, it may hang."""

    YES = "yes"
    NO = "no"
    LATE = "late"


def answer_of(mountpoint: Path) -> Answer:
    """Ask what is mounted there (or the directory, when nothing is) for a sign of life, without waiting for ever."""
    answers: SimpleQueue[Answer] = SimpleQueue()

    def ask() -> None:
        try:
            os.statvfs(mountpoint)  # a stat would be answered from the kernel's cache, long after the daemon is gone
        except OSError as error:
            answers.put(Answer.NO if error.errno == errno.ENOTCONN else Answer.YES)
        else:
            answers.put(Answer.YES)

    threading.Thread(target=ask, daemon=True).start()  # one that never returns must not keep us
    try:
        return answers.get(timeout=PATIENCE_SECONDS)
    except Empty:
        return Answer.LATE


def find(text: str, table: Path = MOUNT_TABLE) -> Place:
    """What the person means by `text`: a mount point (or a path below one) or a store's directory."""
    path = absolute(text)
    for candidate in (path, *path.parents):
        if mount := mount_at(candidate, table):
            return Place(mount.store, mount)
    if mount := mount_of(path, table):
        return Place(path, mount)
    if not path.is_dir():
        raise CommandError(f"{text} is neither a store nor a mount point", "see what is mounted with `mountctl status`")
    return Place(path, None)
