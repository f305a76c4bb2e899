"""docs/where.md, Bodies that are no text: each numbered sentence."""

from __future__ import annotations

import base64
import json
from pathlib import Path

import pytest

from engine import Message, MessageStore
from mountctl import decoding
from tests.mountctl.conftest import Site, mountctl, succeed

COUNT = 6


@pytest.fixture
def coded(tmp_path: Path) -> Path:
    """Messages whose bodies are base64, one of which is none."""
    with MessageStore.open(tmp_path / "store", create=True) as store:
        for number in range(COUNT):
            body = base64.b64encode(b"order %d" % number) if number != 3 else b"*"
            store.put(Message("t", body, [f"K-{number}"], "odd" if number % 2 else ""), 0)
    return tmp_path / "store"


def test_48_bodies_are_printed_and_searched_decoded(coded: Path) -> None:
    whole = ["t", "--until", "3", "--decode", "base64 -d"]
    for verb in ("cat", "tail"):
        assert succeed(verb, coded, *whole).splitlines() == ["order 0", "order 1", "order 2"]
    assert json.loads(succeed("cat", coded, "t/0/1", "--json", "--decode", "base64 -d"))["body"] == "order 1"
    assert succeed("cat", coded, "t", "--key", "K-2", "--decode", "base64 -d") == "order 2\n"
    assert succeed("cat", coded, "t", "-n", "2", "--decode", "base64 -d") == "order 0\norder 1\n"
    assert succeed("grep", coded, "order [12]", *whole) == "order 1\norder 2\n"
    assert succeed("grep", coded, "-o", "[0-9]", *whole, "--tag", "odd") == "1\n"
    assert mountctl("grep", coded, "order", "t", "--until", "3").returncode == 1, "stored bodies have no such text"
    place = succeed("cat", coded, "t", "--where", "offset = 2", "--decode", "echo -n $MQ_TOPIC/$MQ_QUEUE/$MQ_OFFSET")
    assert place == "t/0/2\n"
    stored = succeed("cat", coded, "t", "--where", "body = 'x' or size = 1", "--decode", "cat")
    assert stored == "*\n", "--where looks at the stored body"
    assert mountctl("grep", coded, "-C1", "x", "t", "--decode", "cat").returncode == 64


def test_49_a_message_that_is_not_decoded_is_named_and_left_out(coded: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done = mountctl("cat", coded, "t", "--decode", "base64 -d")
    assert done.stdout.splitlines() == [f"order {number}" for number in range(COUNT) if number != 3]
    assert done.stderr == (
        "mountctl: t/0/3 is left out, for --decode failed: it ended with 1: base64: invalid input\n"
        "mountctl: 1 message left out: --decode failed\n"
    )
    assert done.returncode == 4
    none = mountctl("grep", coded, "nothing", "t", "--decode", "base64 -d")
    assert none.returncode == 4
    missing = mountctl("cat", coded, "t", "--decode", "no-such-command")
    assert (missing.returncode, "--decode can't be run: " in missing.stderr) == (64, True)
    monkeypatch.setattr(decoding, "DECODE_SECONDS", 0.3)
    slow = mountctl("cat", coded, "t", "--decode", "[ $MQ_OFFSET = 1 ] && sleep 60 | cat; cat")
    assert len(slow.stdout.splitlines()) == COUNT - 1
    assert "t/0/1 is left out, for --decode failed: it took longer than 0.3 s" in slow.stderr


def test_51_sql_has_decoded_bodies_and_their_fields(site: Site, tmp_path: Path) -> None:
    with MessageStore.open(site.store, create=True) as store:
        for topic, number in [("t", 1), ("t", 2), ("u", 3)]:
            store.put(Message(topic, base64.b64encode(b'{"n": %d}' % number), tags="odd" if number % 2 else ""), 0)
        store.put(Message("t", b"*"), 0)
    place, log = site.mounted().mountpoint, tmp_path / "decoded"
    decode = "--decode", f"echo $MQ_TOPIC/$MQ_QUEUE/$MQ_OFFSET >> {log}; base64 -d"

    def asked(query: str, *options: str) -> tuple[int, list[dict[str, object]]]:
        done = mountctl("sql", place, query, "--json", *decode, *options)
        return done.returncode, [json.loads(line) for line in done.stdout.splitlines()]

    rows = "select body, json->>'$.n' as text, n, decode(bytes) as stored from t order by queue_offset"
    found = [{"body": f'{{"n": {n}}}', "text": str(n), "n": n, "stored": stored_text(n)} for n in (1, 2)]
    assert asked(rows) == (4, found)
    both = "create table x as select n from t; select sum(n) as n, (select count(*) from t) as t from messages"
    log.unlink()
    assert asked(both, "--where", "size > 1") == (0, [{"n": 6, "t": 2}])
    assert sorted(log.read_text().split()) == ["t/0/0", "t/0/1", "u/0/0"], "each selected message is decoded once"
    none = asked("select count(*) as n from t", "--where", "tag = 'odd' and body.n = 1")
    assert none == (0, [{"n": 0}]), "--where looks at the stored body"
    assert asked("select sum(n) as n from messages", "-g", "g", "--where", "size > 1") == (0, [{"n": 6}])
    assert asked("select count(*) as n from messages", "-g", "g") == (0, [{"n": 0}])
    assert "decoded" not in asked("select * from u")[1][0]
    failed = mountctl("sql", place, "select count(*) from t", "--decode", "base64 -d")
    assert failed.stderr == (
        "mountctl: t/0/2 is left out, for --decode failed: it ended with 1: base64: invalid input\n"
        "mountctl: 1 message left out: --decode failed\n"
    )
    missing = mountctl("sql", place, "select 1 from t", "--decode", "no-such-command")
    assert (missing.returncode, "--decode can't be run: " in missing.stderr) == (64, True)


def stored_text(number: int) -> str:
    return base64.b64encode(b'{"n": %d}' % number).decode()
