"""Patterns of `grep`: what a person looks for in texts, and a text that each match holds, to find it fast."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from functools import cached_property
from importlib import import_module
from types import ModuleType
from typing import Any

from mountctl.errors import CommandError


def _parser_of_patterns() -> ModuleType | None:
    """Python's own, which is private: what a pattern means is told nowhere else. Without it each message is matched."""
    try:
        return import_module("re._parser")
    except ImportError:
        return None


_PARSER = _parser_of_patterns()
_SPECIAL_CASES = "iks"
"""ASCII letters that also match a letter that is not ASCII when case does not matter."""


class Pattern:
    """A regular expression of Python's, or with `fixed` a text as it stands; ^ and $ match at each line of a text.
    Bytes that are no UTF-8 are matched as what `surrogateescape` makes of them."""

    def __init__(self, text: str, *, fixed: bool = False, any_case: bool = False) -> None:
        """CommandError: it is no pattern."""
        self._any_case = any_case
        flags = re.MULTILINE | (re.IGNORECASE if any_case else 0)
        try:
            self._regex = re.compile(re.escape(text) if fixed else text, flags)
        except (re.error, OverflowError, RecursionError) as error:
            remedy = "-F takes it as it stands" if not fixed else ""
            raise CommandError(f"invalid pattern {text!r}: {error}", remedy, os.EX_USAGE) from None

    def is_in(self, body: bytes) -> bool:
        """Whether it matches anywhere in `body`."""
        return self._regex.search(body.decode(errors="surrogateescape")) is not None

    def matches(self, body: bytes) -> list[bytes]:
        """What it matches in `body`, one after the other, but for empty matches."""
        found = self._regex.finditer(body.decode(errors="surrogateescape"))
        return [match[0].encode(errors="surrogateescape") for match in found if match[0]]

    def painted(self, body: bytes, before: str, after: str) -> bytes:
        """The body, with `before` and `after` around what it matches."""
        text = body.decode(errors="surrogateescape")
        shown = self._regex.sub(lambda match: f"{before}{match[0]}{after}" if match[0] else "", text)
        return shown.encode(errors="surrogateescape")

    @cached_property
    def held(self) -> tuple[list[bytes], bool]:
        """Texts that everything holds that matches, the longest first, and whether in either case."""
        any_case = bool(self._regex.flags & re.IGNORECASE)
        parsed = () if _PARSER is None else _PARSER.parse(self._regex.pattern, self._regex.flags)
        runs = set(_literal_runs(parsed, any_case)) - {""}
        return [
            run.encode(errors="surrogateescape") for run in sorted(runs, key=lambda run: (-len(run), run))
        ], any_case


def _literal_runs(parsed: Iterable[tuple[Any, Any]], any_case: bool) -> Iterator[str]:
    """Texts of which a match holds each."""
    run = ""
    for kind, what in parsed:
        name = str(kind)
        if name == "LITERAL" and _is_itself(chr(what), any_case):
            run += chr(what)
            continue
        yield run
        run = ""
        if name == "SUBPATTERN" and not what[1] and not what[2]:
            yield from _literal_runs(what[3], any_case)
        elif name in ("MAX_REPEAT", "MIN_REPEAT") and what[0]:
            yield from _literal_runs(what[2], any_case)
    yield run


def _is_itself(character: str, any_case: bool) -> bool:
    """Whether it matches itself alone, or an ASCII letter of the other case."""
    return not any_case or (character.isascii() and character.lower() not in _SPECIAL_CASES)
