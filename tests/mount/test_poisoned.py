"""A request that daemons die of is refused by the next one, so that no client waits for ever."""

from __future__ import annotations

import errno
import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from fsstore.handover.layout import WORKERS, WORKING_BYTES
from tests.mount.test_outlives import APPENDING, bodies, keeper_of, opened, server_of
from tests.mountctl.conftest import Site, eventually

SLOW_LINES = b'{"body":""}\n' * 80_000
"""A body that takes some tenths of a second to parse in a thread."""

MOST_KILLS = 7
"""A SIGKILL counts only within a second of the server's first answer, and on a busy machine some come later."""


def working_on(server: int) -> list[int]:
    """Which requests a server's threads do slow work for."""
    memory = next(one for one in Path(f"/proc/{server}/fd").iterdir() if "fsstore-handover" in os.readlink(one))
    with open(memory, "rb", buffering=0) as words:
        found = memoryview(os.pread(words.fileno(), WORKERS * 8, WORKING_BYTES)).cast("Q")
    return [unique for unique in found[2:] if unique]


def kill_while_it_works(keeper: int, number: int, writer: threading.Thread) -> bool:
    """Kill the server as soon as a thread of it does slow work; another one has taken over when this returns. False:
    the writer had its answer before."""

    def works() -> bool:
        server = server_of(keeper)
        return server is not None and bool(working_on(server))

    eventually(lambda: works() or not writer.is_alive(), "it works")
    if not writer.is_alive():
        return False
    server = server_of(keeper)
    assert server is not None
    os.kill(server, number)
    eventually(lambda: server_of(keeper) not in (None, server), "another one goes on")
    return True


def in_thread(work: Callable[[], object]) -> tuple[threading.Thread, list[object]]:
    """Do work in a thread; returns its result or its errno."""
    outcome: list[object] = []

    def run() -> None:
        try:
            outcome.append(work())
        except OSError as error:
            outcome.append(error.errno)

    thread = threading.Thread(target=run)
    thread.start()
    return thread, outcome


@pytest.mark.parametrize(("number", "deaths"), [(signal.SIGABRT, 2), (signal.SIGKILL, 3)])
def test_a_request_that_daemons_die_of_is_refused(
    mounted: Site, mounted_queue: Path, number: signal.Signals, deaths: int
) -> None:
    keeper = keeper_of(mounted)
    with opened(mounted_queue / "append@format=json", APPENDING) as descriptor, opened(mounted_queue) as beside:
        writer, outcome = in_thread(lambda: os.write(descriptor, SLOW_LINES))
        killed = 0
        while killed < MOST_KILLS and kill_while_it_works(keeper, number, writer):
            killed += 1
        writer.join(30)
        assert killed >= deaths
        assert outcome == [errno.EIO]
        assert bodies(mounted_queue) == []
        assert os.listdir(beside) == ["append"]
        assert os.write(descriptor, b'{"body":"next"}\n') == 16
    assert bodies(mounted_queue) == [b"next"]
    text = f"write of t/0/append@format=json by user {os.getuid()}, process {writer.native_id}, is refused:"
    died = f"{deaths} daemons in a row were killed by SIG"  # the report of an abort may crash, too
    assert f"{text} {died}" in mounted.log_text()
