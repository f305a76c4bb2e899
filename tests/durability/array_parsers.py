"""The kernel's loops over many, as functions of bytes: what they show is what the loops for one show, and what Python
does. As `parsers`, which lists them, they raise only when a promise is broken."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from engine.derived.consume_queue import ConsumeQueue
from engine.errors import ReadError
from engine.files.file_queue import FileQueue
from engine.files.mapped_file import Access
from engine.log.entries import ENTRY, PRE_BLANK_SIZE, TOPIC_ROW
from engine.record.columns import find_properties
from engine.record.compression import BODY_LIMIT_BYTES
from engine.record.hashes import java_hash
from engine.record.kernel import columns, folders, scan
from engine.record.kernel.decode import StoredMessage, is_wrapper, read_run
from engine.record.kernel.entries import look
from engine.record.kernel.search import Texts, find_bodies, find_texts
from engine.record.parsed_headers import misplaced, parse_headers
from engine.record.properties import find_property
from engine.record.property_columns import Properties
from engine.record.record import decode_record

Array = np.ndarray[Any, Any]

QUEUE_FILE_BYTES = 640
NAMES = [b"KEYS", b"TAGS", b"UNIQ_KEY"]
EXTREMES = (-1, -(1 << 63), (1 << 63) - 1, 1 << 62)
MOST_ROWS = 4
FIRST_EXTREME = 0xFFF0
NEXT, UNREAD = 1 << 40, -1


def rows(data: bytes) -> None:
    """Wherever entries lead, many records are read as each of them is alone.

    number of rows u8 | position u16 of up to 4 of them, the highest for extremes | size of a text u8 | log
    """
    count, log = 1 + data[0] % MOST_ROWS if data else 1, data[2 + 2 * MOST_ROWS :]
    positions = [int.from_bytes(data[1 + 2 * row : 3 + 2 * row], "big") for row in range(count)]
    Rows(log, [one if one < FIRST_EXTREME else EXTREMES[one % len(EXTREMES)] for one in positions]).compare()
    size = data[1 + 2 * MOST_ROWS] % 8 if len(data) > 1 + 2 * MOST_ROWS else 0
    Rows(log, [one for one in positions if one < FIRST_EXTREME]).compare_bodies(log[-1 - size :])


class Rows:
    """Records at physical offsets of a log from 0 on, as if these were the entries of a queue."""

    def __init__(self, log: bytes, physical_offsets: Sequence[int]) -> None:
        self.log = np.frombuffer(log, np.uint8)
        self.places = np.array(physical_offsets, np.int64)
        self.alone = [self._alone(place) for place in physical_offsets]
        """The message of each that is one, by the loop for one record."""
        self.topic, self.queue, self.first = b"T", 0, 0
        for row, message in enumerate(self.alone):
            if message is not None and row <= message.queue_offset:
                self.topic, self.queue, self.first = topic_of(message), message.queue, message.queue_offset - row
                break
        self.is_here = [message is not None and self._is_here(row, message) for row, message in enumerate(self.alone)]
        """Which are of the queue, and no batch."""
        self.is_plain = [
            is_here and message is not None and not message.is_compressed
            for is_here, message in zip(self.is_here, self.alone, strict=True)
        ]

    def _alone(self, place: int) -> StoredMessage | None:
        if not 0 <= place <= len(self.log):
            return None
        try:
            return decode_record(self.log.data[place:], place)
        except ReadError:
            return None

    def _is_here(self, row: int, message: StoredMessage) -> bool:
        is_slot = (message.queue, message.queue_offset) == (self.queue, self.first + row)
        return is_slot and topic_of(message) == self.topic and not has_batch_flags(message)

    def compare(self) -> None:
        """AssertionError: a loop over all shows something else."""
        self._compare_headers()
        self._compare_sizes()
        self._compare_outline()
        if self.topic.isascii():
            self._compare_run()

    def _compare_headers(self) -> None:
        in_log = np.flatnonzero((self.places >= 0) & (self.places <= len(self.log)))
        found = parse_headers(self.log, self.places[in_log], self.places[in_log])
        messages = [self.alone[row] for row in in_log.tolist()]
        good = np.flatnonzero(found.headers["ok"])
        assert all(found.headers["ok"][row] for row, message in enumerate(messages) if message is not None)
        messages, found = [messages[row] for row in good.tolist()], found.take(good)
        whole = scan.whole_bodies(self.log, *found.bodies, found.parts["body_crc"])
        assert whole.tolist() == [message is not None for message in messages]
        numbers, _ = scan.fixed_fields(self.log, found.positions, found.headers, found.parts)
        values = find_properties(found, NAMES)
        properties = Properties.of(found)
        misplaced(found, "T", self.queue, self.first)
        for row, message in enumerate(messages):
            if message is not None:
                expected = (message.flag, message.born_time_ms, message.reconsume_times)
                assert tuple(numbers[:, row].tolist()) == expected
                stored = [bytes(self.log[starts[row] : starts[row] + sizes[row]]) for starts, sizes in values]
                assert stored == [find_property(message.raw_properties, name) or b"" for name in NAMES]
                items = range(int(properties.row_starts[row]), int(properties.row_starts[row + 1]))
                shown = {properties.names[item].decode(): properties.values[item].decode() for item in items}
                assert shown == message.properties

    def _compare_sizes(self) -> None:
        stores, bodies = scan.read_sizes(self.log, self.places)
        for message, store_size, body_size in zip(self.alone, stores.tolist(), bodies.tolist(), strict=True):
            if message is not None and not has_batch_flags(message):
                expected = -1 if message.is_compressed else message.body_size
                assert (store_size, body_size) == (message.store_size, expected)
        count, texts = len(self.places), [message_text(message) for message in self.alone]
        numbers = np.arange(count) + self.first
        ids = np.full(count, self.queue, np.int32)
        sizes = scan.text_sizes(self.log, 0, self.places, self.topic, ids, numbers, False, count)
        table = np.zeros(count, TOPIC_ROW)
        table["physical_offset"], table["queue_offset"], table["queue_id"] = self.places, numbers, self.queue
        found = scan.rows_text(self.log, 0, NEXT, table.tobytes(), 0, self.topic, False, NEXT << 20)
        target = np.zeros(len(self.log) + 16, np.uint8)
        copied = scan.copy_texts(self.log, 0, self.places, False, target)
        if not all(self.is_plain):
            assert sizes is None
            assert found is None or (all(self.is_plain[: found[0]]) and found[0] < count)
            return
        assert sizes is not None
        assert sizes.tolist() == list(map(len, texts))
        assert found is not None
        assert found[:2] == (count, sum(map(len, texts)))
        if sum(map(len, texts)) <= len(target):
            assert bytes(target[:copied]) == b"".join(texts)

    def _compare_outline(self) -> None:
        found = scan_outline(self)
        if found is None:
            return
        messages = [message for message in self.alone if message is not None]
        assert all(self.is_plain)
        assert found[0][0] == (int(self.places.min()), int(self.places.max()))
        assert found[1] == sum(message.body_size for message in messages)
        assert found[2][0] == sum(len(message.keys) for message in messages)
        assert found[5][0] == sum(len(message.properties) for message in messages)

    def _compare_run(self) -> None:
        topic, size = self.topic.decode(), len(self.log)
        if not size:
            return
        found, _, _ = read_run(
            self.log.data, 0, size, False, self.places, topic, self.queue, self.first, BODY_LIMIT_BYTES, NEXT
        )
        for row, message in enumerate(found):
            alone = self.alone[row] if self.is_here[row] else None
            assert (message is None) == (alone is None)
            assert message is None or alone is None or message.record == alone.record

    def compare_bodies(self, text: bytes) -> None:
        """AssertionError: a search finds other bodies than those with the text."""
        if not text or not len(self.places):
            return
        entries = np.zeros(len(self.places), ENTRY)
        entries["physical_offset"] = self.places
        wanted = Texts([text], False, self.log)
        looked, found = find_bodies(wanted, self.log, 0, entries, self.topic, self.queue, self.first, False, NEXT)
        assert looked == len(self.places) or not self.is_plain[looked]
        expected = [
            row
            for row, message in enumerate(self.alone[:looked])
            if message is not None and text in bytes(message.stored_body)
        ]
        assert found[0].tolist() == expected
        for row, start, size in found[[0, 2, 3]].T.tolist():
            message = self.alone[row]
            assert message is not None
            assert bytes(self.log[start : start + size]) == message.stored_body


def scan_outline(found: Rows) -> tuple[Any, ...] | None:
    """Of all rows together."""
    return columns.outline(found.log, 0, found.places, found.topic, found.queue, found.first, False, NAMES, MOST_ROWS)


def topic_of(message: StoredMessage) -> bytes:
    """The topic, as stored."""
    return bytes(message.record[message._topic_position : message._properties_position - 2])


def has_batch_flags(message: StoredMessage) -> bool:
    """Whether the record must be read alone; it is a batch with inner messages only if it has a count of them, too."""
    flags = message.sys_flag & 0xC0 == 0xC0
    assert flags or not is_wrapper(message)
    return flags


def message_text(message: StoredMessage | None) -> bytes:
    """Its line of a stream."""
    return b"" if message is None else bytes(message.stored_body) + b"\n"


def ranges(data: bytes) -> None:
    """Ranges of bytes are taken as Python takes them, or refused when one is not inside.

    number of ranges u8 | start i8, size i8 of up to 4 of them | a text
    """
    count, text = data[0] % 5 if data else 0, data[9:]
    bounds = np.frombuffer(data[1:9].ljust(8, b"\0"), np.int8)[: 2 * count].astype(np.int64)
    starts, sizes = np.ascontiguousarray(bounds[::2]), np.ascontiguousarray(bounds[1::2])
    raw, pairs = np.frombuffer(text, np.uint8), list(zip(starts.tolist(), sizes.tolist(), strict=True))
    none = np.zeros(count, np.int64)
    calls: dict[str, Callable[[], Any]] = {
        "gather": lambda: columns.gather(raw, starts, sizes),
        "values": lambda: columns.find_values(raw, starts, sizes, NAMES),
        "items": lambda: columns.split_items(raw, starts, sizes),
        "words": lambda: columns.words(raw, starts, sizes, none, none),
        "hashes": lambda: columns.java_hashes(raw, starts, sizes, None),
        "numbers": lambda: columns.number(raw, starts, sizes, count),
        "texts": lambda: find_texts(Texts([b"a", b"KEYS"], True, raw), raw, starts, sizes),
    }
    if not all(0 <= size <= len(text) and (not size or 0 <= start <= len(text) - size) for start, size in pairs):
        for name, call in calls.items():
            try:
                call()
            except IndexError:
                continue
            raise AssertionError(f"{name}: a range is not inside")
        return
    found = {name: call() for name, call in calls.items()}
    texts = [text[start : start + size] if size else b"" for start, size in pairs]
    assert bytes(found["gather"][1]) == b"".join(texts)
    for row, one in enumerate(texts):
        for number, wanted in enumerate(NAMES):
            start, size = found["values"][number, :, row].tolist()
            assert (text[start : start + size] or None) == find_property(one, wanted)
        assert found["texts"][row] == next((i for i, part in enumerate((b"a", b"keys")) if part in one.lower()), -1)
    assert [text[start : start + size] for _, start, size in found["words"].T.tolist()] == [
        word for one in texts for word in one.split(b" ") if word
    ]
    assert items_in(text, found["items"]) == [stored_items(one) for one in texts]
    hashes, odd = found["hashes"]
    assert odd.tolist() == [row for row, one in enumerate(texts) if not is_utf8(one)]
    assert [hashes[row] for row, one in enumerate(texts) if is_utf8(one)] == [
        java_hash(one.decode()) & 0xFFFFFFFF for one in texts if is_utf8(one)
    ]
    different = list(dict.fromkeys(texts))
    assert found["numbers"][0].tolist() == [different.index(one) for one in texts]


def items_in(text: bytes, found: Any) -> list[list[tuple[bytes, bytes]]]:
    """Names and values that `split_items` found, of each row."""
    row_starts, codes, names, (offsets, values) = found
    items = []
    for item, code in enumerate(codes.tolist()):
        start, size = names[:, code].tolist()
        items.append((text[start : start + size], bytes(values[offsets[item] : offsets[item + 1]])))
    return [items[row_starts[row] : row_starts[row + 1]] for row in range(len(row_starts) - 1)]


def stored_items(text: bytes) -> list[tuple[bytes, bytes]]:
    """Names and values of stored properties that have both."""
    parts = [item.partition(b"\x01") for item in text.split(b"\x02")]
    return [(name, value) for name, _, value in parts if name and value]


def is_utf8(text: bytes) -> bool:
    """Whether the text is UTF-8."""
    try:
        text.decode()
    except UnicodeDecodeError:
        return False
    return True


def consume_queue(data: bytes) -> None:
    """Any bytes are a queue with an end; what it shows lies before that. A look at its files shows the same."""
    with tempfile.TemporaryDirectory() as folder, opened(Path(folder)) as descriptor:
        below = Path(folder) / "T/0"
        below.mkdir(parents=True)
        for start in range(0, len(data), QUEUE_FILE_BYTES):
            piece = data[start : start + QUEUE_FILE_BYTES].ljust(QUEUE_FILE_BYTES, b"\0")
            (below / f"{start:020d}").write_bytes(piece)
        queue = ConsumeQueue("T", 0, FileQueue(below, QUEUE_FILE_BYTES, Access.READ))
        queue.recover()
        assert 0 <= queue.first_offset <= queue.min_offset <= queue.max_offset <= len(data) // 20 + 32
        entries = queue.entries(queue.first_offset, queue.max_offset - queue.first_offset)
        assert (entries["size"] > 0).all()
        compare_looks(descriptor, queue, entries)
        queue.truncate(1000)
        assert queue.physical_end <= 1000
        queue.close()


def compare_looks(descriptor: int, queue: ConsumeQueue, entries: Array) -> None:
    """AssertionError: a queue's files, below an open folder, show something else when no file of them is mapped."""
    found = look(descriptor, b"T", b"0", QUEUE_FILE_BYTES, 0, 2)
    if found is not None and found.files < 2:  # of several it is no proof that those before the newest are whole
        assert (found.files, found.max_offset) == (len(queue.files.files), queue.max_offset)
        assert entries.tobytes().endswith(found.newest)
    for number, (physical_offset, size, _) in enumerate(entries.tolist(), queue.first_offset):
        assert size <= 0 or folders.has_entry(descriptor, b"T", 0, number, physical_offset, QUEUE_FILE_BYTES)
        assert not folders.has_entry(descriptor, b"T", 0, number, physical_offset ^ 1, QUEUE_FILE_BYTES)
    members = folders.files_below(descriptor, b"T")["0"]
    assert isinstance(members, dict)
    assert len(members) == len(queue.files.files)
    extent = (queue.first_offset, queue.max_offset)
    stamps = [folders.queue_stamps(descriptor, b"T", {0: extent}, ENTRY.itemsize, QUEUE_FILE_BYTES) for _ in range(2)]
    assert stamps[0] == stamps[1]
    if len(members) != 1 or not len(entries):
        return
    raw, path, end = entries.tobytes(), b"T/0/" + b"0" * 20, len(entries) * ENTRY.itemsize
    assert folders.read_ends(descriptor, path, end, ENTRY.itemsize) == raw[: ENTRY.itemsize] + raw[-ENTRY.itemsize :]
    content = (queue.files.directory / f"{0:020d}").read_bytes()
    assert folders.data_ends_at(descriptor, path, end, ENTRY.itemsize) == (not any(content[end:]))
    listed = folders.read_queues(descriptor, b"T", {0: extent}, len(entries))
    if listed is not None:
        assert not (entries["size"] == PRE_BLANK_SIZE).any()
        places = np.frombuffer(listed, TOPIC_ROW)["physical_offset"].tolist()
        assert places == sorted(entries["physical_offset"].tolist())


@contextmanager
def opened(folder: Path) -> Iterator[int]:
    """A descriptor of the folder."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield descriptor
    finally:
        os.close(descriptor)
