"""Decoding: bytes may be anything, and change meanwhile; a message keeps the memory that it was made from."""

from __future__ import annotations

import gc
import struct
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.errors import DamagedRecordError
from engine.files.mapped_file import Access, MappedFile
from engine.record.header import (
    BORN_HOST_POSITION,
    HEADERS,
    MESSAGE_MAGIC,
    MESSAGE_MAGIC_V2,
    MIN_RECORD_BYTES,
    RecordHeader,
)
from engine.record.kernel.decode import decode_record, read_header
from engine.record.message import Message, StoredMessage
from tests.engine.records import BASE, i32s, log_of

MESSAGE = Message("Topic", b"body", ["key", "other"], "täg", {"color": "blue"})
BODY_SIZE_POSITION = HEADERS[0].size - 4


def record_of(message: Message) -> bytearray:
    return log_of([message])[0]


def distinct_header(families: int) -> RecordHeader:
    """Fixed fields that all differ, in each byte of theirs."""
    born, store = bytes(range(1, 9 + 12 * (families & 1))), bytes(range(50, 58 + 12 * (families >> 1)))
    wide = (0x0102030405060708 + number * 0x1010101010101010 for number in range(6))
    return RecordHeader(
        0x11121314, MESSAGE_MAGIC, -0x21222324, 0x31323334, -0x41424344, next(wide), next(wide), families << 4 | 0x5102,
        next(wide), born, next(wide), store, 0x61626364, next(wide), -0x71727374,
    )  # fmt: skip


@pytest.mark.parametrize("families", range(4))
def test_the_kernel_reads_the_fields_where_the_header_has_them(families: int) -> None:
    header = distinct_header(families)
    raw = HEADERS[families].pack(*header)
    assert read_header(memoryview(raw + b"more"), 0) == header
    for size in (0, 1, BORN_HOST_POSITION - 9, BORN_HOST_POSITION, len(raw) - 1):
        with pytest.raises(DamagedRecordError, match=f"only {size} bytes are left"):
            read_header(memoryview(raw)[:size], 0)


@pytest.mark.parametrize("magic", [MESSAGE_MAGIC, MESSAGE_MAGIC_V2])
@given(size=i32s, body_size=i32s, topic_size=st.integers(-32768, 32767), properties_size=st.integers(-32768, 32767))
def test_sizes_that_do_not_add_up_lead_nowhere(
    magic: int, size: int, body_size: int, topic_size: int, properties_size: int
) -> None:
    raw = record_of(MESSAGE)
    good = decode_record(memoryview(bytes(raw)), BASE)
    topic, properties = good._topic_position, good._properties_position
    for position, layout, number in [
        (0, ">i", size), (4, ">i", magic), (BODY_SIZE_POSITION, ">i", body_size),
        (topic - 2, ">h", topic_size), (properties - 2, ">h", properties_size),
    ]:  # fmt: skip
        changed = bytearray(raw)
        struct.pack_into(layout, changed, position, number)
        for view in (memoryview(changed), memoryview(changed)[: len(raw) - 1]):
            try:
                message = decode_record(view, BASE, verify=False)
            except DamagedRecordError:
                continue
            assert len(message.record) == message.store_size <= len(view)
            parts = len(message.topic.encode()) + len(message.raw_properties) + len(message.stored_body)
            assert MIN_RECORD_BYTES + parts <= message.store_size + 1


def test_a_size_that_changes_meanwhile_is_the_one_that_was_checked() -> None:
    raw = record_of(MESSAGE)
    message = decode_record(memoryview(raw), BASE)
    for position in (0, BODY_SIZE_POSITION, message._topic_position - 4, message._properties_position - 4):
        raw[position : position + 4] = b"\x7f\xff\xff\xff"
    assert (len(message.record), len(message.body)) == (len(raw), 4)
    assert message.store_size == len(raw)
    assert len(message.topic) == 5
    assert message.find_property(b"color") == "blue"
    assert message.keys == ["key", "other"]


def test_a_message_keeps_the_map_of_a_file_that_was_removed(tmp_path: Path) -> None:
    raw = record_of(MESSAGE)
    file = MappedFile.create(tmp_path / "log", 4096, Access.WRITE)
    file.append(raw)
    message = decode_record(file.view(0, len(raw)), BASE)
    parts = decode_record(file.rest(0), BASE).stored_body
    file.retire()
    assert file.closed
    del file
    gc.collect()
    assert (message.topic, bytes(message.body), message.tags) == ("Topic", b"body", "täg")
    assert bytes(parts) == b"body"


def test_a_view_can_not_be_taken_back_from_a_message() -> None:
    view = memoryview(bytes(record_of(MESSAGE)))
    message = decode_record(view, BASE)
    with pytest.raises(BufferError):
        view.release()
    assert bytes(message.body) == b"body"
    del message
    view.release()


def test_no_message_is_made_of_nothing() -> None:
    with pytest.raises(TypeError):
        StoredMessage()


@pytest.mark.parametrize(("torn", "wanted"), [(b"\xff", "�"), (b"\xe2\x82", "�"), (b"\xed\xa0\x80", "���")])
def test_text_that_is_no_utf8_is_read_with_replacements(torn: bytes, wanted: str) -> None:
    text = "~" * len(torn)
    raw = record_of(Message("T" * len(torn), b"", [text, "b" + text], text, {"color": text}))
    raw = raw.replace(text.encode(), torn)
    topic = decode_record(memoryview(bytes(raw)), BASE)._topic_position
    raw[topic : topic + len(torn)] = torn
    message = decode_record(memoryview(raw), BASE)
    assert (message.topic, message.tags, message.find_property(b"color")) == (wanted, wanted, wanted)
    assert message.keys == [wanted, "b" + wanted]
    assert message.properties == {"KEYS": f"{wanted} b{wanted}", "TAGS": wanted, "color": wanted}
