"""Messages of a selection in a list: newest first, those of all queues by physical offset."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from engine import MessageStore, StoreError
from fsstore.query.hist import QueueRange
from fsstore.serve.page.positions import Array, first_from, newest_first, positions_in
from fsstore.serve.page.search import Search

PAGE_ROWS = 50
READ_BYTES = 8 << 20
"""Records of a list that are read for keys and the begin of bodies; of others, sizes and times are shown."""
PREVIEW_BYTES = 300
UNPACKED_BYTES = 4 << 20
"""Compressed bodies of a list that are decompressed to show their begin."""
NOT_READ = "open it to see its body"


class Row(NamedTuple):
    """A message in a list. `preview` is the begin of its body; `problem` says why there is no more of it. `time_ms` and
    `body_size` are None where they are not known."""

    topic: str
    queue: int
    offset: int
    physical_offset: int
    stored_bytes: int
    time_ms: int | None = None
    body_size: int | None = None
    keys: Sequence[str] = ()
    tags: str = ""
    preview: bytes = b""
    problem: str = ""


@dataclass(frozen=True, slots=True)
class Listed:
    """Rows, newest first. Older messages, if any, are before the physical offset `before`; None: there are none.
    `looked_at` is the number of messages that a search took; `is_cut`: some with the key were not looked at; `damaged`
    ones were skipped."""

    rows: list[Row]
    before: int | None
    looked_at: int = 0
    is_cut: bool = False
    damaged: int = 0


def newest(search: Search, ranges: Sequence[QueueRange]) -> Listed:
    """The newest PAGE_ROWS messages of the ranges, all before `before` if the selection has it. Errors as Search."""
    store, selection = search.store, search.selection
    if selection.before is not None:
        ranges = [one._replace(end=first_from(store, one, selection.before)) for one in ranges]
    ranges = [one for one in ranges if one.start < one.end]
    if selection.is_search:
        found = search.newest(ranges, PAGE_ROWS + 1)
        every, older, looked_at = found.positions, found.before, found.looked_at
    else:
        ends = (one._replace(start=max(one.start, one.end - PAGE_ROWS - 1)) for one in ranges)
        every, older, looked_at = newest_first([positions_in(store, one) for one in ends]), None, 0
    if len(every) > PAGE_ROWS:
        every, older = every[:PAGE_ROWS], int(every[PAGE_ROWS]["physical_offset"]) + 1
    return Listed(_rows(store, selection.topic, every), older, looked_at, search.is_cut, search.damage.count)


def behind(search: Search, ranges: Sequence[QueueRange], after: int) -> Listed:
    """As `newest`, of the messages behind the physical offset `after`."""
    return newest(search, [one._replace(start=first_from(search.store, one, after + 1)) for one in ranges])


def _rows(store: MessageStore, topic: str, positions: Array) -> list[Row]:
    left, unpacking = READ_BYTES, UNPACKED_BYTES
    rows: list[Row] = []
    for physical_offset, queue, offset, size in positions.tolist():
        place = topic, queue, offset, physical_offset, size
        left -= size
        try:
            if left < 0 and rows:
                rows.append(_unread(store, place))
                continue
            message = store.get(topic, queue, offset)
            known = message.store_time_ms, message.keys, message.tags
            if message.is_compressed and unpacking <= 0:
                rows.append(Row(*place, known[0], None, *known[1:], problem=NOT_READ))
                continue
            unpacking -= message.body_size if message.is_compressed else 0
            preview = bytes(message.body[:PREVIEW_BYTES])
            rows.append(Row(*place, known[0], message.body_size, *known[1:], preview))
        except StoreError as error:
            rows.append(Row(*place, problem=str(error)))
    return rows


def _unread(store: MessageStore, place: tuple[str, int, int, int, int]) -> Row:
    [header] = store.headers(*place[:3], 1)
    if not header["ok"]:
        return Row(*place, problem="it is damaged, or expired")
    body_size = int(header["body_size"])
    return Row(*place, int(header["store_time_ms"]), None if body_size < 0 else body_size, problem=NOT_READ)
