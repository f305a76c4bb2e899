"""Identity of a store: detects that a store was moved away, or its disk unmounted, and another folder has its path.

    STORE/fsstore/id    a name, made when a store is first opened for writing, and the inode number of its folder

A copy has another inode number, and gets a new name when it is first opened for writing. The device number is not
compared, because it may change at a reboot. If the file can't be read or understood, the inode number alone is
compared.
"""

from __future__ import annotations

import json
import secrets

from engine.errors import AnotherStoreError, ObstructedError
from engine.files.disk import Disk, write_own_file
from engine.files.layout import StoreLayout
from engine.files.paths import read_file
from engine.settings.config import StoreIdentity

VERSION = 1
NAME_BYTES = 16
MOST_BYTES = 1 << 16


def read_identity(layout: StoreLayout) -> StoreIdentity:
    """The identity of the store. OSError."""
    inode = layout.root.stat().st_ino
    try:
        stored = json.loads(read_file(layout.identity, MOST_BYTES))
        is_of_this = stored["version"] == VERSION and stored["inode"] == inode
        return StoreIdentity(str(stored["id"]) if is_of_this else "", inode)
    except (FileNotFoundError, NotADirectoryError):
        return StoreIdentity("", inode)
    except (OSError, ObstructedError, KeyError, TypeError, ValueError, RecursionError):
        return StoreIdentity(None, inode)


def make_identity(layout: StoreLayout, disk: Disk) -> StoreIdentity:
    """As `read_identity`; stores a new name if there is none, or none that can be understood. OSError."""
    found = read_identity(layout)
    if not found.name and not _is_refused(layout):
        found = StoreIdentity(secrets.token_hex(NAME_BYTES), found.inode)
        write_own_file(layout.identity, {"version": VERSION, "id": found.name, "inode": found.inode}, disk)
    return found


def _is_refused(layout: StoreLayout) -> bool:
    try:
        read_file(layout.identity, MOST_BYTES)
    except (FileNotFoundError, NotADirectoryError, ValueError):
        return False
    except (OSError, ObstructedError):
        return True
    return False


def require_identity(layout: StoreLayout, expected: StoreIdentity) -> None:
    """AnotherStoreError: the store is not the expected one. OSError."""
    try:
        found = read_identity(layout)
    except (FileNotFoundError, NotADirectoryError):
        raise AnotherStoreError(layout.root, "nothing is there now") from None
    if expected.name and found.name == "":
        raise AnotherStoreError(layout.root, "another folder, or a copy of the store, is there now")
    if found.inode != expected.inode or (expected.name and found.name and found.name != expected.name):
        raise AnotherStoreError(layout.root, "another store is there now")
