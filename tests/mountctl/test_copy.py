"""copy: each message once, with all its fields, over any number of runs."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from engine import Message, MessageStore
from mountctl.client import StoreClient
from mountctl.local_store import LocalStore
from mountctl.mount_client import MountClient
from tests.mountctl.conftest import Site, mountctl, succeed


def publish(path: Path) -> None:
    """Twenty orders in four queues, dead letters with and without an origin, and a delayed message."""
    with MessageStore.open(path, create=True) as store:
        for number in range(20):
            keys, tags = [f"K-{number}"], "odd" if number % 2 else "even"
            store.put(Message("orders", b"order %d" % number, keys, tags, {"P": "x"}, flag=7, born_time_ms=1_000))
        origin = {"DLQ_ORIGIN_TOPIC": "orders", "RETRY_TOPIC": "other", "RECONSUME_TIME": "16", "A": "b"}
        store.put(Message("%DLQ%billing", b"dead", ["D"], "t", origin))
        store.put(Message("%DLQ%billing", b"nobody's"))
        store.put(Message("%RETRY%billing", b"again", properties={"RETRY_TOPIC": "orders"}))
        store.put(Message("orders", b"later", properties={"DELAY": "3"}))


def shown(place: Path, topic: str) -> list[dict[str, object]]:
    return [json.loads(line) for line in succeed("cat", place, topic, "--json").splitlines()]


@pytest.fixture(params=["unmounted", "mounted"])
def target(request: pytest.FixtureRequest, site: Site) -> Path:
    """An empty store to copy to."""
    succeed("init", site.store)
    return site.mounted().mountpoint if request.param == "mounted" else site.store


@pytest.fixture
def source(tmp_path: Path) -> Path:
    publish(tmp_path / "source")
    return tmp_path / "source"


def test_copies_carry_what_their_messages_carried_queue_by_queue(source: Path, target: Path) -> None:
    assert succeed("copy", source, "orders", target, "--dry-run") == "20 messages would be copied: orders (20)\n"
    assert succeed("topics", target).splitlines() == ["TOPIC  QUEUES  MESSAGES"]
    assert succeed("copy", source, "orders", target, "--tag", "odd") == "10 messages copied: orders (10)\n"
    assert succeed("copy", source, "orders", target) == "10 messages copied: orders (10); 10 copied before\n"
    assert succeed("copy", source, "orders", target) == "0 messages copied; 20 copied before\n"
    before, copies = shown(source, "orders"), shown(target, "orders")
    facts = ("queue", "body", "keys", "tags")
    assert sorted([one[fact] for fact in facts] for one in copies) == sorted(
        [one[fact] for fact in facts] for one in before
    )
    marks = {f"orders/{one['queue']}/{one['offset']}@{one['store_time']}": one["properties"] for one in before}
    for copy in copies:
        properties = copy["properties"]
        assert isinstance(properties, dict)
        assert marks.pop(properties.pop("COPIED_FROM")) == properties
    assert not marks


def test_what_is_copied_is_chosen_and_named(source: Path, target: Path) -> None:
    succeed("copy", source, "orders", target, "some", "--match", "order 1[0-4]", "--from", "2", "--until", "4")
    assert {one["body"] for one in shown(target, "some")} == {f"order {number}" for number in range(10, 15)}
    succeed("copy", source, "orders/1", target, "one", "--key", "K-5")
    assert [(one["queue"], one["body"]) for one in shown(target, "one")] == [(1, "order 5")]
    everything = mountctl("copy", source, "*", target, "--json")
    assert json.loads(everything.stdout)["copied"] == {"%DLQ%billing": 2, "%RETRY%billing": 1, "orders": 20}
    assert everything.stderr == (
        "mountctl: SCHEDULE_TOPIC_XXXX is left out: --redrive sends delayed messages to their topics\n"
    )
    refusals: tuple[tuple[list[str | Path], str], ...] = (
        (["orders/0/1", target], "one message is not copied"),
        (["orders", target, "new/0"], "one message is not copied"),
        (["orders", source], "orders would be copied to itself: give another TO_TOPIC, or --redrive"),
        (["nosuch", target], "no topic 'nosuch'"),
        (["orders", target, "a b"], "illegal topic 'a b'"),
    )
    for words, said in refusals:
        refused = mountctl("copy", source, *words)
        assert refused.returncode == 64, refused.stderr
        assert said in refused.stderr


def test_dead_letters_go_back_to_where_they_came_from(site: Site) -> None:
    publish(site.store)
    place = site.mounted().mountpoint
    first = mountctl("copy", place, "%*", place, "--redrive")
    assert (first.returncode, first.stdout) == (65, "2 messages copied: orders (2)\n")
    assert first.stderr == ("mountctl: 1 message left out: no property names their original topic: give TO_TOPIC\n")
    again = mountctl("copy", place, "%*", place, "--redrive")
    assert again.stdout == "0 messages copied; 2 copied before\n"
    dead, retried = (shown_one(place, body) for body in ("dead", "again"))
    assert dead["properties"] == {"KEYS": "D", "TAGS": "t", "A": "b", "COPIED_FROM": dead["properties"]["COPIED_FROM"]}
    assert list(retried["properties"]) == ["COPIED_FROM"]
    assert succeed("copy", place, "%DLQ%billing", place, "inbox", "--redrive") == "2 messages copied: inbox (2)\n"
    assert succeed("copy", place, "SCHEDULE_TOPIC_XXXX", place, "--redrive") == "1 message copied: orders (1)\n"
    assert "DELAY" not in shown_one(place, "later")["properties"]


def shown_one(place: Path, body: str) -> dict[str, dict[str, str]]:
    (line,) = succeed("grep", place, "-F", body, "orders", "--json").splitlines()
    found: dict[str, dict[str, str]] = json.loads(line)
    return found


def test_a_copy_that_was_interrupted_goes_on_and_doubles_nothing(
    source: Path, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mountctl.copying.BATCH", 2)
    calls = []
    for kind in (LocalStore, MountClient):

        def fails_at_third(
            self: StoreClient, queue: int | None, messages: Iterable[Message], put: Callable[..., None] = kind.publish
        ) -> None:
            calls.append(queue)
            if len(calls) == 3:
                put(self, queue, list(messages)[:1])
                raise OSError(28, "No space left on device")
            put(self, queue, messages)

        monkeypatch.setattr(kind, "publish", fails_at_third)
    stopped = mountctl("copy", source, "orders", target)
    assert (stopped.returncode, stopped.stderr) == (74, "mountctl: No space left on device\n")
    assert len(shown(target, "orders")) == 5
    assert succeed("copy", source, "orders", target) == "15 messages copied: orders (15); 5 copied before\n"
    assert sorted(str(one["keys"]) for one in shown(target, "orders")) == sorted(f"K-{n}" for n in range(20))


def test_marks_that_somebody_made_up_stop_nothing(source: Path, target: Path) -> None:
    for mark in ("orders/0/0", "orders/0/99999999999999999999@1", "orders/0/0@1", "x" * 1000, "orders/4294967296/0@1"):
        succeed("put", target, "orders", "planted", "--property", f"COPIED_FROM={mark}")
    assert succeed("copy", source, "orders", target) == "20 messages copied: orders (20)\n"
