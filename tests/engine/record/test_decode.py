"""Decoding: bytes may be anything, and change meanwhile; a message keeps the memory that it was made from."""

from __future__ import annotations

import gc
import struct
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.errors import DamagedRecordError
from engine.files.mapped_file import Access, MappedFile
from engine.record.header import (
    HEADERS,
    MESSAGE_MAGIC,
    MESSAGE_MAGIC_V2,
    MIN_RECORD_BYTES,
    RecordHeader,
    position_of,
)
from engine.record.kernel.decode import carries_key, decode_record, find_property, read_header, read_run
from engine.record.message import Message, StoredMessage
from tests.engine.record.guarded import guarded
from tests.engine.records import BASE, i32s, log_of

MESSAGE = Message("Topic", b"body", ["key", "other"], "täg", {"color": "blue"})
BODY_SIZE_POSITION = HEADERS[0].size - 4
BORN_HOST_POSITION = position_of("born_host")
ENTRY_BYTES = 48  # of the header before a record in a ledger


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
            read_header(guarded(raw[:size]).data, 0)


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
        for view in (guarded(changed).data, guarded(changed[:-1]).data):
            try:
                message = decode_record(view, BASE, verify=False)
            except DamagedRecordError:
                continue
            assert len(message.record) == message.store_size <= len(view)
            (said,) = struct.unpack_from(">h", message.record, message._properties_position - 2)
            assert len(message.raw_properties) == max(said, 0)
            parts = len(message.topic.encode()) + len(message.raw_properties) + len(message.stored_body)
            assert MIN_RECORD_BYTES + parts <= message.store_size + 1


@pytest.mark.parametrize(("magic", "topic_size"), [(MESSAGE_MAGIC, b"\xfe"), (MESSAGE_MAGIC_V2, b"\xff\xfd")])
def test_a_negative_topic_size_leads_nowhere(magic: int, topic_size: bytes) -> None:
    """Though the bytes before the topic, taken for the size of the properties, would add up."""
    rest = b"\0" + topic_size + b"x" * 254
    header = distinct_header(0)._replace(magic=magic, store_size=HEADERS[0].size + len(rest), stored_body_size=1)
    with pytest.raises(DamagedRecordError, match="do not add up"):
        decode_record(memoryview(HEADERS[0].pack(*header) + rest), header.physical_offset, verify=False)


def test_a_size_that_changes_meanwhile_is_the_one_that_was_checked() -> None:
    size = len(record_of(MESSAGE))
    raw = record_of(MESSAGE) + bytes(100)
    message = decode_record(memoryview(raw), BASE)
    for position in (0, BODY_SIZE_POSITION, message._topic_position - 4, message._properties_position - 4):
        raw[position : position + 4] = b"\x7f\xff\xff\xff"
    assert (len(message.record), len(message.body)) == (size, 4)
    assert message.store_size == size
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


PLACES = st.integers(-(1 << 63), (1 << 63) - 1)
START = 1 << 20  # of the file in the log
FILE_BYTES = 4096


def run_of(
    view: bytes | bytearray | memoryview,
    places: list[int],
    *,
    is_ledger: bool = False,
    queue_id: int = 3,
    first: int = 0,
    most_bytes: int = 1 << 20,
) -> tuple[list[int | None], int, int]:
    """Queue offsets that `read_run` finds at these physical offsets."""
    found, alone, size = read_run(
        memoryview(view),
        START,
        FILE_BYTES,
        is_ledger,
        np.array(places, np.int64),
        "Topic",
        queue_id,
        first,
        0,
        most_bytes,
    )
    return [message.queue_offset if message is not None else None for message in found], alone, size


def test_a_run_is_what_lies_in_one_file_up_to_some_bytes() -> None:
    log, positions = log_of([MESSAGE] * 4, START)
    places, size = [START + position for position in positions], len(log) // 4
    assert run_of(log, places) == ([0, 1, 2, 3], 0, 4 * size)
    assert run_of(log, places, most_bytes=size + 1) == ([0, 1], 0, 2 * size)
    assert run_of(log, places, most_bytes=0) == ([0], 0, size)
    assert run_of(log, [*places[:2], START + FILE_BYTES, places[2]]) == ([0, 1], 0, 2 * size)
    assert run_of(log, [START - 1, *places]) == ([None, *[None] * 4], 5, 0), "each a number further on"
    assert run_of(log[:-1], places) == ([0, 1, 2, None], 1, 3 * size)
    assert run_of(log, places[1:], first=1) == ([1, 2, 3], 0, 3 * size)
    assert run_of(log, places, queue_id=4) == ([None] * 4, 4, 0)
    assert run_of(b"", places) == ([None] * 4, 4, 0)
    log[positions[2] + HEADERS[0].size] ^= 1
    assert run_of(log, places) == ([0, 1, None, 3], 1, 3 * size)


@given(st.lists(PLACES | st.integers(START - 200, START + FILE_BYTES + 200), max_size=5), st.integers(0, 400))
def test_a_run_looks_at_nothing_but_its_file(places: list[int], cut: int) -> None:
    log = log_of([MESSAGE] * 4, START)[0]
    found, alone, size = run_of(guarded(log[: len(log) - cut]).data, places)
    assert found.count(None) == alone
    assert size == (len(found) - alone) * len(log) // 4
    for row, place in enumerate(places[: len(found)]):
        stands = place == START + row * len(log) // 4 and row < 4 - -(-cut * 4 // len(log))
        assert (found[row] is not None) == stands
    assert all(START <= place < START + FILE_BYTES for place in places[1 : len(found)])


def test_a_run_of_a_ledger_needs_its_entries() -> None:
    log, _ = log_of([MESSAGE], START + ENTRY_BYTES)
    entry = bytearray(ENTRY_BYTES)
    struct.pack_into(">ii", entry, 0, 1, ENTRY_BYTES + len(log))
    struct.pack_into(">q", entry, 24, START)
    struct.pack_into(">i", entry, 44, len(log))
    places = [START + ENTRY_BYTES]
    assert run_of(bytes(entry + log), places, is_ledger=True)[0] == [0]
    assert run_of(bytes(ENTRY_BYTES) + bytes(log), places, is_ledger=True)[0] == [None]
    struct.pack_into(">q", entry, 24, START - ENTRY_BYTES)
    first = memoryview(entry + log_of([MESSAGE], START)[0])[ENTRY_BYTES:]
    assert run_of(first, [START], is_ledger=True)[0] == [None], "the entry would begin before its file"


def test_keys_are_words_as_the_index_has_them() -> None:
    def carried(keys: str, unique: str = "") -> list[str]:
        raw = log_of([Message("T", b"", properties={"KEYS": keys, "UNIQ_KEY": unique})])[0]
        message = decode_record(memoryview(raw.replace(b"~", b"\xff")), BASE)
        return [key for key in ("", " ", "a", "b", "a b", "ab", "�", "a�", "\ud800", "ä") if carries_key(message, key)]

    assert carried("a b") == ["a", "b"]
    assert carried("  a   ä ") == ["a", "ä"]
    assert carried("", "a b") == ["a b"]
    assert carried("ab", "b") == ["b", "ab"]
    assert carried("~ a~") == ["�", "a�"]
    assert carried("x", "~") == ["�"]
    assert carried("", "") == []


@given(
    st.binary(max_size=30) | st.text("KEYST\1\2a", max_size=30).map(str.encode),
    st.sampled_from([b"", b"KEYS", b"a", b"T"]),
)
def test_properties_are_looked_up_within_their_bytes(raw: bytes, name: bytes) -> None:
    values = [item[len(name) + 1 :] for item in raw.split(b"\2") if item.startswith(name + b"\1")]
    wanted = [value for value in values if value]
    assert find_property(guarded(raw).data, name) == (wanted[-1] if wanted else None)


def test_the_last_of_equal_names_that_has_a_value_wins() -> None:
    assert find_property(b"a\x01x\x02a\x01y\x02a\x01", b"a") == b"y"
