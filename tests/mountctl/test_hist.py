"""docs/where.md, Histograms and Fields: each numbered sentence."""

from __future__ import annotations

import csv
import io
import json
import os
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from engine import Message, MessageStore, StoreConfig
from fsstore.query import fields as fields_module
from fsstore.query import hist as hist_module
from fsstore.query.expression import WhereError, field_text, parse_field
from fsstore.query.fields import draw
from fsstore.query.hist import Bar, QueueRange, edges_of
from fsstore.query.times import parse_span_ms, span_text
from mountctl import bar_chart
from tests.mountctl.conftest import Site, mountctl, succeed
from tests.mountctl.test_damaged import COUNT, DAMAGED, LOST, fill

HOUR_MS = 3_600_000
MINUTE_MS = 60_000
FIRST_MS = 1_769_842_800_000
"""2026-01-31T07:00Z, a whole hour where zones differ by hours."""
INCOMPLETE = 4
BLUE, ORANGE = (31, 119, 180), (255, 127, 14)
"""The first colours of bars."""
LEVELS = ["info", "info", "error", 5, True, 1, None, {"a": 1}, [1], "größe"]


def body_of(number: int) -> bytes:
    return b"no JSON" if number % 50 == 0 else json.dumps({"n": number, "level": LEVELS[number % 10]}).encode()


@pytest.fixture
def rows(site: Site) -> list[dict[str, Any]]:
    """500 messages of two topics, one each 20 s, with a pause of an hour behind the first 100; as a plain list."""
    found: list[dict[str, Any]] = []
    now_ms = FIRST_MS
    with MessageStore.open(site.store, StoreConfig(clock=lambda: now_ms), create=True) as store:
        for number in range(500):
            now_ms = FIRST_MS + number * 20_000 + HOUR_MS * (number >= 100)
            topic, queue, tag = ("a", "b")[number % 5 == 0], number % 3, ("", "paid", "new")[number % 3]
            stored = store.put(Message(topic, body_of(number), tags=tag), queue)
            label = json.loads(body_of(number))["level"] if number % 50 else None
            label = "{...}" if isinstance(label, dict) else "[...]" if isinstance(label, list) else label
            found.append(
                {"time": now_ms, "topic": topic, "queue": f"{topic}/{queue}", "tag": tag or None, "value": label,
                 "bytes": store.get(topic, queue, stored.queue_offset).store_size, "n": number}
            )  # fmt: skip
    return found


def counted(rows: list[dict[str, Any]], *names: str, span_ms: int = 1) -> dict[str, tuple[int, int]]:
    """Messages and bytes by the values of some columns, by plain counting."""
    messages: Counter[str] = Counter()
    stored: Counter[str] = Counter()
    for row in rows:
        key = json.dumps([row[name] // span_ms * span_ms if name == "time" else row[name] for name in names])
        messages[key] += 1
        stored[key] += row["bytes"]
    return {key: (messages[key], stored[key]) for key in messages}


def shown(*words: str | Path) -> dict[str, tuple[int, int]]:
    """What `hist --json` prints, empty spans left out."""
    found = [json.loads(line) for line in succeed("hist", *words, "--json").splitlines()]
    return {
        json.dumps([row[name] for name in row if name not in ("messages", "bytes")]): (row["messages"], row["bytes"])
        for row in found
        if row["messages"]
    }


@pytest.mark.parametrize("way", ["unmounted", "mounted"])
def test_26_28_messages_and_bytes_are_counted(site: Site, rows: list[dict[str, Any]], way: str) -> None:
    place = site.store if way == "unmounted" else site.mounted().mountpoint
    assert shown(place, "--by", "1m") == counted(rows, "time", span_ms=MINUTE_MS)
    for by in ("topic", "queue", "tag"):
        assert shown(place, "--by", by) == counted(rows, by)
    assert shown(place, "--field", "level") == counted(rows, "value")
    both = shown(place, "--by", "10m", "--field", "level")
    assert both == counted(rows, "time", "value", span_ms=10 * MINUTE_MS)
    some = [row for row in rows if row["n"] > 200 and row["n"] % 50 and row["topic"] == "a"]
    assert shown(place, "a", "--by", "1m", "--where", "n > 200") == counted(some, "time", span_ms=MINUTE_MS)
    assert shown(place, "a", "--by", "tag", "--where", "n > 200") == counted(some, "tag")
    assert shown(place, "a", "--field", "level", "--where", "n > 200") == counted(some, "value")
    between = [row for row in rows if FIRST_MS + HOUR_MS <= row["time"] < FIRST_MS + 2 * HOUR_MS]
    times = "--from", f"@{FIRST_MS + HOUR_MS}", "--until", f"@{FIRST_MS + 2 * HOUR_MS}"
    assert shown(place, "--by", "5m", *times) == counted(between, "time", span_ms=5 * MINUTE_MS)


def test_26_rows_are_bars_and_csv(site: Site, rows: list[dict[str, Any]]) -> None:
    lines = list(csv.reader(io.StringIO(succeed("hist", site.store, "--field", "level", "--csv"))))
    assert lines[0] == ["value", "messages", "bytes"]
    assert int(lines[1][1]) == max(count for count, _ in counted(rows, "value").values())
    title, first, *rest = succeed("hist", site.store, "--by", "topic").splitlines()
    assert title.split() == ["TOPIC", "MESSAGES", "BYTES"]
    assert first.split()[:2] == ["a", "400"]
    assert first.count("█") // 4 == rest[0].count("█")
    assert succeed("hist", site.store, "a", "--from", "100000", "--by", "1m").split() == ["TIME", "MESSAGES", "BYTES"]


def painted(path: Path) -> tuple[tuple[int, int], set[tuple[int, int, int]]]:
    """The size of a picture, and the colours of many of its points, without greys."""
    with Image.open(path) as picture:
        assert picture.format == "PNG"
        found = picture.convert("RGB").getcolors(1 << 24) or []
        return picture.size, {colour for count, colour in found if count > 2_000 and len({*colour}) > 1}


def test_50_bars_are_drawn_into_a_png(site: Site, rows: list[dict[str, Any]], tmp_path: Path) -> None:
    png = tmp_path / "hist.png"
    assert succeed("hist", site.store, "--by", "10m", "--png", png) == ""
    assert painted(png) == ((bar_chart.WIDTH, bar_chart.HEIGHT), {BLUE})
    succeed("hist", site.store, "a", "b", "--by", "10m", "--field", "level", "--png", png)
    assert painted(png)[1] >= {BLUE, ORANGE}
    succeed("hist", site.store, "--by", "topic", "--png", png)
    assert painted(png)[1] == {BLUE}
    succeed("hist", site.store, "a", "--from", "100000", "--by", "1m", "--png", png)
    assert painted(png)[1] == set(), "no messages, no bars"
    done = mountctl("hist", site.store, "--by", "10s", "--png", png)
    assert (done.returncode, "spans of time are more than the 1,000 that a picture" in done.stderr) == (
        os.EX_USAGE,
        True,
    )


def test_50_a_picture_has_titles_units_and_the_most_frequent_labels(tmp_path: Path) -> None:
    labels = ["$x$", "_\x1b", "", *map(str, range(20))]
    bars = [Bar(FIRST_MS + HOUR_MS * (number % 2), text, 50 - number, 1) for number, text in enumerate(labels)]
    for edges in ([FIRST_MS, FIRST_MS + HOUR_MS, FIRST_MS + 2 * HOUR_MS], []):
        figure = bar_chart.drawn(bars, edges, "level", str, "orders, $bills$")
        figure.savefig(tmp_path / "x.png")  # a formula would be refused
        (axes,) = figure.axes
        assert axes.get_title() == r"orders, \$bills\$"
        if edges:
            assert axes.get_xlabel().startswith("time (")
            assert axes.get_ylabel() == "messages in 1h"
            legend = axes.get_legend()
            assert legend is not None
            assert legend.get_title().get_text() == "level"
            shown = [text.get_text() for text in legend.get_texts()]
            assert shown == ["14 others", *map(str, reversed(range(6))), "(none)", "_\\x1b", r"\$x\$"], "as they stand"
            assert max(axes.get_ylim()) > sum(bar.messages for bar in bars[::2]), "bars stand upon each other"
        else:
            assert (axes.get_xlabel(), axes.get_ylabel()) == ("messages", "level")
            assert [text.get_text() for text in axes.get_yticklabels()][:3] == [r"\$x\$", "_\\x1b", "(none)"]


def test_50_without_matplotlib_one_line_says_what_to_install(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mountctl.bar_chart.find_spec", lambda name: None)
    done = mountctl("hist", site.store, "--png", "x.png")
    assert (done.returncode, done.stdout) == (os.EX_UNAVAILABLE, "")
    assert done.stderr == f"mountctl: matplotlib is not installed: {sys.executable} -m pip install matplotlib\n"


def test_27_spans_are_whole_and_empty_ones_are_shown(
    site: Site, rows: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    found = [json.loads(line) for line in succeed("hist", site.store, "--by", "10m", "--json").splitlines()]
    assert [row["time"] for row in found] == list(range(FIRST_MS, found[-1]["time"] + 1, 10 * MINUTE_MS))
    assert sum(row["messages"] == 0 for row in found) == 5
    monkeypatch.setenv("TZ", "Asia/Kolkata")
    __import__("time").tzset()
    try:
        edges = edges_of(FIRST_MS, FIRST_MS, 24 * HOUR_MS)
        assert edges == [FIRST_MS - 12 * HOUR_MS - 30 * MINUTE_MS, FIRST_MS + 11 * HOUR_MS + 30 * MINUTE_MS]
    finally:
        monkeypatch.undo()
        __import__("time").tzset()
    refused = mountctl("hist", site.store, "--by", "1ms")
    assert refused.returncode == os.EX_USAGE
    assert "are more than 10,000" in refused.stderr


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["--by", "fortnight"], "invalid --by"),
        (["--by", "0s"], "invalid --by"),
        (["--by", "tag", "--field", "level"], "exclude each other"),
        (["--field", "key"], "body.key"),
        (["--field", "a..b"], "expected a name"),
        (["--json", "--csv"], "exclude each other"),
        (["--json", "--png", "x.png"], "exclude each other"),
    ],
)
def test_26_what_can_not_be_counted_is_refused(site: Site, words: list[str], reason: str) -> None:
    done = mountctl("hist", site.store, *words)
    assert (done.returncode, reason in done.stderr) == (os.EX_USAGE, True), done.stderr


def test_29_damaged_messages_are_counted_unless_they_are_read(tmp_path: Path) -> None:
    fill(store := tmp_path / "store")
    done = mountctl("hist", store, "--by", "topic", "--json")
    assert (done.returncode, json.loads(done.stdout)["messages"]) == (0, COUNT)
    for words in (["--by", "tag"], ["--field", "level"], ["--by", "topic", "--where", "size > 0"]):
        done = mountctl("hist", store, *words, "--json")
        assert (done.returncode, json.loads(done.stdout)["messages"]) == (DAMAGED, COUNT - len(LOST))
        assert "2 damaged messages left out" in done.stderr


def test_30_31_values_without_a_text_and_too_many_values(
    site: Site, rows: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert {'["{...}"]', '["[...]"]', "[null]", "[true]", "[1]"} <= shown(site.store, "--field", "level").keys()
    monkeypatch.setattr(hist_module, "MOST_LABELS", 3)
    done = mountctl("hist", site.store, "--field", "n", "--json")
    found = {row["value"]: row["messages"] for row in map(json.loads, done.stdout.splitlines())}
    assert (done.returncode, len(found), sum(found.values())) == (INCOMPLETE, 4, 500)
    assert found["(others)"] > 400
    assert "(others)" in done.stderr


@pytest.mark.parametrize("text", ["1ms", "90s", "1m30s", "1h", "2w3d4h5m6s7ms"])
def test_27_a_span_is_written_as_it_is_read(text: str) -> None:
    span_ms = parse_span_ms(text)
    assert span_ms is not None
    assert parse_span_ms(span_text(span_ms)) == span_ms


def test_32_the_sample_is_drawn_over_the_queue_offsets(site: Site) -> None:
    with MessageStore.open(site.store, create=True) as store:
        for number in range(1000):
            store.put(Message("t", b'{"n": %d}' % number), 0 if number < 900 else 1)
        ranges = [QueueRange("t", 0, 0, 900), QueueRange("t", 1, 0, 100)]

        def drawn(count: int) -> Counter[Any]:
            found = draw(store, ranges, count, lambda topic, queue: lambda offset: None)
            return Counter({value: times for (_, value), times in found.fields["n",].values.items()})

        assert drawn(100) == drawn(100)
        assert sorted(value // 10 for value in drawn(100)) == list(range(100))
        assert drawn(1000) == drawn(5000) == Counter(range(1000))


def test_33_34_fields_have_types_shares_and_values(site: Site, rows: list[dict[str, Any]]) -> None:
    found = json.loads(succeed("fields", site.store, "a", "b", "--json"))
    assert (found["messages"], found["sample"], found["objects"], found["margin"]) == (500, 500, 490, 0)
    level, inner = found["fields"]["level"], found["fields"]["level.a"]
    wanted = Counter(type(LEVELS[number % 10]).__name__ for number in range(500) if number % 50)
    names = {"str": "text", "int": "integer", "bool": "boolean", "NoneType": "null", "dict": "object", "list": "array"}
    assert level["types"] == {names[kind]: count for kind, count in wanted.items()}
    assert (sorted(level["least"], key=str), sorted(level["greatest"], key=str)) == ([1, "error"], [5, "info"])
    assert inner["types"] == {"integer": 50}
    assert level["frequent"][0]["value"] == "info"
    assert found["fields"]["n"]["greatest"] == [499]
    table = succeed("fields", site.store, "a", "b").splitlines()
    assert table[0] == "500 of 500 messages looked at, 98.0% are JSON objects"
    assert table[2].split()[:4] == ["n", "98.0%", "integer", "1"]
    some = succeed("fields", site.store, "a", "b", "-n", "100").splitlines()[0]
    assert some.startswith("100 of 500 messages looked at, ")
    assert some.endswith("; shares may be 8.8% off")


@pytest.mark.parametrize("path", [("a",), ("user", "x y"), ("key",), ("in", "not"), ("ü-1",), ("a.b",), ("0",)])
def test_34_a_name_is_as_where_takes_it(path: tuple[str, ...]) -> None:
    assert parse_field(field_text(path)).path == path


def test_26_a_field_is_no_value_of_the_message() -> None:
    with pytest.raises(WhereError, match=r"body\.queue"):
        parse_field("queue")


def test_35_a_sample_that_is_cut_says_so(
    site: Site, rows: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fields_module, "MOST_FIELDS", 1)
    done = mountctl("fields", site.store, "a", "--json")
    assert (done.returncode, len(json.loads(done.stdout)["fields"])) == (INCOMPLETE, 1)
    monkeypatch.undo()
    monkeypatch.setattr(fields_module, "MOST_BYTES", 1000)
    done = mountctl("fields", site.store, "a", "--json")
    assert (done.returncode, json.loads(done.stdout)["sample"] < 100) == (INCOMPLETE, True)
    assert "too large" in done.stderr
