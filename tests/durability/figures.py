"""Figures of a long run: printed during the run, and stored as JSON for docs/durability.md."""

from __future__ import annotations

import json
import platform
import time
from collections.abc import Mapping
from pathlib import Path

KEPT = Path(__file__).parents[2] / "build" / "durability"


def keep(name: str, figures: Mapping[str, object]) -> Path:
    """Print `figures` and write them to build/durability/NAME.json; the path of that file."""
    whole = {"proof": name, "when": time.strftime("%Y-%m-%d %H:%M:%S"), "kernel": platform.release()} | dict(figures)
    KEPT.mkdir(parents=True, exist_ok=True)
    path = KEPT / f"{name}.json"
    path.write_text(json.dumps(whole, indent=2) + "\n")
    for key, value in whole.items():
        print(f"{key.replace('_', ' '):>28}  {value}")
    print(f"kept in {path}", flush=True)
    return path
