"""Record: one message in the commit log (docs/format.md, 2).

    fixed fields (engine.record.header) | body | topic_size i8 | topic | properties_size i16 | properties

Big-endian, no padding. The size in the fixed fields counts every byte of the record. Version 2, read but not written,
has an i16 topic_size. A full file of the log ends in a blank: size = the bytes left, magic = BLANK_MAGIC.

The body's CRC-32 is the only checksum. Other damage is found if physical_offset is wrong or the sizes do not add up;
docs/format.md, 12 lists undetectable damage. `engine.record.parsed_headers` checks the same for many records at once.
"""

from __future__ import annotations

import re
from struct import Struct
from typing import TYPE_CHECKING, NamedTuple

from engine.errors import DamagedRecordError, IllegalMessageError
from engine.record.header import BLANK_MAGIC, CRC_MASK, HOSTLESS_BYTES, MESSAGE_MAGIC_V2, MIN_RECORD_BYTES, Host
from engine.record.kernel.crc import crc32
from engine.record.kernel.decode import decode_record as decode_record
from engine.record.kernel.decode import read_header as read_header
from engine.record.kernel.encode import Encoder

if TYPE_CHECKING:
    from engine.record.message import Message

CLOSING_ZEROS = 2  # with which a record without properties ends
MAX_TOPIC_BYTES = 127
SECTOR_BYTES = 512

_BLANK = Struct(">ii")
_TOPIC = re.compile(r"[%|a-zA-Z0-9_-]{1,127}", re.ASCII)


class RecordEncoder(Encoder):
    """Encodes records for one store. Thread safety: any thread."""

    def __init__(self, store_host: Host, max_message_bytes: int) -> None:
        """`store_host` is the default for messages without one; a body may have up to `max_message_bytes`."""
        super().__init__(store_host.encode(), max_message_bytes, encode_topic)


def encode_topic(topic: str) -> bytes:
    """The topic as stored, after its size byte. IllegalMessageError."""
    problem = topic_problem(topic)
    if problem is not None:
        raise IllegalMessageError(f"topic {topic!r} {problem}")
    return len(topic).to_bytes(1, "big") + topic.encode()


def check_message(message: Message, max_message_bytes: int) -> None:
    """Raise the error that a put of `message` would raise: IllegalMessageError, MessageTooLargeError."""
    RecordEncoder(Host(bytes(4), 0), max_message_bytes).encode(message, 0, 0)


def topic_problem(topic: str) -> str | None:
    """Reason why a topic is illegal, else None: it must have 1 to 127 characters of a-z A-Z 0-9 % | _ -."""
    if _TOPIC.fullmatch(topic):
        return None
    if not 1 <= len(topic) <= MAX_TOPIC_BYTES:
        return f"has {len(topic)} characters, not 1 to {MAX_TOPIC_BYTES}"
    return "has other characters than a-z A-Z 0-9 % | _ -"


def encode_blank(size: int) -> bytes:
    """The header of the blank that fills the last `size` bytes of a log file."""
    return _BLANK.pack(size, BLANK_MAGIC)


def has_lost_sector(
    view: memoryview, size: int, physical_offset: int, topic_position: int, properties_position: int
) -> bool:
    """Whether a disk sector after the body of the record at the start of `view` (`size` bytes) has only zeros, as a
    write torn by a power loss leaves it.

    Recovery uses this for records that our own writer may not have flushed: it writes no zeros there, other writers
    may. Sectors begin at physical offsets that are multiples of 512, as log files do. The two zeros of an empty
    properties size don't count as lost.
    """
    end = size if properties_position < size else size - 2
    start = topic_position + -(physical_offset + topic_position) % SECTOR_BYTES
    while start < end:
        if not view[start] and not any(view[start : start + SECTOR_BYTES]):
            return True
        start += SECTOR_BYTES
    return False


class FrameExtent(NamedTuple):
    """Size in bytes of a possibly damaged record: by its size field and by its parts; None: impossible. `parts_fit`: a
    right body CRC and a legal topic confirm the parts."""

    by_size: int | None
    by_parts: int | None
    parts_fit: bool


def frame_extent(view: memoryview, physical_offset: int) -> FrameExtent:
    """The sizes of a record at the start of `view`; its magic and physical offset are not checked."""
    try:
        header = read_header(view, physical_offset)
    except DamagedRecordError:
        return FrameExtent(None, None, False)
    by_size = header.store_size if MIN_RECORD_BYTES <= header.store_size <= len(view) else None
    body_size, is_v2 = max(header.stored_body_size, 0), header.magic == MESSAGE_MAGIC_V2
    body = HOSTLESS_BYTES + len(header.born_host) + len(header.store_host)
    topic = body + body_size + 1 + is_v2
    properties = topic + 2
    if properties <= len(view):
        properties += view[topic - 1] | (view[topic - 2] << 8 if is_v2 else 0)
    if properties > len(view):
        return FrameExtent(by_size, None, False)
    properties_size = view[properties - 2] << 8 | view[properties - 1]
    end = properties + (properties_size if properties_size <= 0x7FFF else 0)
    if end > len(view):
        return FrameExtent(by_size, None, False)
    is_legal = _TOPIC.fullmatch(str(view[topic : properties - 2], "latin-1")) and 0 not in view[properties:end]
    fits = bool(is_legal) and body_size > 0 and crc32(view[body : topic - 1 - is_v2]) & CRC_MASK == header.body_crc
    return FrameExtent(by_size, end, fits)
