"""Record: one message in the commit log (docs/format.md, 2).

    fixed fields (engine.record.header) | body | topic_size i8 | topic | properties_size i16 | properties

Big-endian, no padding. The size in the fixed fields counts every byte of the record. Version 2, read but not written,
has an i16 topic_size. A full file of the log ends in a blank: size = the bytes left, magic = BLANK_MAGIC.

The body's CRC-32 is the only checksum. Damage of the rest shows in physical_offset, which must be where the record is,
and in sizes that must add up; docs/format.md, 12 lists what nothing shows. `engine.record.located` checks the
same of many records at once.
"""

import re
from collections.abc import Mapping, Sequence
from struct import Struct
from struct import error as StructError
from typing import NamedTuple

import msgspec
import numpy as np

from engine.errors import DamagedRecordError, IllegalMessageError, MessageTooLargeError
from engine.record.hashes import tags_hash
from engine.record.header import (
    BLANK_MAGIC,
    BORN_HOST_POSITION,
    CRC_MASK,
    HEADERS,
    HOSTLESS_BYTES,
    IPV6_FLAGS,
    MAGIC_START,
    MESSAGE_MAGIC,
    MESSAGE_MAGIC_V2,
    MIN_RECORD_BYTES,
    QUEUE_OFFSET_POSITION,
)
from engine.record.kernel.crc import crc32
from engine.record.kernel.decode import decode_record as decode_record
from engine.record.kernel.decode import read_header as read_header
from engine.record.message import Host, Message
from engine.record.multi_dispatch import Place
from engine.record.properties import encode_properties, split_keys

CLOSING_ZEROS = 2  # with which a record without properties ends
MAX_TOPIC_BYTES = 127
SECTOR_BYTES = 512

_NO_IPV6 = ~IPV6_FLAGS
_BLANK = Struct(">ii")
_PLACE = Struct(">qq")  # queue_offset, physical_offset
_TIME = Struct(">q")
_RARE_BYTE = MAGIC_START[0]
_MAGIC_WORDS = int.from_bytes(MAGIC_START[:2], "little"), int.from_bytes(MAGIC_START[1:], "little")
_FEW_BYTES = 12 << 10
_MANY_WORDS = 1_000
_TOPIC = re.compile(r"[%|a-zA-Z0-9_-]{1,127}", re.ASCII)


class EncodedRecord(msgspec.Struct, gc=False):
    """One record to be appended: complete but for what only the append lock can say.

    `buffer` holds all of it; `place` fills in the rest. The others are what dispatch wants to know of it: `sys_flag`,
    `tags_code` (`delay.tags_code`), `keys` (the unique key first, when it has one), `places`, its further queues.
    `names_magic`: see there.
    """

    buffer: bytearray
    store_time_position: int
    sys_flag: int = 0
    tags_code: int = 0
    keys: Sequence[str] = ()
    places: Sequence[Place] = ()
    names_magic: bool = False

    @property
    def records(self) -> int:
        """How many it is."""
        return 1

    @property
    def size(self) -> int:
        """Bytes of the record."""
        return len(self.buffer)

    def place(self, queue_offset: int, physical_offset: int, store_time_ms: int) -> None:
        """Fill in where and when the record is stored; may be done again after another try."""
        _PLACE.pack_into(self.buffer, QUEUE_OFFSET_POSITION, queue_offset, physical_offset)
        _TIME.pack_into(self.buffer, self.store_time_position, store_time_ms)


class Hosts(NamedTuple):
    """A record's two hosts as stored, and what follows from their lengths."""

    born: bytes
    store: bytes
    sys_flag: int
    """The bits that say which of them are IPv6."""
    layout: Struct
    """Of the fixed fields."""
    fixed_bytes: int
    """Of fixed fields and properties' size."""
    store_time_position: int

    @classmethod
    def of(cls, born: bytes, store: bytes) -> "Hosts":
        """These two."""
        families = (len(born) == 20) + 2 * (len(store) == 20)
        layout = HEADERS[families]
        return cls(born, store, families << 4, layout, layout.size + 2, BORN_HOST_POSITION + len(born))


class RecordEncoder:
    """Makes records for one store. Thread safety: any thread may use it."""

    def __init__(self, store_host: Host, max_message_bytes: int) -> None:
        """`store_host` is written to records of messages that name none; a body may have `max_message_bytes`."""
        self.store_host = store_host
        self.max_message_bytes = max_message_bytes
        self._own_hosts = Hosts.of(store_host.encode(), store_host.encode())
        self._topics: dict[str, bytes] = {}

    def encode(self, message: Message, queue_id: int, now_ms: int) -> EncodedRecord:
        """The record of `message`, born at `now_ms` unless it says when. IllegalMessageError, MessageTooLargeError."""
        topic = self._topics.get(message.topic) or self.encode_topic(message.topic)
        keys, tags, further, sys_flag = message.keys, message.tags, message.properties, message.sys_flag
        properties = encode_properties(keys, tags, further)
        body = message.body
        body_size = len(body)
        if type(body) is not bytes or body_size > self.max_message_bytes:
            body = self.check_body(body)
            body_size = len(body)
        own = message.born_host is None and message.store_host is None
        born_host, store_host, host_flags, layout, fixed_bytes, store_time_position = (
            self._own_hosts if own else self._hosts(message)
        )
        properties_size = len(properties)
        try:
            header = layout.pack(
                fixed_bytes + body_size + len(topic) + properties_size,
                MESSAGE_MAGIC,
                crc32(body) & CRC_MASK,
                queue_id,
                message.flag,
                0,
                0,
                sys_flag & _NO_IPV6 | host_flags,
                now_ms if message.born_time_ms is None else message.born_time_ms,
                born_host,
                0,
                store_host,
                message.reconsume_times,
                message.prepared_transaction_offset,
                body_size,
            )
        except StructError as error:
            raise IllegalMessageError(f"a number does not fit its field: {error}") from error
        buffer = bytearray().join((header, body, topic, properties_size.to_bytes(2, "big"), properties))
        if further:
            keys, tags = index_keys(keys, further), further.get("TAGS", tags)
        found = buffer.find(_RARE_BYTE, layout.size) >= 0 and _names_magic(buffer, layout.size)
        return EncodedRecord(buffer, store_time_position, sys_flag, tags_hash(tags), keys, (), found)

    def _hosts(self, message: Message) -> Hosts:
        own = self._own_hosts
        born = message.born_host.encode() if message.born_host else own.born
        return Hosts.of(born, message.store_host.encode() if message.store_host else own.store)

    def check_body(self, body: bytes | bytearray | memoryview) -> bytes | bytearray | memoryview:
        """The body as plain bytes of a legal size. MessageTooLargeError."""
        if type(body) is memoryview:
            body = body.cast("B") if body.c_contiguous else body.tobytes()
        self.check_body_size(len(body))
        return body

    def check_body_size(self, size: int) -> None:
        """MessageTooLargeError when a body of `size` bytes is too large."""
        if size > self.max_message_bytes:
            raise MessageTooLargeError("body", size, self.max_message_bytes)

    def encode_topic(self, topic: str) -> bytes:
        """The topic as stored, its size byte in front. IllegalMessageError, MessageTooLargeError."""
        known = self._topics.get(topic)
        if known is not None:
            return known
        problem = topic_problem(topic)
        if problem is not None:
            raise IllegalMessageError(f"topic {topic!r} {problem}")
        encoded = len(topic).to_bytes(1, "big") + topic.encode()
        if len(self._topics) < 10_000:
            self._topics[topic] = encoded
        return encoded


def names_magic(buffer: bytearray, start: int) -> bool:
    """Whether a record's magic may occur in `buffer` from position `start` on: almost never in what is no record.

    No text in UTF-8 holds one, few hold its first byte, and looking for one byte costs next to nothing.
    """
    return buffer.find(_RARE_BYTE, start) >= 0 and _names_magic(buffer, start)


def _names_magic(buffer: bytearray, start: int) -> bool:
    """As `names_magic`: a few KB are searched from the end, which takes a third of the time; more by words, of which a
    magic holds one of two."""
    if len(buffer) < _FEW_BYTES:
        return buffer.rfind(MAGIC_START, start) >= 0
    words = np.frombuffer(buffer, "<u2", (len(buffer) - start) // 2, start)
    found = np.flatnonzero((words == _MAGIC_WORDS[0]) | (words == _MAGIC_WORDS[1]))
    if len(found) > _MANY_WORDS:
        return True
    positions = (start + 2 * found).tolist()
    return any(buffer.find(MAGIC_START, max(at - 1, start), at + len(MAGIC_START)) >= 0 for at in positions)


def check_message(message: Message, max_message_bytes: int) -> None:
    """Raise what a put of `message` would say of it: IllegalMessageError, MessageTooLargeError."""
    RecordEncoder(Host(bytes(4), 0), max_message_bytes).encode(message, 0, 0)


def topic_problem(topic: str) -> str | None:
    """Why no record can have this topic, None when it can: 1 to 127 characters of a-z A-Z 0-9 % | _ -."""
    if _TOPIC.fullmatch(topic):
        return None
    if not 1 <= len(topic) <= MAX_TOPIC_BYTES:
        return f"has {len(topic)} characters, not 1 to {MAX_TOPIC_BYTES}"
    return "has other characters than a-z A-Z 0-9 % | _ -"


def index_keys(keys: Sequence[str], properties: Mapping[str, str]) -> Sequence[str]:
    """The keys of a message that the index shall hold, the unique one first."""
    keys = split_keys(properties["KEYS"]) if "KEYS" in properties else keys
    unique_key = properties.get("UNIQ_KEY")
    return (unique_key, *keys) if unique_key else keys


def encode_blank(size: int) -> bytes:
    """The header of the blank that takes the last `size` bytes of a file of the log."""
    return _BLANK.pack(size, BLANK_MAGIC)


def record_problem(view: memoryview, physical_offset: int, *, property_crc: bool = False) -> str | None:
    """Why there is no whole record at the start of `view`, None when there is: sizes, physical offset, body
    CRC.

    With `property_crc`, the checksum over the whole record that RocketMQ 5 can be told to write is verified as well,
    where there is one.
    """
    try:
        message = decode_record(view, physical_offset)
    except DamagedRecordError as damage:
        return damage.reason
    return property_crc_problem(message.record) if property_crc else None


def has_lost_sector(
    view: memoryview, size: int, physical_offset: int, topic_position: int, properties_position: int
) -> bool:
    """Whether a disk sector that begins after the body of the record at the start of `view`, `size` bytes long, reads
    as zeros to its end: as a write that power loss tore leaves it.

    Only recovery asks, of records that our own writer may not have brought to disk: we write no zeros there, others
    may. Sectors begin at multiples of 512 of the physical offset, as files of the log do. The two zeros that say "no
    properties" are none lost.
    """
    end = size if properties_position < size else size - 2
    start = topic_position + -(physical_offset + topic_position) % SECTOR_BYTES
    while start < end:
        if not view[start] and not any(view[start : start + SECTOR_BYTES]):
            return True
        start += SECTOR_BYTES
    return False


class FrameExtent(NamedTuple):
    """How long a record is that may be damaged: by its size field and by its parts, None where that can't be.
    `parts_fit`: the body's CRC and a legal topic say that its parts are where they were."""

    by_size: int | None
    by_parts: int | None
    parts_fit: bool


def frame_extent(view: memoryview, physical_offset: int) -> FrameExtent:
    """What the sizes in a record at the start of `view` say, whatever its magic and physical offset are."""
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


_PROPERTY_CRC_BYTES = 20
_PROPERTY_CRC_MARK = b"__CRC32#\x01"


def property_crc_problem(record: memoryview) -> str | None:
    """What is wrong with RocketMQ 5's checksum in the last 20 bytes of `record`; None when it is right or there is
    none."""
    end = bytes(record[-_PROPERTY_CRC_BYTES:])
    if not end.startswith(_PROPERTY_CRC_MARK):
        return None
    stored = end[len(_PROPERTY_CRC_MARK) : -1]
    found = crc32(record[:-_PROPERTY_CRC_BYTES]) & CRC_MASK
    return (
        None if stored == (b"%d" % found)[::-1].ljust(10, b"0") else f"record CRC {found}, stored {stored!r} reversed"
    )
