"""The scripts parse in a plain sh, and say what they take. (Their verbs are run by people and CI.)"""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

PROJECT = Path(__file__).resolve().parents[2]


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [PROJECT / "run", *arguments], capture_output=True, text=True, stdin=subprocess.DEVNULL, check=False
    )


@pytest.mark.parametrize(("shell", "script"), [("sh", "run"), ("sh", ".ci/setup.sh"), ("bash", ".ci/run")])
def test_scripts_parse(shell: str, script: str) -> None:
    subprocess.run([shell, "-n", PROJECT / script], check=True)


def test_without_a_verb_it_lists_the_verbs() -> None:
    words = run()
    assert words.returncode == 0
    for verb in ("setup", "demo", "test", "lint", "interop", "bench", "durability"):
        assert f"\n  {verb} " in words.stdout


def test_an_unknown_verb_is_refused_before_anything_is_installed() -> None:
    refused = run("tests")
    assert (refused.returncode, refused.stdout) == (2, "")
    assert "usage: ./run VERB" in refused.stderr


@pytest.mark.parametrize("room", ["engine", "fsstore", "mountctl", "docs", "mount", "durability", "spark"])
def test_every_room_is_part_of_run_test(room: str) -> None:
    assert f'"$python" -m pytest -q tests/{room}' in (PROJECT / "run").read_text()
