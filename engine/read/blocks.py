"""Blocks: a range of a queue as columns, for readers that want arrays (docs/format.md, 2).

All fields of messages are gathered with numpy, without an object for each message. Text is always UTF-8: invalid bytes
become U+FFFD, as in a StoredMessage. Property values and bodies are gathered on demand; bodies stay in the log.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import numpy as np

from engine.errors import DamagedRecordError
from engine.log.entries import runs_by_file
from engine.record.byte_columns import ByteColumn, CodedColumn, SliceColumn, most_coded
from engine.record.columns import read_bodies
from engine.record.header import BORN_IPV6_FLAG, STORE_IPV6_FLAG, Host
from engine.record.kernel.columns import outline
from engine.record.kernel.scan import fixed_fields, whole_bodies
from engine.record.parsed_headers import ParsedHeaders
from engine.record.properties import KEYS, TAGS, UNIQUE_KEY
from engine.record.property_columns import Properties, words

if TYPE_CHECKING:
    from engine.derived.consume_queue import ConsumeQueue
    from engine.derived.queue_records import QueueRecords, Run
    from engine.log.commit_log import CommitLog

Array = np.ndarray[Any, Any]
T = TypeVar("T")

_ROWS_TOGETHER = 8192
"""Rows gathered together: few enough for the processor's cache and for reused memory."""


@dataclass(frozen=True, slots=True)
class Bodies:
    """Positions of the bodies of n messages: `starts` (int64 (n,)) in the log file at physical offset `log_file`, with
    their CRCs (int32 (n,)); or in `copied` (uint8) when a body is compressed or part of a batch."""

    log_file: int
    starts: Array
    sizes: Array
    crcs: Array
    copied: Array | None

    @property
    def nbytes(self) -> int:
        """Bytes of memory in use."""
        kept = 0 if self.copied is None else self.copied.nbytes
        return self.starts.nbytes + self.sizes.nbytes + self.crcs.nbytes + kept


@dataclass(frozen=True, slots=True)
class Block:
    """Good messages of a queue range in one log file, in queue order: n rows. All but the bodies are copied.

    Numbers are int64 (n,). `properties` has all stored ones, including KEYS and TAGS; the last of equal names counts.
    `damaged` is the number of skipped messages.
    """

    queue_offset: Array
    physical_offset: Array
    flag: Array
    sys_flag: Array
    reconsume_times: Array
    born_time_ms: Array
    store_time_ms: Array
    born_host: CodedColumn
    store_host: CodedColumn
    properties: Properties
    bodies: Bodies
    damaged: int

    def __len__(self) -> int:
        return len(self.queue_offset)

    def tags(self) -> ByteColumn | CodedColumn:
        """TAGS, empty where absent."""
        tags = self.properties.value(TAGS)
        return tags.coded() or tags.packed()

    def keys(self) -> tuple[Array, SliceColumn]:
        """(starts, keys): row i has the keys [starts[i], starts[i + 1]) (int64, (n + 1,))."""
        return words(self.properties.value(KEYS))


class Numbers(NamedTuple):
    """The least and the greatest value of each number of a block's rows."""

    physical_offset: tuple[int, int]
    born_time_ms: tuple[int, int]
    store_time_ms: tuple[int, int]
    flag: tuple[int, int]
    sys_flag: tuple[int, int]
    reconsume_times: tuple[int, int]


class Lists(NamedTuple):
    """Values of which each row has any number: how many, their bytes, and the number of rows that have none."""

    values: int
    value_bytes: int
    empty_rows: int


class Outline(NamedTuple):
    """Sizes and texts of a block whose messages are all good and not compressed. Each different text comes with its
    number of occurrences; `tags` is None if `Block.tags` is not coded."""

    numbers: Numbers
    body_bytes: int
    keys: Lists
    tag_bytes: int
    unique_key_bytes: int
    properties: Lists
    property_names: list[tuple[bytes, int]]
    tags: list[tuple[bytes, int]] | None
    born_hosts: list[tuple[bytes, int]]
    store_hosts: list[tuple[bytes, int]]


class BlockReader:
    """Reads blocks. Thread safety: stateless; any thread."""

    def __init__(self, log: CommitLog, body_limit_bytes: int, records: QueueRecords) -> None:
        self._log = log
        self._body_limit_bytes = body_limit_bytes
        self._records = records

    def read(self, queue: ConsumeQueue, first: int, count: int) -> list[Block]:
        """The messages at queue offsets [first, first + count), fewer at the queue's end: one block for each log file,
        in order."""
        runs = self._records.runs(queue, first, queue.known_entries(first, count), _ROWS_TOGETHER)
        by_file = groupby(map(self._part, runs), lambda part: part[0].bodies.log_file)
        return [_joined(list(parts)) for _, parts in by_file]

    def outline(self, queue: ConsumeQueue, first: int, count: int) -> Outline | None:
        """Sizes and texts of the block of queue offsets [first, first + count); takes a fraction of the block's
        time. None if only the block itself has them: messages are damaged or missing, in several log files,
        compressed or in batches, or their texts are unusual."""
        runs = list(runs_by_file(self._log.files, queue.known_entries(first, count)))
        if len(runs) != 1 or len(runs[0][2]) != count:
            return None
        [(pages, base, offsets)] = runs
        topic, is_ledger, names = queue.topic.encode(), self._log.framing.is_ledger, (KEYS, TAGS, UNIQUE_KEY)
        found = outline(pages, base, offsets, topic, queue.queue_id, first, is_ledger, names, most_coded(count))
        if found is None:
            return None
        numbers, body_bytes, keys, tag_bytes, unique_bytes, properties, property_names, tags, *hosts = found
        born_hosts, store_hosts = (_told(hosts) for hosts in hosts)
        return Outline(
            Numbers(*numbers),
            body_bytes,
            Lists(*keys),
            tag_bytes,
            unique_bytes,
            Lists(*properties),
            property_names,
            tags,
            born_hosts,
            store_hosts,
        )

    def bodies(self, bodies: Bodies) -> SliceColumn:
        """The bodies, without a copy if they are in the log. Errors as `CommitLog.view`.

        Their CRCs are checked again, because the kernel may have reread their pages from a damaged disk.
        """
        if bodies.copied is not None or not len(bodies.starts):
            data = np.empty(0, np.uint8) if bodies.copied is None else bodies.copied
            return SliceColumn(data, bodies.starts, bodies.sizes)
        data = np.frombuffer(self._log.rest(bodies.log_file), np.uint8)
        if len(data) < (bodies.starts + bodies.sizes).max():
            raise DamagedRecordError(bodies.log_file, "its file has become shorter")
        whole = whole_bodies(data, bodies.starts, bodies.sizes, bodies.crcs)
        if not whole.all():
            raise DamagedRecordError(bodies.log_file + int(bodies.starts[~whole][0]), "the body has changed")
        return SliceColumn(data, bodies.starts, bodies.sizes)

    def _part(self, run: Run) -> tuple[Block, SliceColumn]:
        """The block of a run, and its bodies."""
        records = run.records
        offsets = np.arange(run.first, run.first + len(records))
        good, bodies = read_bodies(records, self._body_limit_bytes)
        self._records.note_unread(run, good)
        if not good.all():
            records, offsets, bodies = records.take(good), offsets[good], bodies.take(good)
        headers = records.headers
        is_stored = bodies.data is records.log and not run.alone
        block = Block(
            queue_offset=offsets,
            physical_offset=headers["physical_offset"].astype(np.int64),
            sys_flag=headers["sys_flag"].astype(np.int64),
            store_time_ms=headers["store_time_ms"].astype(np.int64),
            properties=Properties.of(records),
            bodies=Bodies(
                run.log_file,
                bodies.starts,
                bodies.sizes,
                records.parts["body_crc"].copy(),
                None if is_stored else bodies.data,
            ),
            damaged=int(np.count_nonzero(~good)),
            **_fixed_fields(records),
        )
        return block, bodies


def _joined(parts: Sequence[tuple[Block, SliceColumn]]) -> Block:
    """Concatenate consecutive blocks of one log file."""
    blocks = [block for block, _ in parts]
    if len(blocks) == 1:
        return blocks[0]

    def of_all(find: Callable[[Block], T]) -> list[T]:
        return [find(block) for block in blocks]

    bodies = of_all(lambda block: block.bodies)
    starts, sizes = (np.concatenate([getattr(part, name) for part in bodies]) for name in ("starts", "sizes"))
    copied = None
    if any(part.copied is not None for part in bodies):
        joined = ByteColumn.concatenate([column.packed() for _, column in parts])
        starts, copied = joined.offsets[:-1], joined.data
    return Block(
        born_host=CodedColumn.concatenate(of_all(lambda block: block.born_host)),
        store_host=CodedColumn.concatenate(of_all(lambda block: block.store_host)),
        properties=Properties.concatenate(of_all(lambda block: block.properties)),
        bodies=Bodies(bodies[0].log_file, starts, sizes, np.concatenate([part.crcs for part in bodies]), copied),
        damaged=sum(of_all(lambda block: block.damaged)),
        **{name: np.concatenate([getattr(block, name) for block in blocks]) for name in _NUMBERS},
    )


_NUMBERS = (
    "queue_offset",
    "physical_offset",
    "flag",
    "sys_flag",
    "reconsume_times",
    "born_time_ms",
    "store_time_ms",
)


def _fixed_fields(records: ParsedHeaders) -> dict[str, Any]:
    """The columns of a block that are not in `records.headers`."""
    (flags, born_times, reconsume_times), hosts = fixed_fields(
        records.log, records.positions, records.headers, records.parts
    )
    data, starts = hosts.reshape(-1), np.arange(0, hosts.size, hosts.shape[2])

    def column(which: int, flag: int) -> CodedColumn:
        sizes = np.where(records.headers["sys_flag"] & flag, 20, 8)
        return _as_text(SliceColumn(data, starts[which::2], sizes).numbered())

    return {
        "flag": flags,
        "born_time_ms": born_times,
        "born_host": column(0, BORN_IPV6_FLAG),
        "store_host": column(1, STORE_IPV6_FLAG),
        "reconsume_times": reconsume_times,
    }


def _as_text(hosts: CodedColumn) -> CodedColumn:
    """Hosts as text. There are few different ones, so each is converted once."""
    numbers: dict[bytes, int] = {}
    texts = [str(Host.decode(hosts.texts[row])).encode() for row in range(len(hosts.texts))]
    codes = np.array([numbers.setdefault(text, len(numbers)) for text in texts], np.int32)
    return CodedColumn(ByteColumn.of(list(numbers)), codes[hosts.codes])


def _told(hosts: Sequence[tuple[bytes, int]]) -> list[tuple[bytes, int]]:
    """Encoded hosts as text, with how often each comes."""
    times: dict[bytes, int] = {}
    for encoded, count in hosts:
        text = str(Host.decode(encoded)).encode()
        times[text] = times.get(text, 0) + count
    return list(times.items())
