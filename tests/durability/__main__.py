"""`python -m tests.durability NAME [OPTION…]` runs the long form of one proof; without NAME it lists the proofs."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

HELPERS = {
    "__init__",
    "__main__",
    "array_parsers",
    "attacks",
    "figures",
    "bodies",
    "cases",
    "children",
    "faultfs",
    "ledger",
    "liveness",
    "parsers",
    "publishers",
    "reached",
    "recorder",
    "samples",
    "targets",
}


def proofs() -> list[str]:
    """Names of the proofs: the modules of this folder that are neither tests nor helpers."""
    names = (path.stem for path in Path(__file__).parent.glob("*.py"))
    return sorted(name for name in names if name not in HELPERS and not name.startswith("test_"))


def main() -> int:
    """Run the named proof as a program of its own; its exit status."""
    if len(sys.argv) < 2 or sys.argv[1] not in proofs():
        print(f"usage: ./run durability NAME [--help]\nNAME: {' '.join(proofs())}", file=sys.stderr)
        return 2
    del sys.argv[0]
    runpy.run_module(f"tests.durability.{sys.argv[0]}", run_name="__main__", alter_sys=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
