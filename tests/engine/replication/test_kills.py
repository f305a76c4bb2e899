"""A replica's process is killed again and again while messages come: none is lost, none is mixed, and what was
acknowledged is in the copy."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from engine.files.layout import StoreLayout
from tests.engine.replication.masters import ScriptedMaster, eventually
from tests.engine.replication.test_replica import (
    bring_up_to_date,
    caught_up,
    content,
    log_of,
    publish,
    require_equal,
)
from tests.engine.replication.test_replica import copy as copy
from tests.engine.replication.test_replica import master as master

KILLS = 6
PROGRAM = """
import sys, threading
from engine import Address, ReplicaOptions, StoreConfig, replicate
ha, remoting, copy = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
options = ReplicaOptions(Address("127.0.0.1", ha), Address("127.0.0.1", remoting))
replicate(copy, options, StoreConfig(), threading.Event(), lambda: print("ready", flush=True))
"""


@contextmanager
def replica_process(master: ScriptedMaster, copy: Path) -> Iterator[None]:
    """A replica in a process of its own, which is killed at the end."""
    remoting = master.options.remoting
    assert remoting is not None
    arguments = (str(master.options.master.port), str(remoting.port), str(copy))
    with subprocess.Popen([sys.executable, "-c", PROGRAM, *arguments], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        try:
            yield
        finally:
            process.send_signal(signal.SIGKILL)


@pytest.mark.parametrize("seed", [1, 2])
def test_kills_lose_nothing_and_mix_nothing(master: ScriptedMaster, copy: Path, seed: int) -> None:
    chance = random.Random(seed)
    for turn in range(KILLS):
        master.reports.clear()
        with replica_process(master, copy):
            until = time.monotonic() + chance.uniform(0.01, 0.4)
            while time.monotonic() < until:
                publish(master.store, chance.randrange(1, 30), f"turn{turn}")
                time.sleep(chance.uniform(0, 0.02))
            eventually(lambda: bool(master.reports))
        acknowledged = max(master.reports)
        if acknowledged == 1:  # only the request
            continue
        assert log_of(copy, acknowledged) == log_of(master.folder, acknowledged)
        if turn % 2:
            master.hang_up()
    bring_up_to_date(master, copy)
    require_equal(master, copy)


def damage(copy: Path, physical_offset: int) -> None:
    """Zero a sector of the log, as a power cut leaves one that did not reach the disk."""
    files = sorted((copy / "commitlog").iterdir())
    file = next(one for one in reversed(files) if int(one.name) <= physical_offset)
    position = physical_offset - int(file.name)
    with file.open("r+b") as stream:
        stream.seek(position - position % 512)
        stream.write(bytes(512))


def test_what_a_power_cut_tore_is_fetched_again(master: ScriptedMaster, copy: Path) -> None:
    """Behind the recovery point the copy is cut before the damage: the master has what follows."""
    publish(master.store, 30)
    with replica_process(master, copy):
        eventually(caught_up(master))
        point = StoreLayout(copy).coverage
        eventually(point.exists)
        publish(master.store, 40, "later")
        eventually(caught_up(master))
    torn = sorted(one[-1] for one in content(master.store))[-3] + 200
    damage(copy, torn)
    bring_up_to_date(master, copy)
    require_equal(master, copy)
