"""Scan: every good record, the first that is not good, and where the scan continues."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.record.header import BLANK_BYTES, MESSAGE_MAGIC, MESSAGE_MAGIC_V2, MIN_RECORD_BYTES
from engine.record.kernel.scan import follow_chain
from engine.record.log_framing import record_problem
from engine.record.message import Message
from engine.record.parsed_headers import ParsedHeaders
from engine.record.record import encode_blank
from engine.record.scan import (
    ScannedRecords,
    ScanStop,
    find_chained_record,
    holds_record,
    record_starts,
    scan_records,
)
from tests.engine.record.test_record import EXAMPLE, version_2
from tests.engine.records import BASE, log_of, messages
from tests.golden import NAMES, golden

SOME = [Message("orders", b"body %d" % number, [f"key-{number}"]) for number in range(10)]


def scan(
    log: bytes | bytearray, base: int = BASE, chunk_bytes: int = 400, *, verify: bool = True
) -> list[ScannedRecords]:
    """All chunks of a scan from the log's start to its end."""
    return list(scan_records(memoryview(log), 0, base, len(log), chunk_bytes=chunk_bytes, verify=verify))


def positions(chunks: list[ScannedRecords]) -> list[int]:
    """Of all records found."""
    return [position for chunk in chunks for position in chunk.records.positions.tolist()]


@given(
    st.lists(messages(), max_size=9),
    st.sampled_from([ScanStop.END, ScanStop.BLANK, ScanStop.ZEROS]),
    st.integers(0, 99),
)
def test_a_scan_finds_all_records_and_says_why_it_ends(stored: list[Message], stop: ScanStop, left: int) -> None:
    log, wanted = log_of(stored)
    end = len(log)
    if stop is ScanStop.BLANK:
        log += encode_blank(BLANK_BYTES + left) + b"\xda\xa3\x20\xa7"[:1] * left
    elif stop is ScanStop.ZEROS:
        log += bytes(1 + left)
    chunks = scan(log)
    assert positions(chunks) == wanted
    assert [chunk.stop for chunk in chunks[:-1]] == [None] * (len(chunks) - 1)
    assert (chunks[-1].stop, chunks[-1].end, chunks[-1].problem) == (stop, end, None)
    topics = [chunk.topics[row] for chunk in chunks for row in chunk.topic_rows]
    assert topics == [message.topic for message in stored]
    assert all(len(chunk) <= 5 for chunk in chunks)


@given(st.integers(0, 9), st.integers(0, 200), st.integers(0, 255))
def test_a_scan_stops_at_the_first_record_that_is_not_whole(number: int, position: int, value: int) -> None:
    log, wanted = log_of(SOME)
    start = wanted[number]
    log[start + position % (len(log) // 10)] = value
    problem = record_problem(memoryview(log)[start:], BASE + start)
    chunks = scan(log)
    if problem is None:
        assert (positions(chunks), chunks[-1].stop) == (wanted, ScanStop.END)
        return
    assert positions(chunks) == wanted[:number]
    assert (chunks[-1].stop, chunks[-1].end, chunks[-1].problem) == (ScanStop.DAMAGED, start, problem)


def test_crcs_are_left_alone_if_not_asked_for() -> None:
    log, wanted = log_of(SOME)
    log[wanted[5] + 88] ^= 1
    assert positions(scan(log, verify=False)) == wanted
    assert positions(scan(log)) == wanted[:5]


def test_a_blank_that_does_not_end_with_the_file_is_damage() -> None:
    log, _ = log_of(SOME)
    end = len(log)
    log += encode_blank(100) + bytes(93)
    last = scan(log)[-1]
    assert (last.stop, last.end) == (ScanStop.DAMAGED, end)
    assert "blank" in str(last.problem)


def test_a_record_cut_off_by_the_end_is_damage() -> None:
    log, wanted = log_of(SOME)
    last = scan(log[:-1])[-1]
    assert (last.stop, last.end) == (ScanStop.DAMAGED, wanted[-1])
    assert "left" in str(last.problem)


def test_a_scan_begins_and_ends_at_the_given_positions() -> None:
    log, wanted = log_of(SOME)
    (only,) = scan_records(memoryview(log), wanted[3], BASE, wanted[7])
    assert (only.records.positions.tolist(), only.end, only.stop) == (wanted[3:7], wanted[7], ScanStop.END)
    assert only.records.headers["queue_offset"].tolist() == [3, 4, 5, 6]


def test_version_2_records_are_scanned() -> None:
    (only,) = scan(version_2(EXAMPLE, b"t" * 200), base=1048576)
    assert (only.topics, only.stop) == (["t" * 200], ScanStop.END)


@pytest.mark.parametrize("name", NAMES)
def test_a_scan_of_rocketmqs_files_finds_every_record(name: str, tmp_path: Path) -> None:
    store = golden(name, tmp_path)
    found, blanks = [], []
    for file in sorted((store.path / "commitlog").iterdir()):
        base = int(file.name)
        chunks = scan(file.read_bytes(), base, chunk_bytes=40_000)
        found += [(base + position) for position in positions(chunks)]
        blanks += [base + chunk.end for chunk in chunks if chunk.stop is ScanStop.BLANK]
        assert chunks[-1].stop in (ScanStop.BLANK, ScanStop.ZEROS)
    lines = store.dump
    assert found == sorted(line["physicalOffset"] for line in lines if line["type"] in ("msg", "nocq"))
    assert blanks == sorted(line["physicalOffset"] for line in lines if line["type"] == "blank")


def chained(log: bytes | bytearray, start: int, end: int) -> int | None:
    return find_chained_record(memoryview(log), start, end, BASE, lambda after: after == end, lambda message: True)


def test_a_record_followed_by_others_is_found_after_damage() -> None:
    log, wanted = log_of(SOME)
    end = len(log)
    assert chained(log, 0, end) == 0
    assert chained(log, 1, end) == wanted[1]
    log[wanted[1]] ^= 1  # size
    log[wanted[2] + 88] ^= 1  # body
    log[wanted[3] + 30 : wanted[3] + 60] = EXAMPLE[:30]  # a record's head, elsewhere
    assert chained(log, 1, end) == wanted[4]
    assert chained(log, wanted[4], wanted[7] + 1) is None, "the chain leads past the end"
    log[wanted[6]] ^= 1
    assert chained(log, 1, end) == wanted[7], "the chain from the fifth breaks"


@pytest.mark.parametrize("around", range(-40, 41))
def test_records_are_seen_across_the_border_of_a_search_step(around: int) -> None:
    gap = (1 << 20) + around
    log, _ = log_of(SOME[:1], base=BASE + gap)
    view = memoryview(bytes(gap) + log)
    starts, sizes = record_starts(view, 0, len(view), BASE)
    assert (starts.tolist(), sizes.tolist()) == ([gap], [len(log)])
    assert holds_record(view, 0, len(view), BASE)
    assert not holds_record(view, gap + 1, len(view), BASE)
    assert not holds_record(view, 0, len(view) - 1, BASE)


def test_a_body_full_of_headers_is_read_only_a_few_times(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of them says that it reaches to the end."""
    log = bytearray(1 << 20)
    for position in range(0, len(log) - 200, 100):
        head = bytearray(log_of([Message("T", b"x")], base=BASE + position)[0][:88])
        head[:4] = (len(log) - position).to_bytes(4, "big")
        head[84:88] = (len(log) - position - 88 - 4).to_bytes(4, "big")
        log[position : position + 88] = head
    log[-4:] = b"\x01T\0\0"
    read: list[int] = []

    def counted(data: memoryview) -> int:
        read.append(len(data))
        return 0

    monkeypatch.setattr("engine.record.record.crc32", counted)
    assert chained(log, 0, len(log)) is None
    assert sum(read) < 20 * len(log)
    read.clear()
    assert holds_record(memoryview(log), 0, len(log), BASE), "what can't be told soon is kept"
    assert sum(read) < 20 * len(log)


def test_taking_rows_of_records_takes_all_their_parts() -> None:
    log, wanted = log_of(SOME)
    (chunk,) = scan(log, chunk_bytes=40_000)
    some: ParsedHeaders = chunk.records.take(np.array([2, 5]))
    assert some.positions.tolist() == [wanted[2], wanted[5]]
    assert some.headers["queue_offset"].tolist() == [2, 5]
    assert len(some.parts) == len(some) == 2


def stepped(log: bytes | bytearray, start: int, stop: int, end: int) -> tuple[list[int], int]:
    """Positions and the end of a scan from one record to the next."""
    found = []
    while start < stop and start + MIN_RECORD_BYTES <= end:
        size, magic = struct.unpack_from(">ii", log, start)
        if magic not in (MESSAGE_MAGIC, MESSAGE_MAGIC_V2) or not MIN_RECORD_BYTES <= size <= end - start:
            break
        found.append(start)
        start += size
    return found, start


def followed(log: bytes | bytearray, start: int, stop: int, end: int) -> tuple[list[int], int]:
    """The same by `follow_chain`, from its every end on."""
    found: list[int] = []
    broken = False
    while not broken and start < stop:
        positions, start, broken = follow_chain(np.frombuffer(log, np.uint8), start, stop, end, BASE)
        found += positions.tolist()
    return found, start


def long_log(count: int, seed: int) -> tuple[bytearray, list[int]]:
    """Records of many sizes, many of them."""
    sizes = np.random.default_rng(seed).integers(0, 900, count).tolist()
    return log_of([Message("orders", b"x" * size, [f"key-{size}"]) for size in sizes])


@given(st.integers(1, 300), st.integers(0, 9), st.integers(0, 99), st.integers(0, 99), st.booleans())
def test_a_chain_is_what_a_stepwise_scan_finds(count: int, seed: int, stop: int, end: int, blank: bool) -> None:
    log, _ = long_log(count, seed)
    log += encode_blank(BLANK_BYTES + 40) + bytes(40) if blank else bytes(8)
    span = (stop * len(log) // 99, len(log) - end * len(log) // 990)
    span = (min(max(span[0], 1), span[1]), span[1])
    assert followed(log, 0, *span) == stepped(log, 0, *span)


@given(st.integers(0, 199), st.integers(0, 27), st.integers(0, 255))
def test_a_changed_byte_ends_the_chain_where_it_ends_a_stepwise_scan(number: int, position: int, value: int) -> None:
    log, begins = long_log(200, 3)
    log[begins[number] + position] = value
    assert followed(log, 0, len(log), len(log)) == stepped(log, 0, len(log), len(log))


@pytest.mark.parametrize("size", [92, 500, 5_000])
def test_a_body_that_looks_like_the_record_it_would_be_there_leads_nowhere_else(size: int) -> None:
    fake_at = []
    messages = [Message("orders", b"y" * 2_000, ["k"]) for _ in range(60)]
    log, begins = log_of(messages)
    for place in begins:
        for inside in (200, 900, 1_500):
            struct.pack_into(">ii", log, place + inside, size, MESSAGE_MAGIC)
            struct.pack_into(">q", log, place + inside + 28, BASE + place + inside)
            fake_at.append(place + inside)
    assert followed(log, 0, len(log), len(log)) == (begins, len(log))
    assert not set(fake_at) & set(begins)


def test_a_chain_copied_from_another_offset_is_followed_all_the_same() -> None:
    log, begins = long_log(300, 5)
    positions, end, broken = follow_chain(np.frombuffer(log, np.uint8), 0, len(log), len(log), BASE + 4096)
    assert (positions.tolist(), end, broken) == (begins, len(log), False)
