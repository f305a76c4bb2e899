"""The pages made of docstrings and help texts are up to date, and their examples work."""

from __future__ import annotations

import doctest
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.docs.generated import API, MANUAL, api, manual

REMEDY = "./run docs writes it again"


def test_the_api_page_says_what_the_docstrings_say() -> None:
    assert API.read_text() == api(), REMEDY


def test_the_manual_page_says_what_the_verbs_say() -> None:
    assert MANUAL.read_text() == manual(), REMEDY


def test_the_examples_of_the_api_page_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    flags = doctest.ELLIPSIS | doctest.FAIL_FAST
    failed, tried = doctest.testfile(str(API), module_relative=False, optionflags=flags)
    assert tried > 15
    assert not failed


def test_the_manual_page_is_one_to_its_formatter() -> None:
    formatter = shutil.which("groff")
    if formatter is None:  # every line begins a request, or is text
        assert all(line[:1] != "'" for line in MANUAL.read_text().splitlines())
        return
    command = [formatter, "-man", "-Tutf8", "-ww", "-z", str(MANUAL)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stderr == ""
