"""Header: the fixed fields at the beginning of every record (docs/format.md, 2).

RecordHeader defines the layout: the struct formats, the numpy dtypes and all positions are derived from it. Big-endian,
no padding. An IPv6 host has 20 bytes, so there are four layouts. HEADERS and LAYOUTS are indexed by
(sys_flag >> 4) & 3: bit 0 marks an IPv6 born host, bit 1 an IPv6 store host.
"""

from __future__ import annotations

from dataclasses import dataclass
from ipaddress import ip_address
from struct import Struct
from typing import Annotated, Any, NamedTuple, get_type_hints, overload

import numpy as np

Array = np.ndarray[Any, Any]

MESSAGE_MAGIC = -626843481
MESSAGE_MAGIC_V2 = -626843477
BLANK_MAGIC = -875286124
BLANK_BYTES = 8
"""Bytes of a blank's size and magic; as many must stay free after each record."""
MAX_OFFSET = (1 << 63) - 1
"""Largest offset in a log or queue: the largest int64."""

BORN_IPV6_FLAG, STORE_IPV6_FLAG = 0x10, 0x20
TRANSACTION_MASK = 0xC  # 0x8 of it: committed
TRANSACTION_PREPARED = 0x4
TRANSACTION_ROLLBACK = 0xC
INNER_BATCH = 0x80  # a client's batch, kept as one record
NEEDS_UNWRAPPING = 0x40  # and to be unwrapped by readers

CRC_MASK = 0x7FFFFFFF
"""The bits of a CRC-32 that a record keeps."""


I32 = Annotated[int, "i"]
I64 = Annotated[int, "q"]
HostBytes = Annotated[bytes, "8s"]
"""Types of stored fields, with their format codes of `struct`; a host is IPv4."""


@dataclass(frozen=True, slots=True)
class Host:
    """A host: `address` in network order, 4 bytes (IPv4) or 16 (IPv6). ValueError: another length."""

    address: bytes
    port: int

    def __post_init__(self) -> None:
        if len(self.address) not in (4, 16):
            raise ValueError(f"an address has 4 or 16 bytes, not {len(self.address)}")
        if not 0 <= self.port < 1 << 31:
            raise ValueError(f"no such port: {self.port}")

    @classmethod
    def parse(cls, text: str) -> Host:
        """The inverse of `str`: "10.0.0.5:10911" or "[2001:db8::1]:10911". ValueError."""
        address, colon, port = text.rpartition(":")
        if not colon or not port.isdecimal():
            raise ValueError(f"not an address with a port: {text!r}")
        return cls(ip_address(address.removeprefix("[").removesuffix("]")).packed, int(port))

    @classmethod
    def decode(cls, encoded: bytes) -> Host:
        """The host from the 8 or 20 bytes in a record."""
        return cls(encoded[:-4], int.from_bytes(encoded[-4:], "big") & 0x7FFFFFFF)

    def encode(self) -> bytes:
        """The 8 or 20 bytes in a record."""
        return self.address + self.port.to_bytes(4, "big")

    @property
    def is_ipv6(self) -> bool:
        """Whether the address has 16 bytes."""
        return len(self.address) == 16

    def __str__(self) -> str:
        text = ip_address(self.address).compressed
        return f"[{text}]:{self.port}" if self.is_ipv6 else f"{text}:{self.port}"


class RecordHeader(NamedTuple):
    """A record's fixed fields in stored order; hosts are encoded (`Host.decode`)."""

    store_size: I32
    magic: I32
    body_crc: I32
    queue_id: I32
    flag: I32
    queue_offset: I64
    physical_offset: I64
    sys_flag: I32
    born_time_ms: I64
    born_host: HostBytes
    store_time_ms: I64
    store_host: HostBytes
    reconsume_times: I32
    prepared_transaction_offset: I64
    stored_body_size: I32


def big_endian(header: type, **other: str) -> tuple[Struct, np.dtype[Any]]:
    """The packed layout of a class's annotated fields, as Struct for one record and as dtype for many. `other` replaces
    format codes by field name."""
    types = get_type_hints(header, include_extras=True)
    codes = {name: other.get(name, kind.__metadata__[0]) for name, kind in types.items()}
    formats = [f"V{code[:-1]}" if code.endswith("s") else f">{code}" for code in codes.values()]
    return Struct(">" + "".join(codes.values())), np.dtype(list(zip(codes, formats, strict=True)))


_PACKED = [
    big_endian(RecordHeader, born_host=f"{born}s", store_host=f"{store}s") for store in (8, 20) for born in (8, 20)
]
HEADERS = tuple(header for header, _ in _PACKED)
LAYOUTS = tuple(layout for _, layout in _PACKED)


def position_of(name: str) -> int:
    """Position in a record of a field up to the born host, which is the same in all layouts."""
    return int(LAYOUTS[0].fields[name][1])  # type: ignore[index]


HOSTLESS_BYTES = HEADERS[0].size - 8 - 8
"""Bytes of the fixed fields without the hosts; with both hosts' bytes, the position of the body."""
MIN_RECORD_BYTES = HEADERS[0].size + 1 + 2
"""Bytes of a record with an empty body, topic and properties. They include the size fields of topic and properties."""

MAGIC_START = MESSAGE_MAGIC.to_bytes(4, "big", signed=True)[:3]
"""The common first bytes of both magics."""
assert MESSAGE_MAGIC_V2.to_bytes(4, "big", signed=True)[:3] == MAGIC_START


@overload
def is_queued(sys_flag: int) -> bool: ...
@overload
def is_queued(sys_flag: Array) -> Array: ...
def is_queued(sys_flag: int | Array) -> bool | Array:
    """Whether records with these system flags have a queue offset; prepared and rolled-back transactions have none."""
    return sys_flag & TRANSACTION_PREPARED == 0  # the bit is part of TRANSACTION_ROLLBACK, not of a commit


@overload
def is_rolled_back(sys_flag: int) -> bool: ...
@overload
def is_rolled_back(sys_flag: Array) -> Array: ...
def is_rolled_back(sys_flag: int | Array) -> bool | Array:
    """Whether records with these system flags are rolled-back transactions."""
    return sys_flag & TRANSACTION_MASK == TRANSACTION_ROLLBACK


def message_id(store_host: bytes, physical_offset: int) -> str:
    """The id of the message at `physical_offset` of the broker at `store_host` (encoded, 8 or 20 bytes)."""
    return (store_host + physical_offset.to_bytes(8, "big", signed=True)).hex().upper()
