"""Fuzzing of everything that reads foreign bytes, led by coverage where atheris is installed.

    python -m tests.durability.fuzz [--seconds 60] [PARSER ...]

Each parser (tests/durability/parsers.py) runs for so many seconds in a process of its own, from the kept corpus
(tests/durability/corpus). What breaks a promise is written to build/durability/fuzz and belongs into the corpus.
Without atheris (`pip install atheris`) bytes of the corpus are changed at random, and no coverage is measured.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import random
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from tests.durability.figures import KEPT, keep

CORPUS = Path(__file__).parent / "corpus"
NAMES = (
    *("record", "log", "properties", "rows", "ranges", "consume_queue", "index"),
    *("lines", "json_line", "message", "names", "frames", "request", "where", "marks"),
)
STATUS = re.compile(r"#(\d+)\s+\w+\s+cov: (\d+) ft: (\d+) corp: (\d+)")


def samples(name: str) -> list[bytes]:
    """The kept corpus of a parser."""
    return [path.read_bytes() for path in sorted((CORPUS / name).iterdir())]


def mutated(data: bytes, chance: random.Random) -> bytes:
    """The bytes with a few of them flipped, cut out, doubled or made up."""
    content = bytearray(data)
    for _ in range(chance.randrange(1, 6)):
        position = chance.randrange(len(content) + 1)
        kind = chance.randrange(4)
        if kind == 0 and position < len(content):
            content[position] ^= 1 << chance.randrange(8)
        elif kind == 1:
            del content[position : position + chance.randrange(1, 9)]
        elif kind == 2:
            content[position:position] = content[position : position + chance.randrange(1, 41)]
        else:
            content[position : position + 4] = chance.choice((b"\xff" * 4, bytes(4), chance.randbytes(4)))
    return bytes(content)


def run_blindly(name: str, seconds: float) -> int:
    """Change the corpus at random for so long; how many tries. A broken promise is written down and raised."""
    parser = importlib.import_module("tests.durability.parsers").PARSERS[name]
    chance, known, tries = random.Random(1), samples(name), 0
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        data = mutated(chance.choice(known), chance)
        try:
            parser(data)
        except Exception:
            (KEPT / "fuzz").mkdir(parents=True, exist_ok=True)
            (KEPT / "fuzz" / f"crash-{name}").write_bytes(data)
            raise
        tries += 1
    return tries


def run_led(name: str, seconds: int) -> None:
    """Fuzz by coverage, in this process, which ends with it."""
    atheris: Any = importlib.import_module("atheris")
    with atheris.instrument_imports(include=["engine", "fsstore"]):
        parser = importlib.import_module("tests.durability.parsers").PARSERS[name]
    grown, crashes = KEPT / "fuzz" / name, KEPT / "fuzz"
    grown.mkdir(parents=True, exist_ok=True)
    options = [f"-max_total_time={seconds}", "-max_len=4096", f"-artifact_prefix={crashes}/{name}-", "-print_pcs=0"]
    atheris.Setup([sys.argv[0], *options, str(grown), str(CORPUS / name)], parser)
    atheris.Fuzz()


def fuzz(name: str, seconds: int) -> dict[str, object]:
    """Run one parser in a process of its own; its figures."""
    led = importlib.util.find_spec("atheris") is not None
    command = [sys.executable, "-m", "tests.durability.fuzz", "--seconds", str(seconds), "--inside", name]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    found = STATUS.findall(done.stderr)
    tries, edges, features, inputs = (int(part) for part in found[-1]) if found else (0, 0, 0, 0)
    if not led and done.returncode == 0:
        tries = int(done.stdout.split()[-1])
    figures: dict[str, object] = {"seconds": seconds, "tries": tries, "broken": int(done.returncode != 0)}
    if led:
        figures |= {"edges_covered": edges, "features": features, "corpus": inputs}
    if done.returncode:
        figures["output"] = done.stderr[-1_500:]
    return figures


def main() -> int:
    """The long form."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parsers", nargs="*", metavar="PARSER", help=", ".join(NAMES))
    parser.add_argument("--seconds", type=int, default=60)
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    led = importlib.util.find_spec("atheris") is not None
    if chosen.inside:
        if led:
            run_led(chosen.parsers[0], chosen.seconds)
        print(run_blindly(chosen.parsers[0], chosen.seconds))
        return 0
    found = {name: fuzz(name, chosen.seconds) for name in chosen.parsers or NAMES}
    keep("fuzz", {"led_by_coverage": led, **found})
    return int(any(figures["broken"] for figures in found.values()))


if __name__ == "__main__":
    sys.exit(main())
