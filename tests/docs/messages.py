"""Every message that a person may read, in one list: texts of errors, the log's lines, the command's messages."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

PROJECT = Path(__file__).resolve().parents[2]
ROOMS = ("engine", "fsstore", "mountctl")
SAY = {"info", "warning", "error", "exception", "echo"}


def messages(path: Path) -> Iterator[tuple[int, str]]:
    """Line and text of each message of a source file. What is filled in stands in braces."""
    for node in ast.walk(ast.parse(path.read_text())):
        parts: list[ast.expr] = []
        if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call):
            parts = [*node.exc.args, *(keyword.value for keyword in node.exc.keywords)]
        elif isinstance(node, ast.FunctionDef) and node.name == "__str__":
            parts = [one.value for one in ast.walk(node) if isinstance(one, ast.Return) and one.value is not None]
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in SAY:
            parts = node.args[:1]
        yield from ((part.lineno, text) for part in parts if " " in (text := text_of(part)))


def text_of(node: ast.expr) -> str:
    """The text of an expression; empty if it is no text."""
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else ""
    if isinstance(node, ast.JoinedStr):
        return "".join(text_of(value) for value in node.values)
    if isinstance(node, ast.FormattedValue):
        return f"{{{ast.unparse(node.value)}}}"
    if isinstance(node, ast.BinOp):
        return text_of(node.left) + text_of(node.right)
    return ""


def main() -> None:
    """Print them."""
    for room in ROOMS:
        for path in sorted((PROJECT / room).rglob("*.py")):
            for line, text in messages(path):
                print(f"{path.relative_to(PROJECT)}:{line}: {text}")


if __name__ == "__main__":
    main()
