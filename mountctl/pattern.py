"""Patterns of `grep`: regular expressions, and texts that every match contains, by which messages are found fast."""

from __future__ import annotations

import os
import re
from bisect import bisect_left
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from importlib import import_module
from types import ModuleType
from typing import Any

import numpy as np

from mountctl.client import Bodies
from mountctl.errors import CommandError


def _parser_of_patterns() -> ModuleType | None:
    """Python's own parser, which is private. Without it `needed` is empty, and each message is matched."""
    try:
        return import_module("re._parser")
    except ImportError:
        return None


_PARSER = _parser_of_patterns()
_OTHER_CASES = {"i": ("\u0130", "\u0131"), "k": ("\u212a",), "s": ("\u017f",)}
"""ASCII letters that match these non-ASCII letters, too, if case is ignored."""
_LONE_BYTE = re.compile("[\udc80-\udcff]")
"""A byte that is no character in a pattern, but may be part of a character of a body."""
_NEWLINE = 10
_WITHOUT_NEWLINE = ("CATEGORY_DIGIT", "CATEGORY_WORD")
_WITHIN_LINES = ("AT_BEGINNING", "AT_END", "AT_BOUNDARY")
"""Positions that are the same in a text alone and in a line of a longer text, with MULTILINE."""


@dataclass(frozen=True, slots=True)
class Needed:
    """Texts, one of which every match contains; `any_case` ignores the case of ASCII letters. A body that contains one
    of the first `sure` texts has a match."""

    texts: tuple[bytes, ...]
    sure: int
    any_case: bool


class Pattern:
    """A regular expression of Python's, or with `fixed` a literal text; ^ and $ match at each line. Bytes that are not
    UTF-8 are matched as `surrogateescape` decodes them."""

    def __init__(self, text: str, *, fixed: bool = False, any_case: bool = False) -> None:
        """CommandError: the pattern is invalid."""
        flags = re.MULTILINE | (re.IGNORECASE if any_case else 0)
        try:
            self._regex = re.compile(re.escape(text) if fixed else text, flags)
        except (re.error, OverflowError, RecursionError) as error:
            remedy = "-F takes it literally" if not fixed else ""
            raise CommandError(f"invalid pattern {text!r}: {error}", remedy, os.EX_USAGE) from None
        self._any_case = bool(self._regex.flags & re.IGNORECASE)

    def is_in(self, body: bytes) -> bool:
        """Whether the pattern matches anywhere in `body`."""
        return self._regex.search(body.decode(errors="surrogateescape")) is not None

    def matches(self, body: bytes) -> list[bytes]:
        """The matches in `body` in their order, empty ones excepted."""
        found = self._regex.finditer(body.decode(errors="surrogateescape"))
        return [match[0].encode(errors="surrogateescape") for match in found if match[0]]

    def painted(self, body: bytes, before: str, after: str) -> bytes:
        """The body with `before` and `after` around each match."""
        text = body.decode(errors="surrogateescape")
        shown = self._regex.sub(lambda match: f"{before}{match[0]}{after}" if match[0] else "", text)
        return shown.encode(errors="surrogateescape")

    @cached_property
    def needed(self) -> list[Needed]:
        """Texts needed for a match, the longest first; searching for the texts of one element is enough."""
        found = {tuple(sorted(texts)) for texts in _needed(self._parsed, self._any_case)}
        needed = [self._as_needed(texts) for texts in sorted(found, key=lambda texts: (-_shortest(texts), texts))]
        return [one for one in needed if one.sure] or needed

    def _as_needed(self, texts: tuple[str, ...]) -> Needed:
        others = {other for text in texts for letter in text.lower() for other in _OTHER_CASES.get(letter, ())}
        is_sure = _alternatives(self._parsed) == set(texts) and not any(map(_LONE_BYTE.search, texts))
        every = (*texts, *sorted(others)) if self._any_case else texts
        encoded = tuple(text.encode(errors="surrogateescape") for text in every)
        return Needed(encoded, len(texts) if is_sure else 0, self._any_case)

    @cached_property
    def _parsed(self) -> Any:
        return () if _PARSER is None else _PARSER.parse(self._regex.pattern, self._regex.flags)

    @cached_property
    def _keeps_to_lines(self) -> bool:
        """Whether no match contains a newline, and a match in a line doesn't depend on other lines."""
        return bool(self._parsed) and not self._regex.flags & re.DOTALL and _keep_to_lines(self._parsed)

    def rows(self, bodies: Bodies) -> list[int]:
        """Ascending rows of the bodies with a match; the bodies are searched as one text where the result is the
        same."""
        if self._keeps_to_lines:
            with suppress(UnicodeDecodeError):
                return self._rows_of_lines(str(bodies.joined, "utf-8"), bodies)
        return [row for row in range(len(bodies)) if self.is_in(bodies[row])]

    def _rows_of_lines(self, text: str, bodies: Bodies) -> list[int]:
        ends = bodies.ends if text.isascii() else _in_characters(bodies)
        found = []
        at, row, search = 1, 0, self._regex.search
        while row < len(bodies) and (match := search(text, at)):
            row = bisect_left(ends, match.start(), row)  # the row after the match's
            found.append(row - 1)
            at = ends[row] + 1
        return found


def _in_characters(bodies: Bodies) -> list[int]:
    """`bodies.ends`, counted in characters of the joined text."""
    begins = np.frombuffer(bodies.joined, np.uint8) & 0xC0 != 0x80
    characters = np.concatenate([[0], np.cumsum(begins)])
    return list(characters[bodies.ends].tolist())


def _needed(parsed: Iterable[tuple[Any, Any]], any_case: bool) -> Iterator[set[str]]:
    """Sets of texts: a match contains one text of each set."""
    run = ""
    for kind, what in [*parsed, ("END", None)]:
        name = str(kind)
        if name == "LITERAL" and (not any_case or chr(what).isascii()):
            run += chr(what)
            continue
        if run:
            yield {run}
        run = ""
        if name == "SUBPATTERN" and not what[1] and not what[2]:
            yield from _needed(what[3], any_case)
        elif name in ("MAX_REPEAT", "MIN_REPEAT") and what[0]:
            yield from _needed(what[2], any_case)
        elif name == "BRANCH":
            best = [max(_needed(branch, any_case), key=_shortest, default=set[str]()) for branch in what[1]]
            if all(best):
                yield set[str]().union(*best)


def _shortest(texts: Iterable[str]) -> int:
    return min(map(len, texts))


def _alternatives(parsed: Any) -> set[str]:
    """The texts of a pattern that is one text or a choice between texts; otherwise empty."""
    branches = parsed[0][1][1] if len(parsed) == 1 and str(parsed[0][0]) == "BRANCH" else [parsed]
    if any(str(kind) != "LITERAL" for branch in branches for kind, _ in branch):
        return set()
    return {"".join(chr(what) for _, what in branch) for branch in branches}


def _keep_to_lines(parsed: Iterable[tuple[Any, Any]]) -> bool:
    return all(_keeps_to_lines(str(kind), what) for kind, what in parsed)


def _keeps_to_lines(name: str, what: Any) -> bool:
    if name == "LITERAL":
        return bool(what != _NEWLINE)
    if name == "NOT_LITERAL":
        return bool(what == _NEWLINE)
    if name == "AT":
        return str(what) in _WITHIN_LINES
    if name == "IN":
        return all(map(_has_no_newline, what))
    if name == "SUBPATTERN":
        return not what[1] and not what[2] and _keep_to_lines(what[3])
    if name in ("MAX_REPEAT", "MIN_REPEAT"):
        return _keep_to_lines(what[2])
    if name == "BRANCH":
        return all(map(_keep_to_lines, what[1]))
    return name == "ANY"


def _has_no_newline(item: tuple[Any, Any]) -> bool:
    """Whether an element of a character set excludes the newline."""
    name, what = str(item[0]), item[1]
    if name == "RANGE":
        return not what[0] <= _NEWLINE <= what[1]
    if name == "CATEGORY":
        return str(what) in _WITHOUT_NEWLINE
    return bool(name == "LITERAL" and what != _NEWLINE)
