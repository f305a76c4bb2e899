"""The checkpoint file: layout, margins, odd files."""

import errno
from pathlib import Path

import pytest

from engine.derived.checkpoint import CHECKPOINT_BYTES, Checkpoint, CheckpointFile, read_checkpoint, write_checkpoint
from engine.errors import FlushFailedError
from engine.files.disk import Disk

HEAD = bytes.fromhex("0000018bcfe5687b 0000018bcfe5687b 0000018bcfe540f0")


def test_the_head_of_the_file_is_three_times_in_milliseconds(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint"
    write_checkpoint(path, Checkpoint(1700000000123, 1700000000123, 1699999990000), Disk())
    assert path.read_bytes() == HEAD + bytes(CHECKPOINT_BYTES - len(HEAD))
    assert read_checkpoint(path) == Checkpoint(1700000000123, 1700000000123, 1699999990000)


@pytest.mark.parametrize(
    ("checkpoint", "expected"),
    [
        (Checkpoint(1700000000123, 1700000000123, 1699999990000), 1699999997123),
        (Checkpoint(10_000, 5_000, 90_000), 2_000),
        (Checkpoint(2_000, 5_000, 1_000), 0),
        (Checkpoint(), 0),
    ],
)
def test_recovery_leaves_a_margin(checkpoint: Checkpoint, expected: int) -> None:
    assert checkpoint.min_timestamp_ms == expected


@pytest.mark.parametrize("content", [b"", HEAD[:7], b"\xff" * 8 + HEAD[8:]], ids=["empty", "cut", "negative"])
def test_a_file_that_says_nothing_sensible_says_nothing(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "checkpoint"
    assert read_checkpoint(path) == Checkpoint()
    path.write_bytes(content)
    assert read_checkpoint(path).min_timestamp_ms == 0


def test_an_update_keeps_the_fields_of_later_versions_and_the_rest_of_the_file(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint"
    later = (7).to_bytes(8, "big") + (9).to_bytes(8, "big")
    path.write_bytes((HEAD + later).ljust(CHECKPOINT_BYTES - 4, b"\0") + b"more")
    file = CheckpointFile(path, Disk())
    file.note_index_flushed(42)
    assert path.read_bytes()[16:24] == HEAD[16:24]
    file.update(physic_ms=1, logics_ms=2)
    content = path.read_bytes()
    assert read_checkpoint(path) == Checkpoint(1, 2, 42, 7, 9) == file.value
    assert (len(content), content[-4:]) == (CHECKPOINT_BYTES, b"more")


def test_a_failed_write_is_a_failed_flush(tmp_path: Path) -> None:
    class Failing(Disk):
        def sync(self, descriptor: int, path: Path) -> None:
            raise OSError(errno.EIO, "Input/output error")

    with pytest.raises(FlushFailedError):
        CheckpointFile(tmp_path / "checkpoint", Failing()).update(physic_ms=1, logics_ms=2)
