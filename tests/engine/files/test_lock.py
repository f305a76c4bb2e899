"""The store's lock, against this process and others. While a test holds it, nothing here may open the file itself."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from engine.errors import StoreLockedError
from engine.files.lock import StoreLock

TAKE = """
import fcntl, sys
file = open(sys.argv[1], "a+b")
try:
    fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 0)
except OSError:
    print("refused", flush=True)
else:
    print("taken", flush=True)
    sys.stdin.read()
"""


@contextmanager
def another_process(path: Path) -> Iterator[tuple[int, str]]:
    """A process that tries to take the lock as a Java broker does, and keeps it; (its id, how it went)."""
    command = [sys.executable, "-c", TAKE, str(path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        yield process.pid, process.stdout.readline().strip()
        process.communicate()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "lock"


def outcome_elsewhere(path: Path) -> str:
    with another_process(path) as (_, outcome):
        return outcome


def test_the_lock_keeps_other_processes_out_until_released(path: Path) -> None:
    with StoreLock(path):
        assert outcome_elsewhere(path) == "refused"
    assert outcome_elsewhere(path) == "taken"
    assert path.read_bytes() == b"lock"


def test_another_processes_lock_is_refused_with_its_pid(path: Path) -> None:
    with another_process(path) as (pid, outcome):
        assert outcome == "taken"
        assert StoreLock.holder(path) == pid
        with pytest.raises(StoreLockedError) as caught:
            StoreLock(path)
        assert caught.value.pid == pid
    with StoreLock(path):
        pass


def test_a_second_lock_in_this_process_is_refused_and_drops_nothing(path: Path, tmp_path: Path) -> None:
    with StoreLock(path):
        other_name = tmp_path / "link"
        other_name.hardlink_to(path)
        for name in (path, other_name):
            with pytest.raises(StoreLockedError) as caught:
                StoreLock(name)
            assert caught.value.pid == os.getpid()
        assert outcome_elsewhere(path) == "refused"


def test_asking_for_the_holder_drops_nothing_and_makes_nothing(path: Path) -> None:
    assert StoreLock.holder(path) is None
    assert not path.exists()
    with StoreLock(path):
        assert StoreLock.holder(path) == os.getpid()
        assert outcome_elsewhere(path) == "refused"
    assert StoreLock.holder(path) is None


def test_release_twice_is_harmless_and_the_lock_can_be_taken_again(path: Path) -> None:
    for _ in range(2):
        lock = StoreLock(path)
        lock.release()
        lock.release()
    assert outcome_elsewhere(path) == "taken"


def test_taking_the_lock_again_leaves_the_files_time_alone(path: Path) -> None:
    StoreLock(path).release()
    os.utime(path, (1_000, 1_000))
    StoreLock(path).release()
    assert path.stat().st_mtime == 1_000
    path.write_bytes(b"")
    StoreLock(path).release()
    assert path.read_bytes() == b"lock"


def test_a_killed_holder_holds_nothing(path: Path) -> None:
    command = [sys.executable, "-c", TAKE, str(path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline().strip() == "taken"
        process.kill()
        process.wait()
    with StoreLock(path):
        assert StoreLock.holder(path) == os.getpid()
