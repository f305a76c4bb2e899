"""Writing back: the rows of a DataFrame as messages of a topic, published through `append` in bulk."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as f
from pyspark.sql.types import ArrayType, BinaryType, StringType

from fsstore.interface import WHOLE_WRITE_BYTES
from fsstore.spark.mount import bounds, while_gone

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Column, DataFrame


def write_topic(
    df: DataFrame, mount: str | os.PathLike[str], topic: str, *, body: str = "body", key: str | None = None,
    tags: str | None = None,
) -> int:  # fmt: skip
    """Publish each row of `df` to `topic`; returns how many there were. The topic is made where there is none.

    `body`, `key` and `tags` name columns: the body is bytes or becomes text, so do a key or an array of keys, and tags.
    A null body is an empty message. In batches, and in foreachBatch:

        alerts.writeStream.foreachBatch(lambda batch, _: write_topic(batch, mount, "alerts", key="user")).start()

    At least once: a row has been published, and is on disk, when this returns; a task that Spark repeats publishes its
    rows again. Rows of a partition keep their order within each write of about a megabyte. OSError with the mount's
    reason for a row that can be no message.
    """
    root = str(Path(mount).absolute())
    if topic not in bounds(root):
        os.makedirs(Path(root) / topic, exist_ok=True)
    lines = df.select(f.to_json(_message(df, body, key, tags)).cast("binary").alias("line"))
    written = lines.mapInArrow(_publisher(os.path.join(root, topic, "append@format=json"), root), "messages long")
    return int(written.agg(f.sum("messages")).first()[0] or 0)


def _message(df: DataFrame, body: str, key: str | None, tags: str | None) -> Column:
    """A struct of the fields that `append@format=json` knows."""
    kind = df.schema[body].dataType
    if isinstance(kind, BinaryType):
        fields = [f.coalesce(f.col(body), f.lit(b"")).alias("body_base64")]  # to_json writes bytes so
    else:
        fields = [f.coalesce(f.col(body).cast("string"), f.lit("")).alias("body")]
    if key is not None:
        is_list = isinstance(df.schema[key].dataType, ArrayType)
        fields.append(f.col(key).cast(ArrayType(StringType()) if is_list else StringType()).alias("keys"))
    if tags is not None:
        fields.append(f.col(tags).cast(StringType()).alias("tags"))
    return f.struct(*fields)


def _publisher(path: str, root: str) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def publish(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        count = 0
        with BulkAppend(path, root) as append:
            for batch in batches:
                append.lines(batch.column(0).to_pylist())
                count += batch.num_rows
        yield pa.RecordBatch.from_pydict({"messages": [count]})

    return publish


class BulkAppend:
    """An open `append` that takes many lines a write, and goes on with the same write when its daemon has come back."""

    def __init__(self, path: str, root: str) -> None:
        self._path = path
        self._root = root
        self._descriptor: int | None = None
        self._waiting: list[bytes] = []
        self._waiting_bytes = 0

    def __enter__(self) -> BulkAppend:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: Any) -> None:
        try:
            if kind is None:
                self._send()
                while_gone(self._root, self._sync)
        finally:
            self._close()

    def lines(self, lines: list[bytes]) -> None:
        """Publish lines, which have no newline."""
        for line in lines:
            if self._waiting_bytes + len(line) + 1 > WHOLE_WRITE_BYTES:
                self._send()
            self._waiting.append(line)
            self._waiting_bytes += len(line) + 1

    def _send(self) -> None:
        """One write, which is published whole or not at all unless a single line is longer than that."""
        if self._waiting:
            text = b"\n".join([*self._waiting, b""])
            while_gone(self._root, lambda: self._write(text))
            self._waiting.clear()
            self._waiting_bytes = 0

    def _write(self, text: bytes) -> None:
        try:
            descriptor = self._open()
            rest = memoryview(text)
            while rest:
                rest = rest[os.write(descriptor, rest) :]
        except OSError as error:
            self._close()
            if error.errno == errno.EINVAL:
                raise OSError(error.errno, f"{error.strerror}: {self._reason()}", self._path) from None
            raise

    def _reason(self) -> str:
        """Why the last write was refused: only a mount's `@store/refusals` says it in words."""
        lines = (Path(self._root) / "@store/refusals").read_text().splitlines()
        own = [words[5] for line in lines if len(words := line.split(" ", 5)) == 6 and words[1] == str(os.getpid())]
        return own[-1] if own else "@store/refusals says why"

    def _sync(self) -> None:
        try:
            os.fsync(self._open())
        except OSError:
            self._close()
            raise

    def _open(self) -> int:
        if self._descriptor is None:
            self._descriptor = os.open(self._path, os.O_WRONLY)
        return self._descriptor

    def _close(self) -> None:
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            with suppress(OSError):  # write and fsync have reported what counts
                os.close(descriptor)
