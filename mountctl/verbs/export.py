"""mountctl export: writes the messages of a store to a Parquet dataset or a Delta table."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from fsstore.query.where import Where
from mountctl.connect import mounted_tree
from mountctl.errors import DAMAGED, INCOMPLETE, CommandError
from mountctl.output import plural, progress
from mountctl.places import absolute, require_outside_mounts
from mountctl.selection import parse_time, parse_where, takes_where
from mountctl.spark import require_arrow, require_delta, spark_session

if TYPE_CHECKING:
    from fsstore.jobs.export import Chosen, ExportFolder, Runner, Unit


@click.command("export", short_help="Write messages to a Parquet dataset or a Delta table.")
@click.argument("place")
@click.argument("folder", metavar="DIR", type=click.Path(path_type=Path, file_okay=False))
@click.option("-t", "--topic", "topics", multiple=True, help="Only this topic; may be repeated.")
@click.option("--from", "begin", metavar="TIME", help="Only messages stored at or after this time.")
@click.option("--until", "end", metavar="TIME", help="Only messages stored before this time.")
@takes_where
@click.option(
    "--format",
    "form",
    type=click.Choice(["parquet", "delta"]),
    default="parquet",
    show_default=True,
    help="A dataset of plain files, or a Delta table.",
)
@click.option("--spark", "on_spark", is_flag=True, help="Use Spark.")
@click.option("--master", metavar="URL", help="The Spark cluster to use; default: this machine.")
@click.option("-q", "--quiet", is_flag=True, help="No progress bar.")
def command(
    place: str, folder: Path, topics: tuple[str, ...], begin: str | None, end: str | None, where: str | None,
    form: str, on_spark: bool, master: str | None, quiet: bool,
) -> int:  # fmt: skip
    """Write the messages of PLACE to DIR, a Parquet dataset partitioned by topic and date (UTC).

    Written data is read again and compared by counts and checksums. The same command adds new messages later, and
    continues an interrupted run. With --where only messages for which it is true are written. In a Delta table each
    unit of some GB is one commit. A TIME is epoch milliseconds or ISO 8601.

    \b
    Examples:
      mountctl export /mnt/mq archive
      mountctl export /mnt/mq november --topic orders --from 2026-11-01 --until 2026-12-01
      mountctl export /mnt/mq failed --where 'level = "error"'
      mountctl export /mnt/mq table --format delta
    """
    require_arrow()
    from fsstore.jobs.export import BusyExportError, Export, ExportError, ExportSelection, NoTopicError

    kind, expression = _kind(form), parse_where(where)
    if expression is not None and (on_spark or master is not None):
        raise CommandError("--where is for an export by this process", "leave --spark and --master out", os.EX_USAGE)
    from_ms, until_ms = (None if text is None else parse_time(text) for text in (begin, end))
    require_outside_mounts(absolute(folder))
    try:
        with mounted_tree(place, on_cluster=master is not None) as mountpoint:
            text = None if expression is None else expression.text
            wanted = ExportSelection(topics or None, from_ms, until_ms, text)
            export = Export(mountpoint, folder, wanted, kind, _chosen(expression))
            units = []
            if not export.is_done:
                with _runner(on_spark, master) as runner, progress(quiet, counts=True) as show:
                    units = export.run(runner, lambda done, total: show("exporting", done, total))
    except ExportError as error:
        codes = {NoTopicError: os.EX_USAGE, BusyExportError: os.EX_TEMPFAIL}
        raise CommandError(error.reason, exit_code=codes.get(type(error), os.EX_DATAERR)) from None
    except OSError as error:
        if not error.errno or error.filename:
            raise
        reason = f"{folder} can't be written: {os.strerror(error.errno)}"
        raise CommandError(reason, "the same command continues the run", os.EX_IOERR) from None
    return _tell(units, export.before, folder)


def _kind(form: str) -> type[ExportFolder]:
    """The kind of target of a format; deltalake is loaded for a Delta table alone."""
    if form == "delta":
        require_delta()
        from fsstore.jobs.delta import DeltaFolder

        return DeltaFolder
    from fsstore.jobs.export import ExportFolder

    return ExportFolder


def _chosen(where: Where | None) -> Chosen | None:
    """A function that selects the messages of a table to export; None: all."""
    if where is None:
        return None
    from fsstore.query.where_arrow import mask

    return lambda table, queue: mask(where, queue, table)


@contextmanager
def _runner(on_spark: bool, master: str | None) -> Iterator[Runner]:
    if not on_spark and master is None:
        from fsstore.jobs.export import Threads

        yield Threads()
        return
    with spark_session(master) as session:
        from fsstore.spark.running import SparkTasks

        yield SparkTasks(session)


def _tell(units: list[Unit], before: list[Unit], folder: Path) -> int:
    """Print a summary; returns the exit code."""

    def amount(units: list[Unit]) -> str:
        files = sum(len(unit.files) for unit in units)
        return f"{plural(sum(unit.messages for unit in units), 'message')} in {plural(files, 'file')}"

    if not before:
        click.echo(f"{amount(units)} below {folder}")
    elif units:
        click.echo(f"{amount(units)} added, {amount([*before, *units])} below {folder}")
    else:
        click.echo(f"nothing new: {amount(before)} below {folder}")
    for what in ("left_out", "expired"):
        if count := sum(getattr(unit, what) for unit in units):
            reason = "damaged" if what == "left_out" else "expired during the export"
            click.echo(f"mountctl: {plural(count, 'message')} left out: {reason}", err=True)
    if any(unit.left_out for unit in units):
        return DAMAGED
    return INCOMPLETE if any(unit.expired for unit in units) else 0
