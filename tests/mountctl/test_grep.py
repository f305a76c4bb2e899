"""grep finds what cat shows, by each of its ways to search."""

from __future__ import annotations

import json
import random
import re
import subprocess
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from engine import Message, MessageStore
from mountctl.local_store import LocalStore
from tests.mountctl.conftest import Site, mountctl, succeed
from tests.mountctl.test_damaged import fill

EVERY = 1000


def publish(path: Path) -> None:
    """Messages of many kinds: plain ones, compressed, delayed, of a deleted topic. Three orders have a needle, one in
    EVERY."""
    with MessageStore.open(path, create=True) as store:
        store.put(Message("gone", b"a needle that was deleted"))
        store.delete_topic("gone")
        for number in range(3 * EVERY):
            needle = f" Needle-{number}" if number % EVERY == 7 else ""
            store.put(Message("orders", f"order {number}{needle}".encode(), keys=[f"K-{number}"]), queue=number % 2)
        store.put(Message("orders", zlib.compress(b"a packed needle"), sys_flag=0x1 | 0x300), queue=0)
        store.put(Message("letters", "größe\nneedle\nzwei".encode(), tags="t", properties={"A": "needle b"}), queue=3)
        store.put(Message("letters", b"\xff\x00 needle"), queue=3)
        store.put(Message("letters", b"a needle for later", properties={"DELAY": "3"}))


def found_by_cat(place: Path, words: str, *, invert: bool = False) -> set[tuple[str, int, int]]:
    """Where cat shows bodies with these words, in either case."""
    shown = [json.loads(line) for line in succeed("cat", place, "*", "--json").splitlines()]
    return {
        (one["topic"], one["queue"], one["offset"])
        for one in shown
        if (words in one.get("body", "needle").lower()) is not invert
    }


PARTS: dict[str, Callable[[dict[str, Any]], list[str]]] = {
    "keys": lambda one: [key for key in one.get("keys", "").split(" ") if key],
    "tags": lambda one: [one.get("tags", "")],
    "properties": lambda one: [f"{name}={value}" for name, value in one["properties"].items()],
}


def places(lines: str) -> set[tuple[str, int, int]]:
    return {(one["topic"], one["queue"], one["offset"]) for one in map(json.loads, lines.splitlines())}


@pytest.fixture(params=["unmounted", "mounted"])
def way(request: pytest.FixtureRequest) -> str:
    way: str = request.param
    return way


@pytest.fixture
def place(way: str, site: Site) -> Path:
    publish(site.store)
    return site.store if way == "unmounted" else site.mounted().mountpoint


@pytest.mark.parametrize("part", PARTS)
def test_what_is_beside_bodies_is_found_as_cat_shows_it(way: str, site: Site, part: str) -> None:
    with MessageStore.open(site.store, create=True) as store:
        for number in range(40):
            keys = [f"K-{number}", f"b{number % 3}", "a\tb"][: number % 4]
            properties = {"A": f"v{number}", "Größe": "ü\nb2"} if number % 5 else {}
            store.put(Message("t", b"b1", keys, f"tag{number % 6}" * (number % 2), properties), number % 2)
    place = site.store if way == "unmounted" else site.mounted().mountpoint
    shown = [json.loads(line) for line in succeed("cat", place, "t", "--json").splitlines()]
    for pattern in ("b[12]$", "^$", "^b", "=v1", "tag[13]", "ü", "^K-3", "none"):
        wanted = [one for one in shown if any(re.search(pattern, text, re.MULTILINE) for text in PARTS[part](one))]
        for invert, counted in (((), len(wanted)), (("-v",), len(shown) - len(wanted))):
            assert mountctl("grep", place, "-c", *invert, pattern, "t", "--in", part).stdout == f"{counted}\n"
        found = mountctl("grep", place, pattern, "t", "--json", "--in", part).stdout
        assert places(found) == places("".join(json.dumps(one) + "\n" for one in wanted))
        first = mountctl("grep", place, pattern, "t", "-m1", "--format", "%q %o", "--in", part).stdout
        assert first == "".join(f"{one['queue']} {one['offset']}\n" for one in wanted[:1])
    both = mountctl("grep", place, "-c", "K-7|tag1", "t", "--in", "keys", "--in", "tags", "--tag", "tag1").stdout
    assert both == f"{sum(one.get('tags') == 'tag1' for one in shown)}\n"


def test_grep_finds_what_cat_shows(place: Path) -> None:
    wanted = found_by_cat(place, "needle")
    assert len(wanted) == 7
    for pattern in ("needle", "n[e]edle", "(?i)NEEDLE", "nee.le|nothing"):
        assert places(succeed("grep", place, "-i", pattern, "--json")) == wanted
    assert places(succeed("grep", place, "-iv", "needle", "--json")) == found_by_cat(place, "needle", invert=True)
    first, second, third = 7, 7 + EVERY, 7 + 2 * EVERY
    assert succeed("grep", place, "Needle", "orders") == "".join(
        f"order {number} Needle-{number}\n" for number in (first, second, third)
    )
    assert succeed("grep", place, "needle", "orders/0") == "a packed needle\n"
    assert succeed("grep", place, "-c", "order [0-9]", "orders") == f"{3 * EVERY}\n"
    assert succeed("grep", place, "-ic", "needle") == "SCHEDULE_TOPIC_XXXX:1\nletters:2\norders:4\n"
    assert succeed("grep", place, "-l", "needle") == "SCHEDULE_TOPIC_XXXX\nletters\norders\n"
    assert succeed("grep", place, "-oH", "N[a-z]+-2[0-9]+") == f"orders/1/{third // 2}:Needle-{third}\n"
    assert succeed("grep", place, "-m", "1", "^needle$", "letters") == "größe\nneedle\nzwei\n"
    assert succeed("grep", place, "-F", "order 7 ", "ord*") == "order 7 Needle-7\n"
    keyed = succeed("grep", place, "Needle", "orders", "--key", f"K-{second}")
    assert keyed == f"order {second} Needle-{second}\n"
    assert succeed("grep", place, "order", "orders/0", "--from", "2", "--until", "4") == "order 4\norder 6\n"
    assert succeed("grep", place, "-o", "^A=.*", "letters", "--in", "properties") == "A=needle b\n"
    known = sum(str(number).startswith("29") for number in range(3 * EVERY))
    assert succeed("grep", place, "-c", "^K-29", "orders", "--in", "keys", "--in", "tags") == f"{known}\n"
    assert succeed("grep", place, "zwei", "letters", "--tag", "t", "--format", "%o %g") == "0 t\n"
    assert (
        succeed("grep", place, "7 N.*", "orders/1", "-m1", "--color", "always") == "order \x1b[1;31m7 Needle-7\x1b[0m\n"
    )


def test_the_exit_code_says_whether_something_was_found(site: Site) -> None:
    publish(site.store)
    for words, code, said in (
        (["none"], 1, ""),
        (["-q", "none"], 1, ""),
        (["-q", "needle"], 0, ""),
        (["-c", "none", "orders"], 1, ""),
        (["needle", "nosuch"], 64, "no topic 'nosuch'"),
        (["("], 64, "invalid pattern '(': missing )"),
        (["-c", "-l", "x"], 64, "give one of them"),
        (["-c", "--json", "x"], 64, "leave -c, -l, -o out"),
        (["x", "orders/0/1"], 64, "give TOPIC or TOPIC/QUEUE"),
    ):
        done = mountctl("grep", site.store, *words)
        assert done.returncode == code, done.stderr
        assert said in done.stderr


def test_an_empty_store_has_nothing_to_find(tmp_path: Path) -> None:
    succeed("init", tmp_path / "s")
    assert mountctl("grep", tmp_path / "s", "x").returncode == 1


def test_messages_that_lie_together_are_read_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with MessageStore.open(tmp_path / "store", create=True) as store:
        for number in range(2000):
            body = b"apple %d" % number if number % 3 else b"pear"
            store.put(Message("fruit", body, tags="red" if number % 2 else "green"), queue=0)
    read, calls = LocalStore.messages, []

    def counted(self: LocalStore, topic: str, queue: int, start: int, count: int | None, attributes: bool) -> object:
        calls.append(start)
        return read(self, topic, queue, start, count, attributes)

    monkeypatch.setattr(LocalStore, "messages", counted)
    found = succeed("grep", tmp_path / "store", "apple", "fruit", "--tag", "red", "--format", "%o %g %b").splitlines()
    assert found == [f"{number} red apple {number}" for number in range(2000) if number % 3 and number % 2]
    assert len(calls) < 20
    assert succeed("grep", tmp_path / "store", "apple (7|1999)$", "--format", "%o %g") == "7 red\n1999 red\n"


@pytest.fixture
def lines(tmp_path: Path) -> list[bytes]:
    """Messages of a queue, in a store and as the lines of a file."""
    chance = random.Random(32)
    bodies = [f"{chance.choice('abcdefgh')} {number}".encode() for number in range(400)]
    with MessageStore.open(tmp_path / "store", create=True) as store:
        for number, body in enumerate(bodies):
            store.put(Message("t", body, [body[:1].decode()], tags=body[:1].decode()), queue=0)
            store.put(Message("t", b"%d" % number), queue=1)
    (tmp_path / "t").write_bytes(b"".join(body + b"\n" for body in bodies))
    return bodies


CONTEXTS = ["-A1", "-B2", "-C1", "-C3", "-A0", "-C2 -A0", "-B1 -A4", "-v -C1", "-m3 -C2", "-c -C2", "-C9"]


@pytest.mark.parametrize("options", CONTEXTS)
def test_36_messages_near_a_match_are_those_of_grep(tmp_path: Path, lines: list[bytes], options: str) -> None:
    for pattern in ("[ab]", "a 1", "a", "none"):
        theirs = subprocess.run(
            ["grep", "-E", *options.split(), pattern, tmp_path / "t"], capture_output=True, text=True, check=False
        )
        ours = mountctl("grep", tmp_path / "store", *options.split(), pattern, "t/0")
        if options == "-m3 -C2":  # grep's context after the last match ends at the next one
            assert ours.stdout.startswith(theirs.stdout)
        else:
            assert ours.stdout == theirs.stdout
        assert ours.returncode == theirs.returncode


def test_36_a_place_has_a_minus_where_there_is_no_match(tmp_path: Path, lines: list[bytes]) -> None:
    first = next(number for number, body in enumerate(lines) if body.startswith(b"a"))
    shown = succeed("grep", tmp_path / "store", "-H", "-m1", "-A1", "^a", "t").splitlines()
    assert shown == [f"t/0/{first}:{lines[first].decode()}", f"t/0/{first + 1}-{lines[first + 1].decode()}"]
    assert succeed("grep", tmp_path / "store", "-C1", "^399$|^h 3", "t/1") == "398\n399\n"
    apart = succeed("grep", tmp_path / "store", "-A1", "399$", "t").splitlines()
    assert apart == [lines[399].decode(), "--", "399"]


@pytest.mark.parametrize("selected", ["--tag a", "--key a", "--where tag='a'", "--where key='a' --json", "--tag a -i"])
def test_37_context_is_there_whatever_selects_the_matches(tmp_path: Path, lines: list[bytes], selected: str) -> None:
    found = [number for number in range(10, 390) if lines[number].startswith(b"a")]
    wanted = [number for number in range(10, 390) if {number - 1, number, number + 1} & set(found)]
    words = ["-C1", "", "t/0", "--from", "10", "--until", "390", *selected.split()]
    words += [] if "--json" in selected else ["--format", "%o"]
    shown = succeed("grep", tmp_path / "store", *words).splitlines()
    assert [json.loads(line)["offset"] if "--json" in selected else int(line) for line in shown] == wanted


def test_37_a_damaged_message_near_a_match_is_left_out_with_a_word(tmp_path: Path) -> None:
    fill(tmp_path / "store")
    done = mountctl("grep", tmp_path / "store", "-C1", "body (3|20)$", "orders")
    assert done.stdout.splitlines() == ["body 3", "body 4", "--", "body 19", "body 20", "body 21"]
    assert "1 damaged message left out: orders/0/2 " in done.stderr
    assert done.returncode == 3


def test_38_a_sample_is_drawn_over_the_queue_offsets(tmp_path: Path, lines: list[bytes]) -> None:
    for words in (["cat"], ["grep", "-e", ""]):
        verb, *options = words
        done = mountctl(verb, tmp_path / "store", "t", "--sample", "80", "--format", "%q %o", *options)
        places = [tuple(map(int, line.split())) for line in done.stdout.splitlines()]
        assert [(queue, offset // 10) for queue, offset in places] == [(q, part) for q in (0, 1) for part in range(40)]
        assert len({offset % 10 for _, offset in places}) > 5
        assert done.stderr == "mountctl: 80 of 800 messages looked at\n"
        assert done.returncode == 0
        again = mountctl(verb, tmp_path / "store", "t", "--sample", "80", "--format", "%q %o", *options)
        assert again.stdout == done.stdout


def test_38_of_a_sample_only_what_is_selected_is_shown(tmp_path: Path, lines: list[bytes]) -> None:
    sample = succeed("cat", tmp_path / "store", "t/0", "--sample", "200").splitlines()
    wanted = [line for line in sample if line.startswith("a")]
    for options in (["--where", "tag = 'a'"], ["--tag", "a"]):
        assert succeed("cat", tmp_path / "store", "t/0", "--sample", "200", *options).splitlines() == wanted
    done = mountctl("grep", tmp_path / "store", "-c", "^a", "t/0", "--sample", "200")
    assert done.stdout == f"{len(wanted)}\n"
    done = mountctl("cat", tmp_path / "store", "t/0", "--sample", "1000")
    assert done.stdout.encode().splitlines() == lines
    assert done.stderr == "mountctl: 400 of 400 messages looked at\n"
    for words in (["cat", "t", "-n", "1"], ["cat", "t", "--key", "a"], ["grep", "-C1", "a"]):
        done = mountctl(words[0], tmp_path / "store", *words[1:], "--sample", "3")
        assert done.returncode == 64
        assert "--sample is for a place of this host" in done.stderr
