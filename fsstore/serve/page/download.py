"""Downloads of a selection: a line of JSON for each message, as `mountctl cat --json` prints it, or a row of CSV."""

from __future__ import annotations

import base64
import csv
import io
import time
from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Any

import msgspec

from engine import StoredMessage, StoreError
from fsstore.query.hist import QueueRange
from fsstore.serve.page.positions import first_from
from fsstore.serve.page.search import Search
from fsstore.tree.xattrs import NUMBERS, PREFIX, PROPERTY_PREFIX, attributes_of

PIECE_BYTES = 1 << 20
QUIET_S = 5.0
"""After so long without a message, JSON lines have a space, which means nothing there: a client sees that work goes on.
"""
COLUMNS = (
    "topic",
    "queue",
    "offset",
    "store_time",
    "physical_offset",
    "keys",
    "tags",
    "body",
    "body_base64",
    "problem",
)

_json = msgspec.json.Encoder()


def as_json(message: StoredMessage, topic: str, queue: int, offset: int) -> dict[str, Any]:
    """All of a message: numbers as numbers, a body that is not UTF-8 in `body_base64`. Errors as its `body`."""
    times = {"store_time": message.store_time_ms, "physical_offset": message.physical_offset}
    shown: dict[str, Any] = {"topic": topic, "queue": queue, "offset": offset, **times}
    properties: dict[str, str] = {}
    for full_name, value in attributes_of(message).items():
        text = value.decode("utf-8", "replace")
        name = full_name.removeprefix(PREFIX)
        if full_name.startswith(PROPERTY_PREFIX):
            properties[full_name.removeprefix(PROPERTY_PREFIX)] = text
        elif name != "queue_offset":
            shown[name] = int(text) if name in NUMBERS else text
    body = message.copy_body()
    try:
        return {**shown, "properties": properties, "body": body.decode()}
    except UnicodeDecodeError:
        return {**shown, "properties": properties, "body_base64": base64.b64encode(body).decode()}


def json_lines(search: Search, ranges: Sequence[QueueRange]) -> Iterator[bytes]:
    """The search's matches as pieces of JSON lines, queue by queue, oldest first. A damaged message has a line with
    `problem`; the last line has the number of messages that a search could not read."""
    return _in_pieces((_json.encode(one) + b"\n" if one else b"" for one in _each(search, ranges)), b" ")


def csv_rows(search: Search, ranges: Sequence[QueueRange]) -> Iterator[bytes]:
    """As `json_lines`, as CSV with a header, without properties."""
    rows = (_row([one.get(name, "") for name in COLUMNS]) if one else b"" for one in _each(search, ranges))
    return _in_pieces(chain([_row(COLUMNS)], rows), b"")


def _row(cells: Sequence[object]) -> bytes:
    text = io.StringIO()
    csv.writer(text, lineterminator="\r\n").writerow(cells)
    return text.getvalue().encode("utf-8", "replace")


def _each(search: Search, ranges: Sequence[QueueRange]) -> Iterator[dict[str, Any]]:
    """The objects of the messages; an empty one each time that some messages did not match."""
    store, before = search.store, search.selection.before
    if before is not None:
        ranges = [one._replace(end=first_from(store, one, before)) for one in ranges]
    for (topic, queue, *_), offsets in search.pieces(ranges):
        yield {}
        for offset in offsets.tolist():
            try:
                yield as_json(store.get(topic, queue, offset), topic, queue, offset)
            except StoreError as error:
                yield {"topic": topic, "queue": queue, "offset": offset, "problem": str(error)}
    if count := search.damage.count:
        yield {"topic": search.selection.topic, "problem": f"damaged messages that were not searched: {count}"}


def _in_pieces(rows: Iterator[bytes], nothing: bytes) -> Iterator[bytes]:
    held, size, since = [], 0, time.monotonic()
    for row in rows:
        held.append(row)
        size += len(row)
        if size >= PIECE_BYTES or (time.monotonic() - since > QUIET_S and (size or nothing)):
            yield b"".join(held) or nothing
            held, size, since = [], 0, time.monotonic()
    if size:
        yield b"".join(held)
