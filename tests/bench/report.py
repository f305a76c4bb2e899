"""Results: as lines on the terminal, as build/bench.json, and in docs/performance.md."""

import json
import os
import platform
import statistics
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from tests.bench.measure import Pairs
from tests.bench.rows import Row, order
from tests.bench.scale import Scale

BEGIN, END = "<!-- results -->", "<!-- /results -->"
DECIMALS_BELOW = 100


@dataclass(frozen=True, slots=True)
class Result:
    """One row of build/bench.json. `ok` None: reported or left out. `target` None: it has none.

    `ratio` is the median of the rounds' ratios ours / peer, `spread` the least and the greatest of them. `cpu_us` is
    the processor time a piece in microseconds, ours and the peer's, and `cpu_ratio` the peer's / ours.
    """

    id: str
    work: str
    against: str
    unit: str
    ours: float | None
    peer: float | None
    ratio: float | None
    target: float | None
    ok: bool | None
    at_most: bool = False
    spread: tuple[float, float] | None = None
    rounds: dict[str, list[float]] = field(default_factory=dict)
    note: str = ""
    took_s: float = 0.0
    cpu_us: tuple[float, float] | None = None
    cpu_ratio: float | None = None

    @property
    def verdict(self) -> str:
        """A word for the table."""
        return "left out" if self.ratio is None else "reported" if self.ok is None else "met" if self.ok else "missed"


def measured(row: Row, pairs: Pairs, took_s: float) -> Result:
    """A row's result."""
    cpu_us = [statistics.median(side) for side in zip(*pairs.cpu_us, strict=True)]
    judged = pairs.cpu_ratio if row.by_cpu and pairs.cpu_ratio is not None else pairs.ratio
    return Result(
        id=row.id,
        work=row.work,
        against=row.peer,
        unit=row.unit,
        ours=statistics.median(pairs.ours),
        peer=statistics.median(pairs.peer),
        ratio=pairs.ratio,
        target=row.target,
        ok=row.met(judged) if row.judged and pairs.counts else None,
        at_most=row.at_most,
        spread=(min(pairs.ratios), max(pairs.ratios)),
        rounds={"ours": list(pairs.ours), "peer": list(pairs.peer)},
        note=pairs.note,
        took_s=took_s,
        cpu_us=(cpu_us[0], cpu_us[1]) if cpu_us else None,
        cpu_ratio=pairs.cpu_ratio,
    )


def left_out(row: Row, reason: str) -> Result:
    """A row whose peer can't be had here."""
    return Result(row.id, row.work, row.peer, row.unit, None, None, None, row.target, None, row.at_most, note=reason)


def number(value: float | None) -> str:
    """A figure for people."""
    if value is None:
        return "–"
    return f"{value:,.0f}" if abs(value) >= DECIMALS_BELOW else f"{value:.3g}"


def cells(result: Result) -> list[str]:
    """A result's columns, as text."""
    spread = f"{result.spread[0]:.2f}–{result.spread[1]:.2f}" if result.spread else ""
    return [
        result.id,
        result.work,
        f"{number(result.ours)} {result.unit}" if result.ours is not None else "–",
        result.against,
        number(result.peer),
        f"{result.ratio:.2f}" if result.ratio is not None else "–",
        spread,
        f"{number(result.cpu_us[0])}, {number(result.cpu_us[1])} µs" if result.cpu_us else "",
        f"{result.cpu_ratio:.2f}" if result.cpu_ratio is not None else "",
        f"{'≤' if result.at_most else '≥'} {result.target:g}" if result.target is not None else "",
        result.verdict,
    ]


HEADINGS = ["row", "work", "ours", "against", "theirs", "ratio", "spread", "CPU a piece", "ratio", "target", ""]


def line(result: Result) -> str:
    """A result for the terminal."""
    widths = (18, 48, 21, 29, 10, 6, 10, 16, 6, 7, 8)
    text = " ".join(cell.ljust(width) for cell, width in zip(cells(result), widths, strict=True))
    return f"{text} {result.note}".rstrip()


def table(results: Sequence[Result]) -> str:
    """Results as a Markdown table, with the notes below it."""
    rows = [HEADINGS, ["---"] * len(HEADINGS), *(cells(result) for result in results)]
    text = "\n".join(f"| {' | '.join(row)} |" for row in rows)
    notes = "\n".join(f"- Row {result.id}: {result.note}." for result in results if result.note)
    return f"{text}\n\n{notes}".strip()


def conditions(scale: Scale, took_s: float) -> dict[str, Any]:
    """How a run was made."""
    return {
        "scale": scale.name,
        "rounds": scale.rounds,
        "cores": os.cpu_count(),
        "load": os.getloadavg()[2],
        "kernel": platform.release(),
        "python": platform.python_version(),
        "day": time.strftime("%Y-%m-%d"),
        "minutes": took_s / 60,
    }


def conditions_text(facts: dict[str, Any]) -> str:
    """The same in sentences."""
    busy = facts["load"] > facts["cores"]
    state = "busy with other work: read the ratios as indications" if busy else "quiet"
    versions = f"Linux {facts['kernel']}, Python {facts['python']}"
    return (
        f"Made on {facts['day']} by `./run bench{'' if facts['scale'] == 'full' else ' --quick'}` in "
        f"{facts['minutes']:.0f} minutes, {facts['rounds']} rounds a row: {facts['cores']} cores, "
        f"{versions}; load average {facts['load']:.1f}, so the machine was {state}."
    )


def save(path: Path, facts: dict[str, Any], results: Sequence[Result], growth: dict[str, Any]) -> dict[str, Any]:
    """Put results into the file; rows that were not run this time stay. Returns the file's content."""
    kept: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {"rows": [], "growth": {}}
    new = {result.id: asdict(result) for result in results}
    rows = [new.pop(row["id"], row) for row in kept["rows"]] + list(new.values())
    kept = {
        "conditions": facts,
        "rows": sorted(rows, key=lambda row: order(row["id"])),
        "growth": growth or kept["growth"],
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(kept, indent=1))
    return kept


def result_from(row: dict[str, Any]) -> Result:
    """A result as it was saved."""
    return Result(**{**row, "spread": tuple(row["spread"]) if row["spread"] else None})


def write_docs(page: Path, saved: dict[str, Any]) -> None:
    """Replace the text between the page's two marks by the tables."""
    results = [result_from(row) for row in saved["rows"]]
    growth = [result for result in results if result.id.startswith("growth")]
    width = [result for result in results if result.id.startswith("width")]
    fleet = [result for result in results if result.id.startswith("fleet")]
    rows = [result for result in results if result not in (*growth, *width, *fleet)]
    text = page.read_text()
    before, after = text.split(BEGIN)[0], text.split(END)[1]
    parts = [
        conditions_text(saved["conditions"]),
        table(rows),
        "### Growth",
        "Stores of growing size, asked in turns; flat means at most twice the smallest store's time.",
        table(growth),
        f"![Time of each thing as the store grows]({page.stem}.svg)",
    ]
    if width:
        about = (
            "Stores of more and more topics of 4 queues, asked in turns. Flat means at most twice the figure of the "
            "smallest store, or of an item where all topics or queues are gone through."
        )
        parts += ["### Width", about, table(width)]
    if fleet:
        parts += [
            "### Fleet",
            "A store through `mountctl serve` on its own host, and a broker beside it.",
            table(fleet),
        ]
    page.write_text(f"{before}{BEGIN}\n" + "\n\n".join(parts) + f"\n{END}{after}")
