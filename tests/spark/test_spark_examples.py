"""The examples that read or write a mounted store with Spark and DuckDB do what they say."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from collections.abc import Iterator, Mapping
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


def publish(mount: Mounted, topic: str, *records: Mapping[str, object], name: str = "append") -> None:
    """JSON lines, to a topic that is made if need be."""
    (mount.root / topic).mkdir(exist_ok=True)
    (mount.root / topic / name).write_text("".join(json.dumps(record) + "\n" for record in records))


def example(name: str) -> ModuleType:
    """An example as a module: it then uses this room's session."""
    spec = importlib.util.spec_from_file_location(f"example_{name}", EXAMPLES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def bodies(spark: SparkSession, mount: Mounted, topic: str) -> list[dict[str, object]]:
    rows = messages(spark, mount.root, [topic]).collect()
    return [json.loads(bytes(row.body)) | {"keys": row["keys"]} for row in rows]


def test_clicks_become_sessions(spark: SparkSession, mount: Mounted, capsys: pytest.CaptureFixture[str]) -> None:
    times = [("ada", "10:00"), ("ada", "10:20"), ("bob", "10:25"), ("ada", "11:30")]
    publish(mount, "clicks", *({"user": user, "at": f"2026-11-22T{at}:00Z", "path": f"/{at}"} for user, at in times))
    example("sessionize").main(str(mount.root), "clicks", "sessions")
    assert capsys.readouterr().out == "3 sessions\n"
    found = {(row["user"], row["landing"]): row["clicks"] for row in bodies(spark, mount, "sessions")}
    assert found == {("ada", "/10:00"): 2, ("bob", "/10:25"): 1, ("ada", "/11:30"): 1}


def test_topics_are_joined_by_key(spark: SparkSession, mount: Mounted, capsys: pytest.CaptureFixture[str]) -> None:
    publish(mount, "orders", *({"body": f"{n} apples", "keys": [f"O-{n}"]} for n in (1, 2)), name="append@format=json")
    publish(mount, "payments", {"body": "7.50", "keys": "O-2"}, name="append@format=json")
    example("join_topics").main(str(mount.root), "orders", "payments")
    unpaid, paid = capsys.readouterr().out.splitlines()
    assert unpaid == "O-1 1 apples not paid"
    assert paid.startswith("O-2 2 apples paid: 7.50 after ")


def test_a_stream_publishes_alerts(spark: SparkSession, mount: Mounted, tmp_path: Path) -> None:
    failures = [("eve", False)] * 3 + [("ada", False), ("ada", True)]
    publish(mount, "logins", *({"user": user, "at": "2026-11-22T10:00:01Z", "ok": ok} for user, ok in failures))
    started = (spark, str(mount.root), "logins", "alerts", str(tmp_path / "checkpoint"))
    assert example("alert").start(*started, availableNow=True).awaitTermination(60)
    found = [(row["user"], row["failures"], row["keys"]) for row in bodies(spark, mount, "alerts")]
    assert found == [("eve", 3, ["eve"])]


def test_duckdb_counts_tags(mount: Mounted) -> None:
    records = ({"body": "12345", "tags": "a"}, {"body": "1", "tags": "b"}, {"body": "22", "tags": "b"})
    publish(mount, "tagged", *records, name="0/append@format=json")
    command = [sys.executable, str(EXAMPLES / "duckdb_parquet.py"), str(mount.root), "tagged"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, stdin=subprocess.DEVNULL)
    assert done.stdout.splitlines() == ["0 a 1 5 0", "0 b 2 3 2"]
