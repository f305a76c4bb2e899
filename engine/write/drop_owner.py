"""Whose a dropped file is, and its mode: kept with the file, so that they outlive every daemon.

Where files can be given away (the daemon is root), the file itself belongs to its dropper, and a quota counts it so.
Elsewhere an extended attribute says whose it is, on a filesystem that has such. Of what has neither nobody knows it.
"""

from __future__ import annotations

import errno
import os
import re
from contextlib import suppress
from typing import NamedTuple

ATTRIBUTE = "user.fsstore.owner"
"""User id, group id, and permission bits in octal digits."""
PERMISSIONS = 0o777
"""What a mode keeps: a file that waits is not to be run as its owner."""
_ATTRIBUTE_TEXT = re.compile(rb"([0-9]{1,10}) ([0-9]{1,10}) ([0-7]{1,3})")
_LARGEST_ID = (1 << 32) - 2


class FileOwner(NamedTuple):
    """Whose a file is, and who else may use it."""

    uid: int
    gid: int
    mode: int
    """Permission bits."""


def give_to(descriptor: int, owner: FileOwner) -> None:
    """Keep with an open file whose it is, as well as that can be kept. OSError: the quota of the new owner refuses."""
    owner = owner._replace(mode=owner.mode & PERMISSIONS)
    if os.geteuid() == 0:
        try:
            os.fchown(descriptor, owner.uid, owner.gid)
            os.fchmod(descriptor, owner.mode)
        except OSError as error:  # a filesystem without owners, or a root without that right
            if error.errno == errno.EDQUOT:
                raise
        else:
            with suppress(OSError):  # there is none, unless another daemon made it
                os.removexattr(descriptor, ATTRIBUTE)
            return
    with suppress(OSError):
        os.fchmod(descriptor, 0o600)
        os.setxattr(descriptor, ATTRIBUTE, b"%d %d %o" % owner)


def owner_of(path: str) -> FileOwner | None:
    """Whose the file at `path` is, which is no link; None where nobody knows."""
    try:
        said = os.getxattr(path, ATTRIBUTE, follow_symlinks=False)
    except OSError:
        return _own_of(path) if os.geteuid() == 0 else None
    match = _ATTRIBUTE_TEXT.fullmatch(said)
    if match is None or max(int(match[1]), int(match[2])) > _LARGEST_ID:
        return None
    return FileOwner(int(match[1]), int(match[2]), int(match[3], 8))


def _own_of(path: str) -> FileOwner | None:
    try:
        found = os.lstat(path)
    except OSError:
        return None
    return FileOwner(found.st_uid, found.st_gid, found.st_mode & PERMISSIONS)
