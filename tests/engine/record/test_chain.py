"""Chain: the places of records, as a walk from one to the next finds them."""

from __future__ import annotations

import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.record.chain import follow_chain
from engine.record.message import Message
from engine.record.record import BLANK_BYTES, MESSAGE_MAGIC, MESSAGE_MAGIC_V2, MIN_RECORD_BYTES, encode_blank
from tests.engine.records import BASE, log_of


def walked(log: bytes | bytearray, start: int, stop: int, end: int) -> tuple[list[int], int]:
    """The places and the end of a walk step by step."""
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
    """Records of many sizes, enough of them for many lanes."""
    sizes = np.random.default_rng(seed).integers(0, 900, count).tolist()
    return log_of([Message("orders", b"x" * size, [f"key-{size}"]) for size in sizes])


@given(st.integers(1, 300), st.integers(0, 9), st.integers(0, 99), st.integers(0, 99), st.booleans())
def test_a_chain_is_what_a_walk_finds(count: int, seed: int, stop: int, end: int, blank: bool) -> None:
    log, _ = long_log(count, seed)
    log += encode_blank(BLANK_BYTES + 40) + bytes(40) if blank else bytes(8)
    span = (stop * len(log) // 99, len(log) - end * len(log) // 990)
    span = (min(max(span[0], 1), span[1]), span[1])
    assert followed(log, 0, *span) == walked(log, 0, *span)


@given(st.integers(0, 199), st.integers(0, 27), st.integers(0, 255))
def test_a_changed_byte_ends_the_chain_where_it_ends_the_walk(number: int, position: int, value: int) -> None:
    log, places = long_log(200, 3)
    log[places[number] + position] = value
    assert followed(log, 0, len(log), len(log)) == walked(log, 0, len(log), len(log))


@pytest.mark.parametrize("size", [92, 500, 5_000])
def test_a_body_that_looks_like_the_record_it_would_be_there_leads_nowhere_else(size: int) -> None:
    fake_at = []
    messages = [Message("orders", b"y" * 2_000, ["k"]) for _ in range(60)]
    log, places = log_of(messages)
    for place in places:
        for inside in (200, 900, 1_500):
            struct.pack_into(">ii", log, place + inside, size, MESSAGE_MAGIC)
            struct.pack_into(">q", log, place + inside + 28, BASE + place + inside)
            fake_at.append(place + inside)
    assert followed(log, 0, len(log), len(log)) == (places, len(log))
    assert not set(fake_at) & set(places)


def test_a_stretch_of_another_place_in_the_log_is_followed_all_the_same() -> None:
    log, places = long_log(300, 5)
    positions, end, broken = follow_chain(np.frombuffer(log, np.uint8), 0, len(log), len(log), BASE + 4096)
    assert (positions.tolist(), end, broken) == (places, len(log), False)


@pytest.mark.parametrize("before", range(1, 41))
def test_a_record_that_begins_just_before_the_end_of_what_is_searched_of_a_lane(before: int) -> None:
    begin = 1024 + 512 - before  # one lane begins at 1,024; 512 bytes of it are searched
    (head, _), (plain, _) = (log_of([Message("orders", body)]) for body in (b"", b"x" * 600))
    log, places = log_of([Message("orders", b"x" * (begin - len(head))), Message("orders", b"x" * 600)])
    assert (places, len(log)) == ([0, begin], begin + len(plain))
    assert followed(log, 0, len(log), len(log)) == (places, len(log))
