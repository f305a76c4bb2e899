"""The kernel's scan: whatever positions, sizes and arrays it is given, it stays within the bytes."""

from __future__ import annotations

import mmap
from typing import Any
from zlib import crc32

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.record.kernel import columns
from engine.record.kernel import scan as kernel
from engine.record.log_framing import LEDGER, PLAIN
from engine.record.message import Host, Message
from engine.record.parsed_headers import HEADER, PARTS, misplaced, parse_headers
from engine.record.record import encode_blank
from tests.engine.record.guarded import guarded
from tests.engine.record.meanwhile import longest_wait
from tests.engine.records import BASE, log_of

Array = np.ndarray[Any, Any]

SOME = [
    Message("orders", b"body %d" % number, ["k"], born_host=Host(bytes(16 if number % 2 else 4), 1))
    for number in range(4)
]
COLUMNS = [b"KEYS", b"TAGS", b"UNIQ_KEY"]
EXTREMES = [0, 1, -1, 87, 91, 1 << 31, -(1 << 31), (1 << 63) - 1, -(1 << 63), (1 << 63) - 91, (1 << 62) + 1]
WRONG_KIND = r"buffer|Buffer|contiguous|dimensions|ndarray"
words = st.sampled_from([b"\x7f\xff\xff\xff", b"\x80\0\0\0", b"\xff\xff\xff\xff", b"\0\0\0\x5b", b"\0\0\0\0"])


def i64(*numbers: int) -> Array:
    return np.array(numbers, np.int64)


def arrays(count: int) -> tuple[Array, Array]:
    return np.empty(count, HEADER), np.empty(count, PARTS)


@given(st.data())
def test_nothing_is_read_past_the_end(data: st.DataObject) -> None:
    """Sizes and lengths on disk are anything, and records are cut anywhere."""
    log, positions = log_of(SOME)
    for _ in range(data.draw(st.integers(0, 3))):
        at = data.draw(st.sampled_from(positions)) + 4 * data.draw(st.sampled_from([0, 9, 21, 22, 24, 27]))
        log[at : at + 4] = data.draw(words)
    log = log[: data.draw(st.integers(1, len(log)))]
    memory = guarded(log)
    parts = i64(*positions, *range(0, len(log), 7), *EXTREMES)
    for framing in (PLAIN, LEDGER):
        for physical_offsets in (None, parts + BASE):
            for whole in (False, True):
                records = parse_headers(memory, parts, physical_offsets, framing is LEDGER, whole=whole)
                for starts, sizes in (records.bodies, records.topics, records.properties):
                    assert (starts >= 0).all()
                    assert (starts + sizes <= len(log)).all()
                kernel.whole_bodies(memory, *records.bodies, records.parts["body_crc"])
                misplaced(records, "orders", 3, 0)
                good = records.take(records.headers["ok"])
                numbers, hosts = kernel.fixed_fields(memory, good.positions, good.headers, good.parts)
                assert numbers.shape[1] == len(hosts) == len(good)
        for row in range(len(parts)):
            place, queue_id = parts[row : row + 1] + BASE, np.zeros(1, np.int32)
            kernel.text_sizes(memory, BASE, place, b"orders", queue_id, i64(0), framing is LEDGER, 1)
            columns.outline(memory, BASE, place, b"orders", 3, row, framing is LEDGER, COLUMNS, 1)
            text = np.zeros(data.draw(st.sampled_from([0, 1, 6, 7, 8, len(log)])), np.uint8)
            assert -1 <= kernel.copy_texts(memory, BASE, place, framing is LEDGER, text) <= len(text)
        columns.outline(memory, BASE, parts + BASE, b"orders", 3, 0, framing is LEDGER, COLUMNS, 1)
        for start in parts[(parts >= 0) & (parts <= len(log))].tolist():
            found, end, _ = kernel.follow_chain(memory, start, len(log), len(log), BASE, framing is LEDGER)
            assert start <= end <= len(log)
            assert (np.diff(found) >= 48).all()
    kernel.placed_headers(memory, 0, len(log), BASE, np.empty(9, np.int64))
    assert (kernel.read_sizes(memory, parts)[0] <= len(log)).all()


def test_texts_are_written_where_they_have_room_and_nowhere_else() -> None:
    log, positions = log_of(SOME)
    parts = i64(*positions) + BASE
    for room in range(30):
        target = np.full(40, 7, np.uint8)
        found = kernel.copy_texts(guarded(log), BASE, parts, False, target[:room])
        assert found == (28 if room >= 28 else -1)
        assert (target[room:] == 7).all()
    assert target[:28].tobytes() == b"body 0\nbody 1\nbody 2\nbody 3\n"
    with pytest.raises(ValueError, match="read-only"):
        kernel.copy_texts(guarded(log), BASE, parts, False, np.frombuffer(bytes(40), np.uint8))


def test_fields_outside_of_the_log_are_refused() -> None:
    log, positions = log_of(SOME)
    records = parse_headers(guarded(log), i64(*positions), None)
    _, hosts = kernel.fixed_fields(records.log, records.positions, records.headers, records.parts)
    assert hosts[:, 0, 4:8].tolist() == [[0, 0, 0, 1], [0] * 4] * 2
    for wrong in EXTREMES[1:]:
        with pytest.raises(IndexError):
            kernel.fixed_fields(records.log, i64(*positions[:3], wrong), records.headers, records.parts)
        parts = records.parts.copy()
        parts["body_start"][2] = wrong
        with pytest.raises(IndexError):
            kernel.fixed_fields(records.log, records.positions, records.headers, parts)


def test_nothing_is_read_before_the_beginning() -> None:
    """Where the entry would be of a record at the very begin."""
    log, positions = log_of([Message("orders", b"x" * (mmap.PAGESIZE - 97))])
    assert len(log) == mmap.PAGESIZE
    for framing in (PLAIN, LEDGER):
        found = parse_headers(
            guarded(log), i64(*positions, -1, -48, -88), i64(BASE, BASE, BASE, BASE), framing is LEDGER
        ).headers["ok"]
        assert found.tolist() == [framing is PLAIN, False, False, False]


def test_bodies_outside_of_the_log_are_not_whole() -> None:
    memory = guarded(b"body")
    crc = crc32(b"body") & 0x7FFFFFFF
    starts = i64(0, 1, -1, 4, *EXTREMES[5:], *[0] * 6)
    sizes = i64(4, 4, 4, 1, *[4] * 6, *EXTREMES[5:])
    found = kernel.whole_bodies(memory, starts, sizes, np.full(len(starts), crc, np.int32))
    assert found.tolist() == [True] + [False] * (len(starts) - 1)


def test_a_crc_with_its_top_bit_set_is_of_no_body() -> None:
    crc = crc32(b"body") & 0x7FFFFFFF
    crcs = np.array([crc, crc - (1 << 31), crc], np.int32)
    assert kernel.whole_bodies(guarded(b"body"), i64(0, 0, 0), i64(4, 4, 0), crcs).tolist() == [True, False, True]


def test_topics_outside_of_the_log_are_strays() -> None:
    log, positions = log_of(SOME[:1])
    records = parse_headers(guarded(log), i64(*positions), i64(BASE))
    assert not misplaced(records, "orders", 3, 0).any()
    for start in EXTREMES[1:]:
        records.parts["topic_start"] = start
        assert misplaced(records, "orders", 3, 0).all()


@pytest.mark.parametrize("size", [91, 92, 500, (1 << 31) - 1])
def test_a_frame_that_reaches_past_the_end_asked_for_is_none(size: int) -> None:
    log, _ = log_of(SOME)
    log[:4] = size.to_bytes(4, "big")
    for end in range(len(log) + 1):
        found, _, _ = kernel.follow_chain(guarded(log), 0, len(log), end, BASE)
        assert len(found) == 0 or end >= size


def test_ranges_outside_of_the_log_are_refused() -> None:
    memory = guarded(encode_blank(8))
    for start, end in [(-1, 8), (0, 9), (0, -1), (0, (1 << 63) - 1), (-(1 << 63), 8)]:
        with pytest.raises(ValueError, match="bytes"):
            kernel.follow_chain(memory, start, end, end, BASE)
        with pytest.raises(ValueError, match="bytes"):
            kernel.placed_headers(memory, start, end, BASE, np.empty(9, np.int64))
    assert kernel.follow_chain(memory, 8, 4, 4, BASE)[1:] == (8, False)


def test_a_search_goes_on_when_its_array_is_full() -> None:
    log, positions = log_of(SOME)
    few, found, start, count = np.empty(1, np.int64), [], 0, 1
    while count:
        count, start = kernel.placed_headers(guarded(log), start, len(log), BASE, few)
        found += few[:count].tolist()
    assert found == positions
    assert kernel.placed_headers(guarded(log), 0, len(log), BASE, few[:0]) == (0, 0)


def test_physical_offsets_may_be_anything() -> None:
    log, positions = log_of(SOME)
    for base in ((1 << 63) - 1, -(1 << 63)):
        kernel.follow_chain(guarded(log), 0, len(log), len(log), base, True)
        assert kernel.placed_headers(guarded(log), 0, len(log), base, np.empty(9, np.int64))[0] == 0
        assert not parse_headers(guarded(log), i64(*positions), np.full(4, base), is_ledger=True).headers["ok"].any()


@pytest.mark.parametrize(
    "wrong",
    [
        np.zeros(2, np.int32),
        np.zeros(2, ">i8"),
        np.zeros(4, np.int64)[::2],
        np.zeros((2, 1), np.int64),
        np.zeros(2, np.float64),
    ],
)
def test_arrays_of_another_kind_are_refused(wrong: Array) -> None:
    log = guarded(b"x" * 200)
    with pytest.raises(ValueError, match=WRONG_KIND):
        kernel.parse_headers(log, wrong, None, False, True, *arrays(2))
    with pytest.raises(ValueError, match=WRONG_KIND):
        kernel.parse_headers(log, i64(0, 0), wrong, False, True, *arrays(2))
    with pytest.raises(ValueError, match=WRONG_KIND):
        kernel.placed_headers(log, 0, 200, 0, wrong)


def test_arrays_of_different_lengths_are_refused() -> None:
    log, two, three = guarded(b"x" * 200), i64(0, 0), i64(0, 0, 0)
    for offsets, headers, parts in ((three, 2, 2), (two, 1, 2), (two, 2, 1)):
        with pytest.raises(ValueError, match="lengths"):
            kernel.parse_headers(log, two, offsets, False, True, arrays(headers)[0], arrays(parts)[1])
    with pytest.raises(ValueError, match="lengths"):
        kernel.whole_bodies(log, two, three, np.zeros(2, np.int32))
    with pytest.raises(ValueError, match="lengths"):
        kernel.whole_bodies(log, two, two, np.zeros(1, np.int32))
    with pytest.raises(ValueError, match="lengths"):
        kernel.misplaced(log, arrays(2)[0], arrays(1)[1], b"T", 0, 0)
    with pytest.raises(TypeError):
        kernel.parse_headers(log, None, None, False, True, *arrays(0))  # type: ignore[arg-type]


def test_other_threads_run_while_bodies_are_checked() -> None:
    bodies = np.zeros(1 << 20, np.uint8)
    none = np.zeros(8_000, np.int64)
    assert longest_wait(lambda: kernel.whole_bodies(bodies, none, none + len(bodies), none.astype(np.int32))) < 0.5
