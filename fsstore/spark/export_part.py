"""What a task of an export does: ranges of `@parquet/` become files, a file a day, and each is read again.

No Spark in here: a task is a function of paths, on whatever host it runs. Arrow's columns go from file to file, and
nothing becomes a row in between.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator, Sequence
from itertools import count, pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from isal.isal_zlib import crc32

from fsstore.spark.export_plan import messages_in, sync_path
from fsstore.spark.mount import Range, range_path

_MICROSECONDS_A_DAY = 86_400_000_000
_ROW_GROUP_MESSAGES = 1 << 20  # what a file is made from is bounded: mostly it is one row group
_FEW_VALUES = (
    "tags",
    "properties.key_value.key",
    "properties.key_value.value",
    "born_host",
    "store_host",
    "flag",
    "sys_flag",
    "reconsume_times",
    "queue",
)


class Figures(NamedTuple):
    """What is compared between what was read and what was written."""

    messages: int
    crc_sum: int


class Part(NamedTuple):
    """What a task brought: its files, what was read for them, what was found in them again, and how many damaged
    messages `@parquet/` left out."""

    files: tuple[str, ...]
    read: Figures
    found: Figures
    left_out: int


def bring(root: str, folder: str, most_bytes: int, task: tuple[int, Sequence[Range]]) -> Part:
    """Write the ranges of a numbered task to `folder`/date=…/ and onto the disk, up to about `most_bytes` of messages a
    file. A task that is done twice writes other files.

    OSError where a range isn't there.
    """
    number, pieces = task
    attempt, numbers = uuid.uuid4().hex, count()
    files, read = [], []
    for table in _gathered(_row_groups(root, pieces), most_bytes):
        read.append(figures_of(table["body"]))
        for date, messages in _by_date(table):
            file = Path(folder, f"date={date}", f"part-{number:05}-{next(numbers):03}-{attempt}.parquet")
            write_file(file, messages)
            files.append(str(file))
    left_out = 0
    if total(read).messages != messages_in(pieces):
        left_out = sum(_left_out(range_path(root, piece)) for piece in pieces)
    return Part(tuple(files), total(read), total(map(_figures_in, files)), left_out)


def total(figures: Iterable[Figures]) -> Figures:
    """The sum of figures."""
    parts = list(figures)
    return Figures(sum(part.messages for part in parts), sum(part.crc_sum for part in parts))


def figures_of(bodies: pa.ChunkedArray) -> Figures:
    """The figures of a column of bodies, none of them null."""
    return Figures(len(bodies), sum(map(_crc_sum, bodies.chunks)))


def _crc_sum(bodies: pa.Array) -> int:
    _, offsets, data = bodies.buffers()
    if data is None:
        return 0
    bounds = np.frombuffer(offsets, np.int64 if pa.types.is_large_binary(bodies.type) else np.int32)
    begins = bounds[bodies.offset : bodies.offset + len(bodies) + 1].tolist()
    view = memoryview(data)
    return sum(crc32(view[begin:end]) for begin, end in pairwise(begins))


def _row_groups(root: str, pieces: Sequence[Range]) -> Iterator[pa.Table]:
    """The messages of ranges, a row group of `@parquet/` at a time, with their queue."""
    for piece in pieces:
        with pq.ParquetFile(range_path(root, piece)) as file:
            for index in range(file.num_row_groups):
                table = file.read_row_group(index, use_threads=False)
                yield table.append_column("queue", pa.repeat(pa.scalar(piece.queue, pa.int32()), len(table)))


def _gathered(tables: Iterable[pa.Table], most_bytes: int) -> Iterator[pa.Table]:
    """Tables put together until they have so many bytes."""
    gathered: list[pa.Table] = []
    size = 0
    for table in tables:
        gathered.append(table)
        size += table.nbytes
        if size >= most_bytes:
            yield pa.concat_tables(gathered)
            gathered, size = [], 0
    if gathered:
        yield pa.concat_tables(gathered)


def _by_date(table: pa.Table) -> Iterator[tuple[str, pa.Table]]:
    """A table by the days of its store times, in UTC."""
    days = table["store_time"].cast(pa.int64()).to_numpy() // _MICROSECONDS_A_DAY
    found = np.unique(days)
    for day in found:
        rows = table if len(found) == 1 else table.filter(pa.array(days == day))
        yield str(np.datetime64(int(day), "D")), rows


def write_file(file: Path, table: pa.Table) -> None:
    """Write a file of a dataset, and onto the disk."""
    file.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(
        table, file, row_group_size=_ROW_GROUP_MESSAGES, use_dictionary=list(_FEW_VALUES), store_schema=False
    )
    sync_path(file)


def _figures_in(file: str) -> Figures:
    with pq.ParquetFile(file) as written:
        row_groups = range(written.num_row_groups)
        return total(
            figures_of(written.read_row_group(index, ["body"], use_threads=False)["body"]) for index in row_groups
        )


def _left_out(path: str) -> int:
    """How many damaged messages a file of `@parquet/` leaves out."""
    return int((pq.read_metadata(path).metadata or {}).get(b"fsstore.left_out", 0))
