"""Messages: what a publisher hands in, and what a reader gets (docs/format.md, 2)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from ipaddress import ip_address

from msgspec import Struct, field
from msgspec.structs import force_setattr

from engine.errors import BodyTooLargeError, DamagedRecordError
from engine.record.compression import COMPRESSED_FLAG, decompress
from engine.record.header import HOSTLESS_BYTES, HeaderFields, RecordHeader
from engine.record.properties import KEYS, TAGS, UNIQUE_KEY, decode_properties, find_property, split_keys


@dataclass(frozen=True, slots=True)
class Host:
    """One end of a connection: `address` in network order, 4 bytes (IPv4) or 16 (IPv6). ValueError for other
    lengths."""

    address: bytes
    port: int

    def __post_init__(self) -> None:
        if len(self.address) not in (4, 16):
            raise ValueError(f"an address has 4 or 16 bytes, not {len(self.address)}")
        if not 0 <= self.port < 1 << 31:
            raise ValueError(f"no such port: {self.port}")

    @classmethod
    def parse(cls, text: str) -> "Host":
        """The host that `str` printed: "10.0.0.5:10911" or "[2001:db8::1]:10911". ValueError."""
        address, colon, port = text.rpartition(":")
        if not colon or not port.isdecimal():
            raise ValueError(f"not an address with a port: {text!r}")
        return cls(ip_address(address.removeprefix("[").removesuffix("]")).packed, int(port))

    @classmethod
    def decode(cls, encoded: bytes) -> "Host":
        """The host in the 8 or 20 bytes that a record holds."""
        return cls(encoded[:-4], int.from_bytes(encoded[-4:], "big") & 0x7FFFFFFF)

    def encode(self) -> bytes:
        """The 8 or 20 bytes that a record holds."""
        return self.address + self.port.to_bytes(4, "big")

    @property
    def is_ipv6(self) -> bool:
        """Whether the address has 16 bytes."""
        return len(self.address) == 16

    def __str__(self) -> str:
        text = ip_address(self.address).compressed
        return f"[{text}]:{self.port}" if self.is_ipv6 else f"{text}:{self.port}"


class Message(Struct, frozen=True, gc=False):  # gc: many are made at once, and none is part of a cycle
    """What a publisher hands in; `msgspec.structs.replace` makes another one like it. Immutable.

    `keys` and `tags` are written as the properties KEYS (joined by a space) and TAGS, first of all, unless `properties`
    names them itself; the further properties follow in the mapping's order. `born_time_ms` None means the time of the
    put, a host of None the store's own. `sys_flag` says how the body is compressed, if it is, and a transaction's
    state; the bits for IPv6 are set when the message is encoded.
    """

    topic: str
    body: bytes | bytearray | memoryview
    keys: Sequence[str] = ()
    tags: str = ""
    properties: Mapping[str, str] = field(default_factory=dict)
    flag: int = 0
    sys_flag: int = 0
    born_time_ms: int | None = None
    born_host: Host | None = None
    store_host: Host | None = None
    reconsume_times: int = 0
    prepared_transaction_offset: int = 0


class StoredMessage:
    """A message in the store: a view of its record that decodes each part when it is asked for. Immutable.

    It keeps the mapped page under it alive; `bytes(message.body)` is a copy that outlives the store. What it is made of
    depends on how it was read: alone (DecodedMessage), or in a run of messages (engine.record.message_run).
    Thread safety: any thread may read it.
    """

    __slots__ = ()

    @property
    def record(self) -> memoryview:
        """The whole record, byte for byte."""
        raise NotImplementedError

    @property
    def _fields(self) -> HeaderFields:
        """Its RecordHeader as a plain tuple."""
        raise NotImplementedError

    @property
    def _topic_position(self) -> int:
        """Of the topic in `record`."""
        raise NotImplementedError

    @property
    def _properties_position(self) -> int:
        """Of the properties in `record`."""
        raise NotImplementedError

    @property
    def topic(self) -> str:
        return self.record[self._topic_position : self._properties_position - 2].tobytes().decode(errors="replace")

    @property
    def header(self) -> RecordHeader:
        """All fixed fields as stored."""
        return RecordHeader._make(self._fields)

    @property
    def queue_id(self) -> int:
        return self._fields[3]

    @property
    def queue_offset(self) -> int:
        """Ordinal in the queue as the record says it (0 for prepared and rolled back transactions)."""
        return self._fields[5]

    @property
    def physical_offset(self) -> int:
        return self._fields[6]

    @property
    def place(self) -> int:
        """Another one for each message, in the order of the log: where its record begins; in a batch,
        plus its number there."""
        return self.physical_offset

    @property
    def body_place(self) -> int:
        """Physical offset of the stored body."""
        fields = self._fields
        return self.physical_offset + HOSTLESS_BYTES + len(fields[9]) + len(fields[11])

    @property
    def physical_end(self) -> int:
        """First byte of the log after this record."""
        return self._fields[6] + self._fields[0]

    @property
    def store_size(self) -> int:
        """Bytes of the whole record."""
        return self._fields[0]

    @property
    def flag(self) -> int:
        """The application's own flag."""
        return self._fields[4]

    @property
    def sys_flag(self) -> int:
        return self._fields[7]

    @property
    def body_crc(self) -> int:
        return self._fields[2]

    @property
    def born_time_ms(self) -> int:
        return self._fields[8]

    @property
    def born_host(self) -> Host:
        return Host.decode(self._fields[9])

    @property
    def store_time_ms(self) -> int:
        return self._fields[10]

    @property
    def store_host(self) -> Host:
        return Host.decode(self._fields[11])

    @property
    def reconsume_times(self) -> int:
        return self._fields[12]

    @property
    def prepared_transaction_offset(self) -> int:
        return self._fields[13]

    @property
    def stored_body(self) -> memoryview:
        """The body as stored, perhaps compressed: a view of the mapped page."""
        fields = self._fields
        position = HOSTLESS_BYTES + len(fields[9]) + len(fields[11])
        return self.record[position : position + fields[14]]

    @property
    def body(self) -> memoryview:
        """The body, decompressed if the record's flag says so (then kept). BodyTooLargeError, DamagedRecordError."""
        raise NotImplementedError

    @property
    def is_compressed(self) -> bool:
        """Whether `body` is not as stored."""
        return bool(self._fields[7] & COMPRESSED_FLAG)

    @property
    def body_size(self) -> int:
        """Bytes of `body`; decompresses a compressed one."""
        return self._fields[14] if not self._fields[7] & COMPRESSED_FLAG else len(self.body)

    @property
    def raw_properties(self) -> memoryview:
        """The properties as stored: name 0x01 value 0x02 name ..."""
        return self.record[self._properties_position :]

    @property
    def properties(self) -> dict[str, str]:
        """All properties that have a name and a value, decoded at each call; the last of equal names wins."""
        return decode_properties(self.raw_properties)

    def find_property(self, name: bytes) -> str:
        """The value of the property with this encoded name, "" when there is none; decodes nothing else."""
        value = find_property(self.raw_properties, name)
        return value.decode(errors="replace") if value else ""

    @property
    def keys(self) -> list[str]:
        """The words of KEYS."""
        return split_keys(self.find_property(KEYS))

    @property
    def tags(self) -> str:
        """TAGS, "" when absent or empty."""
        return self.find_property(TAGS)

    @property
    def unique_key(self) -> str:
        """UNIQ_KEY, the id that a RocketMQ client gave, "" when there is none."""
        return self.find_property(UNIQUE_KEY)

    @property
    def msg_id(self) -> str:
        """Upper-case hex of store host and physical offset: 32 characters, 56 for IPv6."""
        return message_id(self._fields[11], self._fields[6])

    def __repr__(self) -> str:
        place = f"{self.topic}/{self.queue_id}/{self.queue_offset}"
        return f"StoredMessage({place} at {self.physical_offset}, {self._fields[14]} body bytes)"


class DecodedMessage(StoredMessage, Struct, frozen=True, gc=False, eq=False):
    """A message that was read alone: `record` is exactly its bytes, the fixed fields are decoded."""

    record: memoryview
    _fields: HeaderFields
    _topic_position: int
    _properties_position: int
    _body_limit_bytes: int
    _body: memoryview | None = None

    @property
    def body(self) -> memoryview:
        if not self._fields[7] & COMPRESSED_FLAG:
            return self.stored_body
        if self._body is None:
            force_setattr(self, "_body", decompressed_body(self, self._body_limit_bytes))
        assert self._body is not None
        return self._body


def decompressed_body(message: StoredMessage, limit_bytes: int) -> memoryview:
    """The body of a compressed message. BodyTooLargeError, DamagedRecordError; TakesLongError in haste."""
    try:
        body = decompress(message.stored_body, message.sys_flag, limit_bytes)
    except ValueError as error:
        raise DamagedRecordError(message.physical_offset, str(error)) from error
    if len(body) > limit_bytes:
        raise BodyTooLargeError(message.physical_offset, limit_bytes)
    return body


def message_id(store_host: bytes, physical_offset: int) -> str:
    """The id of the message at `physical_offset` of the broker at `store_host` (encoded, 8 or 20 bytes)."""
    return (store_host + physical_offset.to_bytes(8, "big", signed=True)).hex().upper()
