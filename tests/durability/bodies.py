"""Bodies that prove themselves: a body says which message it is, and whether each of its bytes is right.

    <writer>.<number>.<size in bytes>:<filler>

The filler follows from the three numbers, so a test only needs to remember a message's number.
"""

from __future__ import annotations

import random
from functools import cache

FILLER_BYTES = 1 << 20
LETTERS = b"ABCDEFGHIJKLMNOP abcdefghijklmno"


@cache
def _filler() -> bytes:
    """Letters, so that a body may be a line, and a string in JSON."""
    return random.Random(20_260_101).randbytes(FILLER_BYTES).translate(LETTERS * 8)


def body_of(writer: int, number: int, size_bytes: int) -> bytes:
    """The body of message `number` of `writer`; at least as long as its own heading."""
    heading = b"%d.%d.%d:" % (writer, number, size_bytes)
    wanted = max(size_bytes - len(heading), 0)
    start = (writer * 7919 + number * 104_729) % (FILLER_BYTES - wanted)
    return heading + _filler()[start : start + wanted]


def identify(body: bytes) -> tuple[int, int]:
    """Writer and number of a body that is whole. AssertionError when a single byte of it is not as it was written."""
    heading, colon, _ = body[:64].partition(b":")
    fields = heading.split(b".")
    ours = bool(colon) and len(fields) == 3 and all(field.isdigit() for field in fields)
    assert ours, f"no body of ours: {body[:64]!r}"
    writer, number, size_bytes = map(int, fields)
    assert body == body_of(writer, number, size_bytes), f"message {number} of writer {writer} reads otherwise"
    return writer, number
