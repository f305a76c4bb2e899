"""Hashes: Java's, one and many."""

from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from engine.record.hashes import (
    index_hash,
    java_hash,
    java_hashes,
    slices_index_hashes,
    tags_hash,
    topic_hashes,
)

any_texts = st.text(max_size=40) | st.text("ab0\x7f\x80é中😀", min_size=200, max_size=700)


def plain_hash(text: str) -> int:
    """Java's definition, word for word."""
    value = 0
    encoded = text.encode("utf-16-be", "surrogatepass")
    for i in range(0, len(encoded), 2):
        value = (31 * value + int.from_bytes(encoded[i : i + 2], "big")) % (1 << 32)
    return value - (1 << 32) if value >= 1 << 31 else value


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("", 0),
        ("a", 97),
        ("TagA", 2598919),
        ("TagB", 2598920),
        ("中", 20013),
        ("😀", 1772899),
        ("TagA||TagB", 1789476431),
        ("polygenelubricants", -2147483648),
    ],
)
def test_hashes_are_javas(text: str, code: int) -> None:
    assert java_hash(text) == tags_hash(text) == code
    raw = text.encode()
    assert java_hashes(np.frombuffer(b"-" + raw, np.uint8), *arrays([1], [len(raw)])).tolist() == [code]


@pytest.mark.parametrize(
    ("topic", "key", "code"),
    [("TopicTest", "order-1", 1829193424), ("TopicTest", "AC1F00010A2B18B4AAC20000", 1162408323)],
)
def test_index_hashes_are_those_of_topic_and_key(topic: str, key: str, code: int) -> None:
    assert index_hash(topic, key) == code


def test_the_hash_without_an_absolute_value_is_zero() -> None:
    assert plain_hash("T#1LG3HE3") == -(1 << 31)
    assert index_hash("T", "1LG3HE3") == 0
    assert hashed("T", ["1LG3HE3"]) == [0]


@given(any_texts)
@example("x" * 256)
@example("x" * 257)
def test_one_hash_is_javas_for_any_text(text: str) -> None:
    assert java_hash(text) == plain_hash(text)
    wanted = plain_hash("topic#" + text)
    assert index_hash("topic", text) == (0 if wanted == -(1 << 31) else abs(wanted))


@given(st.lists(any_texts.filter(lambda text: not any("\ud800" <= unit <= "\udfff" for unit in text)), max_size=8))
def test_many_hashes_are_the_single_ones(texts: list[str]) -> None:
    raw = [text.encode() for text in texts]
    sizes = [len(text) for text in raw]
    starts = np.cumsum([0, *sizes])[:-1]
    data = np.frombuffer(b"".join(raw), np.uint8)
    assert java_hashes(data, *arrays(starts, sizes)).tolist() == [java_hash(text) for text in texts]
    assert hashed("topic", texts) == [index_hash("topic", text) for text in texts]


def hashed(topic: str, keys: list[str]) -> list[int]:
    """The index's hashes, as a scan of the log has them."""
    raw = [key.encode() for key in keys]
    sizes = np.array([len(key) for key in raw], np.int64)
    data = np.frombuffer(b"".join(raw), np.uint8)
    found = slices_index_hashes(topic_hashes([topic]).repeat(len(raw)), data, np.cumsum(sizes) - sizes, sizes)
    return [int(one) for one in found]


def arrays(*columns: Any) -> list[np.ndarray[Any, Any]]:
    """Each as int64."""
    return [np.array(column, np.int64) for column in columns]
