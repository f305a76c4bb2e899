"""The results as a table, on the screen and in docs/rocketmq.md."""

from pathlib import Path

from tests.interop.scenarios import Result

BEGIN = "<!-- interop table: written by ./run interop --write-docs -->"
END = "<!-- end of the interop table -->"


def table(results: list[Result]) -> str:
    """Markdown: versions x scenarios x what was compared x what was different."""
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


def write_docs(page: Path, text: str) -> None:
    """Put the table between its two marks in `page`."""
    before, rest = page.read_text(encoding="utf-8").split(BEGIN)
    after = rest.split(END)[1]
    page.write_text(f"{before}{BEGIN}\n{text}\n{END}{after}", encoding="utf-8")
