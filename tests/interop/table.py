"""The results as a table, on the screen and in docs/rocketmq.md."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # scenarios import follow, which keeps its table with this module
    from tests.interop.scenarios import Result

RESULTS = "interop table: written by ./run interop --write-docs"
FOLLOW = "follow table: written by python -m tests.interop.follow --write-docs"


def table(results: list[Result]) -> str:
    """Markdown: versions x scenarios x numbers of comparisons x differences."""
    rows = ["| RocketMQ | scenario | messages | queries | different |", "|---|---|---:|---:|---:|"]
    rows += [
        f"| {result.version} | {result.title} | {result.tally.messages:,} | {result.tally.queries:,} "
        f"| {len(result.tally.differences)} |"
        for result in results
    ]
    messages = sum(result.tally.messages for result in results)
    queries = sum(result.tally.queries for result in results)
    different = sum(len(result.tally.differences) for result in results)
    rows.append(f"| | **all** | **{messages:,}** | **{queries:,}** | **{different}** |")
    return "\n".join(rows)


def write_docs(page: Path, mark: str, text: str) -> None:
    """Put `text` between the two comments in `page` that bear the mark."""
    begin, end = f"<!-- {mark} -->", f"<!-- end of {mark.split(':')[0]} -->"
    before, rest = page.read_text(encoding="utf-8").split(begin)
    after = rest.split(end)[1]
    page.write_text(f"{before}{begin}\n{text}\n{end}{after}", encoding="utf-8")
