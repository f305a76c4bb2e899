"""The columns of the dataset, and how Parquet's footers name them."""

from __future__ import annotations

from typing import NamedTuple

from fsstore.parquet.compact import Value, i32, struct, text, true

INT32, INT64, BYTE_ARRAY = 1, 2, 6
_REQUIRED, _REPEATED = 0, 2
_UTF8, _MAP, _LIST, _TIMESTAMP_MICROS = 0, 1, 3, 10  # converted types, which older readers know


class Column(NamedTuple):
    """A column that has values: its path in the schema, and their physical type."""

    path: tuple[str, ...]
    kind: int


QUEUE_OFFSET = Column(("queue_offset",), INT64)
PHYSICAL_OFFSET = Column(("physical_offset",), INT64)
BODY = Column(("body",), BYTE_ARRAY)
KEYS = Column(("keys", "list", "element"), BYTE_ARRAY)
TAGS = Column(("tags",), BYTE_ARRAY)
UNIQUE_KEY = Column(("unique_key",), BYTE_ARRAY)
PROPERTY_NAMES = Column(("properties", "key_value", "key"), BYTE_ARRAY)
PROPERTY_VALUES = Column(("properties", "key_value", "value"), BYTE_ARRAY)
BORN_TIME = Column(("born_time",), INT64)
STORE_TIME = Column(("store_time",), INT64)
BORN_HOST = Column(("born_host",), BYTE_ARRAY)
STORE_HOST = Column(("store_host",), BYTE_ARRAY)
FLAG = Column(("flag",), INT32)
SYS_FLAG = Column(("sys_flag",), INT32)
RECONSUME_TIMES = Column(("reconsume_times",), INT32)

COLUMNS = (
    QUEUE_OFFSET,
    PHYSICAL_OFFSET,
    BODY,
    KEYS,
    TAGS,
    UNIQUE_KEY,
    PROPERTY_NAMES,
    PROPERTY_VALUES,
    BORN_TIME,
    STORE_TIME,
    BORN_HOST,
    STORE_HOST,
    FLAG,
    SYS_FLAG,
    RECONSUME_TIMES,
)
"""As readers see them."""

IN_FILE = (
    QUEUE_OFFSET,
    PHYSICAL_OFFSET,
    BORN_TIME,
    STORE_TIME,
    FLAG,
    SYS_FLAG,
    RECONSUME_TIMES,
    BORN_HOST,
    STORE_HOST,
    TAGS,
    KEYS,
    UNIQUE_KEY,
    PROPERTY_NAMES,
    PROPERTY_VALUES,
    BODY,
)
"""As their chunks stand in a row group: the dear ones last, so that who reads a little more than a cheap one, as the
kernel does, does not have them rendered."""


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
    return _element(name, BYTE_ARRAY, converted=_UTF8, logical={1: struct({})})


def _time(name: str) -> Value:
    in_utc_micros = struct({1: true(), 2: struct({2: struct({})})})
    return _element(name, INT64, converted=_TIMESTAMP_MICROS, logical={8: in_utc_micros})


ELEMENTS = (
    struct({4: text("schema"), 5: i32(14)}),
    _element("queue_offset", INT64),
    _element("physical_offset", INT64),
    _element("body", BYTE_ARRAY),
    _element("keys", children=1, converted=_LIST, logical={3: struct({})}),
    _element("list", children=1, repetition=_REPEATED),
    _string("element"),
    _string("tags"),
    _string("unique_key"),
    _element("properties", children=1, converted=_MAP, logical={2: struct({})}),
    _element("key_value", children=2, repetition=_REPEATED),
    _string("key"),
    _string("value"),
    _time("born_time"),
    _time("store_time"),
    _string("born_host"),
    _string("store_host"),
    _element("flag", INT32),
    _element("sys_flag", INT32),
    _element("reconsume_times", INT32),
)
"""The tree of the schema, depth first."""
