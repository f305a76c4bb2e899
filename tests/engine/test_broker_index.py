"""An index that a broker wrote, with entries that we write none of: it is read, kept, and gone on with."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from engine import Message, MessageStore, OpenMode, check_store
from engine.derived.index import Index
from engine.files.mapped_file import Access
from engine.record.hashes import index_hash
from tests.engine.storetools import SMALL, SMALL_SIZES, opened, require_clean

SLOTS, ENTRIES = 1009, 4000
ANY_SIZES = replace(SMALL, sizes=None)


def broker_store(path: Path, *, newest: str) -> list[str]:
    """A store as RocketMQ 5.4 leaves it: an entry for the tag behind those of the keys, `newest` the last one of all,
    and no file of ours. Returns its keys."""
    keys = [f"ORDER-{number}" for number in range(40)]
    with MessageStore.open(path, SMALL, create=True) as store:
        stored = [store.put(Message("orders", b"body", keys=[key], tags="paid"), queue=0) for key in keys]
    for ours in ("index", "fsstore"):
        shutil.rmtree(path / ours)
    (path / "config" / "sizes.json").unlink()
    index = Index(path / "index", SLOTS, ENTRIES, Access.WRITE, lambda: 1_700_000_000_000)
    index.load()
    for key, result in zip(keys, stored, strict=True):
        tag = newest if key == keys[-1] else "T#paid"
        hashes = np.array([index_hash("orders", key), index_hash("orders", tag)], np.int32)
        index.put_many(hashes, np.full(2, result.physical_offset), np.full(2, result.store_time_ms))
    index.flush()
    index.close()
    return keys


def sizes_of_index(path: Path) -> dict[str, int]:
    return {file.name: file.stat().st_size for file in (path / "index").iterdir()}


NEWEST = pytest.mark.parametrize("newest", ["T#paid", "X#of a later version"])


@NEWEST
@pytest.mark.parametrize("mode", [OpenMode.FOLLOW, OpenMode.READ_ONLY])
def test_every_key_is_found_whatever_the_newest_entry_is_of(tmp_path: Path, mode: OpenMode, newest: str) -> None:
    keys = broker_store(tmp_path / "store", newest=newest)
    with MessageStore.open(tmp_path / "store", replace(ANY_SIZES, mode=mode)) as store:
        if mode is OpenMode.FOLLOW:
            while store.refresh():
                pass
        assert [len(list(store.query("orders", key))) for key in keys] == [1] * len(keys)


def test_a_sound_store_of_a_broker_that_indexes_tags_has_no_findings(tmp_path: Path) -> None:
    broker_store(tmp_path / "store", newest="T#paid")
    require_clean(check_store(tmp_path / "store"))


@NEWEST
def test_opening_to_write_keeps_the_brokers_index_and_goes_on_in_it(tmp_path: Path, newest: str) -> None:
    keys = broker_store(tmp_path / "store", newest=newest)
    before = sizes_of_index(tmp_path / "store")
    with MessageStore.open(tmp_path / "store", ANY_SIZES) as store:
        assert store.recovery.rebuilt == ()
        store.put(Message("orders", b"ours", keys=["NEW"]), queue=0)
        assert [len(list(store.query("orders", key))) for key in [*keys, "NEW"]] == [1] * 41
    assert sizes_of_index(tmp_path / "store") == before


def test_an_index_whose_sizes_nothing_proves_is_moved_and_not_deleted(tmp_path: Path) -> None:
    keys = broker_store(tmp_path / "store", newest="T#paid")
    (name,) = sizes_of_index(tmp_path / "store")
    index = tmp_path / "store" / "index" / name
    raw = bytearray(index.read_bytes())
    raw[40 + 4 * SLOTS + 20 * 7 + 19] ^= 1  # a chain that no sizes explain
    index.write_bytes(raw)
    with MessageStore.open(tmp_path / "store", ANY_SIZES) as store:
        assert [len(list(store.query("orders", key))) for key in keys] == [1] * len(keys)
        assert any("fsstore/damaged/index" in note for note in store.recovery.notes)
    assert (tmp_path / "store" / "fsstore" / "damaged" / "index" / name).read_bytes() == bytes(raw)


def test_a_damaged_index_of_a_usual_length_is_made_anew_with_the_usual_sizes(tmp_path: Path) -> None:
    path = tmp_path / "store"
    with opened(path) as store:
        store.put(Message("orders", b"body", keys=["K"]), queue=0)
    (path / "config" / "sizes.json").unlink()
    (index,) = (path / "index").iterdir()
    before = index.stat().st_size
    raw = bytearray(index.read_bytes())
    raw[40 + 4 * SMALL_SIZES.index_slots + 20 + 19] ^= 1
    index.write_bytes(raw)
    with MessageStore.open(path, SMALL) as store:
        assert len(list(store.query("orders", "K"))) == 1
    assert list(sizes_of_index(path).values()) == [before]
