"""A real standalone cluster on the loopback: a master, two workers, and one of them killed halfway."""

from __future__ import annotations

import json
import sys
from contextlib import ExitStack
from pathlib import Path

import duckdb

from engine import FileSizes, Message, MessageStore, StoreConfig
from tests.mount.harness import mounted
from tests.spark.cluster import PATIENCE_S, kill, master_in, master_words, process, registered_in, until, worker_words

SIZES = FileSizes(commit_log_bytes=1 << 18, consume_queue_entries=10_000, index_slots=5_000, index_entries=50_000)
ORDERS, PAYMENTS = 5_000, 2_000


def fill(store: Path) -> None:
    with MessageStore.open(store, StoreConfig(sizes=SIZES), create=True) as opened:
        for topic, count in (("orders", ORDERS), ("payments", PAYMENTS)):
            opened.create_topic(topic, 2)
            for queue in range(2):
                numbers = range(queue, count, 2)
                opened.put_batch([Message(topic, b"%0150d" % n, keys=[f"O-{n}"]) for n in numbers], queue)


def test_a_worker_killed_halfway_changes_nothing(tmp_path: Path) -> None:
    fill(tmp_path / "store")
    folder, units = tmp_path / "archive", tmp_path / "archive/_fsstore"
    with mounted(tmp_path, store=tmp_path / "store") as mount, ExitStack() as stack:
        log = tmp_path / "master.log"
        stack.enter_context(process(log, *master_words("127.0.0.1")))
        master = master_in(log)
        workers = []
        for number in range(2):
            words = worker_words("127.0.0.1", tmp_path / f"work-{number}", master)
            workers.append(stack.enter_context(process(tmp_path / f"worker-{number}.log", *words)))
        for number in range(2):
            registered_in(tmp_path / f"worker-{number}.log")
        log = tmp_path / "driver.log"
        job = (sys.executable, "-m", "tests.spark.clusterjob", master, str(mount.root), str(folder))
        driver = stack.enter_context(process(log, *job))
        until("a unit is there", lambda: list(units.glob("unit-*.json")) or driver.poll() is not None)
        done = len(list(units.glob("unit-*.json")))
        kill(workers[1])
        assert list((tmp_path / "work-1").glob("app-*/*")), "it had no part in the job"
        driver.wait(PATIENCE_S)
        assert driver.returncode == 0, log.read_text()[-5_000:]
        result = json.loads(log.read_text().splitlines()[-1])
    assert done < result["units"]
    assert (result["messages"], result["count"], result["keys"]) == (ORDERS + PAYMENTS, PAYMENTS, PAYMENTS)
    query = (
        f"select topic, count(*), count(distinct (queue, queue_offset)) from '{folder}/topic=*/*/*.parquet' group by 1"
    )
    assert set(duckdb.sql(query).fetchall()) == {("orders", ORDERS, ORDERS), ("payments", PAYMENTS, PAYMENTS)}
