"""Which store a folder is: so that one that was moved away, or whose disk was unmounted, is not taken for another one.

    STORE/fsstore/id    a name, made when a store is first opened to be written, and the inode of the folder by then

A copy has another inode, and gets a name of its own when it is first written. The device counts for nothing: its number
changes when the machine starts.
"""

from __future__ import annotations

import secrets

from engine.errors import AnotherStoreError
from engine.files.disk import Disk, read_own_file, write_own_file
from engine.files.layout import StoreLayout
from engine.settings.config import StoreIdentity

VERSION = 1
NAME_BYTES = 16


def read_identity(layout: StoreLayout) -> StoreIdentity:
    """Of the store that is there now. OSError."""
    inode = layout.root.stat().st_ino
    stored = read_own_file(layout.identity)
    try:
        is_of_this = stored["version"] == VERSION and stored["inode"] == inode
        return StoreIdentity(str(stored["id"]) if is_of_this else "", inode)
    except (KeyError, TypeError):
        return StoreIdentity("", inode)


def make_identity(layout: StoreLayout, disk: Disk) -> StoreIdentity:
    """As `read_identity`; a store without a name is given one. OSError."""
    found = read_identity(layout)
    if not found.name:
        found = StoreIdentity(secrets.token_hex(NAME_BYTES), found.inode)
        write_own_file(layout.identity, {"version": VERSION, "id": found.name, "inode": found.inode}, disk)
    return found


def require_identity(layout: StoreLayout, expected: StoreIdentity) -> None:
    """AnotherStoreError when the store that is there is not the expected one. OSError."""
    try:
        found = read_identity(layout)
    except (FileNotFoundError, NotADirectoryError):
        raise AnotherStoreError(layout.root, "nothing is there now") from None
    if expected.name and not found.name:
        raise AnotherStoreError(layout.root, "what is there now is another folder, or a copy of the store")
    if found.inode != expected.inode or (expected.name and found.name != expected.name):
        raise AnotherStoreError(layout.root, "another store is there now")
