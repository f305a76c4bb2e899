"""Completion in a shell at the Tab key."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from tests.mountctl.conftest import DEADLINE_SECONDS, Site, fill, mountctl, succeed


@pytest.fixture(params=["unmounted", "mounted"])
def place(request: pytest.FixtureRequest, site: Site) -> Path:
    fill(site.store)
    succeed("topics", "create", site.store, "%RETRY%g", "--queues", "1")
    return site.mounted().mountpoint if request.param == "mounted" else site.store


def proposed(monkeypatch: pytest.MonkeyPatch, *words: str | Path) -> list[str]:
    """The proposals for the unfinished last word."""
    monkeypatch.setenv("_MOUNTCTL_COMPLETE", "bash_complete")
    monkeypatch.setenv("COMP_WORDS", " ".join(map(str, ("mountctl", *words))))
    monkeypatch.setenv("COMP_CWORD", str(len(words)))
    answer = mountctl("")
    assert answer.stderr == ""
    return [line.partition(",")[2] for line in answer.stdout.splitlines() if line]


def test_verbs_and_options_are_completed(monkeypatch: pytest.MonkeyPatch) -> None:
    assert proposed(monkeypatch, "co") == ["consume", "copy", "completion"]
    assert proposed(monkeypatch, "topics", "cr") == ["create"]
    assert proposed(monkeypatch, "cat", "--unt") == ["--until"]
    assert proposed(monkeypatch, "put", "s", "t", "--format", "j") == ["json"]
    assert proposed(monkeypatch, "cat", "-o", "filereserved") == ["fileReservedTime="]
    assert proposed(monkeypatch, "mount", "-o", "ro,parquet_m") == ["ro,parquet_memory="]


def test_topics_and_queues_of_the_place_are_completed(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert proposed(monkeypatch, "cat", place, "o") == ["orders"]
    assert proposed(monkeypatch, "tail", place, "orders", "%") == ["%RETRY%g"]
    assert proposed(monkeypatch, "cat", place, "orders/") == [f"orders/{queue}" for queue in range(4)]
    assert proposed(monkeypatch, "topics", "delete", place, "or") == ["orders"]
    assert proposed(monkeypatch, "copy", "/none", "x", place, "or") == ["orders"]
    for words in (("/none", "o"), (str(place), "nosuch/"), (str(place), "orders/9/")):
        assert proposed(monkeypatch, "cat", *words) == []


HOSTILE = ("bills;touch pwned", "zz$(touch pwned)", "a|b", "`x`", "two words", "\x1b[31m", "star*", "quote'", 'dquote"')


def test_names_that_a_shell_would_run_are_not_proposed(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(site.store)
    topics = site.store / "config/topics.json"
    known = json.loads(topics.read_text())
    entry = known["topicConfigTable"]["orders"]
    known["topicConfigTable"] |= {name: {**entry, "topicName": name} for name in HOSTILE}
    topics.write_text(json.dumps(known))
    offsets = site.store / "config/consumerOffset.json"
    offsets.write_text(json.dumps({"offsetTable": {f"orders@{name}": {"0": 1} for name in (*HOSTILE, "billing")}}))
    assert proposed(monkeypatch, "cat", site.store, "") == ["orders"]
    assert proposed(monkeypatch, "consume", site.store, "orders", "-g", "") == ["billing"]


def test_groups_of_the_place_are_completed(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for group in ("billing", "auditing"):
        succeed("consume", place, "orders", "-g", group, "-n", "1")
    assert proposed(monkeypatch, "consume", place, "orders", "-g", "b") == ["billing"]
    assert proposed(monkeypatch, "consume", place, "-g", "") == ["auditing", "billing"]
    assert proposed(monkeypatch, "consume", "/none", "orders", "--group", "b") == []


def test_places_are_directories_and_what_is_mounted(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    site.mounted()
    succeed("put", site.mountpoint, "orders/1", "a", "b")
    begun = str(site.mountpoint)[:-1]
    assert proposed(monkeypatch, "cat", begun) == [begun, str(site.mountpoint)]
    assert proposed(monkeypatch, "cat", site.mountpoint, "orders/1/") == ["orders/1/0", "orders/1/1"]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_each_shell_gets_its_script(shell: str) -> None:
    script = succeed("completion", shell)
    assert "_MOUNTCTL_COMPLETE" in script
    if shell == "bash":
        subprocess.run(["bash", "-n"], input=script, text=True, check=True, timeout=DEADLINE_SECONDS)
