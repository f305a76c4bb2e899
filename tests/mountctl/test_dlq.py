"""docs/where.md, Dead letters: each numbered sentence."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from engine import Message, MessageStore, StoreConfig
from tests.mountctl.conftest import Site, mountctl, succeed
from tests.mountctl.test_copy import shown

HOUR_MS = 3_600_000
NOW_MS = time.time_ns() // 1_000_000
ORIGINS = [
    {"RETRY_TOPIC": "orders", "RECONSUME_TIME": "16", "A": "b"},
    {"DLQ_ORIGIN_TOPIC": "bills", "DLQ_ORIGIN_MESSAGE_ID": "X", "RETRY_TOPIC": "orders"},
    {"DLQ_ORIGIN_TOPIC": "%RETRY%billing", "RETRY_TOPIC": "orders"},
    {},
]


@pytest.fixture
def letters(site: Site) -> Site:
    """Four dead letters of `billing`, an hour apart, the oldest 3 hours old, and one of `audit`; a topic is empty."""
    now_ms = NOW_MS - 3 * HOUR_MS
    with MessageStore.open(site.store, StoreConfig(clock=lambda: now_ms), create=True) as store:
        store.create_topics({"orders": 2, "%DLQ%empty": 1})
        for number, properties in enumerate(ORIGINS):
            body = json.dumps({"n": number}).encode()
            store.put(Message("%DLQ%billing", body, [f"K-{number}"], "t", properties, reconsume_times=16), 0)
            now_ms += HOUR_MS
        store.put(Message("%DLQ%audit", b"x", properties=ORIGINS[0]), 0)
    return site


@pytest.mark.parametrize("way", ["unmounted", "mounted"])
def test_39_40_dead_letters_are_listed_and_printed(letters: Site, way: str) -> None:
    place = letters.store if way == "unmounted" else letters.mounted().mountpoint
    titles, *rows = succeed("dlq", place).splitlines()
    assert titles.split() == ["GROUP", "MESSAGES", "OLDEST", "AGE"]
    assert [row.split()[:2] for row in rows] == [["audit", "1"], ["billing", "4"], ["empty", "0"]]
    assert rows[1].endswith("  3 h")
    audit, billing, empty = map(json.loads, succeed("dlq", place, "--json").splitlines())
    assert billing == {"group": "billing", "messages": 4, "oldest": NOW_MS - 3 * HOUR_MS, "newest": NOW_MS}
    assert (audit["messages"], empty) == (1, {"group": "empty", "messages": 0, "oldest": None, "newest": None})
    lines = succeed("dlq", place, "billing").splitlines()
    assert [line.split("  ")[0] for line in lines] == ["0/0", "0/1", "0/2", "0/3"]
    assert lines[0].endswith('  orders  retries 16  K-0: {"n": 0}')
    assert [line.split("  ")[2] for line in lines] == ["orders", "bills", "orders", "?"]
    for words, numbers in (
        (["--where", "n > 1"], [2, 3]),
        (["--key", "K-1"], [1]),
        (["--from", "1", "--until", "3"], [1, 2]),
    ):
        found = map(json.loads, succeed("dlq", place, "billing", "--json", *words).splitlines())
        assert [json.loads(one["body"])["n"] for one in found] == numbers
    assert succeed("dlq", place, "%DLQ%billing/0/2", "--format", "%b") == '{"n": 2}\n'
    unknown = mountctl("dlq", place, "biling")
    assert (unknown.returncode, "groups with dead letters: audit, billing, empty" in unknown.stderr) == (64, True)
    assert mountctl("dlq", place, "billing/0/4").returncode == 66
    for words in (["--send"], ["--key", "K"], ["billing", "-n"], ["billing", "--send", "--json"], ["--format", "%b"]):
        assert mountctl("dlq", place, *words).returncode == 64


def test_41_dead_letters_go_back_once(letters: Site) -> None:
    place = letters.mounted().mountpoint
    chosen = ["billing", "--where", "n in (0, 1)", "--send"]
    would = "2 dead letters would be sent back: bills (1), orders (1)\n"
    assert succeed("dlq", place, *chosen, "--dry-run") == would
    assert "bills" not in succeed("topics", place)
    assert succeed("dlq", place, *chosen) == would.replace("would be ", "")
    assert succeed("dlq", place, *chosen) == "0 dead letters sent back; 2 sent back before\n"
    (sent,) = shown(place, "orders")
    mark = f"%DLQ%billing/0/0@{NOW_MS - 3 * HOUR_MS}"
    assert sent["properties"] == {"KEYS": "K-0", "TAGS": "t", "A": "b", "COPIED_FROM": mark}
    assert (sent["body"], sent["reconsume_times"]) == ('{"n": 0}', 0)
    assert succeed("dlq", place, "billing/0/2", "--send") == "1 dead letter sent back: orders (1)\n"
    all_of_them = mountctl("dlq", place, "billing", "--send")
    assert (all_of_them.returncode, all_of_them.stdout) == (65, "0 dead letters sent back; 3 sent back before\n")
    assert "1 dead letter left out: no property names the topic: mountctl copy" in all_of_them.stderr
    assert len(succeed("dlq", place, "billing").splitlines()) == 4, "they stay"


def test_42_it_takes_a_mount_that_can_be_written(letters: Site) -> None:
    refused = mountctl("dlq", letters.store, "billing", "--send")
    assert (refused.returncode, f"no store is mounted at {letters.store}" in refused.stderr) == (66, True)
    place: Path = letters.mounted("--read-only").mountpoint
    refused = mountctl("dlq", place, "billing", "--send")
    assert refused.returncode == 77
    assert f"{place} is read-only, so nothing can be sent back through it" in refused.stderr
