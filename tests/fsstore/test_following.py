"""A mount that follows a writer: whatever goes wrong in one look, the next one comes."""

from __future__ import annotations

import logging
from types import SimpleNamespace
from typing import Any, cast

import pytest
import trio

from engine import IndexState, ReadOnlyStoreError
from fsstore.fuse.following import Following


class FaultyStore:
    """A store whose looks fail at first, each at its begin and at its end."""

    queues_derived = None
    not_shown: tuple[str, ...] = ()

    def __init__(self, *faults: Exception) -> None:
        self._faults = list(faults)
        self._late_faults = list(faults)
        self.healthy = trio.Event()

    def watch_news(self) -> None:
        """There is no news: it is looked at in intervals."""

    def refresh(self) -> None:
        if self._faults:
            raise self._faults.pop(0)

    @property
    def index_state(self) -> IndexState:
        if self._late_faults:
            raise self._late_faults.pop(0)
        trio.from_thread.run_sync(self.healthy.set)
        return IndexState("in use")


@pytest.mark.parametrize("fault", [OSError("no"), ReadOnlyStoreError("no"), ZeroDivisionError("no"), KeyError("no")])
def test_a_look_that_fails_is_told_and_does_not_end_the_mount(
    fault: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    async def follow() -> None:
        store = FaultyStore(fault, fault)
        core = SimpleNamespace(followed=lambda: None)
        following = Following(cast(Any, store), cast(Any, core), interval_ms=1)
        with trio.fail_after(60):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(following.run)
                await store.healthy.wait()
                nursery.cancel_scope.cancel()

    with caplog.at_level(logging.WARNING):
        trio.run(follow)
    assert any("following the writer failed" in record.getMessage() for record in caplog.records)
