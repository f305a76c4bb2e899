"""What is kept of rendered bytes, and how much."""

from __future__ import annotations

from fsstore.parquet.cache import Recent


def test_the_least_recently_used_goes_first() -> None:
    kept: Recent[int, str] = Recent(30)
    for number in range(3):
        kept.put(number, str(number), 10)
    assert kept.get(0) == "0"
    kept.put(3, "3", 10)
    assert kept.kept() == [(2, "2"), (0, "0"), (3, "3")]
    assert (kept.get(1), kept.kept_bytes) == (None, 30)


def test_a_value_put_again_counts_once_with_its_new_size() -> None:
    kept: Recent[str, int] = Recent(100)
    for size in (70, 20, 30):
        kept.put("same", size, size)
    assert (kept.get("same"), kept.kept_bytes) == (30, 30)
    assert (kept.take("same"), kept.take("same"), kept.kept_bytes) == (30, None, 0)


def test_a_value_that_is_too_long_is_not_kept() -> None:
    kept: Recent[str, str] = Recent(10)
    kept.put("long", "value", 11)
    assert (kept.get("long"), kept.kept_bytes) == (None, 0)
