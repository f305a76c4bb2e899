"""Owner and mode of a dropped file, stored with the file, so that they survive the daemon.

A daemon of root gives the file itself to the dropping user, so that the user's quota counts it. Other daemons store the
owner in an extended attribute, if the filesystem supports it. Otherwise the owner is unknown.
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
"""Mode bits that are kept; set-user-ID is not, so a staged file can't be run as its owner."""
_ATTRIBUTE_TEXT = re.compile(rb"([0-9]{1,10}) ([0-9]{1,10}) ([0-7]{1,3})")
_LARGEST_ID = (1 << 32) - 2


class FileOwner(NamedTuple):
    """Owner of a file, and its permission bits."""

    uid: int
    gid: int
    mode: int
    """Permission bits."""


def give_to(descriptor: int, owner: FileOwner) -> None:
    """Store the owner with an open file, as well as the filesystem allows. OSError: the owner's quota is exceeded."""
    owner = owner._replace(mode=owner.mode & PERMISSIONS)
    if os.geteuid() == 0:
        try:
            os.fchown(descriptor, owner.uid, owner.gid)
            os.fchmod(descriptor, owner.mode)
        except OSError as error:  # a filesystem without owners, or a root without that right
            if error.errno == errno.EDQUOT:
                raise
        else:
            with suppress(OSError):  # only a daemon that was not root has set it
                os.removexattr(descriptor, ATTRIBUTE)
            return
    with suppress(OSError):
        os.fchmod(descriptor, 0o600)
        os.setxattr(descriptor, ATTRIBUTE, b"%d %d %o" % owner)


def owner_of(path: str) -> FileOwner | None:
    """Owner of the file at `path`, which must not be a link; None: unknown."""
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
