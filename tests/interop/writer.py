"""A process that writes with our engine, so that it can be killed: `python -m tests.interop.writer`, a plan on stdin.

It prints a line for each put that it made: what the store answered, as JSON. Then it closes the store.
"""

import json
import os
import signal
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from engine import FileSizes, MessageStore, StoreConfig
from engine.files.disk import Disk
from tests.interop.messages import Mix, Put, random_puts


@dataclass(frozen=True, slots=True)
class Plan:
    """What to write; `delays` among it, unless RocketMQ would deliver at once what it dispatches again after a kill.

    `die_at_file` N: SIGKILL ourselves when the Nth log file is allocated, before or after it is.
    """

    path: str
    sizes: FileSizes
    seed: int
    count: int
    delays: bool = True
    die_at_file: int | None = None
    die_before: bool = True

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    def puts(self) -> list[Put]:
        """Its messages."""
        return list(random_puts(self.seed, self.count, Mix() if self.delays else Mix(delays=0)))

    @classmethod
    def from_json(cls, text: str) -> "Plan":
        fields: dict[str, Any] = json.loads(text)
        return cls(**{**fields, "sizes": FileSizes(**fields["sizes"])})


class DeadlyDisk(Disk):
    """A disk in whose hands the process dies while a new commit log file is made."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._files = 0

    def allocate(self, descriptor: int, path: Path, start: int, size_bytes: int) -> None:
        if path.parent.name != "commitlog" or start:  # a step of a file that is there
            super().allocate(descriptor, path, start, size_bytes)
            return
        self._files += 1
        deadly = self._files == self._plan.die_at_file
        if deadly and self._plan.die_before:
            os.kill(os.getpid(), signal.SIGKILL)
        super().allocate(descriptor, path, start, size_bytes)
        if deadly:
            os.kill(os.getpid(), signal.SIGKILL)


def put_one(store: MessageStore, put: Put) -> dict[str, Any]:
    """Store a message or a batch; the result in the driver's words."""
    result: Any
    if put.items:
        result = store.put_batch([item.to_message() for item in put.items], put.queue)
    else:
        result = store.put(put.to_message(), put.queue)
    return {name: getattr(result, name) for name in ("physical_offset", "queue_offset", "store_time_ms")}


def main() -> None:
    plan = Plan.from_json(sys.stdin.read())
    # made inline, a file is made inside the put that rolls
    config = StoreConfig(sizes=plan.sizes, disk=DeadlyDisk(plan), preallocate=plan.die_at_file is None)
    with MessageStore.open(plan.path, config, create=True) as store:
        for put in plan.puts():
            print(json.dumps(put_one(store, put)), flush=True)


if __name__ == "__main__":
    main()
