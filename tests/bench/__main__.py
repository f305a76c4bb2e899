"""`python -m tests.bench [--quick] [--docs] [--huge] [ROW ...] [growth]`: see the package's text."""

import argparse
import os
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tests.bench import (
    broker_loss,
    engine_rows,
    flame,
    grep_rows,
    growth,
    parquet_rows,
    query_rows,
    read_rows,
    recovery_rows,
    sync_rows,
    width,
    write_rows,
)
from tests.bench.measure import LeftOutError
from tests.bench.plot import growth_plot
from tests.bench.report import Result, conditions, left_out, line, measured, save, write_docs
from tests.bench.room import Room, new_room
from tests.bench.rows import Row, order
from tests.bench.scale import FULL, QUICK
from tests.interop.toolchain import PROJECT

ROWS = tuple(
    sorted(
        engine_rows.ROWS
        + write_rows.ROWS
        + sync_rows.ROWS
        + read_rows.ROWS
        + recovery_rows.ROWS
        + parquet_rows.ROWS
        + grep_rows.ROWS
        + query_rows.ROWS,
        key=lambda row: order(row.id),
    )
)
GROWTH = "growth"
QUERY = "query"
"""Its rows over a huge store run only if it is named."""
WIDTH = "width"
FLEET, LOSS = "fleet", "loss"
"""These, too: they take as long. `loss` is a part of `fleet`."""
SPARK = "spark"
FLAME = "flame"
RESULTS = PROJECT / "build" / "bench.json"
PAGE = PROJECT / "docs" / "performance.md"


def main(arguments: Sequence[str]) -> int:
    """Run the requested rows; returns 0 if they could be run, with any verdicts."""
    if arguments[:1] == [SPARK]:
        from tests.bench import spark  # needs PySpark, which the other rows do without

        return spark.main(arguments[1:])
    if arguments[:1] == [FLAME]:
        return flame.main(arguments[1:])
    asked = parse(arguments)
    for ending in (signal.SIGINT, signal.SIGTERM):
        signal.signal(ending, lambda number, _: sys.exit(128 + number))  # what is mounted is unmounted
    scale = QUICK if asked.quick else FULL
    began = time.monotonic()
    points = {}
    grows = not asked.rows or GROWTH in asked.rows
    if grows:
        growth.check_disk(PROJECT, scale, huge=asked.huge)
    with new_room(PROJECT / "build" / f"bench-{os.getpid()}", scale) as room:
        chosen = [row for row in ROWS if not asked.rows or row.number in asked.rows or row.id in asked.rows]
        if asked.huge and QUERY in asked.rows:
            chosen += query_rows.HUGE_ROWS
        results = [shown(run_row(room, row)) for row in chosen]
        if grows:
            sizes, queues = growth.grow(room, huge=asked.huge)
            points = {"sizes": [asdict(point) for point in sizes], "queues": [asdict(point) for point in queues]}
            results += [shown(result) for result in growth.verdicts(sizes, huge=asked.huge)]
        if WIDTH in asked.rows:
            stores = width.wide_stores(room, asked.topics)
            results += [shown(result) for result in width.measure(room, stores)]
            rows = width.peer_rows(stores[-1])
            if not asked.quick:  # RocketMQ takes some seconds for each opening and close
                rows += tuple(row for store in stores for row in width.rocketmq_rows(store))
            results += [shown(run_row(room, row)) for row in rows]
        if FLEET in asked.rows:
            from tests.bench import fleet  # needs PySpark, too

            results += [shown(run_row(room, row)) for row in fleet.rows(room)]
        if FLEET in asked.rows or LOSS in asked.rows:
            results += [shown(run_row(room, row)) for row in broker_loss.rows(room)]
    saved = save(RESULTS, conditions(scale, time.monotonic() - began), results, points)
    if asked.docs:
        write_page(PAGE, saved)
    return 0


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    numbers = [*dict.fromkeys(row.number for row in ROWS), GROWTH, WIDTH, FLEET, LOSS]
    ids = [row.id for row in ROWS]
    parser = argparse.ArgumentParser(prog="./run bench", description="The performance table.")
    parser.add_argument("rows", nargs="*", metavar="ROW", help=f"only these: {', '.join(numbers)}")
    parser.add_argument("--quick", action="store_true", help="smaller counts and fewer rounds")
    parser.add_argument("--docs", action="store_true", help="write table and plot into docs/performance.md")
    parser.add_argument(
        f"--{growth.HUGE}", action="store_true", help="growth, or query, to one much larger store as well"
    )
    parser.add_argument(
        "--topics", nargs="+", type=int, default=width.TOPICS, metavar="N", help="width: the stores' topics"
    )
    asked = parser.parse_args(arguments)
    unknown = sorted(set(asked.rows).difference(numbers, ids))
    if unknown:
        parser.error(f"no such row: {', '.join(unknown)}")
    return asked


def run_row(room: Room, row: Row) -> Result:
    began = time.monotonic()
    try:
        return measured(row, row.run(room), time.monotonic() - began)
    except LeftOutError as reason:
        return left_out(row, str(reason))


def shown(result: Result) -> Result:
    print(line(result), flush=True)
    return result


def write_page(page: Path, saved: dict[str, Any]) -> None:
    write_docs(page, saved)
    if saved[GROWTH]:
        page.with_suffix(".svg").write_text(growth_plot(saved[GROWTH]["sizes"], saved[GROWTH]["queues"]))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
