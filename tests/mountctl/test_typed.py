"""A program over the public API passes `mypy --strict`, beside a checkout and beside an installed wheel."""

from __future__ import annotations

import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

PROJECT = Path(__file__).resolve().parents[2]

PROGRAM = """
from collections.abc import Iterator

import numpy as np

from engine import Columns, Message, MessageStore, OpenMode, Queue, StoreConfig, StoredMessage
from fsstore.aio import follow


def place(message: StoredMessage) -> tuple[str, int, int, int]:
    return message.topic, message.queue, message.queue_offset, message.store_time_ms


def show(path: str) -> Iterator[tuple[str, int, int, int]]:
    with MessageStore.open(path, StoreConfig(mode=OpenMode.FOLLOW)) as store:
        for message in store.follow("orders", start=0, timeout=1.5):
            if message is None:
                break
            yield place(message)
        columns: Columns = store.columns("orders", 0, 0, 100)
        good = columns.headers["ok"]
        print(int(np.count_nonzero(good)), columns.bodies[0], columns.tags.offsets)


def publish(queue: Queue) -> int:
    return queue.put(Message("orders", b"12 apples", keys=["ORDER-17"])).queue_offset + queue.queue


async def first(store: MessageStore) -> bytes:
    async for message in follow(store, "orders"):
        return bytes(message.body)
    return b""
"""

WRONG = """
reveal: str = place(next(iter(MessageStore.open("store").query("orders", "k"))))[1]
late: StoredMessage = next(MessageStore.open("store").follow("orders", timeout=1))
"""


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What mypy knows of numpy, for all tests here."""
    return tmp_path_factory.mktemp("cache")


def checked(folder: Path, python: Path | str, cache: Path, program: str) -> subprocess.CompletedProcess[str]:
    """mypy's verdict on a program in a folder of its own, for an environment's Python."""
    file = folder / "program.py"
    file.write_text(program)
    options = ["--strict", "--cache-dir", str(cache), "--python-executable", str(python)]
    command = [sys.executable, "-m", "mypy", *options, str(file)]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


@pytest.fixture
def installed(tmp_path: Path) -> Path:
    """The Python of an environment that has this project's packages as a wheel has them, without what is compiled."""
    source, environment = tmp_path / "source", tmp_path / "environment"
    source.mkdir()
    for name in ("pyproject.toml", "README.md", "LICENSE", "MANIFEST.in", "docs/mountctl.1"):
        (source / name).parent.mkdir(exist_ok=True)
        shutil.copy(PROJECT / name, source / name)
    for package in ("engine", "fsstore", "mountctl"):
        shutil.copytree(
            PROJECT / package, source / package, ignore=shutil.ignore_patterns("*.so", "*.c", "__pycache__")
        )
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", environment], check=True)
    [site] = environment.glob("lib/python*/site-packages")
    build = "from setuptools import setup; setup()"
    command = [sys.executable, "-W", "ignore", "-c", build, "-q", "build_py", "--build-lib", str(site)]
    subprocess.run(command, cwd=source, capture_output=True, check=True)
    (site / "others.pth").write_text(sysconfig.get_path("purelib") + "\n")  # numpy; a .pth in there is not followed
    return environment / "bin/python"


def test_it_passes_beside_a_checkout(tmp_path: Path, cache: Path) -> None:
    done = checked(tmp_path, sys.executable, cache, PROGRAM)
    assert done.returncode == 0, done.stdout


def test_it_passes_beside_an_installed_wheel(tmp_path: Path, cache: Path, installed: Path) -> None:
    done = checked(tmp_path, installed, cache, PROGRAM)
    assert done.returncode == 0, done.stdout
    wrong = checked(tmp_path, installed, cache, PROGRAM + WRONG)
    assert wrong.stdout.count(" error: ") == 2, wrong.stdout
