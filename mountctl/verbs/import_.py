"""mountctl import: publishes the records of files as messages of a topic."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from engine import IllegalTopicError, Message, WriteError, check_message, topic_problem
from mountctl.connect import connect, mounted_tree
from mountctl.errors import CommandError
from mountctl.options import StoreSettings
from mountctl.output import plural, progress
from mountctl.places import find, require_here
from mountctl.selection import tell_new_topic
from mountctl.spark import require_arrow, spark_session

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

    from fsstore.jobs.records import Fields

SHARES = 1_000
_BODY, _KEY, _TAGS = "body", "key", "tags"


@click.command("import", short_help="Publish the records of files.")
@click.argument("files", nargs=-1, required=True, type=click.Path(path_type=Path, exists=True))
@click.argument("place")
@click.option("-t", "--topic", required=True, help="The topic to publish to; created if it does not exist.")
@click.option("-k", "--key", metavar="COLUMN", help="The column or field with a message's key.")
@click.option("--tag", metavar="COLUMN", help="The column with a message's tag.")
@click.option("--body", metavar="COLUMN", help="The column with a message's body; default: the whole record.")
@click.option(
    "--format", "kind", type=click.Choice(["jsonl", "csv", "parquet"]), help="Format of the files; default: by name."
)
@click.option("--spark", "on_spark", is_flag=True, help="Use Spark.")
@click.option("--master", metavar="URL", help="The Spark cluster to use; default: this machine.")
@click.option("-q", "--quiet", is_flag=True, help="No progress bar.")
def command(
    files: tuple[Path, ...], place: str, topic: str, key: str | None, tag: str | None, body: str | None,
    kind: str | None, on_spark: bool, master: str | None, quiet: bool,
) -> None:  # fmt: skip
    """Publish each record of FILES (JSON lines, CSV with a header, Parquet) to a topic of PLACE.

    A line of JSON becomes a body unchanged; a record of CSV or Parquet becomes a JSON object, unless --body names a
    column. All records are checked before the first is published; a record that can't be a message is refused, with
    its file and line. After an interruption some records are published, and another run publishes them again.

    \b
    Examples:
      mountctl import orders.jsonl /mnt/mq --topic orders --key id
      mountctl import prices.csv /mnt/mq --topic prices --key article --tag currency
    """
    require_here(place)
    if Path(place).is_file():
        raise CommandError(f"{place} is a file", "the store or its mount comes last", os.EX_USAGE)
    require_arrow()
    from fsstore.jobs.records import Fields, RecordError, RecordsError, kind_of

    if problem := topic_problem(topic):
        raise IllegalTopicError(topic, problem)
    fields = Fields(body, key, tag)
    try:
        chosen = kind or kind_of(files)
        with mounted_tree(place, writing=True, on_cluster=master is not None) as mountpoint:
            _examine(files, chosen, fields, topic, mountpoint, quiet)
            if on_spark or master is not None:
                count = _with_spark(files, chosen, fields, mountpoint, topic, master, quiet)
            else:
                count = _here(files, chosen, fields, mountpoint, topic, quiet)
    except RecordsError as error:
        code = os.EX_DATAERR if isinstance(error, RecordError) else os.EX_USAGE
        raise CommandError(error.reason, error.remedy, code) from None
    click.echo(f"{plural(count, 'message')} published to {topic}")


def _examine(files: tuple[Path, ...], kind: str, fields: Fields, topic: str, mountpoint: Path, quiet: bool) -> None:
    """Check all records before publishing. RecordsError; warnings are printed."""
    from fsstore.jobs.records import examine, size_of

    total = sum(map(size_of, files))
    with connect(find(str(mountpoint)), StoreSettings()) as client:
        limit_bytes = client.body_limit_bytes()

        def check(body: bytes, keys: list[str], tag: str) -> None:
            try:
                check_message(Message(topic, body, keys, tag), limit_bytes)
            except WriteError as error:
                raise ValueError(error) from None

        with progress(quiet) as show:
            notes = examine(files, kind, fields, check, lambda done: show("checking", done, total))
        for note in notes:
            click.echo(f"mountctl: {note}", err=True)
        if not quiet:
            tell_new_topic(client, topic)


def _here(files: tuple[Path, ...], kind: str, fields: Fields, mountpoint: Path, topic: str, quiet: bool) -> int:
    from fsstore.jobs.publishing import make_topic, publish_lines
    from fsstore.jobs.records import RecordsError, messages_of, size_of

    total = sum(map(size_of, files))
    with progress(quiet) as show:
        lines = messages_of(files, kind, fields, lambda done: show("importing", done, total))
        make_topic(str(mountpoint), topic)
        try:
            return publish_lines(str(mountpoint), topic, lines)
        except RecordsError as error:  # the files were changed since the check
            raise RecordsError(error.reason, "records before it may be published") from None


def _with_spark(
    files: tuple[Path, ...], kind: str, fields: Fields, mountpoint: Path, topic: str, master: str | None, quiet: bool
) -> int:
    with spark_session(master) as spark, progress(quiet, counts=True) as show:
        from fsstore.spark import write_topic
        from fsstore.spark.running import watched

        messages = _messages(spark, files, kind, fields)
        with watched(spark, lambda share: show("importing", int(share * SHARES), SHARES)):
            return write_topic(messages, mountpoint, topic, key=fields.key and _KEY, tags=fields.tags and _TAGS)


def _messages(spark: SparkSession, files: tuple[Path, ...], kind: str, fields: Fields) -> DataFrame:
    """One row per record: its body, and its key and tag, if columns for them are given."""
    from pyspark.sql import functions as f

    paths = [f"file://{file.absolute()}" for file in files]
    if kind == "jsonl":
        lines = spark.read.option("lineSep", "\n").text(paths)
        return lines.mapInArrow(_of_lines(fields), f"{_BODY} binary, {_KEY} array<string>, {_TAGS} string")
    if kind == "csv":
        records = spark.read.csv(paths, header=True, multiLine=True, escape='"')
    else:
        records = spark.read.parquet(*paths)
    columns = {_BODY: fields.body, _KEY: fields.key, _TAGS: fields.tags}
    chosen = {name: records[f"`{column}`"] for name, column in columns.items() if column is not None}
    return records.select(*(value.alias(name) for name, value in ({_BODY: f.to_json(f.struct("*"))} | chosen).items()))


def _of_lines(fields: Fields) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def found(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        from fsstore.jobs.records import of_line, parts_of

        for batch in batches:
            lines = (value.encode().rstrip(b"\r\n") for value in batch.column(0).to_pylist())
            rows = [parts_of(*of_line(line, fields)) for line in lines if line]
            columns = zip(*rows, strict=True) if rows else ((), (), ())
            kinds = (pa.binary(), pa.list_(pa.string()), pa.string())
            arrays = [pa.array(column, kind) for column, kind in zip(columns, kinds, strict=True)]
            yield pa.RecordBatch.from_arrays(arrays, [_BODY, _KEY, _TAGS])

    return found
