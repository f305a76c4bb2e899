"""A message's metadata as extended attributes: text, decimal or UTF-8, times in epoch milliseconds, hosts `ip:port`."""

from __future__ import annotations

import errno
from collections.abc import Callable

from engine import StoredMessage
from fsstore.interface import FilesystemError
from fsstore.tree.names import NAME_MAX_BYTES

USER = b"user."
PREFIX = "user.mq."
PROPERTY_PREFIX = "user.mq.property."
LIST_MAX_BYTES = 65_536
"""The kernel's limit for a list, with a NUL after each name."""

_TEXTS: dict[str, Callable[[StoredMessage], str]] = {
    "keys": lambda message: " ".join(message.keys),
    "tags": lambda message: message.tags,
    "unique_key": lambda message: message.unique_key,
    "msg_id": lambda message: message.msg_id,
    "born_host": lambda message: str(message.born_host),
    "store_host": lambda message: str(message.store_host),
}
_NUMBERS: dict[str, Callable[[StoredMessage], int]] = {
    "queue_offset": lambda message: message.queue_offset,
    "physical_offset": lambda message: message.physical_offset,
    "store_size": lambda message: message.store_size,
    "born_time": lambda message: message.born_time_ms,
    "store_time": lambda message: message.store_time_ms,
    "sys_flag": lambda message: message.sys_flag,
    "flag": lambda message: message.flag,
    "reconsume_times": lambda message: message.reconsume_times,
    "body_crc": lambda message: message.body_crc,
}
_FIELDS: dict[str, Callable[[StoredMessage], str | int]] = {**_TEXTS, **_NUMBERS}
NUMBERS = frozenset(_NUMBERS)
"""Names of numeric attributes, whose values are decimal."""
FIELD_NAMES = tuple(PREFIX + name for name in _FIELDS)
"""Full names of all attributes except the properties."""
_LISTED = ("keys", "tags", "unique_key", "queue_offset", "born_time", "store_time", "born_host")
"""Fields in a list of names. `ls -l` offers 152 bytes for each file's list, and sends two more requests for a longer
one: the list of a message with a key and a tag fits."""


def attributes_of(message: StoredMessage) -> dict[str, bytes]:
    """All attributes of a message that have a value, by full name; properties last."""
    fields = {PREFIX + name: str(read(message)).encode() for name, read in _FIELDS.items()}
    present = {name: value for name, value in fields.items() if value}
    return present | {PROPERTY_PREFIX + name: value.encode() for name, value in message.properties.items()}


def list_names(message: StoredMessage) -> list[bytes]:
    """Names to list: fields of _LISTED that have a value, and the properties. Names that the kernel does not accept, or
    that exceed its largest list, are left out. All other fields can be read by name."""
    names: list[bytes] = []
    room = LIST_MAX_BYTES
    fields = [PREFIX + name for name in _LISTED if _FIELDS[name](message) != ""]
    for name in (name.encode() for name in (*fields, *(PROPERTY_PREFIX + name for name in message.properties))):
        fits = len(name) <= NAME_MAX_BYTES and b"\0" not in name and len(name) + 1 <= room
        if fits:
            names.append(name)
            room -= len(name) + 1
    return names


def read_value(message: StoredMessage, name: bytes) -> bytes:
    """The value of an attribute. ENODATA: it has none."""
    text = name.decode("utf-8", "replace")
    field = _FIELDS.get(text.removeprefix(PREFIX)) if text.startswith(PREFIX) else None
    if field is not None:
        value = str(field(message))
    else:
        found = message.properties.get(text.removeprefix(PROPERTY_PREFIX)) if text.startswith(PROPERTY_PREFIX) else None
        value = found or ""
    if not value:
        raise no_attribute(name)
    return value.encode()


def no_attribute(name: bytes) -> FilesystemError:
    """The error for a missing attribute. ENOTSUP outside `user.` keeps the kernel from asking again."""
    return FilesystemError(errno.ENODATA if name.startswith(USER) else errno.ENOTSUP)
