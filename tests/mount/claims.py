"""Reads the numbered promises of docs/semantics.md, and those that tests carry as docstrings."""

from __future__ import annotations

import ast
import re
from pathlib import Path

HERE = Path(__file__).parent
DOCUMENT = HERE.parents[1] / "docs" / "semantics.md"

PROMISE = re.compile(r"- \*\*(\d+\.\d+)\*\* (.*?)(?=\n- |\n\n|\Z)", re.DOTALL)
CARRIED = re.compile(r"(\d+\.\d+) (.*)", re.DOTALL)


def promised(document: Path = DOCUMENT) -> list[tuple[str, str]]:
    """Number and words of each promise of the document, in its order."""
    return [(number, _flat(words)) for number, words in PROMISE.findall(document.read_text())]


def carried(tests: Path = HERE / "test_semantics_*.py") -> list[tuple[str, str]]:
    """Number and words of the docstring of each test that carries one, in order of number."""
    found: list[tuple[str, str]] = []
    for path in sorted(tests.parent.glob(tests.name)):
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
                match = CARRIED.fullmatch(ast.get_docstring(node) or "")
                assert match is not None, f"{path.name}: {node.name} carries no promise"
                found.append((match[1], _flat(match[2])))
    return sorted(found, key=lambda claim: tuple(map(int, claim[0].split("."))))


def _flat(words: str) -> str:
    return " ".join(words.split())
