"""`@store/metrics` is what Prometheus' text parser takes (exposition format 0.0.4); this one is stricter."""

from __future__ import annotations

import errno
import os
import platform
import re
from importlib.metadata import version
from typing import NamedTuple

import pytest
from prometheus_client import parser

from engine import Message, MessageStore, OpenMode
from fsstore.fuse import protocol as wire
from fsstore.fuse.errors import errno_for
from fsstore.interface import FilesystemError
from fsstore.options import DISTRIBUTION
from fsstore.tree.metrics import BUCKETS_S
from tests.fsstore.conftest import Mount, open_small, set_offsets

NAME = r"[a-zA-Z_:][a-zA-Z0-9_:]*"
SAMPLE = re.compile(rf"({NAME})(?:\{{(.*)\}})? (\S+)")
LABEL = re.compile(r'([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\\n]|\\["\\n])*)"(,|$)')
SUFFIXES = ("_bucket", "_sum", "_count")


class Family(NamedTuple):
    """A metric: its type, help, and the samples in their order."""

    kind: str
    what: str
    samples: list[tuple[str, dict[str, str], float]]


def parsed(text: str) -> dict[str, Family]:
    """Each metric. AssertionError: a reader may refuse it, or take it for something else."""
    assert text.endswith("\n")
    families: dict[str, Family] = {}
    current = what = ""
    for line in text.removesuffix("\n").split("\n"):
        if line.startswith("# HELP "):
            _, _, current, what = line.split(" ", 3)
            assert current not in families, f"{current} comes twice"
            assert what.endswith(".")
        elif line.startswith("# TYPE "):
            _, _, name, kind = line.split(" ")
            assert name == current, "a type without its help"
            assert kind in ("counter", "gauge", "histogram")
            assert name.endswith("_total") == (kind == "counter"), name
            families[name] = Family(kind, what, [])
        else:
            found = SAMPLE.fullmatch(line)
            assert found is not None, line
            name, labels, value = found[1], labels_of(found[2] or ""), float(found[3])
            family = families[current]
            of_histogram = tuple(current + suffix for suffix in SUFFIXES)
            assert name in (of_histogram if family.kind == "histogram" else (current,)), line
            assert (name, labels) not in [sample[:2] for sample in family.samples], f"twice: {line}"
            assert family.kind == "gauge" or value >= 0
            family.samples.append((name, labels, value))
    for name, family in families.items():
        if family.kind == "histogram":
            require_histogram(name, family)
    return families


def labels_of(text: str) -> dict[str, str]:
    labels: dict[str, str] = {}
    while text:
        found = LABEL.match(text)
        assert found is not None, text
        assert found[1] not in labels
        labels[found[1]] = found[2]
        text = text[found.end() :]
    return labels


def require_histogram(name: str, family: Family) -> None:
    """Buckets grow in bounds and counts, the last one has no bound, and counts what `_count` does."""
    series: dict[str, list[tuple[float, float]]] = {}
    counts: dict[str, float] = {}
    for sample, labels, value in family.samples:
        others = repr(sorted((key, text) for key, text in labels.items() if key != "le"))
        if sample == name + "_bucket":
            series.setdefault(others, []).append((float(labels["le"]), value))
        elif sample == name + "_count":
            counts[others] = value
    for others, buckets in series.items():
        assert buckets == sorted(buckets), buckets
        assert [count for _, count in buckets] == sorted(count for _, count in buckets)
        assert buckets[-1] == (float("inf"), counts[others])


def metrics(mount: Mount) -> dict[str, Family]:
    return parsed(mount.cat("@store/metrics").decode())


def value(families: dict[str, Family], name: str, **labels: str) -> float:
    family = next(family for known, family in families.items() if name.startswith(known))
    (found,) = [number for sample, its, number in family.samples if (sample, its) == (name, labels)]
    return found


@pytest.fixture
def mount(store: MessageStore) -> Mount:
    store.put(Message("orders", b"x"), 0)
    set_offsets(store, {'orders@a "group"\\with\nall': {"0": 1}})
    mount = Mount(store)
    mount.fs.requests.name_of = wire.operation_name
    return mount


def test_each_metric_has_a_type_a_help_and_samples_of_its_own(mount: Mount) -> None:
    families = metrics(mount)
    assert value(families, "fsstore_messages") == 1
    labels = {"group": 'a \\"group\\"\\\\with\\nall', "topic": "orders", "queue": "0"}
    assert value(families, "fsstore_group_lag", **labels) == 0


def test_it_says_what_runs_since_when(mount: Mount) -> None:
    families = metrics(mount)
    ((_, labels, one),) = families["fsstore_build_info"].samples
    assert one == 1
    assert labels["python"] == platform.python_version()
    assert labels["version"] == version(DISTRIBUTION)
    assert value(families, "fsstore_start_time_seconds") == pytest.approx(mount.now_ms / 1000)


def test_45_the_largest_topics_have_bytes_times_and_rate(
    mount: Mount, store: MessageStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """docs/where.md, 45."""
    for topic in ("orders", "orders", "bills", "bills"):
        store.put(Message(topic, b"x"), 0)
    store.put(Message("few", b"x"), 0)
    store.create_topic("empty")
    monkeypatch.setattr("fsstore.topic_facts.MOST_TOPICS", 2)
    families = metrics(mount)
    first, *_, last = (store.get("orders", 0, offset) for offset in range(3))
    assert value(families, "fsstore_topic_stored_bytes", topic="orders") == 3 * first.store_size
    found = families["fsstore_topic_oldest_timestamp_seconds"].samples
    assert [labels["topic"] for _, labels, _ in found] == ["orders", "bills"]
    assert value(families, "fsstore_topic_oldest_timestamp_seconds", topic="orders") == first.store_time_ms / 1000
    assert value(families, "fsstore_topic_newest_timestamp_seconds", topic="orders") == last.store_time_ms / 1000
    assert value(families, "fsstore_topic_messages_per_second", topic="orders") == pytest.approx(3 / 60, abs=0.001)


def test_requests_are_counted_and_times_are_histograms(mount: Mount) -> None:
    figures = mount.fs.requests
    assert families_empty(metrics(mount))
    figures.counts[wire.Opcode.LOOKUP] = 70
    figures.counts[4242] = 1
    for seconds in (0.0, 0.00001, 0.0002, 99.0):
        figures.times[wire.Opcode.LOOKUP].took(seconds)
    families = metrics(mount)
    assert value(families, "fsstore_requests_total", operation="lookup") == 70
    assert value(families, "fsstore_requests_total", operation="opcode_4242") == 1
    name = "fsstore_request_duration_seconds"
    assert value(families, name + "_count", operation="lookup") == 4
    assert value(families, name + "_sum", operation="lookup") == pytest.approx(99.00021)
    assert value(families, name + "_bucket", operation="lookup", le="1e-05") == 2
    assert value(families, name + "_bucket", operation="lookup", le="0.0003") == 3
    assert value(families, name + "_bucket", operation="lookup", le=repr(BUCKETS_S[-1])) == 3
    assert "one request in 64" in families[name].what


def families_empty(families: dict[str, Family]) -> bool:
    return not families["fsstore_requests_total"].samples


def test_errors_are_counted_by_errno(mount: Mount) -> None:
    def count() -> float:
        samples = metrics(mount)["fsstore_request_errors_total"].samples
        return sum(number for _, labels, number in samples if labels == {"errno": "ENOENT"})

    before = count()
    errno_for(FilesystemError(errno.ENOENT), "lookup")
    assert count() == before + 1


def test_a_follower_says_how_old_what_it_shows_may_be(mount: Mount, store: MessageStore) -> None:
    assert "fsstore_follow_lag_seconds" not in metrics(mount)
    with open_small(store.path, OpenMode.FOLLOW) as followed:
        mount = Mount(followed)
        mount.fs.followed()
        mount.now_ms += 1_500
        assert value(metrics(mount), "fsstore_follow_lag_seconds") == 1.5


def test_the_parser_of_the_official_client_takes_it(mount: Mount, store: MessageStore) -> None:
    """With histograms."""
    mount.fs.requests.counts[wire.Opcode.LOOKUP] = 70
    mount.fs.requests.times[wire.Opcode.LOOKUP].took(0.5)
    errno_for(FilesystemError(errno.ENOENT), "lookup")
    found = list(parser.text_string_to_metric_families(mount.cat("@store/metrics").decode()))
    types = {one.name: one.type for one in found}
    assert types["fsstore_put_messages"] == "counter"
    assert types["fsstore_request_duration_seconds"] == "histogram"
    assert {"unknown", "untyped"}.isdisjoint(types.values())
    assert all(one.documentation and one.samples for one in found)


def test_the_parser_notices(mount: Mount) -> None:
    text = mount.cat("@store/metrics").decode()
    untyped = text.replace("# TYPE fsstore_messages gauge\n", "")
    for wrong in (text[:-1], text + text, text + "fsstore_messages 1\n", untyped):
        with pytest.raises((AssertionError, KeyError)):
            parsed(wrong)
    assert os.linesep == "\n"
