"""Scratch directories: the living one's is never taken, the dead one's always is."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from engine.files.scratch import ScratchDirectory, remove_abandoned

CHECKOUT = Path(__file__).resolve().parents[3]
MAKE_AND_DIE = """
import os, pathlib, sys
from engine.files.scratch import ScratchDirectory
ScratchDirectory(pathlib.Path(sys.argv[1]), "scratch-")
os._exit(9)
"""


def test_a_directory_that_is_taken_while_it_is_made_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = tempfile.mkdtemp
    taken: list[str] = []

    def make_and_lose(prefix: str, dir: Path) -> str:  # as mkdtemp has it
        path = made(prefix=prefix, dir=dir)
        if len(taken) < 2:
            taken.append(path)
            remove_abandoned(Path(dir), prefix)  # another process starts at this moment
            assert not os.path.exists(path)
        return path

    monkeypatch.setattr("engine.files.scratch.tempfile.mkdtemp", make_and_lose)
    scratch = ScratchDirectory(tmp_path, "scratch-")
    assert len(taken) == 2
    assert scratch.path.is_dir()
    remove_abandoned(tmp_path, "scratch-")
    assert scratch.path.is_dir()
    scratch.close()
    assert list(tmp_path.iterdir()) == []


def test_what_a_dead_process_left_at_any_moment_is_removed(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-c", MAKE_AND_DIE, str(tmp_path)], cwd=CHECKOUT, check=False)
    Path(tempfile.mkdtemp(prefix="scratch-", dir=tmp_path))  # it died before it had locked it
    assert len(list(tmp_path.iterdir())) == 2
    ScratchDirectory(tmp_path, "scratch-").close()
    assert list(tmp_path.iterdir()) == []


def test_one_of_an_earlier_version_is_kept_while_its_lock_is_held(tmp_path: Path) -> None:
    earlier = tmp_path / "scratch-earlier"
    earlier.mkdir()
    (earlier / "lock").touch()
    code = "import fcntl, sys; f = open(sys.argv[1]); fcntl.flock(f, 2); print('held', flush=True); sys.stdin.read()"
    holder = subprocess.Popen(
        [sys.executable, "-c", code, str(earlier / "lock")], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert holder.stdout is not None
    assert holder.stdout.readline() == b"held\n"
    remove_abandoned(tmp_path, "scratch-")
    assert earlier.is_dir()
    holder.communicate()
    remove_abandoned(tmp_path, "scratch-")
    assert not earlier.exists()
