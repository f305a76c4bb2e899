"""`python -m tests.interop`: our stores and those of the real RocketMQ, side by side.

Exit code 0: all equal; 1: something differs; 75: RocketMQ can't be had here (the last line says why).
"""

import argparse
import multiprocessing
import sys
import time
from concurrent.futures import ProcessPoolExecutor

from tests.interop.scenarios import FIRST_SEED, Result, run_line
from tests.interop.table import table, write_docs
from tests.interop.toolchain import LINES, PROJECT, BuildError, NotAvailableError, build_drivers

NOT_AVAILABLE = 75


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
    results = run_lines(options.line, options.scenario, options.seed)
    text = table(results)
    failed = sum(not result.passed for result in results)
    print(f"\n{text}\n\n{time.monotonic() - began:.0f} s")
    print(f"{len(results) - failed} passed, {failed} failed")
    if options.write_docs and not failed:
        write_docs(PROJECT / "docs" / "rocketmq.md", text)
    return 1 if failed or not results else 0


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="./run interop", description=__doc__)
    parser.add_argument("--line", choices=[line.name for line in LINES], help="only this line of RocketMQ")
    parser.add_argument("--scenario", default="", metavar="TEXT", help="only scenarios with TEXT in their title")
    parser.add_argument("--seed", type=int, default=FIRST_SEED, help="another one makes other random messages")
    parser.add_argument("--write-docs", action="store_true", help="keep the table in docs/rocketmq.md")
    return parser.parse_args()


def run_lines(only: str | None, chosen: str, seed: int) -> list[Result]:
    """The lines side by side, each in a process of its own."""
    names = [line.name for line in LINES if only in (None, line.name)]
    context = multiprocessing.get_context("spawn")  # no locks or maps of this process in the children
    with ProcessPoolExecutor(len(names), mp_context=context) as pool:
        futures = [pool.submit(run_line, name, chosen, seed) for name in names]
        return [result for future in futures for result in future.result()]


if __name__ == "__main__":
    sys.exit(main())
