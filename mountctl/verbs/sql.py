"""mountctl sql: queries topics as tables of DuckDB, read through `@parquet`."""

from __future__ import annotations

import csv
import json
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from fsstore.jobs.mount import bounds, files_between
from fsstore.parquet.format import FIELDS, Type
from fsstore.query.field_columns import rows_with_fields
from fsstore.query.fields import SAMPLE, Sample, draw
from fsstore.query.hist import QueueRange
from fsstore.query.where import Where
from fsstore.query.where_sql import rows_where
from mountctl.connect import mounted_tree, reading
from mountctl.decoded_table import SLOT, DecodedTable
from mountctl.decoding import Decoder, takes_decode
from mountctl.errors import DAMAGED, CommandError
from mountctl.group_files import GroupFiles
from mountctl.installation import missing
from mountctl.mount_client import MountClient
from mountctl.options import StoreSettings
from mountctl.output import plural, print_json_line, print_table
from mountctl.places import find, find_mount
from mountctl.selection import Selection, Target, parse_time, parse_where, ranges_of, takes_where

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection, Statement

ALL = "messages"
"""Name of the view of all topics, unless a topic has that name."""
OUTPUTS = (".parquet", ".csv", ".json")
"""Endings of an output file, and DuckDB's options for each."""
ROWS_AT_ONCE = 1_000
COLUMNS = ("topic", "queue", "bytes", "json", *(field.name for field in FIELDS))


class Between(NamedTuple):
    """Store times [from_ms, until_ms) in epoch milliseconds; None: no limit."""

    from_ms: int | None
    until_ms: int | None


class Rows(NamedTuple):
    """The messages that the tables have: those between two times for which `where` is true, and which the group has not
    had, if there is one; with decoded bodies, if there is a table of these."""

    between: Between
    where: Where | None
    group: GroupFiles | None = None
    decoded: DecodedTable | None = None


_TYPES = {
    Type.INT: "int",
    Type.LONG: "bigint",
    Type.TIME: "timestamptz",
    Type.BYTES: "blob",
    Type.TEXT: "varchar",
    Type.HOST: "varchar",
    Type.TEXTS: "varchar[]",
    Type.MAP: "map(varchar, varchar)",
}


@click.command("sql", short_help="Query in SQL; topics are tables.")
@click.argument("place")
@click.argument("query", metavar="QUERY")
@click.option("--from", "begin", metavar="TIME", help="Only messages stored at or after this time.")
@click.option("--until", "end", metavar="TIME", help="Only messages stored before this time.")
@takes_where
@takes_decode
@click.option("-g", "--group", metavar="NAME", help="Only messages that this consumer group has not consumed yet.")
@click.option("--csv", "as_csv", is_flag=True, help="Rows as CSV, with a header.")
@click.option("--json", "as_json", is_flag=True, help="Rows as JSON, one per line.")
@click.option(
    "--output",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Write the rows to FILE: .parquet, .csv or .json.",
)
@click.option("--unsafe", is_flag=True, help="Let QUERY read and write files and the network as you may.")
def command(
    place: str, query: str, begin: str | None, end: str | None, where: str | None, decode: str | None,
    group: str | None, as_csv: bool, as_json: bool, output: Path | None, unsafe: bool,
) -> int:  # fmt: skip
    """Run QUERY, in DuckDB's SQL, on PLACE, a store or its mount. Each topic is a table; `messages` has all topics.

    The columns are those of @parquet; body is text (null if it is not UTF-8), bytes is the stored body, and json is
    the body if it is JSON: json->>'$.user'. A name that is not a column is a field of the bodies, with its type in a
    sample: user, orders.user. Quote names with special characters: "%DLQ%billing".

    With --from and --until only files of these times are opened. With --where the tables have only messages for which
    it is true. With --group they have only messages that the consumer group has not had. When QUERY has ended, the
    group has had them, and the next run continues there. A TIME is epoch milliseconds or ISO 8601.

    With --decode, body, json and fields come from the output of COMMAND; bytes stays the stored body. Each message of
    the tables costs a process, even if QUERY passes over it: select few, by --from, --until, --where or --group.

    QUERY can't read other files, or use the network, without --unsafe. Damaged messages are skipped; their count is
    then printed to standard error, and the exit code is 3.

    \b
    Examples:
      mountctl sql /mnt/mq 'select queue, count(*), max(store_time) from orders group by queue'
      mountctl sql /mnt/mq "select json->>'$.user' as user, count(*) from orders group by user" --csv
      mountctl sql /mnt/mq "from orders where tags = 'paid'" --output paid.parquet
      mountctl sql /mnt/mq 'select count(*) from orders' --where 'level = "error" and ms > 500'
      mountctl sql /mnt/mq 'select queue, count(*) from orders group by queue' -g hourly
      mountctl sql /mnt/mq 'select body from orders limit 5' --from 2026-01-31T09:00 --decode 'base64'
    """
    if as_csv + as_json + (output is not None) > 1:
        raise CommandError("--csv, --json and --output exclude each other", exit_code=os.EX_USAGE)
    if output is not None and output.suffix not in OUTPUTS:
        remedy = f"name a file that ends with {', '.join(OUTPUTS)}"
        raise CommandError(f"{output} has no known ending", remedy, os.EX_USAGE)
    try:
        import duckdb
    except ImportError:
        raise missing("DuckDB", "sql") from None
    between = Between(*(None if text is None else parse_time(text) for text in (begin, end)))
    rows = Rows(between, parse_where(where))
    if group is not None and (begin is not None or end is not None):
        raise CommandError("a group goes on where it ended", "leave --from and --until out", os.EX_USAGE)
    with (
        mounted_tree(place, writing=group is not None) as mountpoint,
        duckdb.connect() as connection,
        ExitStack() as stack,
    ):
        if group is not None:
            member = GroupFiles(MountClient(find_mount(str(mountpoint))), mountpoint, group)
            stack.callback(member.release)
            rows = rows._replace(group=member)
        decoder = Decoder(decode)
        if decoder:
            rows = rows._replace(decoded=DecodedTable(connection, decoder))
        server = _status(mountpoint)["pid"]
        try:
            connection.execute("set enable_progress_bar = false; set TimeZone = 'UTC'")
            if not unsafe:
                _close_to_all_else(connection, mountpoint, output)
            statements = connection.extract_statements(query)
            if not statements:
                raise CommandError("the query is empty", "see `mountctl sql --help`", os.EX_USAGE)
            *first, last = statements
            files: set[str] = set()
            for statement in first:
                files |= make_views(connection, mountpoint, statement.query, rows)
                _with_fields(connection, mountpoint, statement.query, rows, partial(_execute, connection, statement))
            files |= make_views(connection, mountpoint, last.query, rows)
            if output is not None:
                into = f"{_text(str(output.absolute()))} (use_tmp_file false)"  # the only file that may be written
                show = partial(_execute, connection, f"copy ({_bare(last.query)}\n) to {into}")
            else:
                show = partial(_print, connection, last.query, as_csv=as_csv, as_json=as_json)
            _with_fields(connection, mountpoint, last.query, rows, show)
            code = decoder.exit_code(_tell_left_out(connection, mountpoint, sorted(files), server))
            if rows.group is None:
                return code
            sys.stdout.flush()
            rows.group.commit()
            return code or rows.group.left_out.exit_code()
        except duckdb.CatalogException as error:
            topics = ", ".join(sorted(bounds(str(mountpoint)))) or "none yet"
            raise CommandError(str(error).splitlines()[0], f"there are topics: {topics}", os.EX_USAGE) from None
        except duckdb.PermissionException as error:
            remedy = "--unsafe lets a query use files and the network, --output FILE writes the rows to a file"
            raise CommandError(str(error).splitlines()[0], remedy, os.EX_NOPERM) from None
        except duckdb.IOException as error:
            raise CommandError(str(error), exit_code=os.EX_IOERR) from None
        except duckdb.Error as error:
            raise CommandError(str(error), exit_code=os.EX_USAGE) from None


def _close_to_all_else(connection: DuckDBPyConnection, mountpoint: Path, output: Path | None) -> None:
    """Restrict later statements to reading files of `@parquet` and writing `output`."""
    paths = [] if output is None else [_text(str(output.absolute()))]
    connection.execute(f"set allowed_directories = [{_text(f'{mountpoint}/@parquet/')}]")
    connection.execute(f"set allowed_paths = [{', '.join(paths)}]")
    _close(connection)


def _close(connection: DuckDBPyConnection) -> None:
    """Keep later statements from files, the network and the variables of Python. The lock is irreversible."""
    connection.execute("set python_enable_replacements = false")  # no view of a name: it may not mean a Python variable
    connection.execute("set enable_external_access = false; set lock_configuration = true")


def _execute(connection: DuckDBPyConnection, statement: str | Statement) -> DuckDBPyConnection:
    """Run a statement in another thread: DuckDB checks for Ctrl-C rarely, and in some joins never."""
    with ThreadPoolExecutor(1) as thread:
        answer = thread.submit(connection.execute, statement)
        try:
            return answer.result()
        except KeyboardInterrupt:
            connection.interrupt()
            raise


def _with_fields(
    connection: DuckDBPyConnection, mountpoint: Path, query: str, rows: Rows, run: Callable[[], object]
) -> None:
    """Run a statement. If it names a column that there is none of, its views get the fields of their bodies first."""
    import duckdb

    try:
        run()
    except duckdb.BinderException:
        make_views(connection, mountpoint, query, rows, with_fields=True)
        run()


def make_views(
    connection: DuckDBPyConnection, mountpoint: Path, query: str, rows: Rows, *, with_fields: bool = False
) -> set[str]:
    """Make a view of each topic that the query names, perhaps with the fields of its bodies as columns; returns the
    files that they read."""
    there, found = bounds(str(mountpoint)), set[str]()
    by_lower_case = {topic.lower(): topic for topic in sorted(there, reverse=True)}
    for name in _names_in(query, [*there, ALL]):
        topic = name if name in there else by_lower_case.get(name.lower())
        if topic is not None or name.lower() == ALL:
            topics = [topic] if topic is not None else sorted(there)
            if rows.group is not None:
                files = [file for one in topics for file in rows.group.of_topic(one, there[one])]
            else:
                files = [file for one in topics for file in files_between(str(mountpoint), one, *rows.between)]
            select = _select(files, rows.between)
            select = select if rows.where is None else rows_where(rows.where.expression, select)
            select = select if rows.decoded is None else _decoded(connection, rows.decoded, topics, select)
            if with_fields:
                sample = _sample(mountpoint, topics) if rows.decoded is None else rows.decoded.sample(topics)
                select = rows_with_fields(sample.fields, COLUMNS, select)
            how = "or replace view" if with_fields else "view if not exists"
            connection.execute(f"create {how} {_quoted(topic or ALL)} as {select}")
            found.update(files)
    return found


def _names_in(query: str, names: Iterable[str]) -> set[str]:
    """The tables that a query names; those of `names` that its text holds where DuckDB needs the tables to say which,
    as for `using`."""
    import duckdb

    with duckdb.connect() as parser:  # one with views would look into them
        _close(parser)  # it does part of some statements
        try:
            return set(parser.get_table_names(query))
        except duckdb.Error:
            return {name for name in names if name.lower() in query.lower()}


def _sample(mountpoint: Path, topics: list[str]) -> Sample:
    with reading(find(str(mountpoint)), StoreSettings(), "sql", [""]) as store:
        found = ranges_of(store, map(Target, topics), Selection())
        ranges = [QueueRange(one.topic, one.queue, one.start, one.end) for one in found if one.start < one.end]
        return draw(store.store, ranges, SAMPLE, store.left_out.noting)


def _decoded(connection: DuckDBPyConnection, table: DecodedTable, topics: list[str], select: str) -> str:
    """A query for the messages of `select` with decoded bodies. Those that are not in `table` are decoded first."""
    if lacking := table.lacking(topics):
        wanted = f"select {SLOT}, bytes from ({select}) where topic in ({', '.join(map(_text, lacking))})"
        table.add(lacking, _rows(_execute(connection.cursor(), wanted)))
    body, json = _readable("decoded")
    return f"select * exclude (decoded) replace ({body} as body, {json} as json) from ({table.rows(select)})"


def _status(mountpoint: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((mountpoint / "@store/status.json").read_bytes())
    return found


def _tell_left_out(connection: DuckDBPyConnection, mountpoint: Path, files: list[str], server: int) -> int:
    """Print the number of damaged messages that the tables lack to standard error; returns the exit code. Each file has
    its own number. It is only read if the mount has skipped any messages, or if the daemon is not the one of the
    query's start (`server`), whose count is lost."""
    status = _status(mountpoint)
    if not files or (status["pid"] == server and not status["parquet"]["left_out_messages"]):
        return 0
    facts = f"parquet_kv_metadata([{', '.join(map(_text, map(_escaped, files)))}])"
    asked = f"select sum(value::varchar::int) from {facts} where key::varchar = 'fsstore.left_out'"
    [(count,)] = _execute(connection, asked).fetchall()
    if not count:
        return 0
    click.echo(f"mountctl: {plural(int(count), 'damaged message')} left out (see mountctl check)", err=True)
    return DAMAGED


def _select(files: list[str], between: Between) -> str:
    """A query for the messages of files stored within `between`."""
    columns = [field.name for field in FIELDS if field.name != "body"]
    if files:
        types = "hive_partitioning = true, hive_types = {'topic': varchar, 'queue': int}"
        source = f"read_parquet([{', '.join(map(_text, map(_escaped, files)))}], {types})"
    else:
        nothing = ", ".join(f"null::{_TYPES[field.type]} as {field.name}" for field in FIELDS)
        source = f"(select {nothing}, null::varchar as topic, null::int as queue where false)"
    limits = zip((">=", "<"), between, strict=True)
    times = [f"store_time {than} to_timestamp({ms / 1000})" for than, ms in limits if ms is not None]
    body, json = _readable("body")
    return (
        f"select topic, queue, {', '.join(columns)}, {body} as body, body as bytes, {json} as json from {source} "
        f"where {' and '.join(times) or 'true'}"
    )


def _readable(stored: str) -> tuple[str, str]:
    """The columns `body` and `json` of a column of bytes."""
    text = f"try(decode({stored}))"
    return text, f"case when json_valid({text}) then {text}::json end"


def _escaped(path: str) -> str:
    """A path with the special characters of glob patterns escaped."""
    return "".join(f"[{char}]" if char in "*?[" else char for char in path)


def _text(value: str) -> str:
    return "'" + value.replace("'", "''") + "'"


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _print(connection: DuckDBPyConnection, query: str, *, as_csv: bool, as_json: bool) -> None:
    """Print rows with their cells as DuckDB formats them; nothing for a statement without a result."""
    if not re.match(r"\s*(select|with|from|values|describe|show|summarize|pivot|table)\b", query, re.IGNORECASE):
        _execute(connection, query)
        return
    rows_of = f"({_bare(query)}\n)"
    if as_json:
        found = _execute(connection, f"select to_json(found)::varchar from {rows_of} found")
        for (row,) in _rows(found):
            print_json_line(json.loads(row))
        return
    found = _execute(connection, f"select columns(*)::varchar from {rows_of}")
    names = [column[0] for column in found.description]
    if as_csv:
        writer = csv.writer(sys.stdout, lineterminator="\n")
        writer.writerow(names)
        writer.writerows(_rows(found))
    else:
        print_table(names, [["" if cell is None else cell for cell in row] for row in _rows(found)])


def _bare(query: str) -> str:
    """A statement without its semicolon."""
    return query.rstrip().rstrip(";")


def _rows(found: DuckDBPyConnection) -> Iterator[tuple[Any, ...]]:
    while rows := found.fetchmany(ROWS_AT_ONCE):
        yield from rows
