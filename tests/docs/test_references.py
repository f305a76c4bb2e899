"""Files, sections, verbs and options that the documents name exist."""

from __future__ import annotations

import re
from pathlib import Path

import click
import pytest

import engine
from mountctl.main import VERBS, cli

PROJECT = Path(__file__).resolve().parents[2]
DOCUMENTS = [PROJECT / "README.md", PROJECT / "examples/README.md", *sorted((PROJECT / "docs").glob("*.md"))]
SOURCES = [
    path for room in ("engine", "fsstore", "mountctl", "tests") for path in sorted((PROJECT / room).rglob("*.py"))
]

LINK = re.compile(r"\[[^\]\n]*\]\(([^)\s]+)\)")
CODE_PATH = re.compile(r"`((?:engine|fsstore|mountctl|tests|docs|examples)/[\w./-]*\.(?:py|md|sh))`")
COMMAND = re.compile(r"mountctl (\w+)([^\n`|]*)")
FORMAT_SECTION = re.compile(r"docs/format\.md, (\d+)")


def named(path: Path) -> str:
    return str(path.relative_to(PROJECT))


def anchors(path: Path) -> set[str]:
    """The anchors that a renderer makes of a document's headings."""
    headings = re.findall(r"^#+ (.+)$", path.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("document", DOCUMENTS, ids=named)
def test_links_lead_to_what_exists(document: Path) -> None:
    for link in LINK.findall(document.read_text()):
        if link.startswith(("http://", "https://", "mailto:")):
            continue
        file, _, anchor = link.partition("#")
        target = (document.parent / file).resolve() if file else document
        assert target.exists(), link
        if anchor:
            assert anchor in anchors(target), link


@pytest.mark.parametrize("document", DOCUMENTS, ids=named)
def test_files_of_the_project_that_are_named_exist(document: Path) -> None:
    missing = [path for path in CODE_PATH.findall(document.read_text()) if not (PROJECT / path).exists()]
    assert missing == []


def command_named(verb: str) -> click.Command:
    command = cli.get_command(click.Context(cli), verb)
    assert command is not None, verb
    return command


def options_of(command: click.Command) -> set[str]:
    below = command.commands.values() if isinstance(command, click.Group) else ()
    own = {option for parameter in command.params for option in parameter.opts if option.startswith("-")}
    return own.union({"--help", "-h"}, *map(options_of, below))


@pytest.mark.parametrize("document", DOCUMENTS, ids=named)
def test_verbs_and_their_options_exist(document: Path) -> None:
    for verb, rest in COMMAND.findall(document.read_text()):
        if verb in VERBS:
            named_options = set(re.findall(r"(?<!\S)--?[a-z][a-z-]*", rest))
            assert named_options <= options_of(command_named(verb)), f"mountctl {verb}{rest}"


def test_operations_lists_every_store_option_and_no_other() -> None:
    table = (PROJECT / "docs/operations.md").read_text().partition("### Store options")[2].partition("\n## ")[0]
    names = {name for row in re.findall(r"^\| (`.+?) \|", table, re.MULTILINE) for name in re.findall(r"`(\w+)`", row)}
    assert names == set(engine.OPTION_NAMES)


def test_sections_of_the_format_that_are_cited_exist() -> None:
    cited = {int(number) for path in SOURCES for number in FORMAT_SECTION.findall(path.read_text())}
    sections = re.findall(r"^## (\d+)\b", (PROJECT / "docs/format.md").read_text(), re.MULTILINE)
    assert cited <= {int(number) for number in sections}


def test_run_has_every_verb_that_the_documents_name() -> None:
    verbs = set(re.findall(r"^verb_(\w+)\(\)", (PROJECT / "run").read_text(), re.MULTILINE))
    named_verbs = {verb for path in DOCUMENTS for verb in re.findall(r"\./run ([a-z]+)", path.read_text())}
    assert named_verbs <= verbs


def test_exit_codes_in_operations_are_those_that_errors_have() -> None:
    from mountctl.errors import exit_codes

    table = (PROJECT / "docs/operations.md").read_text().partition("| code | meaning |")[2].partition("\n\n")[0]
    documented = {int(code) for code in re.findall(r"^\| (\d+) \|", table, re.MULTILINE)}
    assert set(exit_codes().values()) <= documented
