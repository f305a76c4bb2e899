"""Repeated kill -9 of a loaded daemon on one store: is an acknowledged message ever lost?

    python -m tests.durability.kills [--kills 1000] [--seed 1]

Each round mounts the store, reads all of it through the mount, loads it from five publishers in parallel (lines, write
requests, files, JSON with keys, attacks; small files that roll, retention that removes them) and kills the daemon at a
random moment, sometimes during its opening. Each acknowledged message has to be at its queue offset, equal. Other
messages exist as they were sent, or not at all; there may be no more. After each kill a copy of the store is opened by
the engine alone and checked to the last derived byte. Sometimes the daemon ends cleanly and the store itself is
checked. In the end a mount has to work (tests/durability/liveness.py), and each of STATES must have occurred.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from engine import FileSizes, MessageStore, StoreConfig, check_store
from engine.log.delay import SCHEDULE_TOPIC
from tests.durability.bodies import identify
from tests.durability.figures import keep
from tests.durability.ledger import Contents, Identity, Ledger, Queue, Request, Tally
from tests.durability.liveness import level_of, not_alive
from tests.durability.publishers import HOSTILE_TOPIC, TOPICS, Hostile, Publisher, publishers
from tests.durability.reached import Reached
from tests.mount.harness import REPOSITORY, Mounted, mounted, until

REFUSED = "WARNING fsstore.tree.publishing: refused a write"
"""An attack was."""

SIZES = {"commit_log_bytes": 512 << 10, "consume_queue_entries": 256, "index_slots": 500, "index_entries": 2_000}
RETENTION = {"max_bytes": 4 << 20, "clean_interval_ms": 20, "delete_pause_ms": 0}
CONFIG: dict[str, Any] = {"sizes": SIZES, "retention": RETENTION}
BUDGET_BYTES = 512 << 10
"""Messages that each publisher sends at full speed in a round; they must not expire in that round."""

STORED = "a request in flight that was stored"
NOT_STORED = "a request in flight that was not stored"
WITHOUT_ENTRY = "a kill between a record and its queue entry"
TWICE = "two deaths in a row: of a loaded daemon, and of the next one while it opens"
EXPIRED = "messages that expired"
CLEAN = "a clean end between kills"
STATES = (STORED, NOT_STORED, WITHOUT_ENTRY, TWICE, EXPIRED, CLEAN)

ENTRY_BYTES = 20

LONGEST_LOAD_S = 0.4
MOUNTS_A_CLEAN_END = 20
MOUNTS_AN_EARLY_KILL = 10
KEYS_LOOKED_AT = 60


class Rounds:
    """Kill after kill on one store."""

    def __init__(self, folder: Path, seed: int) -> None:
        self._folder = folder
        self._store = folder / "store"
        self._random = random.Random(seed)
        self._ledger = Ledger()
        self._publishers = publishers(seed * 1000, BUDGET_BYTES, SIZES["commit_log_bytes"])
        self._sent: tuple[list[Request], list[Request]] = ([], [])
        self.wrong: list[str] = []
        self.reached = Reached(*STATES)
        self.kills = 0
        self.early_kills = 0
        self.clean_ends = 0
        self.rolled_files = 0

    @property
    def attacks(self) -> int:
        """The hostile publisher's messages."""
        return sum(publisher.attacks for publisher in self._publishers if isinstance(publisher, Hostile))

    @property
    def tally(self) -> Tally:
        """The figures so far."""
        return self._ledger.tally

    def round(self) -> None:
        """Mount, look, load, kill, check a copy."""
        with mounted(self._folder, store=self._store, config=CONFIG) as mount:
            self._make_topics(mount)
            self._look(mount)
            if self.kills % MOUNTS_A_CLEAN_END == MOUNTS_A_CLEAN_END - 1:
                self._end_cleanly(mount)
            else:
                self._load_and_kill(mount)
        self.kills += 1
        self._note(line for line in mount.log.read_text().splitlines() if not line.startswith(("INFO ", REFUSED)))
        self._check_copy()
        if not self.wrong and self._random.random() < 1 / MOUNTS_AN_EARLY_KILL:  # else it stays as the kill left it
            self._kill_while_opening()

    def finish(self) -> None:
        """A last look, through a mount that ends cleanly, and a check of the store itself."""
        with mounted(self._folder, store=self._store, config=CONFIG) as mount:
            before = level_of(mount.root)
            self._look(mount)
            self._note(not_alive(mount.root, before))
        self._note(map(str, check_store(self._store)))
        self.reached.note(STORED, self.tally.in_flight_kept)
        self.reached.note(NOT_STORED, self.tally.in_flight - self.tally.in_flight_kept)
        self.reached.note(TWICE, self.early_kills)
        self.reached.note(EXPIRED, self.tally.expired)
        self.reached.note(CLEAN, self.clean_ends)

    def _make_topics(self, mount: Mounted) -> None:
        for topic in (*TOPICS, HOSTILE_TOPIC):
            (mount.root / topic).mkdir(exist_ok=True)

    def _look(self, mount: Mounted) -> None:
        """Read the whole store through the mount and compare it with the publishers' notes."""
        until("retention has done its work", has_settled, mount)
        status, texts = read_at_rest(mount)
        found = parse(texts, status)
        acknowledged, in_flight = self._sent
        self._note(self._ledger.settle(acknowledged, in_flight, found))
        self._note(look_at_names(mount.root, found, self._random))
        requests = (*acknowledged, *in_flight)
        keyed = [(one, *pair) for one in requests for pair in zip(one.messages, one.keys, strict=False)]
        self._note(look_at_keys(mount.root, found, self._random.sample(keyed, min(KEYS_LOOKED_AT, len(keyed)))))
        self._note(look_at_retention(status["stats"]))
        self._note(look_at_topics(status))
        self.rolled_files = status["stats"]["physical_end"] // SIZES["commit_log_bytes"]
        self._sent = ([], [])

    def _load_and_kill(self, mount: Mounted) -> None:
        for publisher in self._publishers:
            publisher.start(mount.root)
        time.sleep(self._random.random() * LONGEST_LOAD_S)
        mount.kill()
        self._collect()

    def _end_cleanly(self, mount: Mounted) -> None:
        """Sometimes the daemon ends normally under load, so that the next kill finds a store that was closed."""
        for publisher in self._publishers:
            publisher.start(mount.root)
        time.sleep(self._random.random() * LONGEST_LOAD_S)
        if mount.stop() != 0:
            self._note([f"a clean end failed: {mount.log.read_text()[-500:]}"])
        self._collect()
        self.clean_ends += 1
        self._note(map(str, check_store(self._store)))

    def _collect(self) -> None:
        for publisher in self._publishers:
            publisher.join()
            self._note(publisher.complaints)
        self._sent = collected(self._publishers)

    def _check_copy(self) -> None:
        """Open a copy of the dead daemon's files by the engine alone, and compare all derived data with its log."""
        copy = self._folder / "copy"
        shutil.copytree(self._store, copy)
        ends = {queue: entries_end(copy, *queue) for queue in queues_of(copy)}
        with MessageStore.open(copy, StoreConfig(sizes=FileSizes(**SIZES))) as store:
            self._note(f"a copy, recovered: {problem}" for problem in store.check())
            behind = (store.has_queue(*queue) and store.bounds(*queue).max_offset > end for queue, end in ends.items())
            self.reached.note(WITHOUT_ENTRY, any(behind))
        if not self.wrong:
            shutil.rmtree(copy)

    def _kill_while_opening(self) -> None:
        """Start a daemon and kill it before it serves: recovery that is cut short must not cost anything either."""
        asked = {"store": str(self._store), "mountpoint": str(self._folder / "mount"), "config": CONFIG}
        command = [sys.executable, "-m", "tests.mount.daemon", json.dumps(asked | {"options": {}, "gate": None})]
        daemon = subprocess.Popen(
            command, cwd=REPOSITORY, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )
        lock = self._store / "lock"
        written = lock.stat().st_atime_ns
        deadline = time.monotonic() + self._random.random() * 0.6
        while time.monotonic() < deadline and lock.stat().st_atime_ns == written:
            time.sleep(0.002)
        Mounted(self._folder / "mount", self._store, daemon, self._folder / "daemon.log").kill()
        assert daemon.stdout is not None
        daemon.stdout.close()
        self.early_kills += 1

    def _note(self, wrong: Any) -> None:
        self.wrong += [f"after kill {self.kills}: {text}" for text in wrong]


def queues_of(store: Path) -> list[Queue]:
    """The queues that have files."""
    return [
        (folder.parent.name, int(folder.name)) for folder in (store / "consumequeue").glob("*/*") if folder.is_dir()
    ]


def entries_end(store: Path, topic: str, queue: int) -> int:
    """The queue offset behind the last entry in a queue's files, as they are."""
    newest = max((store / "consumequeue" / topic / str(queue)).iterdir(), default=None)
    if newest is None:
        return 0
    entries = newest.read_bytes().rstrip(b"\0")
    return int(newest.name) // ENTRY_BYTES + -(-len(entries) // ENTRY_BYTES)


def collected(ended: list[Publisher]) -> tuple[list[Request], list[Request]]:
    """The publishers' acknowledged messages, and those without an answer."""
    acknowledged = [request for publisher in ended for request in publisher.acknowledged]
    return acknowledged, [request for publisher in ended for request in publisher.in_flight]


def has_settled(mount: Mounted) -> bool:
    """Whether retention has nothing more to remove, so that messages read from now on stay."""
    stats = mount.status()["stats"]
    return bool(stats["physical_end"] - stats["min_physical_offset"] <= RETENTION["max_bytes"])


def read_at_rest(mount: Mounted) -> tuple[dict[str, Any], dict[Queue, bytes]]:
    """The status and every queue's stream, of one moment: read again when retention's last steps came between."""
    while True:
        before = mount.status()
        queues = [(topic, int(queue)) for topic in TOPICS for queue in before["topics"][topic]["queues"]]
        texts = {(topic, queue): (mount.root / topic / f"{queue}.log").read_bytes() for topic, queue in queues}
        if mount.status()["topics"] == before["topics"]:
            return before, texts


def parse(texts: dict[Queue, bytes], status: dict[str, Any]) -> dict[Queue, Contents]:
    """The messages of each queue, as many as its bounds say. AssertionError: a body is not whole."""
    found = {}
    for (topic, queue), text in texts.items():
        messages = [identify(body) for body in text.split(b"\n")[:-1]]
        bounds = status["topics"][topic]["queues"][str(queue)]
        first, end = bounds["min_offset"], bounds["max_offset"]
        assert len(messages) == end - first, f"{topic}/{queue}.log: {len(messages)} lines for [{first}, {end})"
        found[topic, queue] = Contents(first, messages)
    return found


def look_at_names(root: Path, found: dict[Queue, Contents], chance: random.Random) -> list[str]:
    """Listings have to show the very offsets that the bounds give, and a file the body that the stream has there."""
    wrong = []
    for (topic, queue), contents in found.items():
        folder = root / topic / str(queue)
        listed = [int(name) for name in os.listdir(folder) if name.isdigit()]
        if listed != list(range(contents.first, contents.end)):
            wrong.append(f"{topic}/{queue} lists {len(listed)} names, not [{contents.first}, {contents.end})")
        if contents.messages:
            index = chance.randrange(len(contents.messages))
            if identify((folder / f"{contents.first + index:020d}").read_bytes()) != contents.messages[index]:
                wrong.append(f"{topic}/{queue}/{contents.first + index} is another message than in the stream")
    return wrong


def look_at_keys(root: Path, found: dict[Queue, Contents], keyed: list[tuple[Request, Identity, str]]) -> list[str]:
    """A key leads to its message, and to nothing else; the key of a message that is not there leads nowhere."""
    there = {one for contents in found.values() for one in contents.messages}
    wrong = []
    for request, identity, key in keyed:
        folder = root / request.topic / "keys"
        if identity not in there:
            if (folder / key).exists():
                wrong.append(f"key {key} leads to a message, and there is none")
        elif len(os.listdir(folder / f"{key}@all")) != 1:
            wrong.append(f"key {key} has {os.listdir(folder / f'{key}@all')}")
        elif identify((folder / key).read_bytes()) != identity:
            wrong.append(f"key {key} leads to another message")
    return wrong


def look_at_topics(status: dict[str, Any]) -> list[str]:
    """A publisher to one topic must create no other topic."""
    strange = status["topics"].keys() - {*TOPICS, HOSTILE_TOPIC, SCHEDULE_TOPIC}
    return [f"topics that nobody made: {sorted(strange)[:5]}"] if strange else []


def look_at_retention(stats: dict[str, Any]) -> list[str]:
    """Retention must keep messages within its bound: one that is gone sooner was lost."""
    kept = stats["physical_end"] - stats["min_physical_offset"]
    least = RETENTION["max_bytes"] - 2 * SIZES["commit_log_bytes"]
    return [f"only {kept} bytes of log are left"] if stats["min_physical_offset"] and kept < least else []


def run(folder: Path, kills: int, seed: int, tell: Callable[[Rounds], None] = lambda rounds: None) -> Rounds:
    """Do `kills` rounds below `folder`; stops at the first that finds something wrong."""
    rounds = Rounds(folder, seed)
    while rounds.kills < kills and not rounds.wrong:
        rounds.round()
        tell(rounds)
    if not rounds.wrong:
        rounds.finish()
    return rounds


def figures_of(rounds: Rounds, seconds: float) -> dict[str, object]:
    """The figures to keep."""
    return {
        "kills_under_load": rounds.kills - rounds.clean_ends,
        "kills_while_opening": rounds.early_kills,
        "clean_ends_between": rounds.clean_ends,
        "log_files_rolled": rounds.rolled_files,
        "attacks": rounds.attacks,
        **asdict(rounds.tally),
        "reached": rounds.reached.times,
        "findings": rounds.wrong + rounds.reached.missed(),
        "seconds": round(seconds),
    }


def main() -> int:
    """The long form."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=1_000)
    parser.add_argument("--seed", type=int, default=1)
    chosen = parser.parse_args()
    began, ticks = time.monotonic(), itertools.count(1)

    def tell(rounds: Rounds) -> None:
        if next(ticks) % 20 == 0:
            print(f"{time.monotonic() - began:6.0f} s  {rounds.kills} kills  {rounds.tally}", flush=True)

    folder = Path(tempfile.mkdtemp(prefix="kills-"))
    rounds = run(folder, chosen.kills, chosen.seed, tell)
    keep("kills", figures_of(rounds, time.monotonic() - began))
    if rounds.wrong:
        print(f"the store is left in {folder}")
        return 1
    shutil.rmtree(folder)
    return 1 if rounds.reached.missed() else 0


if __name__ == "__main__":
    sys.exit(main())
