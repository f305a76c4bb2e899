"""The pages made of docstrings and help texts are up to date, and their examples work."""

from __future__ import annotations

import doctest
import re
import shutil
import subprocess
from enum import Enum
from pathlib import Path

import pytest

import engine
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


def public_names(kind: type) -> set[str]:
    """Fields and members that a class adds itself; an error's and an enum's base has others."""
    inherited = {name for base in kind.__mro__[1:] if not base.__module__.startswith("engine") for name in dir(base)}
    names = {name for name in dir(kind) if not name.startswith("_")}
    return names - inherited - ({"name", "value"} if issubclass(kind, Enum) else set())


def test_the_api_page_has_each_name_of_what_it_describes() -> None:
    sections = re.split(r"^### (\w+)$", API.read_text(), flags=re.MULTILINE)[1:]
    lacking = {}
    for name, text in zip(sections[::2], sections[1::2], strict=True):
        kind = getattr(engine, name, None)
        if isinstance(kind, type):
            lacking[name] = {one for one in public_names(kind) if not re.search(rf"\b{one}\b", text)}
    assert {name: names for name, names in lacking.items() if names} == {}
