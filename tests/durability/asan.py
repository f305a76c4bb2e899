"""The compiled kernel under the address sanitizer: what it reads and writes outside of what it was given ends the run.

    python -m tests.durability.asan [--seconds 20]

A copy of the checkout, its kernel compiled with the sanitizer, runs the engine's tests, the damage and fuzz suites,
and each parser of the fuzzer for so many seconds.
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

from tests.durability.figures import keep

PROJECT = Path(__file__).parents[2]
ROOMS = ("engine", "fsstore", "mountctl", "tests", "pyproject.toml", "README.md", "LICENSE")
SUITES = ("tests/engine", "tests/durability/test_fuzz.py", "tests/durability/test_damage.py")
LEFT_OUT = ("-k", "not deep and not hostile_use and not one_page_fault")
"""Without the tests of deeply nested JSON: the sanitizer's frames fill Python's own stack before its limit is met.
Without a backup's race with retention at full speed, which a backup that the sanitizer slows down never wins. And
without a count of page faults, of which the sanitizer has its own."""
COMPILE = [
    sys.executable,
    "-W",
    "ignore",
    "-c",
    "from setuptools import setup; setup()",
    "-q",
    "build_ext",
    "--inplace",
]


def sanitized_copy(folder: Path) -> None:
    """Copy the checkout to `folder`, and compile its kernel there. CalledProcessError."""
    for name in ROOMS:
        source = PROJECT / name
        if source.is_dir():
            shutil.copytree(source, folder / name, ignore=shutil.ignore_patterns("__pycache__", "*.so", "*.c"))
        else:
            shutil.copy(source, folder / name)
    flags = "-fsanitize=address -fno-omit-frame-pointer -g -O1"
    subprocess.run(COMPILE, cwd=folder, env={**os.environ, "CFLAGS": flags}, check=True)


def environment() -> dict[str, str]:
    """Of a Python that loads what was so compiled: its objects come from malloc, which the sanitizer watches."""
    asked = ["gcc", "-print-file-name=libasan.so"]
    library = subprocess.run(asked, capture_output=True, text=True, check=True).stdout.strip()
    options = "detect_leaks=0:abort_on_error=1:halt_on_error=1:handle_sigbus=0"  # the compiled kernel handles SIGBUS
    return {**os.environ, "LD_PRELOAD": library, "ASAN_OPTIONS": options, "PYTHONMALLOC": "malloc"}


def main() -> int:
    """The long form."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=int, default=20, help="of each parser of the fuzzer")
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="fsstore-asan-") as name:
        sanitized_copy(Path(name))
        runs = {
            "tests": [
                "pytest",
                "-q",
                "-p",
                "no:cacheprovider",
                "-n",
                "auto",
                "--dist",
                "worksteal",
                *LEFT_OUT,
                *SUITES,
            ],
            "fuzz": ["tests.durability.fuzz", "--seconds", str(chosen.seconds)],
        }
        figures: dict[str, object] = {}
        failed = False
        for run, words in runs.items():
            began = time.monotonic()
            code = subprocess.run([sys.executable, "-m", *words], cwd=name, env=environment(), check=False).returncode
            figures |= {
                run: "clean" if code == 0 else f"exit code {code}",
                f"{run}_seconds": round(time.monotonic() - began),
            }
            failed = failed or code != 0
    keep("asan", figures)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
