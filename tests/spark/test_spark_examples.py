"""The examples that read or write a mounted store with Spark and DuckDB do what they promise."""

from __future__ import annotations

import importlib
import importlib.util
import json
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
from pyspark.sql import SparkSession

from fsstore.spark import messages
from tests.mount.harness import REPOSITORY, Mounted, mounted

EXAMPLES = REPOSITORY / "examples"


@pytest.fixture(scope="module")
def mount(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mounted]:
    with mounted(tmp_path_factory.mktemp("examples")) as mount:
        yield mount


def example(name: str) -> ModuleType:
    """An example as a module: it then uses this room's session."""
    if str(EXAMPLES) not in sys.path:
        sys.path.append(str(EXAMPLES))  # as for one that is run
    spec = importlib.util.spec_from_file_location(f"example_{name}", EXAMPLES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def bodies(spark: SparkSession, mount: Mounted, topic: str) -> list[dict[str, object]]:
    rows = messages(spark, mount.root, [topic]).collect()
    return [json.loads(bytes(row.body)) | {"keys": row["keys"]} for row in rows]


def sampled(mount: Mounted, module: ModuleType, **topics: str) -> None:
    """Publish an example's samples, by their names, to topics."""
    sample = importlib.import_module("sample")  # which the example has loaded
    for name, topic in topics.items():
        sample.publish(mount.root / topic, getattr(module, name))


def test_clicks_become_sessions(spark: SparkSession, mount: Mounted, capsys: pytest.CaptureFixture[str]) -> None:
    module = example("sessionize")
    sampled(mount, module, SAMPLE="clicks")
    module.main(str(mount.root), "clicks", "sessions")
    assert capsys.readouterr().out == "3 sessions\n"
    found = {(row["user"], row["landing"]): row["clicks"] for row in bodies(spark, mount, "sessions")}
    assert found == {("ada", "/"): 2, ("bob", "/pears"): 1, ("ada", "/orders"): 1}


def test_topics_are_joined_by_key(spark: SparkSession, mount: Mounted, capsys: pytest.CaptureFixture[str]) -> None:
    module = example("join_topics")
    sampled(mount, module, ORDERS="orders", PAYMENTS="payments")
    module.main(str(mount.root), "orders", "payments")
    unpaid, paid = capsys.readouterr().out.splitlines()
    assert unpaid == "ORDER-1 12 apples not paid"
    assert paid.startswith("ORDER-2 7 pears paid: 9.50 after ")


def test_a_stream_publishes_alerts(spark: SparkSession, mount: Mounted, tmp_path: Path) -> None:
    module = example("alert")
    sampled(mount, module, SAMPLE="logins")
    started = (spark, str(mount.root), "logins", "alerts", str(tmp_path / "checkpoint"))
    assert module.start(*started, availableNow=True).awaitTermination(60)
    found = [(row["user"], row["failures"], row["keys"]) for row in bodies(spark, mount, "alerts")]
    assert found == [("eve", 4, ["eve"])]


def test_an_example_makes_its_sample_and_says_what_is_missing(mount: Mounted) -> None:
    def said(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, str(EXAMPLES / "duckdb_parquet.py"), *map(str, arguments)]
        return subprocess.run(command, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)

    assert said(mount.root, "tagged").stderr == (
        f"there is no topic tagged below {mount.root}: --sample makes it, with sample data\n"
    )
    assert said("/nowhere", "tagged").stderr == "no store is mounted at /nowhere: mountctl mount STORE /nowhere\n"
    assert said(mount.root).stderr.startswith("usage: ")
    heading, *rows = said("--sample", mount.root, "tagged").stdout.splitlines()
    assert heading == "queue tags messages bytes newest"
    counts = Counter[str]()
    for row in rows:
        _, tag, messages, *_ = row.split()
        counts[tag] += int(messages)
    assert counts == {"paid": 6, "new": 4}
