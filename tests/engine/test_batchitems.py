"""Batch items: what a client packed is unpacked, and nothing else."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.batchitems import decode_batch_items
from engine.properties import encode_properties
from tests.engine.records import i32s, names, texts


def packed(flag: int, body: bytes, properties: dict[str, str]) -> bytes:
    """One item as a client writes it."""
    raw = encode_properties((), "", properties)
    head = struct.pack(">iiiii", 22 + len(body) + len(raw), 0, 0, flag, len(body))
    return head + body + struct.pack(">h", len(raw)) + raw


full_texts = texts.filter(bool)
items = st.lists(st.tuples(i32s, st.binary(max_size=50), st.dictionaries(names, full_texts, max_size=2)), max_size=5)


@given(items)
def test_items_come_back_in_order(items: list[tuple[int, bytes, dict[str, str]]]) -> None:
    body = b"".join(packed(*item) for item in items)
    found = decode_batch_items(memoryview(body))
    assert [(item.flag, bytes(item.body), item.properties) for item in found] == items


@given(items.filter(bool), st.data())
def test_a_batch_cut_anywhere_inside_an_item_is_refused(
    items: list[tuple[int, bytes, dict[str, str]]], data: st.DataObject
) -> None:
    last = packed(*items[-1])
    body = b"".join(packed(*item) for item in items)
    cut = data.draw(st.integers(1, len(last) - 1))
    with pytest.raises(ValueError, match="batch"):
        decode_batch_items(memoryview(body)[: len(body) - cut])


@pytest.mark.parametrize(("position", "value"), [(0, 23), (0, -1), (0, 0), (16, -1), (16, 1), (16, 1 << 30)])
def test_sizes_that_do_not_add_up_are_refused(position: int, value: int) -> None:
    body = bytearray(packed(0, b"", {}))
    struct.pack_into(">i", body, position, value)
    with pytest.raises(ValueError, match="batch"):
        decode_batch_items(memoryview(body))
