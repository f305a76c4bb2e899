"""mountctl import: the records of files as messages of a topic."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import click

from mountctl.errors import CommandError
from mountctl.output import plural, progress
from mountctl.spark import mountpoint_of, spark_session

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

SUFFIXES = {".jsonl": "jsonl", ".ndjson": "jsonl", ".json": "jsonl", ".csv": "csv", ".parquet": "parquet"}
COMPRESSIONS = (".gz", ".bz2", ".zst", ".lz4")
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
@click.option("--master", default="local[*]", show_default=True, help="Where Spark runs.")
@click.option("-q", "--quiet", is_flag=True, help="No progress bar.")
def command(
    files: tuple[Path, ...], place: str, topic: str, key: str | None, tag: str | None, body: str | None,
    kind: str | None, master: str, quiet: bool,
) -> None:  # fmt: skip
    """Publish each record of FILES (JSON lines, CSV with a header, Parquet) to a topic of MOUNT.

    A line of JSON is a body as it stands; a record of CSV or Parquet becomes a JSON object, unless --body names one
    column. What is interrupted has published some records: started again, it publishes them again.

    \b
    Examples:
      mountctl import orders.jsonl /mnt/mq --topic orders --key id
      mountctl import prices.csv /mnt/mq --topic prices --key article --tag currency
    """
    mountpoint = mountpoint_of(place)
    chosen = kind or _format_of(files)
    with spark_session(master) as spark, progress(quiet, counts=True) as show:
        from fsstore.spark import write_topic
        from fsstore.spark.export import watched

        messages = _messages(spark, files, chosen, {_BODY: body, _KEY: key, _TAGS: tag})
        with watched(spark, lambda share: show("importing", int(share * SHARES), SHARES)):
            count = write_topic(messages, mountpoint, topic, key=key and _KEY, tags=tag and _TAGS)
    click.echo(f"{plural(count, 'message')} published to {topic}")


def _format_of(files: tuple[Path, ...]) -> str:
    """What the files' names say; they have to agree."""
    found = {SUFFIXES.get(_suffix(file), "?") for file in files}
    if len(found) > 1 or found == {"?"}:
        raise CommandError("the files' names don't say what they are", "say it with --format", os.EX_USAGE)
    return found.pop()


def _suffix(file: Path) -> str:
    if file.is_dir():
        return ".parquet"
    return Path(file.stem).suffix if file.suffix in COMPRESSIONS else file.suffix


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
