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


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make what belongs to two users")
def test_only_directories_of_ours_are_removed(tmp_path: Path) -> None:
    os.chmod(tmp_path, 0o1777)
    for name in ("another-one", "scratch-theirs", "other"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "lock").touch()
    os.chown(tmp_path / "scratch-theirs", 65534, 65534)
    (tmp_path / "scratch-link").symlink_to(tmp_path / "other")
    (tmp_path / "scratch-file").touch()
    (tmp_path / "scratch-fifo").mkdir()
    os.mkfifo(tmp_path / "scratch-fifo" / "lock")
    before = sorted(tmp_path.rglob("*"))
    (tmp_path / "scratch-ours").mkdir()
    (tmp_path / "scratch-ours" / "lock").touch()
    remove_abandoned(tmp_path, "scratch-")
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make what belongs to two users")
def test_roots_directory_below_another_users_belongs_to_that_one(tmp_path: Path) -> None:
    os.chown(tmp_path, 65534, 65534)
    scratch = ScratchDirectory(tmp_path / "parent", "scratch-")
    assert {path.stat().st_uid for path in tmp_path.rglob("*")} == {65534}
    assert scratch.path.stat().st_mode & 0o077 == 0
    scratch.close()
    assert list((tmp_path / "parent").iterdir()) == []
