"""Columns: many records read together have the values that each has alone."""

from __future__ import annotations

import lz4.frame
import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from engine.record.byte_columns import ByteColumn
from engine.record.columns import (
    Columns,
    columns_of,
    damaged_rows,
    find_properties,
    lost_sector_rows,
    read_bodies,
    topics_of,
)
from engine.record.hashes import index_hash, java_hashes, tags_hash
from engine.record.header import BLANK_MAGIC, INNER_BATCH, NEEDS_UNWRAPPING
from engine.record.kernel.scan import read_sizes
from engine.record.log_framing import record_problem
from engine.record.message import Message
from engine.record.parsed_headers import misplaced, parse_headers
from engine.record.properties import KEYS, TAGS, find_property, split_keys
from engine.record.record import decode_record
from engine.record.scan import ScannedRecords
from tests.engine.record.test_record import EXAMPLE, version_2
from tests.engine.records import BASE, Array, as_array, log_of, messages

LIMIT = 1 << 16
few_topics = st.sampled_from(["orders", "T", "%RETRY%group", "t" * 127])


def located(log: bytearray, positions: list[int], base: int = BASE) -> tuple[Array, Array, Array]:
    """The arguments of `parse_headers`."""
    found = np.array(positions, np.int64)
    return as_array(log), found, found + base


def sizes_at(log: bytes | bytearray, *positions: int) -> tuple[list[int], list[int]]:
    """Store sizes and body sizes of records there."""
    store_sizes, body_sizes = read_sizes(as_array(log), np.array(positions, np.int64))
    assert store_sizes.dtype == body_sizes.dtype == np.int64
    return store_sizes.tolist(), body_sizes.tolist()


def columns_at(log: Array, positions: Array, physical_offsets: Array, *, limit_bytes: int = LIMIT) -> Columns:
    """The messages there, as columns."""
    records = parse_headers(log, positions, physical_offsets)
    return columns_of(records, *read_bodies(records, limit_bytes))


def texts_at(log: bytearray, starts: Array, sizes: Array) -> list[str]:
    """The expected values."""
    return [log[start : start + size].decode() for start, size in zip(starts.tolist(), sizes.tolist(), strict=True)]


@given(st.lists(messages(few_topics), max_size=12), st.randoms(use_true_random=False))
def test_columns_are_the_messages(stored: list[Message], chance: st.DataObject) -> None:
    log, positions = log_of(stored)
    chance.shuffle(positions)  # type: ignore[attr-defined]
    records = parse_headers(*located(log, positions))
    read = [decode_record(memoryview(log)[position:], BASE + position) for position in positions]
    headers = records.headers
    assert headers["ok"].all()
    for name in ("queue_offset", "physical_offset", "store_size", "store_time_ms", "sys_flag", "body_size"):
        assert headers[name].tolist() == [getattr(message, name) for message in read]
    assert sizes_at(log, *positions) == ([one.store_size for one in read], [one.body_size for one in read])
    assert records.queue_ids.tolist() == [message.queue for message in read]
    good, bodies = read_bodies(records, LIMIT)
    assert good.all()
    assert [bodies[row] for row in range(len(bodies))] == [bytes(message.body) for message in read]
    keys, tags = find_properties(records, [KEYS, TAGS])
    assert [split_keys(text) for text in texts_at(log, *keys)] == [message.keys for message in read]
    assert texts_at(log, *tags) == [message.tags for message in read]
    columns = columns_at(*located(log, positions))
    assert [columns.bodies[row] for row in range(len(columns))] == [bytes(message.body) for message in read]
    assert [columns.keys[row].decode() for row in range(len(columns))] == texts_at(log, *keys)
    assert [columns.tags[row].decode() for row in range(len(columns))] == texts_at(log, *tags)
    topics, topic_rows = topics_of(records)
    assert [topics[row] for row in topic_rows] == [message.topic for message in read]
    assert len(set(topics)) == len(topics)
    assert java_hashes(records.log, *tags).tolist() == [tags_hash(message.tags) for message in read]
    rows, hashes = ScannedRecords(records, len(log)).index_keys
    wanted = [
        (row, index_hash(message.topic, key))
        for row, message in enumerate(read)
        for key in [*([message.unique_key] if message.unique_key else []), *message.keys]
    ]
    assert list(zip(rows.tolist(), hashes.tolist(), strict=True)) == wanted


def test_the_unique_key_of_a_row_comes_before_its_keys() -> None:
    log, positions = log_of([Message("T", b"", ["k1", "k2"], properties={"UNIQ_KEY": "u"}), Message("T", b"", ["k3"])])
    records = parse_headers(*located(log, positions))
    rows, hashes = ScannedRecords(records, len(log)).index_keys
    assert rows.tolist() == [0, 0, 0, 1]
    assert hashes.tolist() == [index_hash("T", key) for key in ("u", "k1", "k2", "k3")]


@pytest.mark.parametrize(
    ("raw", "value"),
    [
        (b"KEYS\x01one\x02KEYS\x01two", b"two"),
        (b"KEYS\x01one\x02KEYS\x01", b"one"),
        (b"XKEYS\x01one", b""),
        (b"KEYS\x01a\x01KEYS\x01b", b"a\x01KEYS\x01b"),
        (b"a\x01KEYS\x02KEYS\x01k\x02", b"k"),
        (b"KEYS", b""),
        (b"\x02\x02KEYS\x01k", b"k"),
    ],
)
def test_values_are_found_as_in_a_single_message(raw: bytes, value: bytes) -> None:
    log = bytearray(EXAMPLE[:112]) + len(raw).to_bytes(2, "big") + raw
    log[:4] = len(log).to_bytes(4, "big")
    records = parse_headers(*located(log, [0], base=1048576))
    assert records.headers["ok"].all()
    ((starts, sizes),) = find_properties(records, [b"KEYS"])
    assert bytes(log[starts[0] : starts[0] + sizes[0]]) == value
    assert decode_record(memoryview(log), 1048576).find_property(b"KEYS").encode() == value


pieces = st.lists(st.sampled_from([b"KEYS", b"TAGS", b"\x01", b"\x02", b"x", b"KEYS\x01k\x02"]), max_size=8)


@given(st.lists(pieces.map(b"".join), max_size=6))
def test_each_row_has_its_own_values(stored: list[bytes]) -> None:
    log, positions = bytearray(), []
    for raw in stored:
        positions.append(len(log))
        log += EXAMPLE[:112] + len(raw).to_bytes(2, "big") + raw
        log[positions[-1] : positions[-1] + 4] = (114 + len(raw)).to_bytes(4, "big")
        log[positions[-1] + 28 : positions[-1] + 36] = (BASE + positions[-1]).to_bytes(8, "big")
    records = parse_headers(*located(log, positions))
    assert records.headers["ok"].all()
    for name, found in zip([KEYS, TAGS, b"x"], find_properties(records, [KEYS, TAGS, b"x"]), strict=True):
        assert texts_at(log, *found) == [(find_property(raw, name) or b"").decode() for raw in stored]


def test_version_2_records_are_located_among_others() -> None:
    log = bytearray(version_2(EXAMPLE, b"t" * 200))
    second = bytearray(EXAMPLE)
    second[28:36] = (1048576 + len(log)).to_bytes(8, "big")
    records = parse_headers(*located(log + second, [0, len(log)], base=1048576))
    assert records.headers["ok"].tolist() == [True, True]
    assert topics_of(records)[0] == ["t" * 200, "TopicTest"]
    assert sizes_at(log + second, 0, len(log)) == ([len(log), len(second)], [14, 14])


def test_the_size_of_a_topic_of_version_2_has_two_bytes() -> None:
    log = bytearray(version_2(EXAMPLE, b"t" * 300))
    records = parse_headers(*located(log, [0], base=1048576))
    assert records.headers["ok"].tolist() == [True]
    assert topics_of(records)[0] == ["t" * 300]


@given(st.lists(st.tuples(st.integers(0, 169), st.integers(0, 255)), min_size=1, max_size=3), st.integers(-5, 5))
def test_a_row_is_good_exactly_if_the_record_is_whole(damage: list[tuple[int, int]], shift: int) -> None:
    log = bytearray(EXAMPLE)
    for position, value in damage:
        log[position] = value
    positions = [0, shift, 1 << 40, -(1 << 40), 100]
    records = parse_headers(as_array(log), np.array(positions), np.full(5, 1048576))
    good, bodies = read_bodies(records, LIMIT)
    says_compressed = log[39] & 1  # which this body is not
    is_good = record_problem(memoryview(log), 1048576) is None and not says_compressed
    assert good.tolist() == [is_good, is_good and shift == 0, False, False, False]
    assert all(bodies[row] == b"" for row in np.flatnonzero(~good).tolist())
    if is_good:
        assert bodies[0] == b"Hello RocketMQ"


@pytest.mark.parametrize("position", [102, 112, 113])
def test_sizes_after_the_body_are_checked_in_records_of_one_topic_as_in_one_record(position: int) -> None:
    """Those of the topic and of the properties, at the end of the log."""
    for value in range(256):
        log = bytearray(EXAMPLE)
        log[position] = value
        is_whole = record_problem(memoryview(log), 1048576) is None
        records = parse_headers(as_array(log), np.zeros(3, np.int64), np.full(3, 1048576))
        assert records.headers["ok"].tolist() == [is_whole] * 3, value


def test_the_size_of_a_topic_is_signed() -> None:
    log = bytearray(EXAMPLE[:102]) + bytes((200,)) + b"t" * 200 + EXAMPLE[112:]
    log[:4] = len(log).to_bytes(4, "big")
    assert record_problem(memoryview(log), 1048576) is not None
    assert parse_headers(as_array(log), np.zeros(1, np.int64), np.array([1048576])).headers["ok"].tolist() == [False]


def test_without_properties_a_record_may_say_so_by_a_negative_size() -> None:
    log, positions = log_of([Message("T", b"x"), Message("T", b"x")])
    for position in positions:
        log[position + 91 : position + 93] = b"\xff\xff"
    assert decode_record(memoryview(log), BASE).properties == {}
    records = parse_headers(*located(log, positions))
    assert records.headers["ok"].tolist() == [True, True]
    assert records.parts["properties_size"].tolist() == [0, 0]


@pytest.mark.parametrize("other", ["TopicTess", "Topic", "t" * 127])
@pytest.mark.parametrize("row", [0, 1, 2])
def test_the_one_record_of_another_topic_is_found(other: str, row: int) -> None:
    wanted = ["TopicTest"] * 3
    wanted[row] = other
    log, positions = log_of([Message(topic, b"x") for topic in wanted])
    records = parse_headers(*located(log, positions))
    assert misplaced(records, "TopicTest", 3, 0).tolist() == [topic == other for topic in wanted]
    topics, topic_rows = topics_of(records)
    assert [topics[number] for number in topic_rows] == wanted


@pytest.mark.parametrize("size", range(170))
def test_a_record_that_the_end_cuts_off_is_not_ok(size: int) -> None:
    log = as_array(EXAMPLE)[:size]
    assert parse_headers(log, np.zeros(1, np.int64), np.array([1048576])).headers["ok"].tolist() == [False]
    assert sizes_at(EXAMPLE[:size], 0) == ([0], [0])


@pytest.mark.parametrize(
    ("topic", "queue_id", "first", "found"),
    [
        ("TopicTest", 1, 5, False),
        ("TopicTess", 1, 5, True),
        ("Topic", 1, 5, True),
        ("t" * 500, 1, 5, True),
        ("", 1, 5, True),
        ("TopicTest", 0, 5, True),
        ("TopicTest", 1, 4, True),
    ],
)
def test_a_record_of_another_queue_or_offset_is_a_stray(topic: str, queue_id: int, first: int, found: bool) -> None:
    records = parse_headers(as_array(EXAMPLE), np.zeros(1, np.int64), np.array([1048576]))
    assert misplaced(records, topic, queue_id, first).tolist() == [found]
    damaged = parse_headers(as_array(EXAMPLE), np.zeros(1, np.int64), np.array([7]))
    assert misplaced(damaged, topic, queue_id, first).tolist() == [False]


def test_a_body_that_its_crc_denies_is_not_good() -> None:
    log, positions = log_of([Message("T", b"one"), Message("T", b"two")])
    log[positions[1] + 88] ^= 1
    records = parse_headers(*located(log, positions))
    assert records.headers["ok"].tolist() == [True, True]
    assert read_bodies(records, LIMIT)[0].tolist() == [True, False]


@pytest.mark.parametrize("damaged", [[], [0], [299], [3, 4, 200]])
def test_of_many_bodies_of_one_size_those_that_are_damaged_are_not_good(damaged: list[int]) -> None:
    log, positions = log_of([Message("T", b"%03d" % number, [f"k{number}"]) for number in range(300)])
    for row in damaged:
        log[positions[row] + 89] ^= 1
    records = parse_headers(*located(log, positions))
    good, bodies = read_bodies(records, LIMIT)
    assert np.flatnonzero(~good).tolist() == np.flatnonzero(damaged_rows(records)).tolist() == damaged
    assert [bodies[row] for row in range(300)] == [b"" if row in damaged else b"%03d" % row for row in range(300)]


@pytest.mark.parametrize("shift", range(0, 512, 17))
def test_zeros_in_properties_make_no_record_damaged_but_recovery_sees_them(shift: int) -> None:
    log, positions = log_of([Message("T", b"b", properties={"n": "v" * 1_400})] * 3, base=BASE + shift)
    start = -(BASE + shift + positions[1] + 100) % 512 + positions[1] + 100
    log[start : start + 512] = bytes(512)
    records = parse_headers(*located(log, positions, BASE + shift))
    good, _ = read_bodies(records, LIMIT)
    assert good.all()
    assert lost_sector_rows(records) == [1]


def test_compressed_bodies_are_decompressed_within_the_limit() -> None:
    stored = [lz4.frame.compress(b"a" * 100), b"plain", lz4.frame.compress(b"b" * 101), b"not lz4"]
    flags = [0x101, 0, 0x101, 0x101]
    log, positions = log_of([Message("T", body, sys_flag=flag) for body, flag in zip(stored, flags, strict=True)])
    records = parse_headers(*located(log, positions))
    assert records.headers["body_size"].tolist() == [-1, 5, -1, -1]
    good, bodies = read_bodies(records, 100)
    assert good.tolist() == [True, True, False, False]
    assert [bodies[row] for row in range(4)] == [b"a" * 100, b"plain", b"", b""]
    assert columns_at(*located(log, positions), limit_bytes=100).headers["body_size"].tolist() == [100, 5, 0, 0]
    assert sizes_at(log, *positions) == (records.headers["store_size"].tolist(), [-1, 5, -1, -1])


def test_columns_are_concatenated() -> None:
    log, positions = log_of([Message("T", b"one", ["k"], "t"), Message("T", b"two"), Message("T", b"three", ["l"])])
    whole = columns_at(*located(log, positions))
    parts = [columns_at(*located(log, part)) for part in (positions[:1], [], positions[1:])]
    joined = Columns.concatenate(parts)
    assert joined.headers.tolist() == whole.headers.tolist()
    for name in ("bodies", "keys", "tags"):
        one, other = getattr(joined, name), getattr(whole, name)
        assert (one.offsets.tolist(), one.data.tobytes()) == (other.offsets.tolist(), other.data.tobytes())
    assert len(Columns.concatenate([])) == len(ByteColumn.concatenate([])) == 0


def test_nothing_is_found_in_nothing() -> None:
    none = np.zeros(0, np.int64)
    assert len(parse_headers(as_array(b""), none, none)) == 0
    two = np.zeros(2, np.int64)
    assert parse_headers(as_array(b""), two, two).headers["ok"].tolist() == [False, False]
    good, bodies = read_bodies(parse_headers(as_array(EXAMPLE), none, none), LIMIT)
    assert (len(good), len(bodies)) == (0, 0)
    assert sizes_at(b"") == sizes_at(EXAMPLE) == ([], [])
    assert sizes_at(b"", 0, 7) == ([0, 0], [0, 0])


# sizes alone

STORE_SIZE, MAGIC, SYS_FLAG, BODY_SIZE = 0, 4, 36, 84


def i32(number: int) -> bytes:
    return number.to_bytes(4, "big", signed=True)


@pytest.mark.parametrize(
    ("position", "value", "store_size", "body_size"),
    [
        (MAGIC, bytes(4), 0, 0),
        (MAGIC, i32(BLANK_MAGIC), 0, 0),
        (STORE_SIZE, i32(0), 0, 0),
        (STORE_SIZE, i32(-170), 0, 0),
        (STORE_SIZE, i32(171), 0, 0),
        (STORE_SIZE, i32((1 << 31) - 1), 0, 0),
        (STORE_SIZE, i32(88 + 13), 0, 0),
        (STORE_SIZE, i32(169), 169, 14),
        (BODY_SIZE, i32(0), 170, 0),
        (BODY_SIZE, i32(170 - 88 + 1), 0, 0),
        (BODY_SIZE, i32((1 << 31) - 1), 0, 0),
        (BODY_SIZE, i32(-1), 170, 0),
        (BODY_SIZE, i32(-1 << 31), 170, 0),
        (SYS_FLAG, i32(1), 170, -1),
        (SYS_FLAG, i32(1 | -1 << 31), 170, -1),
    ],
)
def test_sizes_are_those_of_the_fixed_fields_if_they_can_be(
    position: int, value: bytes, store_size: int, body_size: int
) -> None:
    log = bytearray(EXAMPLE)
    log[position : position + 4] = value
    assert sizes_at(EXAMPLE + log, 170, 0) == ([store_size, 170], [body_size, 14])


def test_less_than_the_shortest_record_is_none() -> None:
    log, _ = log_of([Message("T", b"")])
    found = []
    for size in (88, 90, 91, 92):
        log[STORE_SIZE : STORE_SIZE + 4] = i32(size)
        found += sizes_at(log, 0)[0]
    assert found == [0, 0, 91, 92]


def test_a_negative_body_size_is_read_as_none() -> None:
    log, positions = log_of([Message("T", b"", ["k"])])
    log[BODY_SIZE : BODY_SIZE + 4] = i32(-7)
    assert decode_record(memoryview(log), BASE).keys == ["k"]
    assert parse_headers(*located(log, positions)).headers["ok"].tolist() == [True]
    assert sizes_at(log, 0) == ([len(log)], [0])


def test_no_record_is_outside_of_the_log() -> None:
    positions = (-1, -170, -(1 << 40), 79, 80, 170, 1 << 40, 0)
    assert sizes_at(EXAMPLE, *positions) == ([0] * 7 + [170], [0] * 7 + [14])


@pytest.mark.parametrize("family", [0x10, 0x20, 0x30])
def test_hosts_that_the_end_cuts_off_are_of_no_record(family: int) -> None:
    log = bytearray(EXAMPLE[:91])
    log[STORE_SIZE : STORE_SIZE + 4], log[BODY_SIZE : BODY_SIZE + 4] = i32(91), i32(0)
    assert sizes_at(log, 0) == ([91], [0])
    log[SYS_FLAG : SYS_FLAG + 4] = i32(family)
    assert sizes_at(log, 0) == ([0], [0])


@given(
    st.lists(messages(few_topics), min_size=1, max_size=3),
    st.lists(st.tuples(st.integers(0, 1 << 12), st.integers(0, 119), st.integers(0, 255)), max_size=6),
)
@example([Message("orders", b"body")], [(0, 39, INNER_BATCH | NEEDS_UNWRAPPING)])
def test_read_sizes_finds_all_that_is_located_but_batches(
    stored: list[Message], damage: list[tuple[int, int, int]]
) -> None:
    log, positions = log_of(stored)
    for row, position, value in damage:
        at = positions[row % len(positions)] + position
        if at < len(log):
            log[at] = value
    headers = parse_headers(*located(log, positions)).headers
    store_sizes, body_sizes = read_sizes(as_array(log), np.array(positions))
    may_be_batch = headers["sys_flag"] & INNER_BATCH != 0
    may_be_batch &= headers["sys_flag"] & NEEDS_UNWRAPPING != 0
    assert not store_sizes[headers["ok"] & may_be_batch].any()
    ok = headers["ok"] & ~may_be_batch
    assert store_sizes[ok].tolist() == headers["store_size"][ok].tolist()
    assert body_sizes[ok].tolist() == headers["body_size"][ok].tolist()
    assert ((store_sizes >= 0) & (np.array(positions) + store_sizes <= len(log))).all()
    assert ((body_sizes >= -1) & (body_sizes <= store_sizes)).all()
