"""Slot and entry counts proved from index files, RocketMQ's own among them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from engine.derived.index import Index
from engine.files.file_queue import FileQueue
from engine.files.mapped_file import Access
from engine.open.geometry import prove_index_sizes
from engine.record.properties import split_keys
from engine.record.record import decode_record
from tests.engine.records import keyed
from tests.golden import NAMES, golden

USUAL = [(5_000_000, 20_000_000), (100_000, 400_000)]


@pytest.mark.parametrize("name", NAMES)
def test_sizes_of_a_store_that_rocketmq_wrote_are_found_with_or_without_its_log(name: str, tmp_path: Path) -> None:
    store = golden(name, tmp_path)
    log = FileQueue(store.path / "commitlog", store.sizes.commit_log_bytes, Access.READ)

    def keys_at(physical_offset: int) -> Sequence[str]:
        file = log.find(physical_offset)
        if file is None:
            return []
        message = decode_record(file.whole()[physical_offset - file.start :], physical_offset)
        unique = [message.properties["UNIQ_KEY"]] if "UNIQ_KEY" in message.properties else []
        return [f"{message.topic}#{key}" for key in (*unique, *split_keys(message.properties.get("KEYS", "")))]

    paths = sorted((store.path / "index").iterdir())
    expected = (store.sizes.index_slots, store.sizes.index_entries)
    assert prove_index_sizes(paths, USUAL, keys_at) == expected
    assert prove_index_sizes(paths, USUAL, lambda place: []) == expected
    assert prove_index_sizes(paths[-1:], [expected], keys_at) == expected


def made(folder: Path, slots: int, entries: int, keys: int) -> list[Path]:
    index = Index(folder, slots, entries, Access.WRITE, lambda: 1_700_000_000_000)
    index.load()
    for number in range(max(keys, 1)):
        index.put(keyed("t", [f"key-{number}"] if number < keys else []), 100 + 91 * number, 1_700_000_000_000)
    index.flush()
    return [one.file.path for one in index.files]


def keys_made(physical_offset: int) -> Sequence[str]:
    return [f"t#key-{(physical_offset - 100) // 91}"]


@pytest.mark.parametrize(("slots", "entries"), [(1, 2), (7, 20), (100, 300), (105, 299), (4099, 17)])
@pytest.mark.parametrize("keys", [1, 2, 40])
def test_sizes_are_found_however_few_keys_there_are(tmp_path: Path, slots: int, entries: int, keys: int) -> None:
    paths = made(tmp_path, slots, entries, keys)
    assert prove_index_sizes(paths, USUAL, keys_made) == (slots, entries)


def test_a_usual_size_that_fits_but_does_not_explain_the_chains_is_not_believed(tmp_path: Path) -> None:
    paths = made(tmp_path, 100, 300, 200)
    assert prove_index_sizes(paths, [(105, 299), (95, 301)], keys_made) == (100, 300)


def test_a_file_without_entries_is_taken_for_one_of_the_usual_size(tmp_path: Path) -> None:
    paths = made(tmp_path, 100, 300, 0)
    assert prove_index_sizes(paths, [(7, 20), (100, 300), (105, 299)], keys_made) == (100, 300)
    assert prove_index_sizes(paths, [(7, 20)], keys_made) is None


def test_an_entry_that_the_log_does_not_explain_condemns_nothing(tmp_path: Path) -> None:
    paths = made(tmp_path, 100, 300, 50)
    for unknown in (0, 49):

        def keys_at(physical_offset: int, unknown: int = unknown) -> Sequence[str]:
            return ["t#other"] if physical_offset == 100 + 91 * unknown else keys_made(physical_offset)

        assert prove_index_sizes(paths, [(100, 300)], keys_at) == (100, 300)


def test_nothing_is_proved_by_a_damaged_file_or_by_keys_that_the_log_denies(tmp_path: Path) -> None:
    paths = made(tmp_path, 100, 300, 50)
    assert prove_index_sizes(paths, [(100, 300)], lambda place: ["t#other"]) is None
    raw = np.fromfile(paths[0], np.uint8)
    raw[40 + 400 + 20 * 9 + 19] ^= 1
    raw.tofile(paths[0])
    assert prove_index_sizes(paths, [(100, 300)], keys_made) is None
    paths[0].write_bytes(b"short")
    assert prove_index_sizes([*paths, tmp_path / "missing"], USUAL, keys_made) is None


def test_a_writer_that_goes_on_meanwhile_does_not_matter(tmp_path: Path) -> None:
    paths = made(tmp_path, 100, 300, 50)
    count = np.fromfile(paths[0], np.uint8)[36:40].copy()
    count[3] -= 7  # as if the header had been read before the last seven keys came
    raw = np.fromfile(paths[0], np.uint8)
    raw[36:40] = count
    raw.tofile(paths[0])
    assert prove_index_sizes(paths, USUAL, keys_made) == (100, 300)
