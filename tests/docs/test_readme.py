"""The README's session, typed line by line into a folder of its own: it prints what the README says it prints."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

PROJECT = Path(__file__).resolve().parents[2]
DEADLINE_SECONDS = 60


def session() -> Iterator[tuple[str, str]]:
    """Each command of the README's console block, with what it is said to print."""
    block = (PROJECT / "README.md").read_text().partition("```console\n")[2].partition("```")[0]
    for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
        command, _, said = part.partition("\n")
        yield command, said


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path
    if os.path.ismount(tmp_path / "mnt"):
        subprocess.run(["fusermount3", "-u", "-z", str(tmp_path / "mnt")], check=True)


def as_pattern(said: str) -> str:
    """`...` stands for anything; the end of the last line may be a newline or not (a body has none of its own)."""
    return re.escape(said.rstrip("\n")).replace(r"\.\.\.", ".*") + "\n?"


def test_the_session_prints_what_the_readme_says(folder: Path) -> None:
    environment = {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "XDG_STATE_HOME": str(folder / "state"),
        "LC_ALL": "C.UTF-8",
    }
    commands = list(session())
    assert len(commands) > 10
    for command, said in commands:
        done = subprocess.run(
            ["bash", "-c", command], cwd=folder, env=environment, stdin=subprocess.DEVNULL,
            capture_output=True, text=True, timeout=DEADLINE_SECONDS, check=False,
        )  # fmt: skip
        assert done.returncode == 0, f"{command}: {done.stderr}"
        assert re.fullmatch(as_pattern(said), done.stdout), f"{command} printed {done.stdout!r}"


def test_the_recording_shows_the_session() -> None:
    """docs/session.cast is asciinema's format, and has each command with what it is said to print."""
    header, *events = map(json.loads, (PROJECT / "docs/session.cast").read_text().splitlines())
    assert (header["version"], header["width"] > 0, header["height"] > 0) == (2, True, True)
    times = [at for at, _, _ in events]
    assert times == sorted(times)
    assert {kind for _, kind, _ in events} == {"o"}
    screen = re.sub(r"\x1b\[[\d;]*m", "", "".join(text for _, _, text in events)).replace("\r\n", "\n")
    typed = [part.partition("\n") for part in re.split(r"^\$ |(?<=\S)\$ ", screen, flags=re.MULTILINE)[1:]]
    for (command, said), (shown, _, printed) in zip(session(), typed, strict=True):
        assert shown == command, "python -m tests.docs.recording makes it again"
        left = printed.rpartition("\x1b[2K")[2]  # after a progress bar was erased
        assert re.fullmatch(as_pattern(said), left), f"{command} printed {printed!r}"
