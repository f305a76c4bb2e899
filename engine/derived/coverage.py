"""Coverage: whether consume queues and index that another program left lead to every record (docs/format.md, 8).

Entries have a physical offset and a size, so the records they lead to must cover the log without gaps. Only the gaps
are read: blanks, transactions, or records whose entries are lost. So a store of a million messages is checked without
reading them, and a queue that is missing, short or full of zeros is still found.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from engine.errors import ReadError, StoreError
from engine.files.mapped_file import MappedFile
from engine.log.evidence import entries_between
from engine.log.sequence import queued_rows
from engine.record.multi_dispatch import MULTI_DISPATCH, Slot, secondary_slots
from engine.record.properties import KEYS, UNIQUE_KEY
from engine.record.record import decode_record
from engine.record.scan import ScannedRecords, scan_records

if TYPE_CHECKING:
    from engine.derived.consume_queue import ConsumeQueue
    from engine.derived.consume_queues import ConsumeQueues
    from engine.derived.deleted_topics import DeletedTopics
    from engine.derived.index import Index
    from engine.log.commit_log import CommitLog

Array = np.ndarray[Any, Any]
Queues = Mapping[tuple[str, int], "ConsumeQueue"]

MANY_GAPS = 2_000
"""With more gaps in one file than this, a rebuild, which reads the whole file, is faster."""

SAMPLED_ENTRIES = 16
"""Number of a queue's newest entries that are searched for multi-dispatch."""

_MULTI_DISPATCH = MULTI_DISPATCH.encode()
_KEY_NAMES = tuple(name + b"\x01" for name in (KEYS, UNIQUE_KEY))
_LONGEST_NAME_BYTES = max(map(len, _KEY_NAMES))
_SEARCHED_BYTES = 1 << 20


def queues_complete(log: CommitLog, queues: ConsumeQueues, deleted: DeletedTopics, end: int) -> bool:
    """Whether every record before the physical offset `end` that belongs in a queue has its entry."""
    known = {(queue.topic, queue.queue_id): queue for queue in queues}
    if not all(newest_in_place(log, queue) for queue in known.values()):
        return False
    led_to = entries_by_file(known.values(), [(file.start, file.start + file.size) for file in log.files.files], end)
    return all(
        _file_complete(log, file, starts, ends, known, deleted, min(end, file.start + file.size))
        for file, (starts, ends) in zip(log.files.files, led_to, strict=False)
    )


def newest_in_place(log: CommitLog, queue: ConsumeQueue) -> bool:
    """Whether the queue's newest entry leads to the record with its queue offset. True if it is unreadable."""
    entry = queue.entry(queue.max_offset - 1)
    if entry is None or entry[0] < log.min_offset:
        return True
    try:
        message = decode_record(log.rest(entry[0]), entry[0], verify=False)
    except ReadError:
        return True  # damage of the log, which no rebuild repairs
    if (message.topic, message.queue) != (queue.topic, queue.queue_id):
        return message.topic != queue.topic  # multi-dispatch added another topic's record
    return message.queue_offset == queue.max_offset - 1


def shows_multi_dispatch(log: CommitLog, queues: ConsumeQueues, begin: int) -> bool:
    """Whether multi-dispatch filled any of the queues that may lead to records from the physical offset `begin` on.
    Entries are the proof, because no publisher can make them: the newest of each queue are checked, and entries that
    share a record from `begin` on."""
    reaching = list(queues.reaching(begin))
    return any(_holds_secondary_slots(log, queue) for queue in reaching) or _shares_records(log, queues, begin)


def _shares_records(log: CommitLog, queues: ConsumeQueues, begin: int) -> bool:
    """Whether two queues lead to a record from `begin` on that names a secondary slot there."""
    reaching = list(queues.reaching(begin))
    if sum(queue.max_offset > queue.first_offset for queue in reaching) < 2:
        return False
    bounds = [(max(file.start, begin), file.start + file.size) for file in log.files.files]
    bounds = [(start, end) for start, end in bounds if start < end]
    last = bounds[-1][1] if bounds else 0
    for starts, _ in entries_by_file(reaching, bounds, last):
        for start in np.unique(starts[1:][starts[1:] == starts[:-1]]).tolist():
            for claimed in _claimed_slots(log, start):
                queue = queues.get(claimed.topic, claimed.queue_id)
                entry = queue.entry(claimed.queue_offset) if queue is not None else None
                if entry is not None and entry[0] == start:
                    return True
    return False


def _claimed_slots(log: CommitLog, physical_offset: int) -> Sequence[Slot]:
    """The secondary slots in other queues that the record at `physical_offset` names."""
    try:
        message = decode_record(log.rest(physical_offset), physical_offset, verify=False)
    except ReadError:
        return ()
    if not message.find_property(_MULTI_DISPATCH):
        return ()
    own = (message.topic, message.queue)
    return [one for one in secondary_slots(message.properties, message.queue) if (one.topic, one.queue_id) != own]


def _holds_secondary_slots(log: CommitLog, queue: ConsumeQueue) -> bool:
    if queue.max_offset == queue.first_offset:
        return False
    first = max(queue.max_offset - SAMPLED_ENTRIES, queue.min_offset)
    for queue_offset in range(queue.max_offset - 1, first - 1, -1):
        entry = queue.entry(queue_offset)
        if entry is None or entry[0] < log.min_offset:
            return False
        try:
            if _MULTI_DISPATCH not in bytes(log.view(entry[0], entry[1])):
                continue
        except ReadError:
            continue
        if Slot(queue.topic, queue.queue_id, queue_offset) in _claimed_slots(log, entry[0]):
            return True
    return False


def _file_complete(
    log: CommitLog,
    file: MappedFile,
    starts: Array,
    ends: Array,
    queues: Queues,
    deleted: DeletedTopics,
    end: int,
) -> bool:
    starts = starts - log.framing.header_bytes
    gaps = bare_ranges(starts, ends, file.start, end)
    if overlap(starts, ends, end) or len(gaps) > MANY_GAPS:
        return False
    try:
        view = file.pages()
    except StoreError:
        return True  # without its file no record can be dispatched
    return not any(
        _queued(found, queues, deleted)
        for start, stop in gaps
        for found in scan_records(
            view,
            start - file.start,
            file.start,
            min(stop - file.start, len(view)),
            framing=log.framing,
            verify=False,
        )
    )


def entries_by_file(
    queues: Iterable[ConsumeQueue], files: Sequence[tuple[int, int]], end: int
) -> Iterator[tuple[Array, Array]]:
    """Physical offsets and ends, ascending, of all entries for records before `end` in each of `files`: (start, end),
    ascending. A queue is read only for files that its entries lead to."""
    waiting, reached = [(queue, 0) for queue in queues], -1
    for start, stop in files:
        if start >= end:
            return
        if start != reached:  # the first file, or one is missing
            waiting = [(queue, queue.offset_of_physical(start)) for queue, _ in waiting]
        reached = stop
        bounds = [(queue, first, queue.offset_of_physical(min(stop, end))) for queue, first in waiting]
        starts, sizes = entries_between([bound for bound in bounds if bound[1] < bound[2]])
        waiting = [(queue, after) for queue, _, after in bounds if after < queue.max_offset]
        yield starts, starts + sizes


def overlap(starts: Array, ends: Array, end: int) -> bool:
    """Whether any range [starts[i], ends[i]) reaches into the next one, or past `end`: then an entry is wrong. Equal
    ranges are entries for one record."""
    alike = (starts[1:] == starts[:-1]) & (ends[1:] == ends[:-1])
    return bool(np.any(~alike & (ends[:-1] > starts[1:])) or np.any(ends > end))


def bare_ranges(starts: Array, ends: Array, start: int, end: int) -> list[tuple[int, int]]:
    """Parts of [start, end) that no range [starts[i], ends[i]) covers; `starts` are ascending, int64 (n,)."""
    reached = np.maximum.accumulate(np.concatenate(([start], ends)))
    begins = np.concatenate((starts, [end]))
    return [(int(reached[row]), int(begins[row])) for row in np.flatnonzero(begins > reached).tolist()]


def _queued(found: ScannedRecords, queues: Queues, deleted: DeletedTopics) -> bool:
    """Whether any of these records without an entry should have one."""
    found = deleted.without_queues(found)
    for row in queued_rows(found).tolist():
        key = (found.topics[int(found.topic_rows[row])], int(found.records.queue_ids[row]))
        queue = queues.get(key)
        queue_offset = int(found.records.headers["queue_offset"][row])
        if queue is None or not _superseded(queue, queue_offset, int(found.records.headers["physical_offset"][row])):
            return True
    return False


def _superseded(queue: ConsumeQueue, queue_offset: int, physical_offset: int) -> bool:
    """Whether a newer record has the queue offset: the broker lost the queue's files and started the queue again."""
    entry = queue.entry(queue_offset)
    if entry is not None:
        return entry[0] > physical_offset
    first = queue.entry(queue.min_offset)
    return first is not None and first[0] > physical_offset and queue_offset >= queue.max_offset


def index_start(log: CommitLog, index: Index, end: int) -> int:
    """Physical offset from which the log must be read so that the index has every key; log.min_offset: all of it."""
    files = index.files
    if not files or index.last_physical_offset < 0:
        return log.min_offset if index.foreign or _names_keys(log, end) else max(log.min_offset, end)
    bounds = [log.min_offset]
    for before, after in pairwise(files):
        bounds += [before.header.end_physical_offset, after.header.begin_physical_offset]
    begin = files[0].header.begin_physical_offset
    gaps = [(log.min_offset, begin), *zip(bounds[1::2], bounds[2::2], strict=True)]
    if any(_has_keys(log, start, stop) for start, stop in gaps if stop > start):
        return log.min_offset
    return max(log.min_offset, min(log.framing.frame_start(index.last_physical_offset), end))


def _names_keys(log: CommitLog, end: int) -> bool:
    """Whether the log before `end` contains the name of a property that holds keys.

    If it does not, no record has a key, and the log need not be read as records.
    """
    for file in log.files.files:
        if file.start >= end:
            break
        try:
            view = file.pages()[: end - file.start]
        except StoreError:
            continue  # a missing file has no names
        for start in range(0, len(view), _SEARCHED_BYTES):
            part = bytes(view[start : start + _SEARCHED_BYTES + _LONGEST_NAME_BYTES])
            if any(name in part for name in _KEY_NAMES):
                return True
    return False


def _has_keys(log: CommitLog, start: int, stop: int) -> bool:
    """Whether a record strictly between those at `start` and `stop` has a key, which the index then has lost."""
    for found in scan_range(log, max(start, log.min_offset), stop):
        rows, _ = found.index_keys
        starts = found.records.headers["physical_offset"][rows]
        if bool(np.any((starts > start) & (starts < stop))):
            return True
    return False


def scan_range(log: CommitLog, start: int, stop: int) -> Iterator[ScannedRecords]:
    """The records in [start, stop), unverified, across files. A record or a file begins at `start`."""
    for file in log.files.files:
        if file.start + file.size <= start or file.start >= stop:
            continue
        try:
            view = file.pages()
        except StoreError:
            continue
        position, end = max(log.framing.frame_start(start) - file.start, 0), min(stop - file.start, len(view))
        yield from scan_records(view, position, file.start, end, framing=log.framing, verify=False)
