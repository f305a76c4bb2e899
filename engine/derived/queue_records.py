"""Queue records: reads the records that a queue's entries lead to, one by one or as arrays.

An entry counts only if its record names the entry's slot. A record that does not, or that holds a batch, is read
alone. Both ways give the same messages.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from engine.errors import DamagedRecordError, MessageNotFoundError, ReadError, RefusedReadError
from engine.log.entries import Entries, file_pages, runs_by_file
from engine.record.inner_batch import InnerBatch, InnerMessage, may_be_wrapper
from engine.record.kernel.decode import StoredMessage, is_wrapper, read_alone, read_run
from engine.record.multi_dispatch import Slot, matches_slot
from engine.record.parsed_headers import ParsedHeaders, misplaced, parse_headers
from engine.record.record import decode_record

if TYPE_CHECKING:
    from engine.derived.consume_queue import ConsumeQueue
    from engine.derived.consume_queues import ConsumeQueues
    from engine.log.commit_log import CommitLog

Array = np.ndarray[Any, Any]

KEPT_BATCHES = 16
"""Number of batches whose parsed messages are cached."""

GROUP_BYTES = 1 << 20
"""Approximate size of a group of messages. All are checked before the first is returned."""

MOST_COUNTED = 1 << 16
"""Limit of the counter of damaged records."""


class Run(NamedTuple):
    """Records at queue offsets from `first` on, in the log file at physical offset `log_file`. `alone` are messages
    that were read alone, by row; with any, `records` are copies."""

    first: int
    records: ParsedHeaders
    log_file: int
    alone: Mapping[int, StoredMessage]


class Group(NamedTuple):
    """Messages that were made together. None stands for each of the `alone` messages that must be read alone. `size`
    is the bytes of the others' records."""

    messages: Sequence[StoredMessage | None]
    alone: int
    size: int


class QueueRecords:
    """Reads the records that entries lead to. Thread safety: any thread."""

    def __init__(self, log: CommitLog, queues: ConsumeQueues, body_limit_bytes: int) -> None:
        self._log = log
        self._is_ledger = log.framing.is_ledger
        self._body_limit_bytes = body_limit_bytes
        whole = functools.partial(decode_record, body_limit_bytes=body_limit_bytes)
        self._whole: Callable[[memoryview, int], StoredMessage] = self._framed if self._is_ledger else whole
        """Returns the message whose record begins a view and has a physical offset. DamagedRecordError."""
        self._queues = queues
        self._batches: dict[int, InnerBatch] = {}
        self.has_batches = False
        """Whether messages of a batch were read. Before that, no caller can have the physical offset of one."""
        self._damaged: set[int] = set()

    @property
    def damaged_places(self) -> int:
        """Number of records that readers could not read, up to MOST_COUNTED."""
        return len(self._damaged)

    def forget_damaged(self) -> None:
        """Reset the counter, for another log."""
        self._damaged.clear()

    def _note_damaged(self, physical_offset: int) -> None:
        if len(self._damaged) < MOST_COUNTED:
            self._damaged.add(physical_offset)

    # one

    def get(self, queue: ConsumeQueue, queue_offset: int, entry: tuple[int, int, int]) -> StoredMessage:
        """The message that an entry of the queue leads to. DamagedRecordError; other errors as `CommitLog.rest`."""
        alone = read_alone(
            self._log.files,
            entry[0],
            self._is_ledger,
            self._body_limit_bytes,
            queue.topic,
            queue.queue_id,
            queue_offset,
        )
        if alone is not None:
            return alone
        try:
            message = self._record(Slot(queue.topic, queue.queue_id, queue_offset), entry[0])
            if not is_wrapper(message):
                return message
            self.has_batches = True
            return self._items(message).message(message, queue_offset - message.queue_offset)
        except DamagedRecordError as damage:
            self._note_damaged(damage.physical_offset)
            raise

    def _record(self, slot: Slot, physical_offset: int) -> StoredMessage:
        """The record that a slot's entry leads to. Each queue offset of a batch gives the batch as it is stored."""
        try:
            message = self.record_at(physical_offset)
        except RefusedReadError:
            raise
        except (DamagedRecordError, MessageNotFoundError) as error:
            raise self._error_outside_log(error, slot) from None
        if matches_slot(message, slot):
            return message
        found = f"{message.topic}/{message.queue}/{message.queue_offset}"
        text = f"the entry of {slot.topic}/{slot.queue_id}/{slot.queue_offset} leads to {found}"
        raise DamagedRecordError(message.physical_offset, text)

    def _error_outside_log(self, error: ReadError, slot: Slot) -> ReadError:
        """The error for an entry that leads out of the log: damage, unless a followed log is being rewritten."""
        if not isinstance(error, MessageNotFoundError):
            return error
        if not self._log.files.files:
            return MessageNotFoundError(*slot)
        text = f"the entry of {slot.topic}/{slot.queue_id}/{slot.queue_offset} leads out of the log"
        return DamagedRecordError(error.physical_offset, text)

    def at(self, physical_offset: int) -> StoredMessage:
        """The message at the given physical offset; batch messages lie at their batch's offset plus their number.
        Errors as `CommitLog.rest`, DamagedRecordError."""
        try:
            message = self.record_at(physical_offset)
        except DamagedRecordError:
            found = self._within_batch(physical_offset) if self.has_batches else None
            if found is None:
                raise
            return found
        return self._items(message).message(message, 0) if is_wrapper(message) else message

    def _within_batch(self, physical_offset: int) -> StoredMessage | None:
        """The batch message at `physical_offset`, found by the batch's queue entry; None without one."""
        for queue in self._queues:
            try:
                queue_offset = queue.offset_of_physical(physical_offset + 1) - 1
                entry = queue.entry(queue_offset)
                if entry is None or not entry[0] <= physical_offset < entry[0] + entry[1]:
                    continue
                wrapper = self.record_at(entry[0])
                if is_wrapper(wrapper) and physical_offset - entry[0] < len(self._items(wrapper)):
                    return self._items(wrapper).message(wrapper, physical_offset - entry[0])
            except ReadError:
                continue
        return None

    def messages_at(self, physical_offset: int) -> list[StoredMessage]:
        """The message of the record at `physical_offset`, or its batch's messages. Errors as `at`."""
        message = self.record_at(physical_offset)
        if not is_wrapper(message):
            return [message]
        batch = self._items(message)
        return [batch.message(message, number) for number in range(len(batch))]

    def _items(self, wrapper: StoredMessage) -> InnerBatch:
        """The batch in the wrapper. DamagedRecordError."""
        known = self._batches.get(wrapper.physical_offset)
        if known is None or (known.body_crc, known.store_size) != (wrapper.body_crc, wrapper.store_size):
            known = InnerBatch(wrapper)
            if len(self._batches) >= KEPT_BATCHES:
                self._batches.pop(next(iter(self._batches), -1), None)
            self._batches[wrapper.physical_offset] = known
        return known

    def record_at(self, physical_offset: int) -> StoredMessage:
        """The record at a physical offset, by its own size. Errors as `CommitLog.rest`, DamagedRecordError."""
        if physical_offset < 0:
            raise MessageNotFoundError(physical_offset=physical_offset)
        view = self._log.rest(physical_offset)
        if not len(view):
            raise MessageNotFoundError(physical_offset=physical_offset)
        return self._whole(view, physical_offset)

    def _framed(self, view: memoryview, physical_offset: int) -> StoredMessage:
        """`_whole` of a ledger."""
        message = decode_record(view, physical_offset, body_limit_bytes=self._body_limit_bytes)
        self._log.require_framed(physical_offset, message.store_size)
        return message

    def alone(self, queue: ConsumeQueue, queue_offset: int) -> StoredMessage | None:
        """The message at that queue offset, as `get` reads it; None without a readable one."""
        try:
            return self.of_entry(queue, queue_offset)
        except ReadError:
            return None

    def of_entry(self, queue: ConsumeQueue, queue_offset: int) -> StoredMessage | None:
        """As `alone`, but ReadError if the message is unreadable."""
        entry = queue.entry(queue_offset)
        return self.get(queue, queue_offset, entry) if entry is not None else None

    # many

    def group(self, topic: str, queue_id: int, first: int, physical_offsets: Array) -> Group | None:
        """The first messages, at least one, of the queue offsets from `first` on. `physical_offsets` are those of
        their records: int64 (n,). None if retention deletes their file meanwhile."""
        files = self._log.files
        start = max(int(physical_offsets[0]), 0) // files.file_bytes * files.file_bytes
        found = read_run(
            file_pages(files, start),
            start,
            files.file_bytes,
            self._is_ledger,
            physical_offsets,
            topic,
            queue_id,
            first,
            self._body_limit_bytes,
            GROUP_BYTES,
        )
        return Group(*found) if start >= self._log.min_offset else None

    def runs(self, queue: ConsumeQueue, first: int, entries: Entries, most_rows: int | None = None) -> Iterator[Run]:
        """The records that `entries`, from queue offset `first` on, lead to. A run is of one file of the log and has
        `most_rows` records at most. Records that `get` refuses are not `ok`, but CRCs of bodies are not checked."""
        for pages, log_file, physical_offsets in runs_by_file(self._log.files, entries, most_rows):
            records = parse_headers(pages, physical_offsets - log_file, physical_offsets, self._is_ledger)
            copies = self._confirm(queue, first, records, physical_offsets)
            if copies:
                records = self._copied(records, physical_offsets, copies)
            yield Run(first, records, log_file, copies)
            first += len(physical_offsets)

    def note_unread(self, run: Run, good: Array) -> None:
        """Count the records of a run that are not `good` (bool (n,)) as damaged, because of their bodies."""
        for row in np.flatnonzero(run.records.headers["ok"] & ~good).tolist():
            self._note_damaged(int(run.records.headers["physical_offset"][row]))

    def _confirm(
        self, queue: ConsumeQueue, first: int, records: ParsedHeaders, physical_offsets: Array
    ) -> dict[int, StoredMessage]:
        """Read the records alone that do not name their entry's slot, and set their `ok`. Returns, by row, the messages
        that can't be read as arrays."""
        ok = records.headers["ok"]
        is_batch = may_be_wrapper(records.headers["sys_flag"])
        suspect = np.flatnonzero(~ok | misplaced(records, queue.topic, queue.queue_id, first) | is_batch)
        copies: dict[int, StoredMessage] = {}
        refused = -1
        for row, physical_offset in zip(suspect.tolist(), physical_offsets[suspect].tolist(), strict=True):
            message = self.alone(queue, first + row) if physical_offset != refused else None
            if message is None:
                ok[row], refused = False, physical_offset  # entries of many lost messages may lead to one record
            elif not ok[row] or isinstance(message, InnerMessage):
                copies[row] = message
        return copies

    def _copied(self, records: ParsedHeaders, starts: Array, copies: dict[int, StoredMessage]) -> ParsedHeaders:
        """The records in memory of their own, with the record of each message in `copies`."""
        sizes, ok = records.headers["store_size"], records.headers["ok"]
        positions = np.full(len(records), -1, np.int64)
        parts: list[memoryview] = []
        end = 0
        for row, position in enumerate(records.positions.tolist()):
            if row in copies:
                part = copies[row].record
            elif ok[row]:
                part = records.log[position : position + int(sizes[row])].data
            else:
                continue
            parts.append(part)
            positions[row], end = end, end + len(part)
        return parse_headers(np.frombuffer(b"".join(parts), np.uint8), positions, starts)
