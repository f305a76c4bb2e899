"""Reading a range on an executor: Arrow batches from its file below `@parquet/`, also across restarts of the daemon."""

from __future__ import annotations

import time
from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql.pandas.types import to_arrow_schema

from fsstore.jobs.mount import (
    PATIENCE_S,
    RETRY_PAUSE_S,
    DataLossError,
    QueueRange,
    bounds,
    physical_offset,
    range_path,
    within,
)
from fsstore.spark.offsets import Position, Queues

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

BATCH_MESSAGES = 10_000
_PARTITION_COLUMNS = ("topic", "queue")


def read_range(
    mount: str, part: QueueRange, end: Position, schema: StructType, fail_on_data_loss: bool
) -> Iterator[pa.RecordBatch]:
    """The messages of a range in queue order, each once, with the columns of `schema`. `end`, a position at or behind
    the end of the range, identifies the queue.

    If the daemon ends meanwhile, reading continues after the last message when it is back. DataLossError: messages
    have expired or were deleted (without `fail_on_data_loss` they are skipped). MountGoneError.
    """
    wanted = to_arrow_schema(schema, timezone="UTC")
    deadline = time.monotonic() + PATIENCE_S
    if (
        end.last_physical is not None
        and physical_offset(mount, part.topic, part.queue, end.offset - 1) != end.last_physical
    ):
        part = _what_is_left(mount, part, end, fail_on_data_loss)
    while part.begin < part.end:
        try:
            for begin, batch in _batches(mount, part, wanted):
                yield batch
                part = part._replace(begin=begin)
                deadline = time.monotonic() + PATIENCE_S
            return
        except OSError:
            if time.monotonic() > deadline:
                raise
        time.sleep(RETRY_PAUSE_S)
        part = _what_is_left(mount, part, end, fail_on_data_loss)


def _what_is_left(mount: str, part: QueueRange, end: Position, fail_on_data_loss: bool) -> QueueRange:
    """`part` without messages that were removed from the store since it was planned."""
    there = bounds(mount)
    if Queues(there, partial(physical_offset, mount)).is_of(end, part.topic, part.queue):
        left, why = within(there, part), "they expired"
    else:
        left, why = part._replace(begin=part.end), "the topic was deleted"
    if left != part and fail_on_data_loss:
        found = left.begin if left.begin > part.begin else left.end
        raise DataLossError(part.topic, part.queue, part.begin, found, why)
    return left


def _batches(mount: str, part: QueueRange, wanted: pa.Schema) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Batches, each with the queue offset after its last message."""
    columns = [name for name in wanted.names if name not in _PARTITION_COLUMNS]
    with pq.ParquetFile(range_path(mount, part), pre_buffer=False) as file:  # else all of it is read into memory
        for batch in file.iter_batches(BATCH_MESSAGES, columns=list({*columns, "queue_offset"})):
            if batch.num_rows:
                yield batch.column("queue_offset")[-1].as_py() + 1, _shaped(batch, part, wanted)


def _shaped(batch: pa.RecordBatch, part: QueueRange, wanted: pa.Schema) -> pa.RecordBatch:
    constants = {"topic": part.topic, "queue": part.queue}
    arrays = [
        pa.repeat(pa.scalar(constants[field.name], field.type), batch.num_rows)
        if field.name in constants
        else batch.column(field.name).cast(field.type)
        for field in wanted
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=wanted)
