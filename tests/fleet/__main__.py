"""`./run fleet`: three brokers' hosts, read as one.

Exit code 0: all claims hold; 1: one does not; 75: RocketMQ can't be had here (the last line says why).
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from tests.fleet.hosts import NEW_NAMESPACES, can_have_namespaces
from tests.interop.table import write_docs
from tests.interop.toolchain import LINES, PROJECT, BuildError, NotAvailableError, build_drivers

RESULTS = "fleet table: written by ./run fleet --write-docs"
NOT_AVAILABLE = 75
MOST_S = 600


def main() -> int:
    parser = argparse.ArgumentParser(prog="./run fleet", description=__doc__)
    parser.add_argument("--loopback", action="store_true", help="hosts are addresses of the loopback")
    parser.add_argument("--write-docs", action="store_true", help="keep the table in docs/fleet.md")
    options = parser.parse_args()
    began = time.monotonic()
    try:
        build_drivers(LINES[-1:])
    except NotAvailableError as error:
        print(error)
        return NOT_AVAILABLE
    except BuildError as error:
        print(f"the Java driver does not build:\n{error}")
        return 1
    isolated = not options.loopback and can_have_namespaces()
    if not isolated:
        print("fleet: hosts are addresses of the loopback, without namespaces of their own", flush=True)
    folder = PROJECT / "build" / f"fleet-{os.getpid()}"
    folder.mkdir(parents=True)
    results = run(folder, isolated)
    text = table(results)
    failed = sum(result["passed"] is False for result in results)
    print(f"\n{text}\n\n{time.monotonic() - began:.0f} s")
    print(f"{sum(result['passed'] is True for result in results)} hold, {failed} do not")
    if failed or not results:
        print(f"logs: {folder}")
        return 1
    if options.write_docs:
        write_docs(PROJECT / "docs/fleet.md", RESULTS, text)
    shutil.rmtree(folder, ignore_errors=True)
    return 0


def run(folder: Path, isolated: bool) -> list[dict[str, Any]]:
    """Look at all claims in namespaces that end with this process; no results: it failed before the first one."""
    command = [sys.executable, "-m", "tests.fleet.claims", str(folder)]
    command = [*NEW_NAMESPACES, *command] if isolated else [*command, "--loopback"]
    plain = {name: text for name, text in os.environ.items() if not name.lower().endswith("_proxy")}
    with subprocess.Popen(command, cwd=PROJECT, env=plain, stdin=subprocess.DEVNULL) as process:
        try:
            process.wait(MOST_S)
        except BaseException:
            process.kill()
            raise
    found = folder / "results.json"
    results: list[dict[str, Any]] = json.loads(found.read_text()) if found.exists() else []
    return results


def table(results: list[dict[str, Any]]) -> str:
    """Markdown: claims, figures, results."""
    words = {True: "holds", False: "**does not hold**", None: "left out"}
    rows = [
        f"| {one['claim']} | {str(one['said']).strip().splitlines()[-1]} | {words[one['passed']]} |" for one in results
    ]
    return "\n".join(["| claim | figures | |", "|---|---|---|", *rows])


if __name__ == "__main__":
    sys.exit(main())
