"""FUSE messages as bytes: requests of the kernel, replies and notices (linux/fuse.h, protocol 7.31 on).

    request   length u32 | opcode u32 | unique u64 | node u64 | uid u32 | gid u32 | pid u32 | 8 bytes | arguments
    reply     length u32 | -errno i32 | unique u64 | result
    notice    length u32 | code i32   | 0 u64      | arguments

All in the machine's own byte order. `unique` is the number of a request, which its reply repeats; a node is an inode
number of ours. Only messages that we answer ourselves are here; libfuse handles the others.
"""

from __future__ import annotations

import errno
from enum import IntEnum
from struct import Struct

from fsstore.interface import BLOCK_BYTES, Attributes, Opened, OpenedDirectory

LARGEST_WRITE_BYTES = 1 << 20
"""Bytes of one write request."""
LARGEST_REQUEST_BYTES = LARGEST_WRITE_BYTES + (1 << 13)
"""Bytes of one request: a write, its header and some room. The kernel requires a buffer of at least this size."""


class Opcode(IntEnum):
    """Requests with handlers of our own."""

    LOOKUP = 1
    FORGET = 2
    GETATTR = 3
    SETATTR = 4
    READLINK = 5
    MKDIR = 9
    UNLINK = 10
    RMDIR = 11
    RENAME = 12
    OPEN = 14
    READ = 15
    WRITE = 16
    RELEASE = 18
    FSYNC = 20
    GETXATTR = 22
    LISTXATTR = 23
    FLUSH = 25
    INIT = 26
    OPENDIR = 27
    READDIR = 28
    RELEASEDIR = 29
    FSYNCDIR = 30
    CREATE = 35
    INTERRUPT = 36
    IOCTL = 39
    BATCH_FORGET = 42
    READDIRPLUS = 44
    RENAME2 = 45


class RareOpcode(IntEnum):
    """Requests that pyfuse3 answers, or libfuse refuses."""

    SYMLINK = 6
    MKNOD = 8
    LINK = 13
    STATFS = 17
    SETXATTR = 21
    REMOVEXATTR = 24
    ACCESS = 34
    POLL = 40
    FALLOCATE = 43
    LSEEK = 46
    COPY_FILE_RANGE = 47


_OPERATIONS = {opcode.value: opcode.name.lower() for opcode in (*Opcode, *RareOpcode)}


def operation_name(opcode: int) -> str:
    """The name of an opcode, for users."""
    return _OPERATIONS.get(opcode) or f"opcode_{opcode}"


# requests

REQUEST = Struct("=IIQQ")
"""length, opcode, unique, node"""
REQUEST_OF_USER = Struct("=IIQQI")
"""The same, and the uid of the caller"""
REQUEST_OF_CALLER = Struct("=IIQQI4xI")
"""The same, and the pid of the caller"""
CALLER = Struct("=III")
"""uid, gid, pid of the caller"""
CALLER_BEGIN = 24
ARGUMENTS = 40
"""Position of the arguments in a request."""
HANDLE = Struct("=Q")
"""read, fsync, release and some others begin with their handle"""
RANGE = Struct("=QQI")
"""read, readdir: handle, position, size"""
FLAGS = Struct("=I")
"""open"""
WRITE = Struct("=QQIIQI4x")
"""write: handle, position, size, write flags, owner of the descriptor, flags of the open file"""
MADE_NAME = ARGUMENTS + 8
"""Position of the name in a mkdir, after mode and umask."""
WRITTEN_BYTES = ARGUMENTS + WRITE.size
"""Position of the bytes in a write."""
FLUSH = Struct("=Q8xQ")
"""flush: handle, owner of the descriptor"""
CREATE = Struct("=II8x")
"""create: flags, mode; the name follows"""
RENAME = Struct("=Q")
"""rename: the other directory; both names follow, a NUL after each"""
RENAME2 = Struct("=QI4x")
"""rename2: the same, and flags"""
SETATTR = Struct("=I4xQQ8xQQ8xII4xI4xII")
"""setattr: valid fields, handle, size, atime, mtime, their nanoseconds, mode, uid, gid"""
SET_MODE, SET_UID, SET_GID, SET_SIZE, SET_ATIME, SET_MTIME, SET_BY_HANDLE = (1 << bit for bit in range(7))
SET_ATIME_NOW, SET_MTIME_NOW = 1 << 7, 1 << 8
XATTR = Struct("=I4x")
"""getxattr, listxattr: largest answer in bytes, 0 to ask for its size; in getxattr the name follows"""
LOOKUPS = Struct("=Q")
"""forget: number of look-ups"""
FORGOTTEN = Struct("=QQ")
"""batch_forget, for each: node, look-ups"""
FORGOTTEN_BEGIN = ARGUMENTS + 8

# replies

REPLY = Struct("=IiQ")
ATTRIBUTES_FORMAT = "QQQQQQIIIIIIIIII"
"""inode, size, blocks, atime, mtime, ctime, their nanoseconds, mode, nlink, uid, gid, rdev, block size, flags"""
ENTRY_FORMAT = "QQQQII" + ATTRIBUTES_FORMAT
"""node, generation, seconds to cache the name and the attributes, their nanoseconds, attributes"""
_NODE_FIELDS = len(ENTRY_FORMAT) - len(ATTRIBUTES_FORMAT)
_ENTRY = Struct("=IiQ" + ENTRY_FORMAT)
_ATTRIBUTES = Struct("=IiQQII" + ATTRIBUTES_FORMAT)
_OPENED = Struct("=IiQQII")
_CREATED = Struct("=IiQ" + ENTRY_FORMAT + "QII")
_TAKEN = Struct("=IiQII")
_XATTR_SIZE = Struct("=IiQI4x")
DIRENT = Struct("=QQII")
"""inode, next position, length of the name, file type; the name follows, padded to 8 bytes"""

DIRECT_IO, KEEP_CACHE, CACHE_DIRECTORY, NO_FLUSH = 1, 2, 8, 32
NS_PER_S = 1_000_000_000

# notices

_INVALIDATE = Struct("=IiQQqq")
_STORE = Struct("=IiQQQII")
_INVALIDATE_INODE, _STORE_DATA = 2, 4
RESEND = Struct("=IiQ").pack(16, 7, 0)
"""The notice (Linux 6.9) that has the kernel send all unanswered requests again."""
VERSION = Struct("=II")
"""The kernel's first request: version, its minor"""
RESEND_MINOR = 40
"""The first minor version with RESEND."""
_ATTRIBUTES_ALONE = -1
_TO_THE_END = 0

# the INIT request, the kernel's first

_AGREED = Struct("=IIIIHHIIH")
"""the reply to INIT: version, its minor, read-ahead, flags, limit and congestion threshold of background requests,
bytes of a write, granularity of times, pages of a request; more fields follow"""
_LIST_WITH_ATTRIBUTES = 1 << 13
_LIST_AS_WANTED = 1 << 14
_DROP_AT_EACH_MTIME = 1 << 12  # not wanted: content that changes elsewhere than at its end is never cached
_PARALLEL = 1 << 18  # look-ups and listings of one directory need not wait for one another


def failed(unique: int, number: int) -> bytes:
    """A reply with an errno."""
    return REPLY.pack(REPLY.size, -number, unique)


def done(unique: int) -> bytes:
    """A reply without a result."""
    return REPLY.pack(REPLY.size, 0, unique)


def header(unique: int, size: int) -> bytes:
    """The header of a reply with `size` bytes of result."""
    return REPLY.pack(REPLY.size + size, 0, unique)


def entry_fields(attributes: Attributes) -> tuple[int, ...]:
    inode, mode, size, mtime_ns, nlink, uid, gid, entry_timeout, attr_timeout, shown_inode = attributes
    seconds, ns = divmod(mtime_ns, NS_PER_S)
    blocks = (size + 511) >> 9
    return (
        inode,
        0,
        entry_timeout,
        attr_timeout,
        0,
        0,
        shown_inode or inode,
        size,
        blocks,
        seconds,
        seconds,
        seconds,
        ns,
        ns,
        ns,
        mode,
        nlink,
        uid,
        gid,
        0,
        BLOCK_BYTES,
        0,
    )


def entry(unique: int, attributes: Attributes) -> bytes:
    """The reply to a look-up; inode 0: the name does not exist, and the kernel may cache that."""
    return _ENTRY.pack(_ENTRY.size, 0, unique, *entry_fields(attributes))


def attributes_of(unique: int, attributes: Attributes) -> bytes:
    attribute_fields = entry_fields(attributes)[_NODE_FIELDS:]
    return _ATTRIBUTES.pack(_ATTRIBUTES.size, 0, unique, attributes.attr_timeout, 0, 0, *attribute_fields)


def opened(unique: int, file: Opened, *, nothing_to_flush: bool) -> bytes:
    """The reply to open. With nothing to flush, a close sends no FLUSH (kernels before 5.16 send it all the same)."""
    flags = file.direct_io * DIRECT_IO | file.keep_cache * KEEP_CACHE | nothing_to_flush * NO_FLUSH
    return _OPENED.pack(_OPENED.size, 0, unique, file.handle, flags, 0)


def created(unique: int, attributes: Attributes, file: Opened) -> bytes:
    flags = file.direct_io * DIRECT_IO | file.keep_cache * KEEP_CACHE
    return _CREATED.pack(_CREATED.size, 0, unique, *entry_fields(attributes), file.handle, flags, 0)


def opened_directory(unique: int, directory: OpenedDirectory) -> bytes:
    flags = directory.uses_cache * CACHE_DIRECTORY | directory.keep_cache * KEEP_CACHE
    return _OPENED.pack(_OPENED.size, 0, unique, directory.handle, flags, 0)


def taken(unique: int, size: int) -> bytes:
    """The reply to a write of `size` bytes."""
    return _TAKEN.pack(_TAKEN.size, 0, unique, size, 0)


def xattr(unique: int, value: bytes, room: int) -> bytes:
    """The reply to getxattr and listxattr: `value`; its size if `room` is 0, ERANGE if `room` is too small."""
    if not room:
        return _XATTR_SIZE.pack(_XATTR_SIZE.size, 0, unique, len(value))
    return header(unique, len(value)) + value if len(value) <= room else failed(unique, errno.ERANGE)


def attributes_changed(inode: int) -> bytes:
    """The notice that drops the cached attributes of an inode, but not its data."""
    return _INVALIDATE.pack(_INVALIDATE.size, _INVALIDATE_INODE, 0, inode, _ATTRIBUTES_ALONE, 0)


def data_changed(inode: int, position: int) -> bytes:
    """The notice that drops the cached data of an inode from `position` on, with the rest of the page."""
    return _INVALIDATE.pack(_INVALIDATE.size, _INVALIDATE_INODE, 0, inode, position, _TO_THE_END)


def data_of(inode: int, position: int, size: int) -> bytes:
    """The header of a notice that stores `size` bytes of an inode in the kernel's cache, from `position` on. The kernel
    enlarges an inode that ended before."""
    return _STORE.pack(_STORE.size + size, _STORE_DATA, 0, inode, position, size, 0)


def serving_as_wanted(init_reply: bytes, page_bytes: int) -> bytes:
    """libfuse's reply to INIT, changed: a listing returns attributes when they are wanted, one slow look-up in a
    directory delays no other, cached bytes survive a change of the modification time, and no request is larger than
    LARGEST_REQUEST_BYTES. libfuse counts pages, and some kernels let it have many large ones."""
    major, minor, read_ahead, flags, background, congested, write_bytes, granularity, pages = _AGREED.unpack_from(
        init_reply, REPLY.size
    )
    flags = (flags | _LIST_WITH_ATTRIBUTES | _LIST_AS_WANTED | _PARALLEL) & ~_DROP_AT_EACH_MTIME
    write_bytes = min(write_bytes, LARGEST_WRITE_BYTES)
    pages = min(pages, LARGEST_WRITE_BYTES // page_bytes + 1)  # one more: a buffer may begin within a page
    changed = bytearray(init_reply)
    agreed = (major, minor, read_ahead, flags, background, congested, write_bytes, granularity, pages)
    _AGREED.pack_into(changed, REPLY.size, *agreed)
    return bytes(changed)
