"""What a pattern matches, and the text that it says each match holds."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mountctl.errors import CommandError
from mountctl.pattern import Pattern

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
        "-",
        r"\.",
    ]
)


@given(
    pieces=st.lists(PIECES, min_size=1, max_size=6),
    text=st.text("abABkKsS\u212aiIıüÜxyzcdefgh-. 1\n", max_size=14),
    any_case=st.booleans(),
)
def test_what_matches_holds_the_text_that_is_searched_for(pieces: list[str], text: str, any_case: bool) -> None:
    pattern = Pattern("".join(pieces), any_case=any_case)
    body = text.encode()
    held, folded = pattern.held
    if pattern.is_in(body):
        assert all(one.lower() in body.lower() if folded else one in body for one in held)


@pytest.mark.parametrize(
    ("text", "held"),
    [
        ("order [0-9]+ paid", [b"order ", b" paid"]),
        ("(?:NEEDLE-)+[0-9]", [b"NEEDLE-"]),
        ("a|b", []),
        ("largely|lately", [b"la"]),
        ("(?i)Needle", [b"Needle"]),
        ("größe", ["größe".encode()]),
        ("x(?=yz)", [b"x"]),
        (r"\bword\b", [b"word"]),
    ],
)
def test_the_texts_that_each_match_holds_are_known(text: str, held: list[bytes]) -> None:
    assert Pattern(text).held[0] == held


def test_letters_that_match_others_in_either_case_are_not_searched_for() -> None:
    assert Pattern("desk-lamp", any_case=True).held == ([b"-lamp", b"de"], True)
    assert Pattern("k", any_case=True).is_in("\u212a".encode())


def test_without_pythons_parser_no_text_is_known_and_matches_are_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mountctl.pattern._PARSER", None)
    pattern = Pattern("order [0-9]+")
    assert pattern.held == ([], False)
    assert pattern.is_in(b"order 7")


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
