"""Row groups: the columns of some messages, ready to be encoded when somebody reads them."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from engine import UNIQUE_KEY, Block, ByteColumn, ExpiredMessageError, MessageStore
from fsstore.parquet import schema
from fsstore.parquet.layout import RangeKey, RowGroup, page_aligned, range_key
from fsstore.parquet.pages import Chunk, Texts, coded, levels_of, numbers, plain, texts_of
from fsstore.parquet.schema import Column

Array = np.ndarray[Any, Any]

_FIRST_TIME_MS, _LAST_TIME_MS = -62_135_596_800_000, 253_402_300_799_999
"""The years 1 to 9999, which every reader can show: a publisher's clock may say anything."""

_GATHERED_LATE = (schema.BODY, schema.UNIQUE_KEY, schema.PROPERTY_VALUES)
"""Columns whose values are not kept: they are in the log, or among the properties."""

_OBJECTS_BYTES = 16 << 10
"""Memory that the objects of a row group take beside its arrays, more or less: of a short one, nearly all."""

_REPLACEMENT = "\ufffd".encode()

_KEPT_BY_MALLOC_BYTES = 31 << 20


class BoundError(Exception):
    """A part of a file is longer than the place that was computed for it: the records have changed."""


class Columns(NamedTuple):
    """The chunks of a row group, and their sizes as they stand in the file; how many rows it has, and how many messages
    are left out because they are damaged; and the bytes of memory that this takes, more or less."""

    chunks: dict[Column, Chunk]
    sizes: tuple[int, ...]
    rows: int
    left_out: int
    kept_bytes: int


def read_columns(store: MessageStore, key: RangeKey, row_group: RowGroup) -> Columns:
    """Read and check the messages of a row group. Values are gathered when a chunk is encoded.

    ExpiredMessageError when the first message of the range is gone, BoundError; else errors as `range_key`.
    """
    _keep_freed_memory()
    _require_range(store, key)
    with store.hold(key.first_physical):
        blocks = store.blocks(key.topic, key.queue, row_group.begin, row_group.end - row_group.begin)
    store.hold(key.first_physical).release()  # what retention took meanwhile would pass for damaged
    _require_range(store, key)  # and what went from the queue for never having been there
    [block] = blocks
    chunks = _chunks_of(store, block, _as_is)
    sizes = _sizes(chunks)
    if not _fits(sizes, row_group):  # what was no text has a sign of three bytes for each of it
        chunks = _chunks_of(store, block, _shortened)
        sizes = _sizes(chunks)
    if not _fits(sizes, row_group):
        raise BoundError(f"row group at queue offset {row_group.begin}")
    kept_bytes = sum(chunk.size for column, chunk in chunks.items() if column not in _GATHERED_LATE)
    kept_bytes += block.bodies.nbytes + block.properties.nbytes + _OBJECTS_BYTES
    return Columns(chunks, sizes, len(block), block.damaged, kept_bytes)


@lru_cache(maxsize=1)
def _keep_freed_memory() -> None:
    """Once glibc has seen a block of that length come and go, it keeps what is freed up to twice of it, and does not
    map shorter ones anew each time, which costs page faults. A daemon that never reads Parquet keeps nothing."""
    np.empty(_KEPT_BY_MALLOC_BYTES, np.uint8)


def _require_range(store: MessageStore, key: RangeKey) -> None:
    """ExpiredMessageError when another range is there, or none."""
    if range_key(store, key.topic, key.queue, key.begin, key.end) != key:
        raise ExpiredMessageError(key.topic, key.queue, key.begin, key.end)


def _sizes(chunks: dict[Column, Chunk]) -> tuple[int, ...]:
    return tuple(chunks[column].size for column in schema.IN_FILE)


def _fits(sizes: tuple[int, ...], row_group: RowGroup) -> bool:
    return sum(map(page_aligned, sizes)) <= row_group.most_bytes


def _chunks_of(store: MessageStore, block: Block, wanted: Callable[[ByteColumn], ByteColumn]) -> dict[Column, Chunk]:
    """The columns of a block; texts as `wanted` has them, but names: those of a row must go on to differ."""
    properties, bodies = block.properties, block.bodies
    key_starts, keys = block.keys()
    key_levels, levels = levels_of(key_starts), levels_of(properties.row_starts)

    def text(size: int, gather: Callable[[], ByteColumn], count: int) -> Texts:
        if wanted is _as_is:
            return Texts(count, size, lambda: gather().slices)
        return texts_of(wanted(gather()))

    unique_keys = text(properties.value_bytes(UNIQUE_KEY), lambda: properties.value(UNIQUE_KEY), len(block))
    values = text(properties.values_bytes, properties.values, int(properties.row_starts[-1]))
    return {
        schema.QUEUE_OFFSET: numbers(block.queue_offset),
        schema.PHYSICAL_OFFSET: numbers(block.physical_offset),
        schema.BODY: plain(Texts(len(block), int(bodies.sizes.sum()), lambda: store.bodies(bodies))),
        schema.KEYS: plain(texts_of(wanted(keys)), key_levels),
        schema.TAGS: coded(wanted(block.tags())),
        schema.UNIQUE_KEY: plain(unique_keys),
        schema.PROPERTY_NAMES: coded(properties.names(), levels),
        schema.PROPERTY_VALUES: plain(values, levels),
        schema.BORN_TIME: numbers(_micros(block.born_time_ms)),
        schema.STORE_TIME: numbers(_micros(block.store_time_ms)),
        schema.BORN_HOST: coded(block.born_host),
        schema.STORE_HOST: coded(block.store_host),
        schema.FLAG: numbers(block.flag.astype(np.int32)),
        schema.SYS_FLAG: numbers(block.sys_flag.astype(np.int32)),
        schema.RECONSUME_TIMES: numbers(block.reconsume_times.astype(np.int32)),
    }


def _as_is(texts: ByteColumn) -> ByteColumn:
    return texts


def _shortened(texts: ByteColumn) -> ByteColumn:
    """Texts with one byte for what was no text."""
    return ByteColumn.of([texts[row].replace(_REPLACEMENT, b"?") for row in range(len(texts))])


def _micros(times_ms: Array) -> Array:
    return np.clip(times_ms, _FIRST_TIME_MS, _LAST_TIME_MS) * 1000
