"""`python -m tests.interop`: our stores and those of the real RocketMQ, side by side.

Exit code 0: all equal; 1: something differs; 75: RocketMQ can't be had here (the last line says why).
"""

import argparse
import multiprocessing
import sys
import time
from concurrent.futures import ProcessPoolExecutor

from tests.interop.scenarios import FIRST_SEED, Group, Result, groups
from tests.interop.table import RESULTS, table, write_docs
from tests.interop.toolchain import LINES, PROJECT, BuildError, NotAvailableError, build_drivers

NOT_AVAILABLE = 75
GROUPS_AT_ONCE = 3


def main() -> int:
    options = parse()
    began = time.monotonic()
    try:
        build_drivers()
    except NotAvailableError as error:
        print(error)
        return NOT_AVAILABLE
    except BuildError as error:
        print(f"the Java driver does not build:\n{error}")
        return 1
    results = run_groups(groups(options.line, options.scenario, options.seed))
    text = table(results)
    failed = sum(not result.passed for result in results)
    print(f"\n{text}\n\n{time.monotonic() - began:.0f} s")
    print(f"{len(results) - failed} passed, {failed} failed")
    if options.write_docs and not failed:
        write_docs(PROJECT / "docs" / "rocketmq.md", RESULTS, text)
    return 1 if failed or not results else 0


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="./run interop", description=__doc__)
    parser.add_argument("--line", choices=[line.name for line in LINES], help="only this line of RocketMQ")
    parser.add_argument("--scenario", default="", metavar="TEXT", help="only scenarios with TEXT in their title")
    parser.add_argument("--seed", type=int, default=FIRST_SEED, help="another one makes other random messages")
    parser.add_argument("--write-docs", action="store_true", help="keep the table in docs/rocketmq.md")
    return parser.parse_args()


def run_groups(chosen: list[Group]) -> list[Result]:
    """Run the groups side by side, each in a process of its own; results by line and scenario."""
    context = multiprocessing.get_context("spawn")  # no locks or maps of this process in the children
    with ProcessPoolExecutor(GROUPS_AT_ONCE, mp_context=context) as pool:
        futures = [(group, pool.submit(group.run)) for group in chosen]
        results = [
            (LINES.index(group.line), number, result) for group, future in futures for number, result in future.result()
        ]
    return [result for _, _, result in sorted(results, key=lambda found: found[:2])]


if __name__ == "__main__":
    sys.exit(main())
