"""What is kept of rendered bytes, how much, and what becomes of it on disk."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from engine.files.scratch import remove_abandoned
from fsstore.parquet.cache import ENTRY_BYTES, SCRATCH_PREFIX, ChunkCache, DiskChunks

CHUNK_BYTES = 100
KEPT_BYTES = CHUNK_BYTES + ENTRY_BYTES


def chunk(number: int) -> memoryview:
    return memoryview(bytes((number,)) * CHUNK_BYTES)


def put_twice(cache: ChunkCache, count: int) -> None:
    """Chunks 0, 1 … as somebody who reads them all, and once more, leaves them."""
    for number in (*range(count), *range(count)):
        cache.put(number, chunk(number), for_disk=True)


def files(directory: Path) -> list[Path]:
    return [path for path in directory.rglob("*") if path.is_file() and path.name != "lock"]


def test_the_least_recently_used_goes_first() -> None:
    cache = ChunkCache(3 * KEPT_BYTES, None)
    for number in range(3):
        cache.put(number, chunk(number), for_disk=True)
    assert cache.peek(0) == chunk(0)
    cache.put(3, chunk(3), for_disk=True)
    assert [cache.find(number) is not None for number in range(4)] == [True, False, True, True]
    assert cache.memory_bytes == 3 * KEPT_BYTES


def test_what_memory_has_no_room_for_is_on_disk_until_that_is_full(tmp_path: Path) -> None:
    cache = ChunkCache(2 * KEPT_BYTES, DiskChunks(tmp_path / "cache", 3 * CHUNK_BYTES))
    put_twice(cache, 10)
    assert cache.disk_bytes == sum(path.stat().st_size for path in files(tmp_path)) == 3 * CHUNK_BYTES
    assert [cache.peek(number) is not None for number in range(10)] == [False] * 8 + [True] * 2
    assert [cache.find(number) for number in (4, 5)] == [None, chunk(5)]
    assert cache.peek(5) == chunk(5)
    assert cache.disk_bytes == sum(path.stat().st_size for path in files(tmp_path)) == 3 * CHUNK_BYTES
    assert cache.memory_bytes == 2 * KEPT_BYTES
    cache.close()
    assert list((tmp_path / "cache").iterdir()) == []


def test_what_memory_had_no_room_for_only_once_is_not_written_to_disk(tmp_path: Path) -> None:
    cache = ChunkCache(2 * KEPT_BYTES, DiskChunks(tmp_path / "cache", 30 * CHUNK_BYTES))
    for number in range(10):
        cache.put(number, chunk(number), for_disk=True)
    assert (cache.disk_bytes, list(tmp_path.iterdir())) == (0, [])
    cache.put(0, chunk(0), for_disk=True)
    assert cache.disk_bytes == 0  # what went for it went for the first time
    cache.put(1, chunk(1), for_disk=True)
    cache.put(2, chunk(2), for_disk=True)
    assert cache.disk_bytes == CHUNK_BYTES
    assert (cache.find(0), cache.find(8)) == (chunk(0), None)


def test_who_must_not_wait_for_a_disk_has_nothing_written_there(tmp_path: Path) -> None:
    cache = ChunkCache(2 * KEPT_BYTES, DiskChunks(tmp_path / "cache", 30 * CHUNK_BYTES))
    put_twice(cache, 4)
    kept = files(tmp_path)
    cache.put_in_memory(9, chunk(9))
    cache.put_in_memory(8, chunk(8))
    assert files(tmp_path) == kept
    assert (cache.peek(8), cache.peek(9)) == (chunk(8), chunk(9))


def test_what_is_rendered_quicker_than_read_never_goes_to_disk(tmp_path: Path) -> None:
    cache = ChunkCache(2 * KEPT_BYTES, DiskChunks(tmp_path / "cache", 30 * CHUNK_BYTES))
    for number in (*range(6), *range(6)):
        cache.put(number, chunk(number), for_disk=False)
    assert (cache.disk_bytes, list(tmp_path.iterdir())) == (0, [])
    assert [cache.find(number) is not None for number in range(6)] == [False] * 4 + [True] * 2


def test_a_chunk_put_again_counts_once() -> None:
    cache = ChunkCache(3 * KEPT_BYTES, None)
    for _ in range(5):
        cache.put("same", chunk(1), for_disk=True)
    assert cache.memory_bytes == KEPT_BYTES


def test_a_chunk_that_fits_nowhere_is_not_kept(tmp_path: Path) -> None:
    cache = ChunkCache(KEPT_BYTES - 1, DiskChunks(tmp_path, CHUNK_BYTES - 1))
    cache.put(0, chunk(0), for_disk=True)
    assert cache.find(0) is None
    assert (cache.memory_bytes, cache.disk_bytes) == (0, 0)


def test_a_disk_that_fails_is_done_without(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").write_bytes(b"no directory")
    cache = ChunkCache(KEPT_BYTES, DiskChunks(tmp_path / "file" / "cache", 1 << 20))
    put_twice(cache, 3)
    assert cache.find(2) == chunk(2)
    assert cache.find(1) is None
    assert len(caplog.records) == 1


def test_a_file_that_somebody_removed_is_as_if_it_had_gone(tmp_path: Path) -> None:
    cache = ChunkCache(KEPT_BYTES, DiskChunks(tmp_path, 1 << 20))
    put_twice(cache, 2)
    assert len(files(tmp_path)) == 1
    for path in files(tmp_path):
        path.unlink()
    assert cache.find(0) is None
    assert cache.find(1) == chunk(1)


def test_what_a_killed_process_left_is_removed_and_what_a_living_one_has_is_not(tmp_path: Path) -> None:
    code = f"""
import os, pathlib
from fsstore.parquet.cache import DiskChunks
DiskChunks(pathlib.Path({str(tmp_path)!r}), 1000).put("key", memoryview(b"left behind"))
os.abort()
"""
    subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, cwd=Path(__file__).parents[2])
    assert len(files(tmp_path)) == 1
    living = DiskChunks(tmp_path, 1000)
    living.put("key", memoryview(b"mine"))
    remove_abandoned(tmp_path, SCRATCH_PREFIX)
    assert [path.read_bytes() for path in files(tmp_path)] == [b"mine"]
    living.close()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make what belongs to two users")
def test_only_directories_of_ours_are_removed(tmp_path: Path) -> None:
    os.chmod(tmp_path, 0o1777)
    for name in ("mount-somebodys", "fsstore-parquet-theirs", "other"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "lock").touch()
    os.chown(tmp_path / "fsstore-parquet-theirs", 65534, 65534)
    (tmp_path / "fsstore-parquet-link").symlink_to(tmp_path / "other")
    (tmp_path / "fsstore-parquet-file").touch()
    (tmp_path / "fsstore-parquet-fifo").mkdir()
    os.mkfifo(tmp_path / "fsstore-parquet-fifo" / "lock")
    before = sorted(tmp_path.rglob("*"))
    (tmp_path / "fsstore-parquet-ours").mkdir()
    (tmp_path / "fsstore-parquet-ours" / "lock").touch()
    remove_abandoned(tmp_path, SCRATCH_PREFIX)
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make what belongs to two users")
def test_roots_chunks_in_anothers_store_are_in_a_directory_of_that_one(tmp_path: Path) -> None:
    os.chown(tmp_path, 65534, 65534)
    chunks = DiskChunks(tmp_path / "fsstore" / "parquet", 1000)
    chunks.put("key", memoryview(b"bytes"))
    folders = [path for path in tmp_path.rglob("*") if path.is_dir()]
    assert {path.stat().st_uid for path in folders} == {65534}
    assert {path.stat().st_mode & 0o077 for path in folders[-1:]} == {0}
    assert bytes(chunks.take("key") or b"") == b"bytes"
    chunks.close()
    assert list((tmp_path / "fsstore" / "parquet").iterdir()) == []


def test_what_is_put_in_place_of_the_directory_is_not_written_to(tmp_path: Path) -> None:
    chunks = DiskChunks(tmp_path / "cache", 1000)
    chunks.put("key", memoryview(b"bytes"))
    (directory,) = (tmp_path / "cache").iterdir()
    (tmp_path / "other").mkdir()
    directory.rename(tmp_path / "moved")
    directory.symlink_to(tmp_path / "other")
    chunks.put("next", memoryview(b"more"))
    assert list((tmp_path / "other").iterdir()) == []
    assert bytes(chunks.take("next") or b"") == b"more"
    chunks.close()
    assert (tmp_path / "other").is_dir()
