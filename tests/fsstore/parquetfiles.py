"""Files of `@parquet` for tests: laid out, rendered and read without a mount."""

from __future__ import annotations

import io
from typing import Any

import pyarrow.parquet as pq

from engine import FileSizes, MessageStore, StoreConfig, StoredMessage, StoreError
from fsstore.parquet.file_map import FileMap, chunk_index, map_file
from fsstore.parquet.format import SCHEMA
from fsstore.parquet.layout import MAGIC, Layout, measure, range_key
from fsstore.parquet.row_groups import RowGroupColumns, outline_columns, read_columns

SMALL_SIZES = FileSizes(commit_log_bytes=1 << 20, consume_queue_entries=70_000, index_slots=5_000, index_entries=20_000)


def small_files(**options: Any) -> StoreConfig:
    """A store whose log has files of 1 MiB."""
    return StoreConfig(sizes=SMALL_SIZES, **options)


def layout_of(store: MessageStore, topic: str, queue: int = 0, begin: int = 0, end: int | None = None) -> Layout:
    """The layout of a range; `end` None: up to what is there."""
    end = store.bounds(topic, queue).max_offset if end is None else end
    return measure(store, range_key(store, topic, queue, begin, end))


def mapped(store: MessageStore, layout: Layout) -> tuple[FileMap, list[RowGroupColumns]]:
    """The map of a file, and its row groups. That of their outlines is the same."""
    columns = [read_columns(store, layout.key, row_group) for row_group in layout.row_groups]
    found = map_file(layout, columns)
    outlined = [outline_columns(store, layout.key, row_group) for row_group in layout.row_groups]
    same = map_file(layout, (outline or read for outline, read in zip(outlined, columns, strict=True)))
    assert (same.footer, same.sizes, same.left_out) == (found.footer, found.sizes, found.left_out)
    return found, columns


def rendered(store: MessageStore, layout: Layout) -> tuple[bytes, FileMap]:
    """The whole file, put together as its map says."""
    found, columns = mapped(store, layout)
    parts = [(0, MAGIC), (layout.size - len(found.footer), found.footer)]
    for number, start in enumerate(found.starts[:-1].tolist()):
        row_group, column = chunk_index(number)
        parts.append((start, bytes(columns[row_group].chunks[SCHEMA.in_file[column].name].encode())))
        assert start % 4096 == 0
        assert start + len(parts[-1][1]) <= found.starts[number + 1]
    text = bytearray(layout.size)
    for start, part in parts:
        text[start : start + len(part)] = part
    return bytes(text), found


def rows(text: bytes) -> list[dict[str, Any]]:
    """What pyarrow reads of a file; `properties` as a dict."""
    found: list[dict[str, Any]] = pq.ParquetFile(io.BytesIO(text)).read().to_pylist()
    for row in found:
        row["properties"] = dict(row["properties"])
        for name in ("born_time", "store_time"):
            row[name] = round(row[name].timestamp() * 1000)
    return found


def expected_row(message: StoredMessage) -> dict[str, Any]:
    """The row of a message, by what the engine says of it, one message at a time."""
    return {
        "queue_offset": message.queue_offset,
        "physical_offset": message.physical_offset,
        "body": bytes(message.body),
        "keys": message.keys,
        "tags": message.tags,
        "unique_key": message.unique_key,
        "properties": message.properties,
        "born_time": message.born_time_ms,
        "store_time": message.store_time_ms,
        "born_host": str(message.born_host),
        "store_host": str(message.store_host),
        "flag": message.flag,
        "sys_flag": message.sys_flag,
        "reconsume_times": message.reconsume_times,
    }


def expected_rows(store: MessageStore, topic: str, queue: int = 0) -> list[dict[str, Any]]:
    """The rows of all good messages of a queue."""
    found = []
    bounds = store.bounds(topic, queue)
    for queue_offset in range(bounds.min_offset, bounds.max_offset):
        try:
            found.append(expected_row(store.get(topic, queue, queue_offset)))
        except StoreError:
            continue
    return found
