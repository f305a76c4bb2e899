"""topics create, and copies: all topics of a run are made with one write of topics.json, or none is."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from engine import Message, MessageStore
from fsstore.interface import WHOLE_WRITE_BYTES
from mountctl.mount_client import _as_commands
from tests.mountctl.conftest import Site, mountctl, succeed


@pytest.fixture(params=["unmounted", "mounted"])
def place(request: pytest.FixtureRequest, site: Site) -> Path:
    """An empty store."""
    succeed("init", site.store)
    return site.mounted().mountpoint if request.param == "mounted" else site.store


def written(site: Site) -> int:
    """How often the file with the topics was written."""
    path = site.store / "config/topics.json"
    return int(json.loads(path.read_bytes())["dataVersion"]["counter"]) if path.exists() else 0


def queues_of(place: Path) -> dict[str, int]:
    return {topic: len(queues) for topic, queues in json.loads(succeed("topics", place, "--json")).items()}


def test_many_topics_are_made_at_once(place: Path, site: Site) -> None:
    assert succeed("topics", "create", place, "orders") == "made orders with 4 queues\n"
    names = [f"topic-{number}" for number in range(300)]
    assert succeed("topics", "create", place, *names, "--queues", "2") == "made 300 topics with 2 queues each\n"
    assert queues_of(place) == {"orders": 4, **dict.fromkeys(names, 2)}
    assert written(site) == 2


def test_a_verb_of_topics_behind_the_place_is_answered_with_the_order(place: Path) -> None:
    succeed("topics", "create", place, "orders")
    refused = mountctl("topics", place, "delete", "orders")
    assert refused.returncode == 2
    order = f"`mountctl topics delete {place} orders`"
    assert refused.stderr == f"mountctl: delete stands before the place: {order}: see `mountctl topics --help`\n"
    assert queues_of(place) == {"orders": 4}


def test_a_topic_is_deleted_by_its_path(place: Path) -> None:
    succeed("topics", "create", place, "orders", "bills")
    said = succeed("topics", "delete", f"{place}/orders", "--yes")
    assert said.startswith("deleted orders with 0 messages")
    assert queues_of(place) == {"bills": 4}


NO_NAME = "illegal topic 'a b': has other characters than a-z A-Z 0-9 % | _ -"


def test_none_of_many_topics_is_made_if_one_is_refused(place: Path, site: Site) -> None:
    succeed("topics", "create", place, "orders", "bills")
    for names, reasons in (
        (["new", "orders"], "topic 'orders' exists"),
        (["new", "bills", "orders"], "no topic was made: topic 'bills' exists; topic 'orders' exists"),
        (["new", "a b"], NO_NAME),
        (["new", "a b", "orders"], f"no topic was made: {NO_NAME}; topic 'orders' exists"),
    ):
        refused = mountctl("topics", "create", place, *names)
        assert (refused.returncode, refused.stderr) == (os.EX_USAGE, f"mountctl: {reasons}\n")
    assert queues_of(place) == {"bills": 4, "orders": 4}
    assert written(site) == 1


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """Fifty topics of one to three queues with messages, and an empty one."""
    path = tmp_path / "source"
    with MessageStore.open(path, create=True) as store:
        store.create_topics({"empty": 4, **{f"topic-{number}": 1 + number % 3 for number in range(50)}})
        for number in range(50):
            store.put_batch([Message(f"topic-{number}", b"%d" % number, tags="odd" if number % 2 else "even")] * 3)
    return path


def test_a_copy_makes_its_topics_at_once(source: Path, place: Path, site: Site) -> None:
    succeed("topics", "create", place, "topic-7", "--queues", "1")
    assert succeed("copy", source, "*", place).startswith("150 messages copied: ")
    made = {f"topic-{number}": 1 + number % 3 for number in range(50)}
    assert queues_of(place) == {**made, "topic-7": 1}
    assert written(site) == 2
    assert succeed("cat", place, "topic-5/2") == succeed("cat", source, "topic-5/2") == "5\n"


@pytest.mark.parametrize("selection", [("--tag", "odd"), ("--match", "[13579]$")])
def test_a_copy_of_some_messages_makes_the_topics_that_get_one(
    source: Path, place: Path, selection: tuple[str, str]
) -> None:
    succeed("copy", source, "topic-?", place, *selection)
    assert queues_of(place) == {f"topic-{number}": 1 + number % 3 for number in (1, 3, 5, 7, 9)}


def test_a_copy_of_which_a_topic_is_refused_copies_nothing(place: Path, tmp_path: Path) -> None:
    with MessageStore.open(tmp_path / "source", create=True) as store:
        store.put(Message("fine", b"x"))
        store.put(Message("wide", b"x"))
    file = tmp_path / "source/config/topics.json"
    content = json.loads(file.read_bytes())
    content["topicConfigTable"]["wide"]["readQueueNums"] = 2_000  # as a broker allows
    file.write_text(json.dumps(content))
    refused = mountctl("copy", tmp_path / "source", "*", place)
    said = "mountctl: illegal topic 'wide': 2000 queues asked for, but a topic has 1 to 1024\n"
    assert (refused.returncode, refused.stderr) == (os.EX_USAGE, said)
    assert queues_of(place) == {}


def test_commands_hold_as_many_topics_as_a_write() -> None:
    topics = {f"{number:0127d}": 1_024 for number in range(20_000)}
    commands = list(_as_commands(topics))
    assert len(commands) == 3
    assert {topic: queues for command in commands for topic, queues in command.items()} == topics
    assert max(len(json.dumps({"create_topics": command})) for command in commands) < WHOLE_WRITE_BYTES
    assert list(_as_commands({"one": 1})) == [{"one": 1}]
    assert len(list(_as_commands({f"topic-{number}": 4 for number in range(20_000)}))) == 1
