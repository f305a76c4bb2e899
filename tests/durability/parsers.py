"""Parsers of untrusted bytes, as functions of bytes: they raise only when a promise is broken."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path

import numpy as np

from engine import FileSizes, Message, MessageStore, StoreConfig
from engine.derived.index import Index
from engine.derived.index_file import IndexFile, index_file_bytes
from engine.derived.marks import parse_recovery_points
from engine.errors import (
    IllegalMessageError,
    MessageTooLargeError,
    ProtocolError,
    ReadError,
    StoreError,
    WriteError,
)
from engine.files.mapped_file import Access, MappedFile
from engine.record.batch import encode_lines, shares_of
from engine.record.header import MAX_OFFSET, Host
from engine.record.kernel.chain import Candidates
from engine.record.kernel.decode import StoredMessage
from engine.record.kernel.encode import EncodedBatch
from engine.record.parsed_headers import parse_headers
from engine.record.properties import decode_properties, find_property, split_keys
from engine.record.record import RecordEncoder, decode_record
from engine.record.scan import scan_records
from engine.replication.remoting import CommandDecoder, parse_settings
from engine.replication.wire import FrameDecoder, ReportDecoder, decode_handshake
from fsstore.query.expression import WhereError, parse
from fsstore.serve.connection import RequestError, _Head
from fsstore.tree.json_messages import parse_json_message
from fsstore.tree.names import AppendOptions, decode_key, parse_append, parse_time_ms
from fsstore.tree.publishing import LineFramer
from tests.durability.array_parsers import consume_queue, ranges, rows
from tests.engine.storetools import QUIET, HastyDisk

SLOTS, ENTRIES = 5, 8
NEXT = 1 << 40
"""Physical offset of the next record, and its store time."""

ENCODER = RecordEncoder(Host.parse("10.0.0.5:10911"), 4_000)
SIZES = FileSizes(commit_log_bytes=16_384, consume_queue_entries=32, index_slots=17, index_entries=96)
TINY = StoreConfig(sizes=SIZES, flush=QUIET, preallocate=False, max_message_bytes=4_000, disk=HastyDisk())


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


def index(data: bytes) -> None:
    """Any bytes of the right number are an index file: every look-up ends, also when the file is cut, and keys that are
    added to it are found."""
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
        _put_keys(Path(folder))
        _look_up_in_cut_file(Path(folder) / "cut", size, data[0] if data else 0)


def _look_up_in_cut_file(path: Path, size: int, left: int) -> None:
    path.write_bytes(bytes(size))
    file = IndexFile(MappedFile(path, size, Access.READ), SLOTS, ENTRIES)
    assert not any(file.file.whole())
    os.truncate(path, left % size)
    try:
        list(Candidates([], (file,), 1, -(1 << 63), False))
    except ReadError:
        file.file.close()
    else:
        raise AssertionError("a file that was cut is not noticed")


def _put_keys(folder: Path) -> None:
    keys = Index(folder, SLOTS, ENTRIES, Access.WRITE, lambda: 1 << 40, HastyDisk())
    keys.load()
    keys.truncate(NEXT, lambda physical_offset: 0)  # as an opening does
    is_believable = keys.last_physical_offset < NEXT
    for number in range(ENTRIES + 1):
        keys.put(ENCODER.encode(Message("T", b"", [f"K{number % 3}"]), 0, 0), NEXT + number, NEXT)
        keys.settle()
        assert not is_believable or NEXT + number in keys.candidates("T", f"K{number % 3}")
    keys.close()


def lines(data: bytes) -> None:
    """However a text is cut into writes, its lines are the same, and each is a message."""
    step, text = (data[0] + 1, data[1:]) if data else (1, b"")
    framer, taken = LineFramer(1 << 20), b""
    for start in range(0, len(text), step):
        piece = text[start : start + step]
        text_taken = framer.text_with(piece)
        assert b"".join(framer.lines_with(piece)) == text_taken
        taken += text_taken
        framer.keep_rest_of(piece)
    assert taken == text[: text.rfind(b"\n") + 1]
    bodies = []
    for batch in encode_lines(ENCODER, Message("T", b""), taken, 0):
        batch.distribute(shares_of([0], [0], 0, len(batch)))
        batch.place(None, 0, 0)
        bodies += [bytes(message.body) for message in _records_in(batch)]
    assert bodies == [line for line in taken.split(b"\n") if line]


def _records_in(batch: EncodedBatch) -> Iterator[StoredMessage]:
    place = 0
    for size in batch.sizes():
        yield decode_record(batch.buffer[place:], place)
        place += size


def message(data: bytes) -> None:
    """A message is refused, or stored and read as it was published.

    body, keys, tags, a property's name and its value, with newlines between them
    """
    body, *texts = (*data.split(b"\n", 4), b"", b"", b"", b"")[:5]
    keys, tags, name, value = (text.decode("utf-8", "surrogateescape") for text in texts)
    sent = Message("T", body, [key for key in keys.split(" ") if key], tags, {name: value} if name or value else {})
    try:
        record = ENCODER.encode(sent, 0, 0)
    except (IllegalMessageError, MessageTooLargeError):
        return
    record.place(0, 0, 0)
    (found,) = _records_in(record)
    _compare(found, sent)
    with tempfile.TemporaryDirectory() as folder, MessageStore.open(Path(folder), TINY, create=True) as store:
        store.put(Message("T", b"first"), 0)
        with suppress(WriteError):
            put = store.put(sent, 0)
            _compare(store.get(put.topic, put.queue, put.queue_offset), sent)


def _compare(found: StoredMessage, sent: Message) -> None:
    assert bytes(found.body) == sent.body
    properties = {"KEYS": " ".join(sent.keys), "TAGS": sent.tags, **sent.properties}
    for name, value in properties.items():
        assert found.find_property(name.encode()) in (value, "")
        assert name not in found.properties or found.properties[name] == value
    if "KEYS" not in sent.properties:
        assert found.keys == list(sent.keys)


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


def frames(data: bytes) -> None:
    """A peer's bytes, in whatever pieces, are frames, reports and commands, or are refused as none.

    bytes of a piece u8 | what comes
    """
    step, sent = (data[0] + 1, data[1:]) if data else (1, b"")
    pieces = [sent[start : start + step] for start in range(0, len(sent), step)]
    decoders: list[Callable[[], Callable[[bytes], Sequence[object]]]] = [
        lambda: FrameDecoder("peer").feed,
        lambda: FrameDecoder("peer", has_epochs=True).feed,
        lambda: ReportDecoder("peer").feed,
        lambda: CommandDecoder("peer").feed,
    ]
    for decoder in decoders:
        with suppress(ProtocolError):
            whole, feed = list(decoder()(sent)), decoder()
            assert [one for piece in pieces for one in feed(piece)] == whole
    with suppress(ProtocolError):
        decode_handshake(sent, "peer")
    parse_settings(sent)


def request(data: bytes) -> None:
    """A client's bytes are a request of HTTP, or are refused as none."""
    with suppress(RequestError):
        assert _Head().parse(data).target.isascii()


def where(data: bytes) -> None:
    """A text is an expression, or is refused with the place of what is wrong."""
    text = data.decode("utf-8", "surrogateescape")
    found = None
    try:
        parse(text, lambda one: None)
    except WhereError as error:
        found = error
    assert found is None or (0 <= found.position <= len(text) and str(found))


def marks(data: bytes) -> None:
    """A file is a recovery point with whole numbers, or is believed to say nothing."""
    found = parse_recovery_points(data)
    if found is not None:
        assert 0 <= found.physical_end <= MAX_OFFSET
        found.covered({})


PARSERS: dict[str, Callable[[bytes], None]] = {
    one.__name__: one
    for one in (
        *(record, log, properties, rows, ranges, consume_queue, index),
        *(lines, json_line, message, names),
        *(frames, request, where, marks),
    )
}

KERNEL_MODULES = {
    "append": (message,),
    "chain": (index,),
    "columns": (rows, ranges),
    "crc": (record, rows, message),
    "decode": (record, log, properties, rows),
    "encode": (message, lines),
    "entries": (consume_queue,),
    "files": (consume_queue, index),
    "folders": (consume_queue,),
    "guard": (index,),
    "keys": (index,),
    "pages": (record, properties, index),
    "scan": (log, rows),
    "search": (rows, ranges),
}
"""The parsers that run each module of the compiled kernel."""
