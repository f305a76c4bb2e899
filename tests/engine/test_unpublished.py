"""A batch whose writer died while writing it: its first 8 bytes, written last, are missing."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from engine import FileSizes, Message, MessageStore
from tests.engine.storetools import SMALL, SMALL_SIZES, bodies, killed, require_clean


def without_head(store: Path, physical_offset: int, lost: int = 8) -> None:
    """Take the first bytes of a record away."""
    number, position = divmod(physical_offset, SMALL_SIZES.commit_log_bytes)
    with (store / "commitlog" / f"{number * SMALL_SIZES.commit_log_bytes:020d}").open("r+b") as log:
        log.seek(position)
        log.write(bytes(lost))


def put_batch(store: MessageStore, count: int) -> int:
    return store.put_batch([Message("t", b"batch %d" % number) for number in range(count)], 0).physical_offset


def put_lines(store: MessageStore, count: int) -> int:
    lines = b"".join(b"batch %d\n" % number for number in range(count))
    return store.put_lines("t", lines, 0).physical_offset


@pytest.mark.parametrize("lost", [8, 60], ids=["its size and magic", "more of its start"])
@pytest.mark.parametrize("count", [2, 20, 200], ids=["two", "some", "over several files"])
@pytest.mark.parametrize("put", [put_batch, put_lines])
def test_a_batch_without_its_head_comes_back_in_no_part(
    tmp_path: Path, put: Callable[[MessageStore, int], int], count: int, lost: int
) -> None:
    left = tmp_path / "left"
    with MessageStore.open(tmp_path / "store", SMALL, create=True) as store:
        store.put(Message("t", b"before"), 0)
        shutil.copytree(store.path, left)  # no queue leads to the batch
        start = put(store, count)
        shutil.copytree(store.path / "commitlog", left / "commitlog", dirs_exist_ok=True)
    without_head(left, start, lost)
    with MessageStore.open(left, SMALL) as store:
        assert bodies(store, "t", 0) == [b"before"]
        assert store.recovery.damaged == ()
        assert store.physical_end == start
        store.put(Message("t", b"after"), 0)
        assert bodies(store, "t", 0) == [b"before", b"after"]
        require_clean(store.check())


def test_a_batch_that_queues_lead_to_was_published_and_lost_its_head_later(tmp_path: Path) -> None:
    with killed(tmp_path / "store", tmp_path / "left") as store:
        start = put_batch(store, 3)
    without_head(tmp_path / "left", start)
    with MessageStore.open(tmp_path / "left", SMALL) as store:
        assert bodies(store, "t", 0) == [b"batch 1", b"batch 2"]
        assert store.recovery.damaged == (start,)


def test_records_of_a_later_time_make_a_missing_head_damage(tmp_path: Path) -> None:
    now_ms = [1_000]
    config = replace(SMALL, clock=lambda: now_ms[0])
    with killed(tmp_path / "store", tmp_path / "left", config) as store:
        start = put_batch(store, 3)
        now_ms[0] += 1
        store.put(Message("t", b"after"), 0)
    without_head(tmp_path / "left", start)
    shutil.rmtree(tmp_path / "left" / "consumequeue")
    with MessageStore.open(tmp_path / "left", SMALL) as store:
        assert bodies(store, "t", 0) == [b"batch 1", b"batch 2", b"after"]
        assert store.recovery.damaged == (start,)


@pytest.mark.parametrize("further", [0, 1, 3])
def test_a_batch_whose_write_broke_off_comes_back_in_no_part(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, further: int
) -> None:
    """Its records would stand behind the next ones of the same length, whole and in their place."""
    config = replace(SMALL, sizes=FileSizes(1 << 20, 4096, 17, 48))
    pwrite = os.pwrite

    def broken_off(descriptor: int, data: memoryview, position: int) -> int:
        pwrite(descriptor, data[: len(data) // 2], position)
        raise OSError(errno.EIO, "Input/output error")

    expected = [b"before", *(b"after %d" % number for number in range(further))]
    with killed(tmp_path / "store", tmp_path / "left", config) as store:
        store.put(Message("t", b"before"), 0)
        monkeypatch.setattr(os, "pwrite", broken_off)
        with pytest.raises(OSError, match="Input/output"):
            store.put_lines("t", b"phantom\n" * 2_000, 0)
        monkeypatch.undo()
        for body in expected[1:]:
            assert len(body) == len(b"phantom")
            store.put(Message("t", body), 0)
        end = store.physical_end
    with MessageStore.open(tmp_path / "left", config) as store:
        assert bodies(store, "t", 0) == expected
        assert store.physical_end == end
        assert store.recovery.damaged == ()
        require_clean(store.check())
