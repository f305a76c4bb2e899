"""Requests of other hosts, and arguments that look like their places. test_serve_promises_hosts.py has the hosts."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from mountctl.hosts import split_places
from tests.mountctl.conftest import DEADLINE_SECONDS, mountctl, succeed


@pytest.mark.parametrize(
    ("words", "places"),
    [
        ("/mnt/mq orders", 0),
        ("/mnt/mq /orders/0", 0),
        ("a:/mnt/mq orders", 1),
        ("a:/mnt/mq orders b:/mnt/mq", 1),
        ("/mnt/mq @prod ./here orders/0 /x", 3),
        ("here a:mq ../there orders", 3),
        ("./a:b orders", 0),
    ],
)
def test_places_come_first(words: str, places: int) -> None:
    given = words.split()
    assert split_places(given) == (given[:places], given[places:])


def test_behind_a_place_of_this_host_a_pattern_may_look_like_a_place(store: Path) -> None:
    assert succeed("grep", store, "x:/|order 7") == "order 7\n"
    assert succeed("grep", "-e", "@x|order 7", store, "orders") == "order 7\n"
    missing = mountctl("grep", "-c", "a:/mnt/mq", "b:/mnt/mq")
    assert (missing.returncode, "one that looks like a place is given by -e" in missing.stderr) == (2, True)


def test_a_request_of_another_version_is_refused() -> None:
    asked = json.dumps({"protocol": 9, "kind": "topics", "place": "/mnt/mq"}) + "\n"
    command = [sys.executable, "-m", "mountctl", "remote"]
    done = subprocess.run(command, input=asked, capture_output=True, text=True, timeout=DEADLINE_SECONDS, check=False)
    hello, refused = map(json.loads, done.stdout.splitlines())
    assert (hello["type"], refused["type"], done.returncode) == ("Hello", "Refused", refused["code"])
    assert "was asked by protocol 9" in refused["reason"]
