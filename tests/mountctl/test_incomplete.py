"""An answer that is not complete says so on standard error and in the exit code (docs/where.md, 43 and 44)."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from engine import FileSizes, Message, MessageStore, Retention, StoreConfig
from mountctl.client import Queue
from mountctl.local_store import LocalStore
from mountctl.selection import Range, Selection
from tests.mountctl.conftest import mountctl, succeed

INCOMPLETE = 4
COUNT = 40
SMALL = StoreConfig(
    sizes=FileSizes(commit_log_bytes=8192, consume_queue_entries=64, index_slots=50, index_entries=200),
    retention=Retention(max_bytes=1, clean_interval_ms=3_600_000, delete_pause_ms=0),
)


def fill(path: Path, group: str = "") -> int:
    """COUNT messages in a queue, of which all but those in the newest log file expire; a group had the first 5. The
    queue offset of the first that is kept."""
    with MessageStore.open(path, SMALL, create=True) as store:
        for number in range(COUNT):
            store.put(Message("t", b'{"n": %d, "x": "%s"}' % (number, b"x" * 600), ["K"], "tag"), 0)
        if group:
            store.commit_offset(group, "t", 0, 5)
        while store.clean():
            pass
        kept = store.bounds("t", 0).min_offset
    assert 5 < kept < COUNT
    return kept


@pytest.fixture
def found_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ranges are found before retention deletes what is in them."""

    def narrow(self: Selection, store: LocalStore, topic: str, queue: Queue) -> Range:
        return Range(topic, queue.number, 0, queue.max_offset)

    monkeypatch.setattr(Selection, "narrow", narrow)


@pytest.mark.parametrize(
    "verb",
    [
        ["cat", "t"],
        ["cat", "t", "--where", "n >= 0"],
        ["cat", "t", "--tag", "tag", "--json"],
        ["tail", "t", "--from", "0"],
        ["grep", "xx", "t"],
        ["grep", "x.x|n", "t", "-v", "-e", "none"],
        ["grep", "tag", "t", "--in", "tags"],
        ["hist", "t", "--by", "tag"],
        ["hist", "t", "--field", "n"],
        ["fields", "t"],
        ["copy", "t", "PLACE", "other"],
    ],
    ids=" ".join,
)
def test_43_messages_that_expire_meanwhile_are_counted(tmp_path: Path, verb: list[str], found_before: None) -> None:
    kept = fill(tmp_path)
    words = [str(tmp_path) if word == "PLACE" else word for word in verb[1:]]
    if "-e" in words:
        words = ["-v", "-e", "none", "t"]
    done = mountctl(verb[0], tmp_path, *words)
    assert f"mountctl: {kept} messages left out, which expired before they were read: t/0\n" in done.stderr
    assert done.returncode == INCOMPLETE
    if verb[0] in ("cat", "tail"):
        assert len(done.stdout.splitlines()) == COUNT - kept


def test_43_an_answer_from_what_is_kept_is_complete(tmp_path: Path) -> None:
    kept = fill(tmp_path)
    for words in (["cat", "t"], ["cat", "t", "--from", "0"], ["cat", "t", "--key", "K"], ["grep", "x", "t"], ["hist"]):
        assert mountctl(words[0], tmp_path, *words[1:]).stderr == ""
    assert len(succeed("cat", tmp_path, "t").splitlines()) == COUNT - kept


def test_43_a_reader_hears_of_messages_that_expire_while_it_reads(tmp_path: Path) -> None:
    config = StoreConfig(
        sizes=SMALL.sizes, retention=Retention(max_bytes=1, delete_pause_ms=0, clean_interval_ms=10**7)
    )
    with MessageStore.open(tmp_path, config, create=True) as store:
        for _ in range(400):
            store.put(Message("t", b"x" * 600), 0)
        local = LocalStore(store)
        rows = local.messages("t", 0, 0, None, attributes=False)
        read = [next(rows).offset]
        while store.clean():
            pass
        read += [row.offset for row in rows]
        assert local.left_out.exit_code() == INCOMPLETE
    missing = sorted(set(range(400)) - set(read))
    assert missing, "nothing had expired by then"
    assert local.left_out._expired == {"t/0": len(missing)}


def test_44_a_group_is_told_of_what_expired_before_it_consumed_it(tmp_path: Path) -> None:
    kept = fill(tmp_path, "g")
    status = json.loads(succeed("status", tmp_path, "--json"))
    assert status["groups"]["g"]["t"]["0"] == {"offset": 5, "lag": COUNT - 5, "expired": kept - 5}
    assert succeed("status", tmp_path).splitlines()[-1].split()[-2:] == [f"{COUNT - 5}", f"{kept - 5}"]
    done = mountctl("consume", tmp_path, "t", "-g", "g")
    assert len(done.stdout.splitlines()) == COUNT - kept
    assert done.stderr == (
        f"mountctl: {kept - 5} messages of t/0 expired unread\n"
        f"mountctl: {kept - 5} messages left out, which expired before they were read: t/0\n"
    )
    assert done.returncode == INCOMPLETE
    assert succeed("consume", tmp_path, "t", "-g", "g") == ""


def test_45_topics_are_listed_with_bytes_times_and_rate(tmp_path: Path) -> None:
    now_ms = time.time_ns() // 1_000_000
    clock_ms = now_ms - 3_600_000
    with MessageStore.open(tmp_path, StoreConfig(clock=lambda: clock_ms), create=True) as store:
        store.create_topic("empty", 1)
        stored = 0
        for number in range(60):
            clock_ms = now_ms - 3_600_000 if number < 30 else now_ms
            put = store.put(Message("t", b"x" * number), number % 2)
            stored += store.get("t", number % 2, put.queue_offset).store_size
    long = json.loads(succeed("topics", tmp_path, "--long", "--json"))
    assert long["t"]["queues"]["0"] == {"min_offset": 0, "max_offset": 30}
    facts = {name: value for name, value in long["t"].items() if name != "queues"}
    assert facts == {
        "topic": "t", "messages": 60, "stored_bytes": stored, "is_exact": True, "oldest_ms": now_ms - 3_600_000,
        "newest_ms": now_ms, "per_second": 0.5,
    }  # fmt: skip
    titles, empty, row = succeed("topics", tmp_path, "-l").splitlines()
    assert titles.split() == ["TOPIC", "QUEUES", "MESSAGES", "BYTES", "OLDEST", "NEWEST", "PER", "SECOND"]
    assert row.endswith("  0.5")
    assert empty.split()[:6] == ["empty", "1", "0", "0", "B", "-"]
