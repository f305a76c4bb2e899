"""mountctl import: the records of files as messages of a topic."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import click

from engine import IllegalTopicError, topic_problem
from mountctl.errors import CommandError
from mountctl.output import plural, progress
from mountctl.spark import mountpoint_of, require_arrow, spark_session

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

    from fsstore.jobs.records import Fields

SHARES = 1_000
_BODY, _KEY, _TAGS = "body", "key", "tags"


@click.command("import", short_help="Publish the records of files.")
@click.argument("files", nargs=-1, required=True, type=click.Path(path_type=Path, exists=True))
@click.argument("place", metavar="MOUNT")
@click.option("-t", "--topic", required=True, help="The topic to publish to; made where there is none.")
@click.option("-k", "--key", metavar="COLUMN", help="The column, or field, that is a message's key.")
@click.option("--tag", metavar="COLUMN", help="The column that is a message's tag.")
@click.option("--body", metavar="COLUMN", help="The column that is a message's body; without it the whole record.")
@click.option(
    "--format", "kind", type=click.Choice(["jsonl", "csv", "parquet"]), help="What the files are, whatever their names."
)
@click.option("--spark", "on_spark", is_flag=True, help="Let Spark do it.")
@click.option("--master", metavar="URL", help="Where Spark runs: a cluster. Without it, on this machine.")
@click.option("-q", "--quiet", is_flag=True, help="No progress bar.")
def command(
    files: tuple[Path, ...], place: str, topic: str, key: str | None, tag: str | None, body: str | None,
    kind: str | None, on_spark: bool, master: str | None, quiet: bool,
) -> None:  # fmt: skip
    """Publish each record of FILES (JSON lines, CSV with a header, Parquet) to a topic of MOUNT.

    A line of JSON is a body as it stands; a record of CSV or Parquet becomes a JSON object, unless --body names one
    column. What is interrupted has published some records: started again, it publishes them again.

    \b
    Examples:
      mountctl import orders.jsonl /mnt/mq --topic orders --key id
      mountctl import prices.csv /mnt/mq --topic prices --key article --tag currency
    """
    require_arrow()
    from fsstore.jobs.records import Fields, RecordsError, kind_of

    mountpoint = mountpoint_of(place, writing=True)
    if problem := topic_problem(topic):
        raise IllegalTopicError(topic, problem)
    fields = Fields(body, key, tag)
    try:
        chosen = kind or kind_of(files)
        if on_spark or master is not None:
            count = _with_spark(files, chosen, fields, mountpoint, topic, master, quiet)
        else:
            count = _here(files, chosen, fields, mountpoint, topic, quiet)
    except RecordsError as error:
        raise CommandError(error.reason, error.remedy, os.EX_USAGE) from None
    click.echo(f"{plural(count, 'message')} published to {topic}")


def _here(files: tuple[Path, ...], kind: str, fields: Fields, mountpoint: Path, topic: str, quiet: bool) -> int:
    from fsstore.jobs.publishing import make_topic, publish_lines
    from fsstore.jobs.records import RecordsError, messages_of, size_of

    total = sum(map(size_of, files))
    with progress(quiet) as show:
        lines = messages_of(files, kind, fields, lambda done: show("importing", done, total))
        make_topic(str(mountpoint), topic)
        try:
            return publish_lines(str(mountpoint), topic, lines)
        except RecordsError as error:
            raise RecordsError(error.reason, "records before it may be published") from None


def _with_spark(
    files: tuple[Path, ...], kind: str, fields: Fields, mountpoint: Path, topic: str, master: str | None, quiet: bool
) -> int:
    with spark_session(master) as spark, progress(quiet, counts=True) as show:
        from fsstore.spark import write_topic
        from fsstore.spark.running import watched

        messages = _messages(spark, files, kind, {_BODY: fields.body, _KEY: fields.key, _TAGS: fields.tags})
        with watched(spark, lambda share: show("importing", int(share * SHARES), SHARES)):
            return write_topic(messages, mountpoint, topic, key=fields.key and _KEY, tags=fields.tags and _TAGS)


def _messages(spark: SparkSession, files: tuple[Path, ...], kind: str, columns: dict[str, str | None]) -> DataFrame:
    """A row a record: its body, and the key and tags that are asked for."""
    from pyspark.sql import functions as f

    paths = [f"file://{file.absolute()}" for file in files]
    if kind == "jsonl":
        lines = spark.read.text(paths).where("value != ''")
        picked = {name: _field(column) for name, column in columns.items() if column is not None}
        return lines.select(*(value.alias(name) for name, value in ({_BODY: f.col("value")} | picked).items()))
    records = spark.read.csv(paths, header=True) if kind == "csv" else spark.read.parquet(*paths)
    missing = {column for column in columns.values() if column is not None} - set(records.columns)
    if missing:
        raise CommandError(f"no column {min(missing)!r}", f"there are {', '.join(records.columns)}", os.EX_USAGE)
    chosen = {name: records[f"`{column}`"] for name, column in columns.items() if column is not None}
    return records.select(*(value.alias(name) for name, value in ({_BODY: f.to_json(f.struct("*"))} | chosen).items()))


def _field(name: str) -> Column:
    """A field of a line of JSON, as text; null where it has none."""
    from pyspark.sql import functions as f

    return f.get_json_object("value", f"$['{name}']")
