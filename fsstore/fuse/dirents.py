"""Listings in the kernel's format: names with inode and type, or with all attributes; messages as numpy rows.

Rows have no gaps: a name is padded to 8 bytes, and all names of messages have 20.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from struct import Struct
from typing import Any

import numpy as np

from fsstore.fuse.protocol import ATTRIBUTES_FORMAT, DIRENT, ENTRY_FORMAT, NS_PER_S, entry_fields
from fsstore.interface import BLOCK_BYTES, Attributes, DirectoryEntry, ListedNames, MessageColumns, MessageNames

_ENTRY = Struct("=" + ENTRY_FORMAT)
_INODE = Struct("=Q")
_SHOWN_AT = _ENTRY.size - Struct("=" + ATTRIBUTES_FORMAT).size
"""Position of the inode number that stat shows."""
_NO_ATTRIBUTES = bytes(_ENTRY.size)
_PADDING = tuple(bytes(-size % 8) for size in range(8))
"""By the length of a name, modulo 8."""

_NAME = [("inode", "u8"), ("next_position", "u8"), ("name_bytes", "u4"), ("type", "u4"), ("name", "S20"), ("pad", "V4")]
_ATTRIBUTES = [
    ("node", "u8"),
    ("generation", "u8"),
    ("entry_timeout", "u8"),
    ("attr_timeout", "u8"),
    ("timeouts_ns", "u4", 2),
    ("st_ino", "u8"),
    ("size", "u8"),
    ("blocks", "u8"),
    ("times", "u8", 3),
    ("times_ns", "u4", 3),
    ("mode", "u4"),
    ("nlink", "u4"),
    ("uid", "u4"),
    ("gid", "u4"),
    ("rdev", "u4"),
    ("block_bytes", "u4"),
    ("flags", "u4"),
]
NAMES = np.dtype(_NAME)
"""A message in a listing of names."""
ENTRIES = np.dtype(_ATTRIBUTES + _NAME)
"""A message in a listing with attributes."""
HEAD_WORDS = 3
"""Words of 8 bytes before a name: inode; next position; length of the name in the lower half, type in the upper."""
assert (NAMES.itemsize, ENTRIES.itemsize) == (48, _ENTRY.size + 48)


def names_of(entries: Sequence[DirectoryEntry], size: int) -> tuple[bytes, int]:
    """As many of `entries` as fit into `size` bytes, packed, and their number."""
    return _packed(entries, size, lambda attributes: b"")


def entries_of(entries: Sequence[DirectoryEntry], size: int) -> tuple[bytes, int]:
    """As `names_of`, with attributes."""
    return _packed(entries, size, _packed_attributes)


def _packed_attributes(attributes: Attributes) -> bytes:
    if not attributes.inode:  # a name alone
        return _NO_ATTRIBUTES
    between, behind = _packed_but_inodes(attributes[1:9])
    return _INODE.pack(attributes.inode) + between + _INODE.pack(attributes.st_ino) + behind


@lru_cache(4096)
def _packed_but_inodes(fields: tuple[int, ...]) -> tuple[bytes, bytes]:
    """The bytes between and after the two inode numbers of packed attributes. Cached, because most directories in a
    listing differ in nothing else, and one is listed again sooner than most of its entries change."""
    packed = _ENTRY.pack(*entry_fields(Attributes(0, *fields)))
    return packed[_INODE.size : _SHOWN_AT], packed[_SHOWN_AT + _INODE.size :]


def _packed(entries: Sequence[DirectoryEntry], size: int, before: Callable[[Attributes], bytes]) -> tuple[bytes, int]:
    parts: list[bytes] = []
    pack = DIRENT.pack
    for name, attributes, next_position in entries:
        length = len(name)
        head = pack(attributes.shown_inode or attributes.inode, next_position, length, attributes.mode >> 12)
        part = before(attributes) + head + name + _PADDING[length & 7]
        size -= len(part)
        if size < 0:
            break
        parts.append(part)
    return b"".join(parts), len(parts)


def listed_names(columns: ListedNames, size: int) -> tuple[bytes, int]:
    """As `names_of`, of columns."""
    lengths = np.fromiter(map(len, columns.names), np.int64, len(columns.names))
    words = HEAD_WORDS + (lengths + 7 >> 3)
    ends = words.cumsum()
    count = int(ends.searchsorted(size >> 3, side="right"))
    rows, starts = np.zeros(ends[count - 1] if count else 0, np.int64), (ends - words)[:count]
    rows[starts] = columns.inodes[:count]
    rows[starts + 1] = columns.next_positions[:count]
    rows[starts + 2] = (columns.modes >> 12 << 32 | lengths)[:count]
    of_name = np.ones(len(rows), bool)
    for word in range(HEAD_WORDS):
        of_name[starts + word] = False
    padded = b"".join([name + _PADDING[len(name) & 7] for name in columns.names[:count]])
    rows[of_name] = np.frombuffer(padded, np.int64)
    return rows.tobytes(), count


def message_names(columns: MessageNames) -> np.ndarray[Any, Any]:
    """Rows of NAMES, shape (n,)."""
    rows = np.zeros(len(columns.names), NAMES)
    _fill_names(rows, columns)
    return rows


def message_entries(columns: MessageColumns) -> np.ndarray[Any, Any]:
    """Rows of ENTRIES, shape (n,)."""
    rows, shared = np.zeros(len(columns.names), ENTRIES), columns.template
    _fill_names(rows, columns)
    rows["node"] = rows["st_ino"] = columns.inodes
    rows["entry_timeout"] = np.where(columns.readable, shared.entry_timeout, 0)
    rows["attr_timeout"] = np.where(columns.readable, shared.attr_timeout, 0)
    rows["size"] = columns.sizes
    rows["blocks"] = (columns.sizes + 511) >> 9
    seconds, ns = np.divmod(columns.mtimes_ns, NS_PER_S)
    rows["times"], rows["times_ns"] = seconds[:, None], ns[:, None]
    rows["mode"], rows["nlink"], rows["uid"], rows["gid"] = shared.mode, shared.nlink, shared.uid, shared.gid
    rows["block_bytes"] = BLOCK_BYTES
    return rows


def _fill_names(rows: np.ndarray[Any, Any], columns: MessageColumns | MessageNames) -> None:
    rows["inode"] = columns.inodes
    rows["next_position"] = columns.next_positions
    rows["name_bytes"] = columns.names.dtype.itemsize
    rows["type"] = columns.template.mode >> 12
    rows["name"] = columns.names
