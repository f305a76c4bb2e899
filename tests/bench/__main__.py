"""`python -m tests.bench [--quick] [--docs] [ROW ...] [growth]`: see the package's text."""

import argparse
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tests.bench import engine_rows, flame, growth, read_rows, recovery_rows, sync_rows, write_rows
from tests.bench.measure import LeftOutError
from tests.bench.plot import growth_plot
from tests.bench.report import Result, conditions, left_out, line, measured, save, write_docs
from tests.bench.room import Room, new_room
from tests.bench.rows import Row
from tests.bench.scale import FULL, QUICK
from tests.interop.toolchain import PROJECT

ROWS = tuple(
    sorted(
        engine_rows.ROWS + write_rows.ROWS + sync_rows.ROWS + read_rows.ROWS + recovery_rows.ROWS,
        key=lambda row: int(row.number),
    )
)
GROWTH = "growth"
SPARK = "spark"
FLAME = "flame"
RESULTS = PROJECT / "build" / "bench.json"
PAGE = PROJECT / "docs" / "performance.md"


def main(arguments: Sequence[str]) -> int:
    """Run what is asked for; 0 when it could be run, whatever the verdicts."""
    if arguments[:1] == [SPARK]:
        from tests.bench import spark  # needs PySpark, which the other rows do without

        return spark.main(arguments[1:])
    if arguments[:1] == [FLAME]:
        return flame.main(arguments[1:])
    asked = parse(arguments)
    scale = QUICK if asked.quick else FULL
    began = time.monotonic()
    points = {}
    with new_room(PROJECT / "build" / f"bench-{os.getpid()}", scale) as room:
        chosen = [row for row in ROWS if not asked.rows or row.number in asked.rows]
        results = [shown(run_row(room, row)) for row in chosen]
        if not asked.rows or GROWTH in asked.rows:
            sizes, queues = growth.grow(room)
            points = {"sizes": [asdict(point) for point in sizes], "queues": [asdict(point) for point in queues]}
            results += [shown(result) for result in growth.verdicts(sizes)]
    saved = save(RESULTS, conditions(scale, time.monotonic() - began), results, points)
    if asked.docs:
        write_page(PAGE, saved)
    return 0


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    numbers = [*dict.fromkeys(row.number for row in ROWS), GROWTH]
    parser = argparse.ArgumentParser(prog="./run bench", description="The performance table.")
    parser.add_argument("rows", nargs="*", metavar="ROW", help=f"only these: {', '.join(numbers)}")
    parser.add_argument("--quick", action="store_true", help="smaller counts and fewer rounds")
    parser.add_argument("--docs", action="store_true", help="write table and plot into docs/performance.md")
    asked = parser.parse_args(arguments)
    unknown = sorted(set(asked.rows) - set(numbers))
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
