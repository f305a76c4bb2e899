"""Row groups: the columns of some messages, which are encoded when they are read."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any, NamedTuple, TypeVar

import numpy as np

from engine import (
    UNIQUE_KEY,
    Block,
    ByteColumn,
    CodedColumn,
    ExpiredMessageError,
    MessageStore,
    Outline,
    SliceColumn,
)
from fsstore.interface import Array
from fsstore.parquet.format import SCHEMA
from fsstore.parquet.layout import ITEM_SHARE, RangeKey, RowGroup, page_aligned, range_key
from fsstore.parquet.pages import (
    Chunk,
    Texts,
    coded,
    levels_like,
    levels_of,
    numbers,
    numbers_within,
    plain,
    texts_like,
    texts_of,
)

T = TypeVar("T")

_FIRST_TIME_MS, _LAST_TIME_MS = -62_135_596_800_000, 253_402_300_799_999
"""The years 1 to 9999, which every reader can show: a publisher's clock may have any value."""

_GATHERED_LATE = ("body", "unique_key", "properties.key_value.value")
"""Columns whose values are not kept: they can be read from the log, or from the properties."""

_OBJECTS_BYTES = 16 << 10
"""Memory of a row group's objects in addition to its arrays, about; of a short one, nearly all."""

_LENGTH_BYTES = 4
_REPLACEMENT = "\ufffd".encode()


class BoundError(Exception):
    """A part of a file is longer than the space that was computed for it: the records have changed."""


class RowGroupColumns(NamedTuple):
    """The chunks of a row group by column name, their sizes in the order of the file, the numbers of rows and of
    damaged messages left out, and the bytes of memory that they take, about."""

    chunks: dict[str, Chunk]
    sizes: tuple[int, ...]
    rows: int
    left_out: int
    kept_bytes: int


def read_columns(store: MessageStore, key: RangeKey, row_group: RowGroup) -> RowGroupColumns:
    """Read and check the messages of a row group. Values are gathered when a chunk is encoded.

    ExpiredMessageError: the first message of the range has expired. BoundError; other errors as `range_key`.
    """
    [block] = _held(store, key, lambda: store.blocks(key.topic, key.queue, row_group.begin, row_group.messages))
    chunks = _chunks_of(store, block)
    kept_bytes = sum(chunk.size for column, chunk in chunks.items() if column not in _GATHERED_LATE)
    kept_bytes += block.bodies.nbytes + block.properties.nbytes + _OBJECTS_BYTES
    return RowGroupColumns(chunks, _sizes(chunks, row_group), len(block), block.damaged, kept_bytes)


def outline_columns(store: MessageStore, key: RangeKey, row_group: RowGroup) -> RowGroupColumns | None:
    """As `read_columns`, without values, in a fraction of the time: the chunks have sizes and bounds, but can't
    be encoded. None: the columns must be read. Errors as `read_columns`."""
    rows = row_group.messages
    found = _held(store, key, lambda: store.outline(key.topic, key.queue, row_group.begin, rows))
    if found is None:
        return None
    chunks = _outlined(row_group.begin, rows, found)
    return RowGroupColumns(chunks, _sizes(chunks, row_group), rows, 0, 0)


def _held(store: MessageStore, key: RangeKey, read: Callable[[], T]) -> T:
    """The result of `read`, if retention removes nothing of the range meanwhile. ExpiredMessageError."""
    _require_range(store, key)
    is_known = key.first_physical >= 0  # else the disk refused to read the entry of the first message
    with store.hold(key.first_physical) if is_known else nullcontext():
        found = read()
    if is_known:
        store.hold(key.first_physical).release()  # else records that retention removed meanwhile would look damaged
    _require_range(store, key)  # and entries that were removed would look as if they had never existed
    return found


def _sizes(chunks: dict[str, Chunk], row_group: RowGroup) -> tuple[int, ...]:
    """The chunks' sizes in the order of the file. BoundError."""
    sizes = tuple(chunks[column.name].size for column in SCHEMA.in_file)
    if sum(map(page_aligned, sizes)) > row_group.most_bytes:
        raise BoundError(f"row group at queue offset {row_group.begin}")
    return sizes


def _require_range(store: MessageStore, key: RangeKey) -> None:
    """ExpiredMessageError: the range has other records now, or none."""
    if range_key(store, key.topic, key.queue, key.begin, key.end, key.damaged) != key:
        raise ExpiredMessageError(key.topic, key.queue, key.begin, key.end)


def _chunks_of(store: MessageStore, block: Block) -> dict[str, Chunk]:
    properties, bodies = block.properties, block.bodies
    key_starts, keys = block.keys()
    key_levels, levels = levels_of(key_starts), levels_of(properties.row_starts)
    too_long = _too_long(block, np.diff(key_starts), keys)

    def text(find: Callable[[], SliceColumn], counts: Array | None = None) -> Texts:
        """The texts of a column with `counts` values for each row, or one."""
        found = find()
        if too_long is None:
            return Texts(len(found), int(found.sizes.sum()), find)
        return texts_of(_shortened(found, too_long if counts is None else np.repeat(too_long, counts)))

    unique_keys = text(lambda: properties.value(UNIQUE_KEY))
    values = text(lambda: properties.values.slices, np.diff(properties.row_starts))
    key_texts = texts_of(keys.packed()) if too_long is None else text(lambda: keys, np.diff(key_starts))
    return {
        "queue_offset": numbers(block.queue_offset),
        "physical_offset": numbers(block.physical_offset),
        "body": plain(
            Texts(len(block), int(bodies.sizes.sum()), lambda: store.bodies(bodies)), is_copy=bodies.copied is None
        ),
        "keys.list.element": plain(key_texts, key_levels),
        "tags": coded(block.tags()),
        "unique_key": plain(unique_keys),
        "properties.key_value.key": coded(properties.names, levels),
        "properties.key_value.value": plain(values, levels),
        "born_time": numbers(_micros(block.born_time_ms)),
        "store_time": numbers(_micros(block.store_time_ms)),
        "born_host": coded(block.born_host),
        "store_host": coded(block.store_host),
        "flag": numbers(block.flag.astype(np.int32)),
        "sys_flag": numbers(block.sys_flag.astype(np.int32)),
        "reconsume_times": numbers(block.reconsume_times.astype(np.int32)),
    }


def _outlined(begin: int, rows: int, found: Outline) -> dict[str, Chunk]:
    """Chunks of the same sizes and bounds as those of the block with that outline; they can't be encoded."""
    keys, properties, told = found.keys, found.properties, found.numbers
    levels = levels_like(rows, properties.values, properties.empty_rows)
    key_levels = levels_like(rows, keys.values, keys.empty_rows)
    tags = plain(texts_like(rows, found.tag_bytes)) if found.tags is None else coded(CodedColumn.repeated(found.tags))

    def within(bounds: tuple[int, int], kind: type[np.signedinteger[Any]] = np.int64) -> Chunk:
        return numbers_within(np.array(bounds, kind), rows)

    return {
        "queue_offset": within((begin, begin + rows - 1)),
        "physical_offset": within(told.physical_offset),
        "body": plain(texts_like(rows, found.body_bytes)),
        "keys.list.element": plain(texts_like(keys.values, keys.value_bytes), key_levels),
        "tags": tags,
        "unique_key": plain(texts_like(rows, found.unique_key_bytes)),
        "properties.key_value.key": coded(CodedColumn.repeated(found.property_names), levels),
        "properties.key_value.value": plain(texts_like(properties.values, properties.value_bytes), levels),
        "born_time": numbers_within(_micros(np.array(told.born_time_ms)), rows),
        "store_time": numbers_within(_micros(np.array(told.store_time_ms)), rows),
        "born_host": coded(CodedColumn.repeated(found.born_hosts)),
        "store_host": coded(CodedColumn.repeated(found.store_hosts)),
        "flag": within(told.flag, np.int32),
        "sys_flag": within(told.sys_flag, np.int32),
        "reconsume_times": within(told.reconsume_times, np.int32),
    }


def _too_long(block: Block, key_counts: Array, keys: SliceColumn) -> Array | None:
    """The rows (bool (n,)) whose texts need more than their bound, because bytes that are not UTF-8 are shown as three
    bytes each. Which texts are shortened must not depend on neighbouring messages. None: no row."""
    properties = block.properties
    if properties.is_as_stored:
        return None
    rows = np.arange(len(block))

    def bytes_of(counts: Array, texts: SliceColumn) -> Array:
        return np.bincount(np.repeat(rows, counts), texts.sizes + _LENGTH_BYTES, minlength=len(rows))

    counts = np.diff(properties.row_starts)
    needed = bytes_of(counts, properties.values.slices) + bytes_of(counts, properties.names.slices)
    needed += bytes_of(key_counts, keys) + block.tags().slices.sizes + properties.value(UNIQUE_KEY).sizes
    too_long = needed > properties.stored_sizes * ITEM_SHARE
    return too_long if too_long.any() else None


def _shortened(texts: SliceColumn, rows: Array) -> ByteColumn:
    """Texts with one byte for each invalid byte in `rows` (bool (n,)). Names and tags are not shortened: the names of a
    row must stay different, and thrice their bytes and once the values' are within the bound."""
    replaced = (texts[row].replace(_REPLACEMENT, b"?") if is_long else texts[row] for row, is_long in enumerate(rows))
    return ByteColumn.of(list(replaced))


def _micros(times_ms: Array) -> Array:
    return np.clip(times_ms, _FIRST_TIME_MS, _LAST_TIME_MS) * 1000
