"""The format of Parquet's metadata: the one table of columns, and Thrift's compact protocol for footers and headers.

FIELDS is the table. The columns, their order in a file, the schema in the footer, the size of a row and Spark's schema
follow from it; `row_groups` has the values.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from enum import Enum
from functools import lru_cache
from typing import NamedTuple

# Thrift's compact protocol, as far as Parquet's headers and footers need it: encoders of values.

_TRUE, _I32, _I64, _BINARY, _LIST, _STRUCT = 1, 5, 6, 8, 9, 12
_SHORT_LIST = 15  # the least length that is written on its own
_REMEMBERED = 1024  # numbers: a footer repeats the same ones


class Value(NamedTuple):
    """A value: its type in the protocol, and its bytes."""

    kind: int
    encoded: bytes


def varint(number: int) -> bytes:
    """A number of 0 or more, seven bits per byte, the lowest first."""
    encoded = bytearray()
    while number > 0x7F:
        encoded.append(number & 0x7F | 0x80)
        number >>= 7
    encoded.append(number)
    return bytes(encoded)


@lru_cache(maxsize=_REMEMBERED)
def i32(number: int) -> Value:
    """An integer or an enum."""
    return Value(_I32, _zigzag(number))


@lru_cache(maxsize=_REMEMBERED)
def i64(number: int) -> Value:
    return Value(_I64, _zigzag(number))


def true() -> Value:
    return Value(_TRUE, b"")


def text(characters: str) -> Value:
    return binary(characters.encode())


def binary(content: bytes) -> Value:
    return Value(_BINARY, varint(len(content)) + content)


def items(values: Sequence[Value]) -> Value:
    """A list of values of one type; of structs, if it is empty."""
    kind, count = values[0].kind if values else _STRUCT, len(values)
    head = bytes((count << 4 | kind,)) if count < _SHORT_LIST else bytes((0xF0 | kind,)) + varint(count)
    return Value(_LIST, head + b"".join(value.encoded for value in values))


def struct(fields: dict[int, Value | None]) -> Value:
    """A struct, or a union: values by their ids, which ascend; None: the field is absent. Ids are 15 apart at most."""
    encoded, before = bytearray(), 0
    for number, value in fields.items():
        if value is not None:
            encoded.append((number - before) << 4 | value.kind)
            encoded += value.encoded
            before = number
    encoded.append(0)
    return Value(_STRUCT, bytes(encoded))


def _zigzag(number: int) -> bytes:
    """A signed number; no number here is negative."""
    return varint(number << 1)


# columns

INT32, INT64, BYTE_ARRAY = 1, 2, 6
_REQUIRED, _REPEATED = 0, 2
_AS_UTF8, _AS_MAP, _AS_LIST, _AS_MICROS = 0, 1, 3, 10  # converted types, for older readers


class Type(Enum):
    """The type of a field, and the most bits of a row in addition to the bytes in its record."""

    INT = 32, "int32"
    LONG = 64, "int64"
    TIME = 64, "microseconds, UTC"
    BYTES = 32, "bytes"  # their length; the same for texts
    TEXT = 32, "text"
    HOST = 32 + 26 * 8, "text"  # a port has up to 31 bits
    TEXTS = 2, "list of text"  # levels
    MAP = 4, "map of text to text"  # levels of names and of values

    @property
    def row_bits(self) -> int:
        return self.value[0]


class Field(NamedTuple):
    """A field of a message."""

    name: str
    type: Type
    rank: int = 0
    """The order of chunks in a row group, the expensive ones last: the kernel reads beyond a cheap chunk."""
    repeats: bool = False
    """Whether many messages have the same value, so that a dictionary is worth it."""


FIELDS = (
    Field("queue_offset", Type.LONG),
    Field("physical_offset", Type.LONG),
    Field("body", Type.BYTES, 6),
    Field("keys", Type.TEXTS, 3),
    Field("tags", Type.TEXT, 2, repeats=True),
    Field("unique_key", Type.TEXT, 4),
    Field("properties", Type.MAP, 5, repeats=True),
    Field("born_time", Type.TIME),
    Field("store_time", Type.TIME),
    Field("born_host", Type.HOST, 1, repeats=True),
    Field("store_host", Type.HOST, 1, repeats=True),
    Field("flag", Type.INT, repeats=True),
    Field("sys_flag", Type.INT, repeats=True),
    Field("reconsume_times", Type.INT, repeats=True),
)
"""In the order of the schema."""


class Column(NamedTuple):
    """A column with values: its path in the schema, with dots, and its physical type."""

    name: str
    kind: int


class Schema:
    """Columns, sizes and schema that follow from a table of fields."""

    def __init__(self, fields: Sequence[Field]) -> None:
        by_rank = sorted(fields, key=lambda field: field.rank)
        self.columns = tuple(column for field in fields for column in _columns(field))
        """In the order of the schema."""
        self.in_file = tuple(column for field in by_rank for column in _columns(field))
        """In the order of the chunks in a row group."""
        self.repeating = tuple(column.name for field in fields if field.repeats for column in _columns(field))
        """Paths of the columns in which values repeat."""
        self.row_bytes = -(-sum(field.type.row_bits for field in fields) // 8)
        """The most bytes of a row in addition to its record's."""
        self.elements = (
            struct({4: text("schema"), 5: i32(len(fields))}),
            *(element for field in fields for element in _elements(field)),
        )
        """The tree of the schema, depth first."""


def _columns(field: Field) -> Iterator[Column]:
    match field.type:
        case Type.INT:
            yield Column(field.name, INT32)
        case Type.LONG | Type.TIME:
            yield Column(field.name, INT64)
        case Type.TEXTS:
            yield Column(f"{field.name}.list.element", BYTE_ARRAY)
        case Type.MAP:
            yield Column(f"{field.name}.key_value.key", BYTE_ARRAY)
            yield Column(f"{field.name}.key_value.value", BYTE_ARRAY)
        case Type.BYTES | Type.TEXT | Type.HOST:
            yield Column(field.name, BYTE_ARRAY)


def _elements(field: Field) -> Iterator[Value]:
    name = field.name
    match field.type:
        case Type.INT:
            yield _element(name, INT32)
        case Type.LONG:
            yield _element(name, INT64)
        case Type.TIME:
            yield _time(name)
        case Type.BYTES:
            yield _element(name, BYTE_ARRAY)
        case Type.TEXT | Type.HOST:
            yield _string(name)
        case Type.TEXTS:
            yield _element(name, children=1, converted=_AS_LIST, logical={3: struct({})})
            yield _element("list", children=1, repetition=_REPEATED)
            yield _string("element")
        case Type.MAP:
            yield _element(name, children=1, converted=_AS_MAP, logical={2: struct({})})
            yield _element("key_value", children=2, repetition=_REPEATED)
            yield _string("key")
            yield _string("value")


def _element(
    name: str,
    kind: int | None = None,
    *,
    children: int | None = None,
    repetition: int = _REQUIRED,
    converted: int | None = None,
    logical: dict[int, Value | None] | None = None,
) -> Value:
    return struct(
        {
            1: None if kind is None else i32(kind),
            3: i32(repetition),
            4: text(name),
            5: None if children is None else i32(children),
            6: None if converted is None else i32(converted),
            10: None if logical is None else struct(logical),
        }
    )


def _string(name: str) -> Value:
    return _element(name, BYTE_ARRAY, converted=_AS_UTF8, logical={1: struct({})})


def _time(name: str) -> Value:
    in_utc_micros = struct({1: true(), 2: struct({2: struct({})})})
    return _element(name, INT64, converted=_AS_MICROS, logical={8: in_utc_micros})


SCHEMA = Schema(FIELDS)
