"""Keys that differ and hash alike: anybody can make thousands of them, and a look-up must not pay for each."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from engine import Message
from engine.log.index import Index
from engine.read.reader import Reader
from engine.record.kernel.decode import SINGLE_CANDIDATES
from tests.engine.storetools import SMALL_SIZES, opened

SAME_HASH = ["".join(parts) for parts in itertools.product(["Aa", "BB"], repeat=4)]
"""Different keys, which Java hashes alike."""


@pytest.mark.parametrize("unique", [False, True], ids=["KEYS", "UNIQ_KEY"])
def test_records_whose_keys_only_hash_alike_are_not_decoded_one_by_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, unique: bool
) -> None:
    sizes = replace(SMALL_SIZES, commit_log_bytes=256 << 10, index_slots=17, index_entries=4096)
    absent, rare, *others = SAME_HASH

    def carrying(keys: list[str]) -> Message:
        return Message("T", b"x", properties={"UNIQ_KEY": keys[0]}) if unique else Message("T", b"x", ["more", *keys])

    with opened(tmp_path / "store", sizes=sizes) as store:
        store.put_batch([carrying([rare]) for _ in range(3)], 0)
        for turn in range(5):
            store.put_batch([carrying([key] * (turn + 1)) for key in others * 70], 0)
        decoded: list[int] = []

        class Counted:
            """Counts what is taken of `places`."""

            def __init__(self, places: Iterator[int]) -> None:
                self.places = places

            def __iter__(self) -> Iterator[int]:
                return self

            def __next__(self) -> int:
                decoded.append(next(self.places))
                return decoded[-1]

        find, likely = Index.candidates, Reader._likely
        monkeypatch.setattr(Index, "candidates", lambda *question: Counted(find(*question)))
        monkeypatch.setattr(Reader, "_likely", lambda self, rest, key: Counted(likely(self, rest.places, key)))
        assert store.query("T", absent, 100) == []
        assert store.newest_with_key("T", absent) is None
        assert len(decoded) == 2 * SINGLE_CANDIDATES
        assert [message.queue_offset for message in store.query("T", rare, 100)] == [2, 1, 0]
        assert [message.queue_offset for message in store.query("T", rare, 2)] == [2, 1]
        newest = store.newest_with_key("T", rare)
        assert newest is not None
        assert newest.queue_offset == 2
        assert len(decoded) == 5 * SINGLE_CANDIDATES + 3 + 2 + 1
        assert len(store.query("T", others[0], 1_000)) == 5 * 70
