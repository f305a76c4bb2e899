"""Names below `@parquet`."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fsstore.parquet.names import (
    parse_queue_partition,
    parse_segment,
    parse_topic_partition,
    queue_partition,
    segment_name,
    topic_partition,
)


@pytest.mark.parametrize(
    ("topic", "name"),
    [
        ("orders", b"topic=orders"),
        ("%RETRY%billing", b"topic=%25RETRY%25billing"),
        ("a b|c-d_e", b"topic=a b|c-d_e"),
        ("2024", b"topic=2024"),
        ("a/b:c=d?e*f", b"topic=a%2Fb%3Ac%3Dd%3Fe%2Af"),
        ("\x01\x7f\"#'\\{[]^", b"topic=%01%7F%22%23%27%5C%7B%5B%5D%5E"),
        ("Köln", "topic=Köln".encode()),
        ("__HIVE_DEFAULT_PARTITION__", b"topic=%5F_HIVE_DEFAULT_PARTITION__"),
        ("%" * 84, b"topic=" + b"%" * 84),  # a name has 255 bytes
        ("%41" * 42, b"topic=" + b"%2541" * 42),
    ],
)
def test_a_topic_is_escaped_as_hive_escapes_it(topic: str, name: bytes) -> None:
    assert topic_partition(topic) == name
    assert parse_topic_partition(name) == topic


@given(st.text(st.sampled_from("a%2F5_é/:\x01"), max_size=90))
def test_a_topic_is_read_from_its_name(topic: str) -> None:
    assert parse_topic_partition(topic_partition(topic)) == topic


@pytest.mark.parametrize("name", [b"orders", b"topic=a%41", b"topic=a%2f", b"topic=%5F", b"topic=a/b", b"Topic=a"])
def test_any_other_name_has_no_topic(name: bytes) -> None:
    assert parse_topic_partition(name) is None


def test_a_queue_is_named_by_its_plain_number() -> None:
    assert queue_partition(12) == b"queue=12"
    assert parse_queue_partition(b"queue=12") == 12
    for name in (b"queue=012", b"queue=", b"queue=-1", b"12", b"Queue=1"):
        assert parse_queue_partition(name) is None


@pytest.mark.parametrize("is_tail", [False, True])
def test_a_range_and_its_name_say_the_same(is_tail: bool) -> None:
    name = segment_name(131_072, 140_007, is_tail=is_tail)
    assert name == b"00000000000000131072-00000000000000140007" + (b".tail.parquet" if is_tail else b".parquet")
    assert parse_segment(name) == (131_072, 140_007)


@pytest.mark.parametrize(
    "name",
    [
        b"0-5.parquet",
        b"00000000000000000005-00000000000000000005.parquet",
        b"00000000000000000006-00000000000000000005.parquet",
        b"00000000000000000000-99999999999999999999.parquet",
        b"00000000000000000000-00000000000000000005.parquet.crc",
        b".00000000000000000000-00000000000000000005.parquet.crc",
        b"00000000000000000000-00000000000000000005.parquet\n",
        b"00000000000000000000-00000000000000000005.csv",
    ],
)
def test_other_names_say_no_range(name: bytes) -> None:
    assert parse_segment(name) is None
