"""The requests that are rare, as pyfuse3's handlers: each asks the core, and fills in pyfuse3's answer.

What comes often is answered in requests.py and never gets here. All of it runs on trio's thread.
"""

from __future__ import annotations

import errno
from typing import NoReturn

import pyfuse3
from pyfuse3 import EntryAttributes

from fsstore.core import Filesystem
from fsstore.fuse.answers import answered
from fsstore.interface import BLOCK_BYTES, Attributes, FilesystemError


class RareOperations(pyfuse3.Operations):  # type: ignore[misc] # pyfuse3 has no types
    """pyfuse3's handlers over one core. Thread safety: none; trio's thread only."""

    def __init__(self, core: Filesystem) -> None:
        super().__init__()
        self._core = core

    @answered
    def setattr(
        self, inode: int, wanted: EntryAttributes, fields: pyfuse3.SetattrFields, handle: int | None, _: object
    ) -> EntryAttributes:
        return filled(self._core.setattr(inode, wanted.st_size if fields.update_size else None, handle))

    @answered
    def statfs(self, _: object) -> pyfuse3.StatvfsData:
        space = self._core.statfs()
        answer = pyfuse3.StatvfsData()
        answer.f_bsize = answer.f_frsize = space.block_size
        answer.f_blocks, answer.f_bfree, answer.f_bavail = space.blocks, space.blocks_free, space.blocks_available
        answer.f_files, answer.f_ffree, answer.f_favail = space.files, space.files_free, space.files_free
        answer.f_namemax = space.name_max
        return answer

    @answered
    def mkdir(self, parent: int, name: bytes, _mode: int, _: object) -> EntryAttributes:
        return filled(self._core.mkdir(parent, name))

    @answered
    def poll(self, _inode: int, _handle: int, _poll_handle: object, _: object) -> NoReturn:
        raise FilesystemError(errno.ENOSYS)  # the kernel then answers by itself, as for any regular file

    # extended attributes

    @answered
    def getxattr(self, inode: int, name: bytes, _: object) -> bytes:
        return self._core.getxattr(inode, name)

    @answered
    def listxattr(self, inode: int, _: object) -> list[bytes]:
        return self._core.listxattr(inode)

    # what is refused: each by its own handler, because a missing one reads "Function not implemented"

    @answered
    def create(self, parent: int, name: bytes, _mode: int, _flags: int, _: object) -> NoReturn:
        self._core.create(parent, name)

    @answered
    def mknod(self, parent: int, name: bytes, _mode: int, _device: int, _: object) -> NoReturn:
        self._core.create(parent, name)

    @answered
    def unlink(self, _parent: int, name: bytes, _: object) -> NoReturn:
        self._core.refuse(name)

    @answered
    def rmdir(self, _parent: int, name: bytes, _: object) -> NoReturn:
        self._core.refuse(name)

    @answered
    def symlink(self, _parent: int, name: bytes, _target: bytes, _: object) -> NoReturn:
        self._core.refuse(name)

    @answered
    def rename(self, _old: int, name: bytes, _new: int, new_name: bytes, _flags: int, _: object) -> NoReturn:
        self._core.refuse(name, new_name)

    @answered
    def link(self, _inode: int, _parent: int, name: bytes, _: object) -> NoReturn:
        self._core.refuse(name)

    @answered
    def setxattr(self, inode: int, _name: bytes, _value: bytes, _: object) -> NoReturn:
        self._core.setxattr(inode)

    @answered
    def removexattr(self, inode: int, _name: bytes, _: object) -> NoReturn:
        self._core.setxattr(inode)


def filled(attributes: Attributes) -> EntryAttributes:
    """Attributes as pyfuse3 wants them."""
    entry = EntryAttributes()
    entry.st_ino = attributes.st_ino
    entry.st_mode = attributes.mode
    entry.st_size = attributes.size
    entry.st_blksize = BLOCK_BYTES
    entry.st_blocks = (attributes.size + 511) >> 9
    entry.st_mtime_ns = entry.st_ctime_ns = entry.st_atime_ns = attributes.mtime_ns
    entry.st_nlink = attributes.nlink
    entry.st_uid = attributes.uid
    entry.st_gid = attributes.gid
    entry.entry_timeout = attributes.entry_timeout
    entry.attr_timeout = attributes.attr_timeout
    return entry
