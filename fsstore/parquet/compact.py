"""Thrift's compact protocol, as much of it as the headers and footers of Parquet need: values, written."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

_TRUE, _I32, _I64, _BINARY, _LIST, _STRUCT = 1, 5, 6, 8, 9, 12
_SHORT_LIST = 15  # from so many items on, the length stands for itself
_REMEMBERED = 1024  # numbers: a footer has the same ones again and again


class Value(NamedTuple):
    """A value: its type in the protocol, and its bytes."""

    kind: int
    encoded: bytes


def varint(number: int) -> bytes:
    """A number that is not negative, seven bits a byte, the lowest first."""
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
    """A signed number; here none is negative."""
    return varint(number << 1)
