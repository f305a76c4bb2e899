"""Writing to a topic: the rows of a DataFrame become messages, published through `append` in bulk."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark.sql import functions as f
from pyspark.sql.types import ArrayType, BinaryType, StringType

from fsstore.jobs.once import Batch
from fsstore.jobs.publishing import make_topic, publish_lines, publish_once

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Column, DataFrame


def write_topic(
    df: DataFrame, mount: str | os.PathLike[str], topic: str, *, body: str = "body", key: str | None = None,
    tags: str | None = None, app_id: str | None = None, batch_id: int | None = None, token: str | None = None,
) -> int:  # fmt: skip
    """Publish each row of `df` to `topic`; returns the number of rows. A missing topic is made.

    `body`, `key` and `tags` name columns. The body is bytes or becomes text; so do a key or an array of keys, and tags.
    A null body is an empty message. All rows are published and on disk when this returns. Rows of a partition keep
    their order within each write of about a megabyte. OSError with the mount's reason for a row that can't be a
    message.

    At least once: a task that Spark repeats publishes its rows again. Exactly once with the number of a batch and a
    name of the publisher that no other query uses for this topic, and no other checkpoint of this query:

        def publish(batch, number):
            write_topic(batch, mount, "alerts", key="user", app_id="alerts-job", batch_id=number)

        alerts.writeStream.foreachBatch(publish).start()

    `token` is a secret: another publisher that knew it could claim that rows of a batch are published. In a streaming
    query it is the query's id, which is in its checkpoint; in other programs pass one.
    """
    if (app_id is None) != (batch_id is None):
        raise ValueError("app_id and batch_id go together")
    root = str(Path(mount).absolute())
    batch = None
    if app_id is not None and batch_id is not None:
        token = token or df.sparkSession.sparkContext.getLocalProperty("sql.streaming.queryId")
        batch = Batch.of(root, topic, app_id, batch_id, token or "")
    make_topic(root, topic)
    lines = df.select(f.to_json(_message(df, body, key, tags)).cast("binary").alias("line"))
    is_repeated = batch is not None and bool(batch.writes())
    if is_repeated:
        lines = lines.coalesce(1)
    written = lines.mapInArrow(_publisher(root, topic, batch, is_repeated), "messages long")
    rows = int(written.agg(f.sum("messages")).first()[0] or 0)
    if batch is not None and rows and not batch.writes():
        raise RuntimeError(f"{root} does not find messages by their keys, so a repeated batch would be published twice")
    return rows


def _message(df: DataFrame, body: str, key: str | None, tags: str | None) -> Column:
    """A struct of the fields of `append@format=json`."""
    kind = df.schema[body].dataType
    if isinstance(kind, BinaryType):
        fields = [f.coalesce(f.col(body), f.lit(b"")).alias("body_base64")]  # to_json writes bytes as base64
    else:
        fields = [f.coalesce(f.col(body).cast("string"), f.lit("")).alias("body")]
    if key is not None:
        is_list = isinstance(df.schema[key].dataType, ArrayType)
        fields.append(f.col(key).cast(ArrayType(StringType()) if is_list else StringType()).alias("keys"))
    if tags is not None:
        fields.append(f.col(tags).cast(StringType()).alias("tags"))
    return f.struct(*fields)


def _publisher(
    root: str, topic: str, batch: Batch | None, is_repeated: bool
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def publish(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa
        from pyspark import TaskContext

        lines = (line for found in batches for line in found.column(0).to_pylist())
        if batch is None:
            published = publish_lines(root, topic, lines)
        else:
            published = publish_once(batch, TaskContext.get().partitionId(), lines, is_repeated=is_repeated)
        yield pa.RecordBatch.from_pydict({"messages": [published]})

    return publish
