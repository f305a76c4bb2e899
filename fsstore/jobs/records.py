"""The records of files (JSON lines, CSV, Parquet) as messages, with pyarrow; each file is looked at before one is
published."""

from __future__ import annotations

import base64
import csv
import io
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import date, time
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import pyarrow as pa
import pyarrow.dataset as ds

BATCH_RECORDS = 4_096
LINE_BYTES = 64 << 20
SUFFIXES = {".jsonl": "jsonl", ".ndjson": "jsonl", ".json": "jsonl", ".csv": "csv", ".parquet": "parquet"}
COMPRESSIONS = {".gz": "gzip", ".bz2": "bz2", ".zst": "zstd", ".lz4": "lz4"}


class RecordsError(ValueError):
    """Files can't be read as records: `reason` says why, `remedy` what to do."""

    def __init__(self, reason: str, remedy: str = "") -> None:
        super().__init__(reason, remedy)
        self.reason = reason
        self.remedy = remedy


class Fields(NamedTuple):
    """The columns, or fields of a line of JSON, that are a message's body (None: the whole record), key and tag."""

    body: str | None = None
    key: str | None = None
    tags: str | None = None


def kind_of(files: Sequence[Path]) -> str:
    """What the files' names say they are; they have to agree. RecordsError."""
    found = {".parquet" if file.is_dir() else _suffix(file) for file in files}
    kinds = {SUFFIXES.get(suffix, "?") for suffix in found}
    if len(kinds) > 1 or kinds == {"?"}:
        raise RecordsError("the files' names don't say what they are", "say it with --format")
    return kinds.pop()


def _suffix(file: Path) -> str:
    return Path(file.stem).suffix if file.suffix in COMPRESSIONS else file.suffix


Tell = Callable[[int], None]
"""Takes how many bytes of the files have been read."""
_Record = tuple[object, object, object]
"""Body, key and tag, as a file has them."""


def messages_of(files: Sequence[Path], kind: str, fields: Fields, tell: Tell = lambda done: None) -> Iterator[bytes]:
    """A line of JSON, as `append@format=json` takes it, for each record.

    RecordsError at once where a file is none of that kind or has no such column; later where its middle is.
    """
    find = {"jsonl": _of_lines, "csv": _of_csv, "parquet": _of_parquet}[kind]
    wanted = {name for name in fields if name is not None}
    for file in files:
        names = {"jsonl": lambda file: wanted, "csv": _csv_header, "parquet": _parquet_names}[kind](file)
        if missing := wanted - set(names):
            raise RecordsError(f"{file} has no column {min(missing)!r}", f"there are {', '.join(names)}")
    return (_line(*record) for record in _records(files, lambda file, tell: find(file, fields, tell), tell))


def _records(
    files: Sequence[Path], find: Callable[[Path, Tell], Iterable[_Record]], tell: Tell
) -> Iterator[_Record]:  # fmt: skip
    done = 0
    for file in files:
        yield from find(file, partial(_tell_more, tell, done))
        done += size_of(file)
        tell(done)


def _tell_more(tell: Tell, before: int, more: int) -> None:
    tell(before + more)


def size_of(file: Path) -> int:
    """Bytes of a file, or of all below a directory."""
    return sum(one.stat().st_size for one in file.rglob("*") if one.is_file()) if file.is_dir() else file.stat().st_size


def _line(body: object, key: object, tags: object) -> bytes:
    message: dict[str, object] = {}
    if isinstance(body, bytes):
        try:
            message["body"] = body.decode()
        except UnicodeDecodeError:
            message["body_base64"] = base64.b64encode(body).decode()
    else:
        message["body"] = "" if body is None else _text(body)
    if key is not None:
        message["keys"] = [_text(one) for one in key] if isinstance(key, list) else _text(key)
    if tags is not None:
        message["tags"] = _text(tags)
    return _json(message).encode(errors="surrogatepass")


def _text(value: object) -> str:
    return value if isinstance(value, str) else value.decode() if isinstance(value, bytes) else _json(value)


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), default=_plain)


def _plain(value: object) -> str:
    """What JSON has no type for, as text."""
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    return value.isoformat() if isinstance(value, date | time) else str(value)


@contextmanager
def _opened(file: Path) -> Iterator[tuple[BinaryIO, BinaryIO]]:
    """What a file says, and the file as it is on disk."""
    with file.open("rb") as raw, pa.input_stream(raw, compression=COMPRESSIONS.get(file.suffix)) as stream:
        yield io.BufferedReader(stream, 1 << 20), raw


def _of_lines(file: Path, fields: Fields, tell: Tell) -> Iterator[_Record]:
    with _opened(file) as (stream, raw):
        for number in count(1):
            line = stream.readline(LINE_BYTES + 1)
            if len(line) > LINE_BYTES:
                raise RecordsError(f"{file}: line {number} is longer than {LINE_BYTES:,} bytes, which is no message")
            if not line:
                return
            if body := line.rstrip(b"\r\n"):
                yield _of_line(body, fields, f"{file}: line {number}")
            if number % BATCH_RECORDS == 0:
                tell(raw.tell())


def _of_line(line: bytes, fields: Fields, where: str) -> _Record:
    if not any(fields):
        return line, None, None
    try:
        record = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise RecordsError(f"{where} is no JSON: {error}") from None
    if not isinstance(record, dict):
        raise RecordsError(f"{where} is no JSON object")
    if fields.body is not None and fields.body not in record:
        raise RecordsError(f"{where} has no {fields.body!r}")
    key, tags = (None if name is None else record.get(name) for name in (fields.key, fields.tags))
    return line if fields.body is None else record[fields.body], key, tags


@contextmanager
def _csv(file: Path) -> Iterator[tuple[Iterator[list[str]], BinaryIO]]:
    with _opened(file) as (stream, raw):
        try:
            yield csv.reader(io.TextIOWrapper(stream, "utf-8-sig", newline=""), strict=True), raw
        except (csv.Error, UnicodeDecodeError) as error:
            raise RecordsError(f"{file} is no CSV in UTF-8: {error}") from None


def _csv_header(file: Path) -> list[str]:
    with _csv(file) as (rows, _):
        names = next(rows, [])
    if not names or len(set(names)) < len(names):
        raise RecordsError(f"{file} has no header with a name for each column", "the first line is to name the columns")
    return names


def _of_csv(file: Path, fields: Fields, tell: Tell) -> Iterator[_Record]:
    with _csv(file) as (rows, raw):
        names = next(rows)
        for number, row in enumerate(filter(None, rows), 2):
            if len(row) != len(names):
                raise RecordsError(f"{file}: record {number} has {len(row)} values for {len(names)} columns")
            yield _of_record(dict(zip(names, (value or None for value in row), strict=True)), fields)
            if number % BATCH_RECORDS == 0:
                tell(raw.tell())


def _dataset(file: Path) -> ds.Dataset:
    try:
        return ds.dataset(str(file), format="parquet", partitioning="hive")
    except (pa.ArrowInvalid, OSError) as error:
        raise RecordsError(f"{file} is no Parquet: {error}") from None


def _parquet_names(file: Path) -> list[str]:
    return list(_dataset(file).schema.names)


def _of_parquet(file: Path, fields: Fields, tell: Tell) -> Iterator[_Record]:
    dataset = _dataset(file)
    columns = None if fields.body is None else [name for name in dataset.schema.names if name in fields]
    for batch in dataset.to_batches(columns=columns, batch_size=BATCH_RECORDS):
        for record in batch.to_pylist(maps_as_pydicts="lossy"):
            yield _of_record(record, fields)


def _of_record(record: dict[str, Any], fields: Fields) -> _Record:
    body, key, tags = (None if name is None else record[name] for name in fields)
    if fields.body is None:
        body = _json({name: value for name, value in record.items() if value is not None})
    return body, key, tags
