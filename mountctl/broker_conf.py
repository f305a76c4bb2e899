r"""broker.conf: a broker's own settings, read as they are (java.util.Properties).

    # a comment
    storePathRootDir=/srv/store
    storePathCommitLog = /disk1/commitlog,\
                         /disk2/commitlog

A line may go on after a backslash at its end; `\t`, `\u00e9` and the like stand for a character. The bytes are ISO
8859-1, as a broker takes them.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path

from mountctl.errors import CommandError

ROOT = "storePathRootDir"

_LINE_END = re.compile(r"\r\n|\r|\n")
_UNFINISHED = re.compile(r"(?<!\\)(?:\\\\)*\\\Z")
_SETTING = re.compile(r"((?:\\.|[^\\=: \t\f])*)[ \t\f]*[=:]?[ \t\f]*(.*)", re.DOTALL)
_ESCAPED = re.compile(r"\\(u[0-9a-fA-F]{4}|.)", re.DOTALL)
_BLANKS = " \t\f"
_LETTERS = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}


def read_broker_conf(path: Path) -> dict[str, str]:
    """The settings in the file at `path`. CommandError, OSError."""
    return parse_properties(path.read_bytes().decode("latin-1"))


def parse_properties(text: str) -> dict[str, str]:
    """Names and values of a properties file; of a name that is there twice the last one counts."""
    found = {}
    for line in _logical_lines(text):
        match = _SETTING.fullmatch(line)
        assert match is not None  # each part of it may be empty
        found[_unescaped(match[1])] = _unescaped(match[2])
    return found


def _logical_lines(text: str) -> list[str]:
    lines: list[str] = []
    goes_on = False
    for natural in _LINE_END.split(text):
        line = natural.lstrip(_BLANKS)
        if not goes_on and (not line or line[0] in "#!"):
            continue
        rest = line[:-1] if _UNFINISHED.search(line) else line
        lines[-1:] = [lines[-1] + rest] if goes_on else [*lines[-1:], rest]
        goes_on = rest is not line
    return lines


def _unescaped(text: str) -> str:
    def character(match: re.Match[str]) -> str:
        escaped = match[1]
        return chr(int(escaped[1:], 16)) if len(escaped) > 1 else _LETTERS.get(escaped, escaped)

    return _ESCAPED.sub(character, text)


def root_of(settings: Mapping[str, str]) -> Path | None:
    """Where these settings say that the store is, if they do."""
    root = settings.get(ROOT, "").strip()
    return Path(root) if root else None


def require_same_store(settings: Mapping[str, str], store: Path, conf: Path) -> None:
    """CommandError when the settings are those of another store."""
    root = root_of(settings)
    if root is not None and os.path.realpath(root) != os.path.realpath(store):
        raise CommandError(
            f"{conf} is not of {store}: its {ROOT} is {root}",
            "name its paths by -o storePathCommitLog=PATH",
            os.EX_USAGE,
        )
