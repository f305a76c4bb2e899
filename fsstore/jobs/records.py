"""Records as messages: lines of JSON, and records of files (JSON lines, CSV, Parquet), which pyarrow opens."""

from __future__ import annotations

import base64
import csv
import io
import json
from codecs import BOM_UTF8
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import date, time
from functools import partial
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple

if TYPE_CHECKING:
    import pyarrow.dataset as ds

BATCH_RECORDS = 4_096
LINE_BYTES = 64 << 20
SUFFIXES = {".jsonl": "jsonl", ".ndjson": "jsonl", ".json": "jsonl", ".csv": "csv", ".parquet": "parquet"}
COMPRESSIONS = {".gz": "gzip", ".bz2": "bz2", ".zst": "zstd", ".lz4": "lz4"}


class RecordsError(ValueError):
    """Files can't be read as records: `reason` says why; `remedy` says how to proceed."""

    def __init__(self, reason: str, remedy: str = "") -> None:
        super().__init__(reason, remedy)
        self.reason = reason
        self.remedy = remedy


class RecordError(RecordsError):
    """A record can't be a message."""


class Fields(NamedTuple):
    """The columns, or fields of a line of JSON, for a message's body (None: the whole record), key and tag."""

    body: str | None = None
    key: str | None = None
    tags: str | None = None


def kind_of(files: Sequence[Path]) -> str:
    """The format by the files' names, which must agree. RecordsError."""
    found = {".parquet" if file.is_dir() else _suffix(file) for file in files}
    kinds = {SUFFIXES.get(suffix, "?") for suffix in found}
    if len(kinds) > 1 or kinds == {"?"}:
        raise RecordsError("the files' names don't tell their format", "give it with --format")
    return kinds.pop()


def _suffix(file: Path) -> str:
    return Path(file.stem).suffix if file.suffix in COMPRESSIONS else file.suffix


Report = Callable[[int], None]
"""Takes the number of bytes of the files that have been read."""
_Record = tuple[object, object, object]
"""Body, key and tag as in the file."""
_Parts = tuple[bytes, list[str], str]
"""Body, keys and tag of a message."""


def messages_of(
    files: Sequence[Path], kind: str, fields: Fields, report: Report = lambda done: None
) -> Iterator[bytes]:
    """A line of JSON for `append@format=json` from each record. RecordsError as `examine`."""
    return (_line(*parts) for _, _, parts in _messages(files, kind, fields, report))


def examine(
    files: Sequence[Path], kind: str, fields: Fields, check: Callable[[bytes, list[str], str], None],
    report: Report = lambda done: None,
) -> list[str]:  # fmt: skip
    """Check each record before one is published; returns notes for the user. `check` raises ValueError for a record
    that can't be a message.

    RecordsError: a file has another format, or no such field. RecordError: a record is invalid; it is named.
    """
    wanted = {name for name in fields if name is not None}
    for file in files:
        if not file.is_file() and not file.is_dir():
            raise RecordsError(f"{file} can be read only once, and is needed twice", "save it to a file first")
        names = _csv_header(file) if kind == "csv" else _dataset(file).schema.names if kind == "parquet" else wanted
        if missing := wanted - set(names):
            raise RecordsError(f"{file} has no column {min(missing)!r}", f"there are {', '.join(names)}")
    records = keyless = tagless = 0
    for file, number, (body, keys, tags) in _messages(files, kind, fields, report):
        try:
            check(body, keys, tags)
        except ValueError as error:
            raise RecordError(f"{file}: {_NOUN[kind]} {number}: {error}") from None
        records += 1
        keyless += not keys
        tagless += not tags
    notes = []
    for name, lacking, noun in ((fields.key, keyless, "key"), (fields.tags, tagless, "tag")):
        if name is None or not lacking:
            continue
        if lacking == records:
            raise RecordsError(f"no record has a value in {name!r}", "name another field")
        notes.append(f"{lacking:,} of {records:,} records have no {name!r}: their messages have no {noun}")
    return notes


_NOUN = {"jsonl": "line", "csv": "record", "parquet": "record"}


def _messages(
    files: Sequence[Path], kind: str, fields: Fields, report: Report
) -> Iterator[tuple[Path, int, _Parts]]:  # fmt: skip
    find = {"jsonl": _of_lines, "csv": _of_csv, "parquet": _of_parquet}[kind]
    done = 0
    for file in files:
        for number, record in find(file, fields, partial(lambda before, more: report(before + more), done)):
            try:
                parts = parts_of(*record)
            except ValueError as error:
                raise RecordError(f"{file}: {_NOUN[kind]} {number}: {error}") from None
            yield file, number, parts
        done += size_of(file)
        report(done)


def parts_of(body: object, key: object, tags: object) -> _Parts:
    """A message from a record's values. ValueError: its key is invalid."""
    keys = key if isinstance(key, list) else [] if key is None else [key]
    if any(item is None or isinstance(item, list | dict) for item in keys):
        raise ValueError("its key is neither a text nor a number")
    made = body if isinstance(body, bytes) else b"" if body is None else _text(body).encode()
    return made, list(map(_text, keys)), "" if tags is None else _text(tags)


def size_of(file: Path) -> int:
    """Bytes of a file, or of all files below a directory."""
    files = (below for below in file.rglob("*") if below.is_file()) if file.is_dir() else (file,)
    return sum(found.stat().st_size for found in files)


def _line(body: bytes, keys: list[str], tags: str) -> bytes:
    message: dict[str, object] = {}
    try:
        message["body"] = body.decode()
    except UnicodeDecodeError:
        message["body_base64"] = base64.b64encode(body).decode()
    if keys:
        message["keys"] = keys
    if tags:
        message["tags"] = tags
    return _json(message).encode()


def _text(value: object) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, bytes):
        return value.decode()
    return _json(value) if isinstance(value, bool | int | float | list | dict) else _plain(value)


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), default=_plain)


def _plain(value: object) -> str:
    """Text of a value that has no type in JSON."""
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    return value.isoformat() if isinstance(value, date | time) else str(value)


@contextmanager
def _opened(file: Path) -> Iterator[tuple[BinaryIO, BinaryIO]]:
    """The decompressed bytes of a file, and the file on disk."""
    import pyarrow as pa  # here, because lines of JSON need none

    with file.open("rb") as raw, pa.input_stream(raw, compression=COMPRESSIONS.get(file.suffix)) as stream:
        yield io.BufferedReader(stream, 1 << 20), raw


def _of_lines(file: Path, fields: Fields, report: Report) -> Iterator[tuple[int, _Record]]:
    with _opened(file) as (stream, raw):
        for number in count(1):
            line = stream.readline(LINE_BYTES + 1)
            if len(line) > LINE_BYTES:
                raise RecordError(f"{file}: line {number} is longer than {LINE_BYTES:,} bytes, which is no message")
            if not line:
                return
            if body := line.rstrip(b"\r\n"):
                try:
                    record = of_line(body, fields)
                except ValueError as error:
                    raise RecordError(f"{file}: line {number} {error}") from None
                yield number, record
            if number % BATCH_RECORDS == 0:
                report(raw.tell())


def of_line(line: bytes, fields: Fields) -> _Record:
    """Parse a line of JSON. ValueError; its text continues "line N …"."""
    line = line.removeprefix(BOM_UTF8)
    try:
        record = json.loads(line.decode())
    except (ValueError, RecursionError) as error:
        raise ValueError(f"is not JSON: {error}") from None
    if not any(fields):
        return line, None, None
    if not isinstance(record, dict):
        raise ValueError("is not a JSON object")
    if fields.body is not None and fields.body not in record:
        raise ValueError(f"has no {fields.body!r}")
    key, tags = (None if name is None else record.get(name) for name in (fields.key, fields.tags))
    return line if fields.body is None else record[fields.body], key, tags


@contextmanager
def _csv(file: Path) -> Iterator[tuple[Iterator[list[str]], BinaryIO]]:
    with _opened(file) as (stream, raw):
        try:
            yield csv.reader(io.TextIOWrapper(stream, "utf-8-sig", newline=""), strict=True), raw
        except (csv.Error, UnicodeDecodeError) as error:
            raise RecordsError(f"{file} is not CSV in UTF-8: {error}") from None


def _csv_header(file: Path) -> list[str]:
    with _csv(file) as (rows, _):
        names = next(rows, [])
    if not names or len(set(names)) < len(names):
        raise RecordsError(f"{file} has no header with a name for each column", "the first line must name the columns")
    return names


def _of_csv(file: Path, fields: Fields, report: Report) -> Iterator[tuple[int, _Record]]:
    with _csv(file) as (rows, raw):
        names = next(rows)
        for number, row in enumerate(filter(None, rows), 2):
            if len(row) != len(names):
                raise RecordError(f"{file}: record {number} has {len(row)} values for {len(names)} columns")
            yield number, _of_record(dict(zip(names, (value or None for value in row), strict=True)), fields)
            if number % BATCH_RECORDS == 0:
                report(raw.tell())


def _dataset(file: Path) -> ds.Dataset:
    import pyarrow as pa
    import pyarrow.dataset as ds

    try:
        return ds.dataset(str(file), format="parquet", partitioning="hive")
    except (pa.ArrowInvalid, OSError) as error:
        raise RecordsError(f"{file} is not Parquet: {error}") from None


def _of_parquet(file: Path, fields: Fields, report: Report) -> Iterator[tuple[int, _Record]]:
    numbers = count(1)
    dataset = _dataset(file)
    columns = None if fields.body is None else [name for name in dataset.schema.names if name in fields]
    for batch in dataset.to_batches(columns=columns, batch_size=BATCH_RECORDS):
        for record in batch.to_pylist(maps_as_pydicts="lossy"):
            yield next(numbers), _of_record(record, fields)


def _of_record(record: dict[str, Any], fields: Fields) -> _Record:
    body, key, tags = (None if name is None else record[name] for name in fields)
    if fields.body is None:
        body = _json({name: value for name, value in record.items() if value is not None})
    return body, key, tags
