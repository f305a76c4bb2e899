"""docs/versions.md: what version 1 keeps is there, under the name and of the type that it had in 1.0.0."""

from __future__ import annotations

from tests.docs.kept import missing

REMEDY = "version 1 keeps it: see docs/versions.md"


def test_nothing_of_what_version_1_keeps_is_missing() -> None:
    assert missing() == [], REMEDY
