"""The matches of a pattern, and the texts that each match contains."""

from __future__ import annotations

import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine import ByteColumn
from mountctl.client import Bodies
from mountctl.errors import CommandError
from mountctl.pattern import Needed, Pattern

PIECES = st.sampled_from(
    [
        "ab",
        "k",
        "S",
        "i",
        "ü",
        "x?",
        "y*",
        "z+",
        "(?:ab)?",
        "(cd)+",
        "(e|f)",
        "[gh]",
        ".",
        "^",
        "$",
        r"\b",
        r"\d",
        r"\s",
        r"\Z",
        r"\B",
        "(?:a|bc)",
        "[^g]",
        "(?!x)",
        "-",
        r"\.",
    ]
)


def joined(bodies: list[bytes]) -> Bodies:
    return Bodies(np.arange(len(bodies)), np.full(len(bodies), -1), ByteColumn.of(bodies).slices)


@given(
    pieces=st.lists(PIECES, min_size=1, max_size=6),
    texts=st.lists(st.text("abABkKsS\u212aiIıüÜxyzcdefgh-. 1\n\udcff", max_size=14), max_size=5),
    any_case=st.booleans(),
)
def test_what_matches_is_found_by_its_texts_and_among_others(
    pieces: list[str], texts: list[str], any_case: bool
) -> None:
    pattern = Pattern("".join(pieces), any_case=any_case)
    bodies = [text.encode(errors="surrogateescape") for text in texts]
    rows = [row for row, body in enumerate(bodies) if pattern.is_in(body)]
    assert pattern.rows(joined(bodies)) == rows
    for needed in pattern.needed:
        for row, body in enumerate(bodies):
            held = [number for number, one in enumerate(needed.texts) if is_held(one, body, needed.any_case)]
            assert held or row not in rows
            assert row in rows or not held or held[0] >= needed.sure


def is_held(text: bytes, body: bytes, any_case: bool) -> bool:
    return text.lower() in body.lower() if any_case else text in body


@pytest.mark.parametrize(
    ("text", "needed"),
    [
        ("order [0-9]+ paid", [{b"order "}, {b" paid"}]),
        ("(?:NEEDLE-)+[0-9]", [{b"NEEDLE-"}]),
        ("ab|cd", [{b"ab", b"cd"}]),
        ("(ab[0-9]|c)d", [{b"ab", b"c"}, {b"d"}]),
        ("a?|b", []),
        ("largely|lately", [{b"rgely", b"tely"}, {b"la"}]),
        ("größe", [{"größe".encode()}]),
        ("x(?=yz)", [{b"x"}]),
        (r"\bword\b", [{b"word"}]),
    ],
)
def test_the_texts_of_which_each_match_holds_one_are_known(text: str, needed: list[set[bytes]]) -> None:
    assert [set(one.texts) for one in Pattern(text).needed] == needed


@pytest.mark.parametrize(
    ("text", "sure"), [("paid", 1), ("paid|open", 2), ("paid[0-9]", 0), ("^paid", 0), ("pa\udcc3", 0), ("größe", 1)]
)
def test_a_match_is_sure_where_the_text_is_the_whole_pattern(text: str, sure: int) -> None:
    assert [one.sure for one in Pattern(text).needed] == [sure]


def test_letters_that_match_others_in_either_case_are_searched_for_beside_the_text() -> None:
    for needed in (Pattern("desk", any_case=True).needed, Pattern("(?i)desk").needed):
        assert needed == [Needed((b"desk", "\u017f".encode(), "\u212a".encode()), 1, True)]
    assert Pattern("k", any_case=True).is_in("\u212a".encode())


def test_without_pythons_parser_no_text_is_known_and_matches_are_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mountctl.pattern._PARSER", None)
    pattern = Pattern("order [0-9]+")
    assert pattern.needed == []
    assert pattern.rows(joined([b"order 7", b"order"])) == [0]


def test_bytes_that_are_no_text_are_matched_and_given_back() -> None:
    pattern = Pattern("a.c")
    assert pattern.matches(b"xa\xffc abc") == [b"a\xffc", b"abc"]
    assert pattern.painted(b"xa\xffc", "<", ">") == b"x<a\xffc>"
    assert Pattern("a.c", fixed=True).matches(b"abc a.c") == [b"a.c"]


@pytest.mark.parametrize("text", ["(", "[", "*", "a{99999999999}", "(?P<n"])
def test_what_is_no_pattern_is_refused_with_the_reason(text: str) -> None:
    with pytest.raises(CommandError, match=re.escape(f"invalid pattern {text!r}")) as caught:
        Pattern(text)
    assert caught.value.exit_code == 64
    assert Pattern(text, fixed=True).is_in(text.encode())
