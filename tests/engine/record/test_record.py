"""Record: the worked examples, RocketMQ's own records, and damage of every kind."""

from __future__ import annotations

import random
import struct
import zlib
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from engine.errors import BodyTooLargeError, DamagedRecordError, IllegalMessageError, MessageTooLargeError
from engine.record.columns import damaged_rows, lost_sector_rows
from engine.record.hashes import tags_hash
from engine.record.header import MESSAGE_MAGIC_V2, MIN_RECORD_BYTES
from engine.record.log_framing import record_problem
from engine.record.message import Host, Message, message_id
from engine.record.parsed_headers import parse_headers
from engine.record.record import (
    SECTOR_BYTES,
    RecordEncoder,
    decode_record,
    encode_blank,
    has_lost_sector,
    read_header,
)
from tests.engine.batches import key_hashes
from tests.engine.records import BASE, MAX_BODY_BYTES, STORE_HOST, encoder, log_of, messages
from tests.golden import NAMES, Golden, golden

# docs/format.md, 2
EXAMPLE = bytes.fromhex(
    "000000aadaa320a769c865ed0000000100000000000000000000000500000000"
    "00100000000000000000018bcfe56800c0a8010a0000d4310000018bcfe5687b"
    "0a00000500002a9f0000000000000000000000000000000e48656c6c6f20526f"
    "636b65744d5109546f7069635465737400384b455953016f726465722d310254"
    "414753015461674102554e49515f4b4559014143314630303031304132423138"
    "42344141433230303030"
)
EXAMPLE_MESSAGE = Message(
    "TopicTest",
    b"Hello RocketMQ",
    ["order-1"],
    "TagA",
    {"UNIQ_KEY": "AC1F00010A2B18B4AAC20000"},
    born_time_ms=1_700_000_000_000,
    born_host=Host.parse("192.168.1.10:54321"),
)


def test_the_worked_example_is_written_byte_for_byte() -> None:
    record = encoder.encode(EXAMPLE_MESSAGE, queue_id=1, now_ms=0)
    record.place(5, 1048576, 1_700_000_000_123)
    assert bytes(record.buffer) == EXAMPLE
    assert (record.size, record.tags_code) == (170, 2598919)
    assert key_hashes(record) == [(0, 1162408323), (0, 1829193424)]


def test_parts_of_a_record_are_views_as_slices_of_it_are() -> None:
    view = memoryview(b"before" + EXAMPLE + b"after")[6:]
    message = decode_record(view, 1048576)
    at = EXAMPLE.index(b"Hello RocketMQ")
    for found, wanted in [
        (message.body, view[at : at + 14]),
        (message.record, view[: len(EXAMPLE)]),
        (message.raw_properties, view[len(EXAMPLE) - len(message.raw_properties) : len(EXAMPLE)]),
    ]:
        assert (found, found.obj, found.format, found.shape) == (wanted, wanted.obj, wanted.format, wanted.shape)
        assert (found.nbytes, found.strides, found.readonly) == (wanted.nbytes, wanted.strides, wanted.readonly)
        assert (found.contiguous, found[-1], found[1:3], found[::-2]) == (True, wanted[-1], wanted[1:3], wanted[::-2])
        with pytest.raises(IndexError):
            found[len(wanted)]
    empty = encoder.encode(Message("T", b""), 0, now_ms=0)
    body = decode_record(memoryview(bytes(empty.buffer)), 0).body
    assert (len(body), body.tolist(), bytes(body), body.contiguous) == (0, [], b"", True)


def test_the_worked_example_is_read_field_by_field() -> None:
    message = decode_record(memoryview(EXAMPLE + b"what follows"), 1048576)
    assert bytes(message.body) == bytes(message.stored_body) == b"Hello RocketMQ"
    assert (message.topic, message.queue, message.queue_offset, message.store_size) == ("TopicTest", 1, 5, 170)
    assert (message.physical_offset, message.physical_end) == (1048576, 1048746)
    assert (message.flag, message.sys_flag, message.reconsume_times, message.prepared_transaction_offset) == (
        0,
        0,
        0,
        0,
    )
    assert (message.born_time_ms, message.store_time_ms) == (1_700_000_000_000, 1_700_000_000_123)
    assert (str(message.born_host), str(message.store_host)) == ("192.168.1.10:54321", "10.0.0.5:10911")
    assert (message.keys, message.tags, message.unique_key) == (["order-1"], "TagA", "AC1F00010A2B18B4AAC20000")
    assert message.properties == {"KEYS": "order-1", "TAGS": "TagA", "UNIQ_KEY": "AC1F00010A2B18B4AAC20000"}
    assert (message.body_crc, message.body_size) == (0x69C865ED, 14)
    assert message.msg_id == "0A00000500002A9F0000000000100000"
    assert bytes(message.record) == EXAMPLE
    assert "TopicTest/1/5" in repr(message)
    assert message.header == read_header(memoryview(EXAMPLE), 1048576)


def test_small_vectors() -> None:
    assert encode_blank(208).hex() == "000000d0cbd43194"
    record = encoder.encode(Message("T", b"a"), 0, 0)
    assert bytes(record.buffer[8:12]).hex() == "68b7be43"
    assert encoder.encode(Message("T", b""), 0, 0).size == MIN_RECORD_BYTES + 1


@given(messages(), st.integers(0, 1 << 50), st.integers(0, 1 << 50))
def test_a_message_comes_back_as_it_was(message: Message, queue_offset: int, physical_offset: int) -> None:
    record = encoder.encode(message, 7, now_ms=11)
    record.place(queue_offset, physical_offset, 22)
    read = decode_record(memoryview(record.buffer), physical_offset)
    assert (read.topic, bytes(read.body), read.queue) == (message.topic, message.body, 7)
    assert (read.queue_offset, read.physical_offset, read.store_time_ms) == (queue_offset, physical_offset, 22)
    assert (read.keys, read.tags) == (list(message.keys), message.tags)
    assert read.properties.items() >= {name: value for name, value in message.properties.items() if value}.items()
    assert (read.flag, read.sys_flag & 0xF) == (message.flag, message.sys_flag)
    assert (read.born_host, read.store_host) == (message.born_host or STORE_HOST, message.store_host or STORE_HOST)
    assert read.sys_flag >> 4 == read.born_host.is_ipv6 + 2 * read.store_host.is_ipv6
    assert read.born_time_ms == (11 if message.born_time_ms is None else message.born_time_ms)
    assert (read.reconsume_times, read.prepared_transaction_offset) == (
        message.reconsume_times,
        message.prepared_transaction_offset,
    )
    assert record.tags_code == tags_hash(message.tags)
    assert read.msg_id == message_id(read.store_host.encode(), physical_offset)


@pytest.mark.parametrize("body", [bytearray(b"abcdefgh"), memoryview(b"abcdefgh"), memoryview(b"abcdefgh").cast("i")])
def test_a_body_is_any_buffer(body: bytearray | memoryview) -> None:
    record = encoder.encode(Message("T", body), 0, 0)
    record.place(0, 0, 0)
    assert bytes(decode_record(memoryview(record.buffer), 0).body) == b"abcdefgh"


@pytest.mark.parametrize("name", ["", "a/b", "é", "a b", "t" * 128, "a\n", ".", "a@b"])
def test_an_illegal_topic_is_refused(name: str) -> None:
    with pytest.raises(IllegalMessageError, match="topic"):
        encoder.encode(Message(name, b""), 0, 0)


def test_a_topic_may_have_127_characters_and_a_body_its_limit() -> None:
    largest = Message("%|_-aZ9" + "t" * 120, bytes(MAX_BODY_BYTES))
    encoder.encode(largest, 0, 0)
    with pytest.raises(MessageTooLargeError) as caught:
        encoder.encode(replace(largest, body=bytes(MAX_BODY_BYTES + 1)), 0, 0)
    assert (caught.value.what, caught.value.limit_bytes) == ("body", MAX_BODY_BYTES)


def test_a_number_that_does_not_fit_is_refused() -> None:
    with pytest.raises(IllegalMessageError, match="number"):
        encoder.encode(Message("T", b"", flag=1 << 31), 0, 0)


@pytest.mark.parametrize("name", NAMES)
def test_rocketmqs_records_are_read_as_rocketmq_reads_them(name: str, tmp_path: Path) -> None:
    store = golden(name, tmp_path)
    log = whole_log(store)
    records = [line for line in store.dump if line["type"] in ("msg", "nocq")]
    assert len(records) > 60
    for line in records:
        check_golden(log, line)


def whole_log(store: Golden) -> tuple[int, bytes]:
    """The first physical offset, and all files from there on."""
    files = sorted((store.path / "commitlog").iterdir())
    return int(files[0].name), b"".join(file.read_bytes() for file in files)


def check_golden(log: tuple[int, bytes], line: dict[str, object]) -> None:
    """One record against what RocketMQ said of it; and written again, it is the same bytes."""
    offset = int(str(line["physicalOffset"]))
    size = int(str(line["storeSize"]))
    raw = memoryview(log[1])[offset - log[0] :][:size]
    read = decode_record(raw, offset)
    found = {
        "topic": read.topic,
        "queueId": read.queue,
        "queueOffset": read.queue_offset,
        "storeSize": read.store_size,
        "magic": read.header.magic,
        "sysFlag": read.sys_flag,
        "flag": read.flag,
        "bornTimestamp": read.born_time_ms,
        "storeTimestamp": read.store_time_ms,
        "reconsumeTimes": read.reconsume_times,
        "preparedTransactionOffset": read.prepared_transaction_offset,
        "bodyCRC": read.body_crc,
        "msgId": read.msg_id,
        "body": bytes(read.stored_body).hex(),
        "propertiesRaw": bytes(read.raw_properties).hex(),
        "properties": read.properties,
        "bornHostRaw": read.born_host.encode().hex(),
        "storeHostRaw": read.store_host.encode().hex(),
    }
    assert found == {name: line[name] for name in found}
    again = RecordEncoder(STORE_HOST, 1 << 22).encode(
        Message(
            read.topic,
            read.stored_body,
            properties=dict(
                item.split("\x01", 1) for item in bytes(read.raw_properties).decode().split("\x02") if item
            ),
            flag=read.flag,
            sys_flag=read.sys_flag,
            born_time_ms=read.born_time_ms,
            born_host=read.born_host,
            store_host=read.store_host,
            reconsume_times=read.reconsume_times,
            prepared_transaction_offset=read.prepared_transaction_offset,
        ),
        read.queue,
        0,
    )
    again.place(read.queue_offset, offset, read.store_time_ms)
    assert bytes(again.buffer) == raw


def version_2(record: bytes, topic: bytes) -> bytes:
    """An all-IPv4 record with another topic, in the layout for long topics."""
    body_end = 88 + int.from_bytes(record[84:88], "big")
    rest = record[body_end + 1 + record[body_end] :]
    whole = record[4:body_end] + len(topic).to_bytes(2, "big") + topic + rest
    return struct.pack(">ii", len(whole) + 4, MESSAGE_MAGIC_V2) + whole[4:]


@pytest.mark.parametrize("topic_bytes", [1, 127, 128, 255, 300])
def test_version_2_is_read(topic_bytes: int) -> None:
    topic = b"t" * topic_bytes
    message = decode_record(memoryview(version_2(EXAMPLE, topic)), 1048576)
    assert (message.topic, bytes(message.body), message.keys) == (topic.decode(), b"Hello RocketMQ", ["order-1"])


def test_a_compressed_body_is_read_within_its_limit() -> None:
    stored = zlib.compress(b"words " * 1000)
    log, _ = log_of([Message("T", stored, sys_flag=1)])
    message = decode_record(memoryview(log), BASE, body_limit_bytes=6000)
    assert bytes(message.body) == b"words " * 1000
    assert bytes(message.stored_body) == stored
    assert message.body_size == 6000
    with pytest.raises(BodyTooLargeError):
        decode_record(memoryview(log), BASE, body_limit_bytes=5999).body  # noqa: B018


def test_a_body_that_is_not_what_its_flag_says_is_damaged() -> None:
    log, _ = log_of([Message("T", b"plain words", sys_flag=1)])
    with pytest.raises(DamagedRecordError, match="decompressed"):
        decode_record(memoryview(log), BASE).body  # noqa: B018


def damaged(position: int, found: bytes) -> bytes:
    """The example with other bytes at `position`."""
    return EXAMPLE[:position] + found + EXAMPLE[position + len(found) :]


@pytest.mark.parametrize(
    ("record", "reason"),
    [
        (b"", "only 0 bytes"),
        (EXAMPLE[:87], "only 87 bytes"),
        (EXAMPLE[:169], "size 170 with 169 bytes left"),
        (damaged(4, b"\0"), "magic"),
        (bytes(200), "zeros"),
        (encode_blank(200) + bytes(192), "blank"),
        (damaged(0, b"\0\0\0\x5a"), "size 90"),
        (damaged(0, b"\x80"), "size -"),
        (damaged(0, b"\0\0\0\xa9"), "add up"),
        (damaged(35, b"\x01"), "it says it is at 1048577"),
        (damaged(39, b"\x10"), "add up"),
        (damaged(84, b"\xff\xff\xff\xff"), "add up"),
        (damaged(84, b"\x7f\xff\xff\xff"), "add up"),
        (damaged(87, b"\x0f"), "add up"),
        (damaged(90, b"L"), "CRC"),
        (damaged(8, b"\0"), "CRC"),
        (damaged(102, b"\x0a"), "add up"),
        (damaged(102, b"\xff"), "add up"),
        (damaged(112, b"\x80"), "add up"),
        (damaged(113, b"\x37"), "add up"),
    ],
)
def test_damage_is_reported(record: bytes, reason: str) -> None:
    problem = record_problem(memoryview(record), 1048576)
    assert problem is not None
    assert reason in problem
    with pytest.raises(DamagedRecordError) as caught:
        decode_record(memoryview(record), 1048576)
    assert (caught.value.physical_offset, caught.value.reason) == (1048576, problem)


def test_a_whole_record_has_no_problem_and_crc_is_read_only_if_asked() -> None:
    assert record_problem(memoryview(EXAMPLE), 1048576) is None
    wrong = damaged(90, b"L")
    assert bytes(decode_record(memoryview(wrong), 1048576, verify=False).body) == b"HeLlo RocketMQ"


def lost(log: bytes | bytearray, physical_offset: int) -> bool:
    """Whether the record at the start of `log` lost a sector behind its body, by itself and among many."""
    message = decode_record(memoryview(log), physical_offset)
    parts = message._topic_position, message._properties_position
    found = has_lost_sector(memoryview(log), message.store_size, physical_offset, *parts)
    records = parse_headers(np.frombuffer(log, np.uint8), np.array([0]), np.array([physical_offset]))
    assert lost_sector_rows(records) == [0] * found
    return found


@given(st.integers(0, 1023), st.integers(0, 5000), st.booleans())
def test_each_sector_that_a_torn_write_left_zero_is_reported(shift: int, properties_bytes: int, ipv6: bool) -> None:
    host = Host(bytes(range(1, 17)), 80) if ipv6 else None
    message = Message("topic", b"body" * 10, properties={"n": "v" * properties_bytes}, born_host=host)
    physical_offset = BASE + shift
    log, _ = log_of([message], base=physical_offset)
    assert record_problem(memoryview(log), physical_offset) is None
    for sector in range(-(-physical_offset // SECTOR_BYTES), -(-(physical_offset + len(log)) // SECTOR_BYTES)):
        start = sector * SECTOR_BYTES - physical_offset
        torn = bytearray(log)
        torn[start : start + SECTOR_BYTES] = bytes(len(torn[start : start + SECTOR_BYTES]))
        if torn != log:
            assert record_problem(memoryview(torn), physical_offset) is not None or lost(torn, physical_offset)


@pytest.mark.parametrize("size", range(500, 530))
def test_a_record_without_properties_ends_in_zeros_and_is_whole(size: int) -> None:
    log, _ = log_of([Message("T", b"x" * (size - 92))])
    assert len(log) == size
    assert record_problem(memoryview(log), BASE) is None
    assert not lost(log, BASE)


@pytest.mark.parametrize("lost_bytes", range(1, 8))
def test_a_sector_that_holds_only_the_last_bytes_may_be_lost_too(lost_bytes: int) -> None:
    message = Message("T", b"body", tags="paid")
    size = encoder.encode(message, 0, 0).size
    physical_offset = BASE + SECTOR_BYTES + lost_bytes - size
    log, _ = log_of([message], base=physical_offset)
    log[-lost_bytes:] = bytes(lost_bytes)
    assert lost(log, physical_offset)
    assert not lost(log + b"\0\0\1", physical_offset), "the sector holds what follows"


def test_the_crc_of_an_empty_body_is_not_looked_at_and_of_one_byte_is() -> None:
    log, positions = log_of([Message("T", b""), Message("T", b"x")])
    for position, is_whole in zip(positions, [True, False], strict=True):
        log[position + 11] ^= 1
        problem = record_problem(memoryview(log)[position:], BASE + position)
        assert (problem is None) is is_whole
        records = parse_headers(np.frombuffer(log, np.uint8), np.array([position]), np.array([BASE + position]))
        assert damaged_rows(records).tolist() == [not is_whole]


def test_random_damage_never_raises_anything_else() -> None:
    chance = random.Random(5)
    for _ in range(3000):
        record = bytearray(EXAMPLE)
        for _ in range(chance.randrange(1, 6)):
            record[chance.randrange(len(record))] = chance.randrange(256)
        view = memoryview(record)[: chance.randrange(len(record) + 1)]
        if record_problem(view, 1048576) is None:
            message = decode_record(view, 1048576)
            assert bytes(message.body) == b"Hello RocketMQ"
            assert isinstance(message.properties, dict)


def test_the_encoder_writes_its_own_host_where_the_message_names_none() -> None:
    own = RecordEncoder(Host.parse("[2001:db8::1]:10911"), 100)
    record = own.encode(Message("T", b"x"), 0, 0)
    record.place(1, 2, 3)
    read = decode_record(memoryview(record.buffer), 2)
    assert str(read.born_host) == str(read.store_host) == "[2001:db8::1]:10911"
    assert (read.queue_offset, read.store_time_ms, read.sys_flag) == (1, 3, 0x30)
