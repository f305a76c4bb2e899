"""docs/semantics.md and the tests say the same."""

from __future__ import annotations

from tests.mount.claims import carried, promised


def test_every_promise_has_a_test_and_every_test_its_promise() -> None:
    assert len(promised()) > 50
    assert carried() == promised()
