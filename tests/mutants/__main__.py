"""`python -m tests.mutants [NAME...]`: deliberate bugs, each of which a suite has to notice.

A mutant is planted in a copy of the checkout, and its suite runs there. The suite passes on the copy without a mutant
first. A suite that passes with one has a gap: the mutant survived, and the run fails.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.mutants.mutants import MUTANTS, Mutant

PROJECT = Path(__file__).parents[2]
COPIED = ("engine", "fsstore", "mountctl", "tests", "docs", "examples", "pyproject.toml", "README.md", "LICENSE")
TIMEOUT_SECONDS = 600
"""A suite that takes longer hangs: a mutant is noticed by that, too."""
COMPILE = ["-W", "ignore", "-c", "from setuptools import setup; setup()", "-q", "build_ext", "--inplace"]
TESTS_FAILED = 1
"""pytest's status when tests ran and some failed. Others say that the suite did not run."""


def copy_of_the_checkout(folder: Path) -> None:
    """Copy the files that tests need, compiled ones included, with their times, by which the compiler finds changes."""
    for name in COPIED:
        source = PROJECT / name
        if source.is_dir():
            shutil.copytree(source, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy2(source, folder / name)


def compile_kernel(folder: Path) -> None:
    """Compile the changed parts of the kernel. CalledProcessError."""
    subprocess.run([sys.executable, *COMPILE], cwd=folder, env=environment(folder), check=True)


def environment(folder: Path) -> dict[str, str]:
    """Of a Python that takes the packages from the copy."""
    return {**os.environ, "PYTHONPATH": str(folder), "PYTHONDONTWRITEBYTECODE": "1"}


def outcome_of(folder: Path, suite: tuple[str, ...]) -> str:
    """The result of a suite in that copy: "passed", "failed", "hung", or why it did not run."""
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *suite]
    with tempfile.TemporaryDirectory(prefix="fsstore-mutant-tests-") as base:
        try:
            run = subprocess.run(
                [*command, f"--basetemp={base}/tests"], cwd=folder, env=environment(folder), check=False,
                capture_output=True, text=True, timeout=TIMEOUT_SECONDS,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            return "hung"
    if run.returncode in (0, TESTS_FAILED):
        return "failed" if run.returncode else "passed"
    return f"did not run (status {run.returncode}): {run.stdout[-2000:]}"


def planted(folder: Path, mutant: Mutant) -> str:
    """The result of its suite with a mutant in the copy, which is restored afterwards."""
    path = folder / mutant.path
    before = path.read_text()
    is_kernel = path.suffix in (".pyx", ".pxd")
    path.write_text(mutant.applied_to(before))
    try:
        if is_kernel:
            compile_kernel(folder)
        return outcome_of(folder, mutant.suite)
    finally:
        path.write_text(before)
        if is_kernel:
            compile_kernel(folder)


def main() -> int:
    """Run the named mutants, or all; 1 when one survived or could not be tried."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help="mutants to try; all of them without a name")
    chosen = parser.parse_args().names
    unknown = set(chosen) - {mutant.name for mutant in MUTANTS}
    if unknown:
        parser.error(f"no such mutant: {', '.join(sorted(unknown))}")
    mutants = [mutant for mutant in MUTANTS if not chosen or mutant.name in chosen]
    bad = []
    with tempfile.TemporaryDirectory(prefix="fsstore-mutants-") as name:
        folder = Path(name)
        copy_of_the_checkout(folder)
        whole: dict[tuple[str, ...], str] = {}
        for mutant in mutants:
            began = time.monotonic()
            if mutant.suite not in whole:
                whole[mutant.suite] = outcome_of(folder, mutant.suite)
            said = whole[mutant.suite]
            verdict = f"its suite is not green without it: {said}"
            if said == "passed":
                said = planted(folder, mutant)
                verdict = {"failed": "killed", "hung": "killed: its suite hangs", "passed": "SURVIVED"}.get(said, said)
            if not verdict.startswith("killed"):
                bad.append(mutant.name)
            print(f"{mutant.name:<44} {verdict} ({time.monotonic() - began:.0f} s)", flush=True)
    print(f"{len(mutants) - len(bad)} of {len(mutants)} killed" + (f"; not: {', '.join(bad)}" if bad else ""))
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
