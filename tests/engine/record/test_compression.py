"""Compressed bodies: every type a client may use, within a bound."""

import bz2
import random
import zlib
from collections.abc import Callable

import lz4.frame
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from engine.record.compression import PIECE_BYTES, decompress

COMPRESSORS: dict[int, Callable[[bytes], bytes]] = {
    0x001: zlib.compress,
    0x101: lz4.frame.compress,
    0x201: zstandard.compress,
    0x301: zlib.compress,
}
LIMIT = 1 << 16


@pytest.mark.parametrize("sys_flag", COMPRESSORS)
@given(body=st.binary(max_size=3000))
def test_a_body_comes_back_whatever_the_type(sys_flag: int, body: bytes) -> None:
    assert decompress(memoryview(COMPRESSORS[sys_flag](body)), sys_flag, LIMIT) == body


@pytest.mark.parametrize("sys_flag", COMPRESSORS)
@pytest.mark.parametrize(("size", "got"), [(LIMIT, LIMIT), (LIMIT + 1, LIMIT + 1), (200 * LIMIT, LIMIT + 1)])
def test_more_than_the_limit_is_cut_one_byte_past_it(sys_flag: int, size: int, got: int) -> None:
    assert len(decompress(COMPRESSORS[sys_flag](bytes(size)), sys_flag, LIMIT)) == got


@pytest.mark.parametrize("sys_flag", COMPRESSORS)
def test_a_stream_that_ends_early_is_an_error(sys_flag: int) -> None:
    stored = COMPRESSORS[sys_flag](b"some words, some more words, and words again" * 20)
    for size in range(len(stored) - 4):
        with pytest.raises(ValueError, match=r"early|cannot"):
            decompress(stored[:size], sys_flag, LIMIT)


@pytest.mark.parametrize("sys_flag", [*COMPRESSORS, 0x401])
def test_bytes_that_are_no_stream_are_an_error(sys_flag: int) -> None:
    with pytest.raises(ValueError, match=r"decompressed|unknown compression type 4"):
        decompress(bz2.compress(b"another format altogether"), sys_flag, LIMIT)


@pytest.mark.parametrize("sys_flag", COMPRESSORS)
@pytest.mark.parametrize(
    "body",
    [bytes(5 * PIECE_BYTES), random.Random(1).randbytes(PIECE_BYTES * 5 // 2), b"0123456789abcdef" * 200_000],
    ids=["zeros", "noise", "text"],
)
def test_a_body_of_many_pieces_comes_back(sys_flag: int, body: bytes) -> None:
    stored = COMPRESSORS[sys_flag](body)
    assert decompress(stored, sys_flag, len(body)) == body
    assert decompress(stored + b"behind the end", sys_flag, 2 * len(body)) == body
    assert decompress(stored, sys_flag, PIECE_BYTES) == body[: PIECE_BYTES + 1]
