"""mountctl export: the messages of a mounted store as a Parquet dataset."""

from __future__ import annotations

import os
from pathlib import Path

import click

from mountctl.access import parse_time
from mountctl.errors import CommandError
from mountctl.output import plural, progress
from mountctl.spark import mountpoint_of, spark_session


@click.command("export", short_help="Write messages to a Parquet dataset.")
@click.argument("place", metavar="MOUNT")
@click.argument("folder", metavar="DIR", type=click.Path(path_type=Path, file_okay=False))
@click.option("-t", "--topic", "topics", multiple=True, help="Only this topic; may be given again.")
@click.option("--from", "begin", metavar="TIME", help="Only what was stored at or after this time.")
@click.option("--until", "end", metavar="TIME", help="Only what was stored before this time.")
@click.option("--master", default="local[*]", show_default=True, help="Where Spark runs.")
@click.option("-q", "--quiet", is_flag=True, help="No progress bar.")
def command(
    place: str, folder: Path, topics: tuple[str, ...], begin: str | None, end: str | None, master: str, quiet: bool
) -> None:
    """Write the messages of MOUNT to DIR, a Parquet dataset partitioned by topic and date (UTC).

    What is written is read again, and compared by counts and checksums. After an interruption the same command goes on;
    DIR then gets what there was at its first start. A TIME is epoch milliseconds or ISO 8601.

    \b
    Examples:
      mountctl export /mnt/mq archive
      mountctl export /mnt/mq november --topic orders --from 2026-11-01 --until 2026-12-01
    """
    mountpoint = mountpoint_of(place)
    with spark_session(master) as spark, progress(quiet, counts=True) as show:
        from fsstore.spark.export import ExportError, Wanted, export

        from_ms, until_ms = (None if text is None else parse_time(text) for text in (begin, end))
        wanted = Wanted(topics or None, from_ms, until_ms)
        try:
            units = export(spark, mountpoint, folder, wanted, lambda done, total: show("exporting", done, total))
        except ExportError as error:
            raise CommandError(error.reason, exit_code=os.EX_DATAERR) from None
    files = sum(len(unit.files) for unit in units)
    click.echo(f"{plural(sum(unit.messages for unit in units), 'message')} in {plural(files, 'file')} below {folder}")
    for what in ("left_out", "expired"):
        if count := sum(getattr(unit, what) for unit in units):
            reason = "damaged" if what == "left_out" else "expired before their turn"
            click.echo(f"{plural(count, 'message')} left out: {reason}", err=True)
