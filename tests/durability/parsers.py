"""Parsers of untrusted bytes, as functions of bytes: they raise only when a promise is broken."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import numpy as np

from engine.derived.consume_queue import ConsumeQueue
from engine.derived.index_file import IndexFile, index_file_bytes
from engine.errors import ReadError, StoreError
from engine.files.file_queue import FileQueue
from engine.files.mapped_file import Access, MappedFile
from engine.record.kernel.chain import Candidates
from engine.record.parsed_headers import parse_headers
from engine.record.properties import decode_properties, find_property, split_keys
from engine.record.record import decode_record
from engine.record.scan import scan_records
from fsstore.tree.json_messages import parse_json_message
from fsstore.tree.names import AppendOptions, decode_key, parse_append, parse_time_ms
from fsstore.tree.publishing import LineFramer

QUEUE_FILE_BYTES = 640
SLOTS, ENTRIES = 5, 8


def record(data: bytes) -> None:
    """A record is decoded whole or refused, and the array decoder agrees with the one for single records."""
    place = int.from_bytes(data[28:36], "big", signed=True) if len(data) >= 36 else 0
    if place < 0:
        return
    located = parse_headers(np.frombuffer(data, np.uint8), np.zeros(1, np.int64), np.array([place]))
    try:
        message = decode_record(memoryview(data), place)
    except ReadError:
        return
    assert located.headers["ok"][0]
    assert message.store_size == located.headers["store_size"][0]
    with suppress(ReadError):
        _ = bytes(message.body)
    _ = (message.properties, message.keys, message.tags, message.unique_key, message.msg_id, str(message.born_host))


def log(data: bytes) -> None:
    """Every record that a scan finds is one that can be decoded."""
    for found in scan_records(memoryview(data), 0, 0, len(data)):
        for place in found.records.headers["physical_offset"].tolist():
            decode_record(memoryview(data)[place:], place)


def properties(data: bytes) -> None:
    """Any bytes are properties of some kind."""
    decoded = decode_properties(data)
    assert all(decoded.values()), "an empty value is none"
    find_property(data, b"KEYS")
    split_keys(decoded.get("KEYS", ""))


def consume_queue(data: bytes) -> None:
    """Any bytes are a queue with an end; what it shows lies before that."""
    with tempfile.TemporaryDirectory() as folder:
        for start in range(0, len(data), QUEUE_FILE_BYTES):
            piece = data[start : start + QUEUE_FILE_BYTES].ljust(QUEUE_FILE_BYTES, b"\0")
            (Path(folder) / f"{start:020d}").write_bytes(piece)
        queue = ConsumeQueue("T", 0, FileQueue(Path(folder), QUEUE_FILE_BYTES, Access.READ))
        queue.recover()
        assert 0 <= queue.first_offset <= queue.min_offset <= queue.max_offset <= len(data) // 20 + 32
        entries = queue.entries(queue.first_offset, queue.max_offset - queue.first_offset)
        assert (entries["size"] > 0).all()
        queue.truncate(1000)
        assert queue.physical_end <= 1000
        queue.close()


def index(data: bytes) -> None:
    """Any bytes of the right number are an index file: every look-up ends."""
    size = index_file_bytes(SLOTS, ENTRIES)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "20260101000000000"
        path.write_bytes(data[:size].ljust(size, b"\0"))
        file = IndexFile(MappedFile(path, size, Access.READ), SLOTS, ENTRIES)
        for key_hash in range(SLOTS + 1):
            assert len(list(Candidates([], (file,), key_hash, -(1 << 63), False))) <= ENTRIES
        kept = file.truncate(1000, lambda physical_offset: 0)  # nothing kept: the caller deletes the file
        assert not kept or all(place < 1000 for place in file.records()["physical_offset"].tolist())
        file.file.close()


def lines(data: bytes) -> None:
    """However a text is cut into writes, its lines are the same."""
    step, text = (data[0] + 1, data[1:]) if data else (1, b"")
    framer, taken = LineFramer(1 << 20), b""
    for start in range(0, len(text), step):
        piece = text[start : start + step]
        text_taken = framer.text_with(piece)
        assert b"".join(framer.lines_with(piece)) == text_taken
        taken += text_taken
        framer.keep_rest_of(piece)
    assert taken == text[: text.rfind(b"\n") + 1]


def json_line(data: bytes) -> None:
    """A line is a message or is refused."""
    with suppress(StoreError):
        parse_json_message("T", data, AppendOptions())


def names(data: bytes) -> None:
    """Any name is understood or refused."""
    parse_append(data)
    parse_append(b"append@" + data)
    decode_key(data)
    parse_time_ms(data)


PARSERS: dict[str, Callable[[bytes], None]] = {
    one.__name__: one for one in (record, log, properties, consume_queue, index, lines, json_line, names)
}
