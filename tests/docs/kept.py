"""What docs/versions.md promises to keep, as far as a program can list it: names, each with what may not change of it.

    python -m tests.docs.kept

adds what is new to kept.json, and is refused where something is missing.
"""

from __future__ import annotations

import dataclasses
import json
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory

import click

import engine
from fsstore.parquet.format import FIELDS
from mountctl.errors import exit_codes
from mountctl.main import VERBS, cli
from tests.docs.generated import API
from tests.fsstore.conftest import Mount, open_small

KEPT = Path(__file__).with_name("kept.json")


def options_of(path: str, command: click.Command) -> Iterator[tuple[str, str]]:
    """Each option and verb of a verb."""
    yield path, "verb"
    if isinstance(command, click.Group):
        for name, below in command.commands.items():
            yield from options_of(f"{path} {name}", below)
    for parameter in command.params:
        for name in parameter.opts if isinstance(parameter, click.Option) else ():
            yield f"{path} {name}", "flag" if getattr(parameter, "is_flag", False) else "option"


def verbs() -> dict[str, str]:
    context = click.Context(cli)
    commands = {name: cli.get_command(context, name) for name in VERBS}
    return dict(row for name, command in commands.items() if command for row in options_of(name, command))


def fields_of(prefix: str, value: object) -> Iterator[tuple[str, str]]:
    """Each field of a JSON value with its type; what is named by users (topics, groups) is left out."""
    yield prefix, "null" if value is None else type(value).__name__
    if isinstance(value, Mapping) and prefix.split(".")[-1] not in ("topics", "groups"):
        for name, member in value.items():
            yield from fields_of(f"{prefix}.{name}", member)


def reports() -> tuple[dict[str, str], dict[str, str]]:
    """The fields of status.json and config.json, and the metrics, of a small store that is read by its core."""
    with TemporaryDirectory() as folder, open_small(Path(folder, "store")) as store:
        mount = Mount(store)
        found = {name: json.loads(mount.cat(f"@store/{name}.json")) for name in ("status", "config")}
        metrics = mount.cat("@store/metrics").decode()
    fields = dict(row for name, value in found.items() for row in fields_of(name, value))
    return fields, dict(re.findall(r"^# TYPE (\S+) (\S+)$", metrics, re.MULTILINE))


def names_of_the_api() -> dict[str, str]:
    """The headings of docs/api.md, and what stands below each."""
    found, heading = {}, ""
    for line in API.read_text().splitlines():
        if line.startswith("### "):
            heading = line.removeprefix("### ")
            found[heading] = "name"
        elif member := re.match(r"\*\*`(\w+)", line):
            found[f"{heading}.{member[1]}"] = "member"
        elif row := re.match(r"\| (`.*?`) \|", line):
            found |= {f"{heading}.{name}": "member" for name in re.findall(r"`(\w+)`", row[1])}
    return found


def kept() -> dict[str, dict[str, str]]:
    """All of it, by kind."""
    fields, metrics = reports()
    return {
        "verbs": verbs(),
        "exit codes": {kind.__name__: str(code) for kind, code in exit_codes().items()},
        "store options": dict.fromkeys(engine.OPTION_NAMES, "name"),
        "fields": fields,
        "metrics": metrics,
        "columns": {field.name: field.type.value[1] for field in FIELDS},
        "settings": {field.name: "field" for field in dataclasses.fields(engine.StoreConfig)},
        "python": names_of_the_api(),
    }


def missing() -> list[str]:
    """What kept.json names and is there no more, or is something else."""
    now = kept()
    promised: dict[str, dict[str, str]] = json.loads(KEPT.read_text())
    return [
        f"{kind}: {name} ({what}) is now {now[kind].get(name, 'missing')}"
        for kind, names in promised.items()
        for name, what in names.items()
        if now[kind].get(name) != what and "null" not in (what, now[kind].get(name))
    ]


def main() -> None:
    """Write it."""
    if KEPT.exists() and (gone := missing()):
        sys.exit("\n".join(gone))
    KEPT.write_text(json.dumps(kept(), indent=1, sort_keys=True) + "\n")


if __name__ == "__main__":
    main()
