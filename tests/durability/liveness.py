"""After the faults: does the mount work again soon, and is the server as large as before?

Within RECOVERY_S of the end of the faults, and of the clients that made them, each queue has to take a message and
return it. No process of the mount may hang. Memory that the server held for clients has to be free again, and its
allocated memory and descriptors have to be at their earlier level.
"""

from __future__ import annotations

import json
import os
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from tests.durability.children import in_child

RECOVERY_S = 10.0

MORE_KIB = (16 + 8 + 51) << 10
"""Memory that remains after a load (docs/operations.md, memory): small bodies, newest keys, the allocator's loss."""

MORE_DESCRIPTORS, DESCRIPTORS_A_QUEUE = 64, 2
"""Files of the store that grew meanwhile are open, and each queue that was used is mapped."""

ALIVE = b"alive "
"""Beginning of the messages that are published in the end."""

KEPT = ("decompressed_bodies", "stream_buffers", "parquet_buffers")
"""Evictable caches of a server."""

LET_GO = ("messages_begun", "publishing", "listings")
"""Memory that it holds for clients."""


@dataclass(frozen=True)
class Level:
    """The size of a server: its allocated memory in KiB, and its number of descriptors."""

    private_kib: int
    descriptors: int


def status_of(root: Path) -> dict[str, Any]:
    """@store/status.json of a mount."""
    found: dict[str, Any] = json.loads((root / "@store" / "status.json").read_bytes())
    return found


def level_of(root: Path) -> Level:
    """The size of a mount's server, without evictable caches."""
    status = status_of(root)
    proc = Path("/proc") / str(status["pid"])
    allocated = (proc / "status").read_text().partition("RssAnon:")[2].split()[0]
    kept = sum(status["memory"]["bytes"][purpose] for purpose in KEPT) >> 10
    return Level(int(allocated) - kept, len(os.listdir(proc / "fd")))


def not_alive(root: Path, before: Level) -> list[str]:
    """Failures, and resources not released RECOVERY_S after now, as sentences."""
    deadline = time.monotonic() + RECOVERY_S
    while status_of(root)["read_only_reason"] and time.monotonic() < deadline:
        time.sleep(0.2)  # the next server tries whether the disk takes writes
    ended = in_child(partial(use_every_queue, root), RECOVERY_S)
    if ended.death:
        return [f"not alive: {ended.death}, {ended.last_words or ended.out[-200:]}"]
    found = [f"not alive: {line}" for line in ended.out.splitlines()]
    while (late := not_back(root, before)) and time.monotonic() < deadline:
        time.sleep(0.2)
    return found + late


def use_every_queue(root: Path) -> int:
    """Publish to each queue and read the message back; print failures."""
    status = status_of(root)
    for topic, known in status["topics"].items():
        for queue in known["queues"] if (root / topic / "append").exists() else ():
            line = f"{ALIVE.decode()}{time.time_ns()}"
            try:
                (root / topic / queue / "append").write_text(line + "\n")
                read = (root / topic / queue / "@last").read_text()
            except OSError as error:
                print(f"{topic}/{queue}: {error}", flush=True)
            else:
                if read != line:
                    print(f"{topic}/{queue} shows {read[:60]!r}, not {line!r}", flush=True)
    return 0


def not_back(root: Path, before: Level) -> list[str]:
    """Differences from the state before."""
    now, status = level_of(root), status_of(root)
    held, queues = status["memory"]["bytes"], sum(len(known["queues"]) for known in status["topics"].values())
    found = [f"not back: {held[purpose]} bytes of {purpose}" for purpose in LET_GO if held[purpose]]
    if now.private_kib > before.private_kib + MORE_KIB:
        found.append(f"not back: {now.private_kib} KiB of memory, {before.private_kib} before")
    if now.descriptors > before.descriptors + MORE_DESCRIPTORS + DESCRIPTORS_A_QUEUE * queues:
        found.append(f"not back: {now.descriptors} descriptors, {before.descriptors} before")
    return found + [f"not back: process {pid} hangs" for pid in processes_of(root) if hangs(pid)]


def processes_of(root: Path) -> list[int]:
    """The server of a mount, and its keeper and the next server where there are any."""
    status = status_of(root)
    keeper = status.get("keeper_pid")
    if keeper is None:
        return [status["pid"]]
    children = Path(f"/proc/{keeper}/task/{keeper}/children").read_text().split()
    return [keeper, *map(int, children)]


def hangs(pid: int) -> bool:
    """Whether a process can't be interrupted now, and is not just reading from the disk."""
    for _ in range(5):
        if state_of(pid) != "D":
            return False
        time.sleep(0.02)
    return True


def state_of(pid: int) -> str:
    """The letter that ps shows; empty: there is no such process any more."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return ""
