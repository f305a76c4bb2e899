"""Power cuts of a SYNC_MASTER and of its replica: is what an fsync acknowledged on both disks?

    python -m tests.durability.powerpair [--images 2000] [--seed 1]

A master publishes to a store of small files, and waits for disk and replica after each few messages, while a recorder
notes the syncs of each of both. From its moments images are built that a power cut could have left. The master's is
recovered, the replica's is promoted. What had been acknowledged by that moment has to be in either one: the log's bytes
as they were, each message and each key, and no finding of a check.
"""

from __future__ import annotations

import argparse
import random
import shutil
import sys
import tempfile
import threading
import time
from contextlib import ExitStack, closing
from dataclasses import dataclass, field, replace
from pathlib import Path

from engine import FileSizes, MasterConfig, Message, MessageStore, ReplicaOptions, StoreConfig, promote, replicate
from tests.durability.figures import keep
from tests.durability.powerloss import NoDisk, physical_offset_of
from tests.durability.recorder import Moment, Recorder, build_image
from tests.engine.replication.replicas import log_of, ports
from tests.engine.storetools import QUIET

SIZES = FileSizes(commit_log_bytes=32 << 10, consume_queue_entries=64, index_slots=50, index_entries=200)
CONFIG = StoreConfig(sizes=SIZES, flush=QUIET, preallocate=False)
TOPIC, QUEUES = "orders", 2
ROUNDS = 30
IMAGES_A_RUN = 100


@dataclass
class Tally:
    """Counts of cases, and the findings."""

    runs: int = 0
    syncs: int = 0
    moments: int = 0
    images_of_the_master: int = 0
    images_of_the_replica: int = 0
    bytes_required: int = 0
    images_with_more_than_required: int = 0
    findings: list[str] = field(default_factory=list)

    @property
    def images(self) -> int:
        return self.images_of_the_master + self.images_of_the_replica


class Pair:
    """One run of both, recorded."""

    def __init__(self, folder: Path, seed: int, *, waits: bool = True, recorder: type[Recorder] = Recorder) -> None:
        """`waits`: for the replica too. `recorder` is the replica's disk."""
        self.acknowledged = 0
        self._folder = folder
        self._random = random.Random(seed)
        self._master = MasterConfig(sync=waits, ha_port=0, remoting_port=0, timeout_ms=60_000)
        self.store, self.copy = folder / "master", folder / "replica"
        for path in (self.store, self.copy):
            path.mkdir()
        self.recorders = tuple(
            one(path, lambda: self.acknowledged) for one, path in ((Recorder, self.store), (recorder, self.copy))
        )

    def run(self) -> None:
        """Publish, with a replica on a thread of its own."""
        stopping = threading.Event()
        disks = self.recorders
        with MessageStore.open(self.store, replace(CONFIG, disk=disks[0], master=self._master), create=True) as store:
            config = replace(CONFIG, sizes=None, disk=disks[1])
            options = ReplicaOptions(*ports(store))
            thread = threading.Thread(target=replicate, args=(self.copy, options, config, stopping))
            thread.start()
            try:
                self._publish(store)
            finally:
                stopping.set()
                thread.join()
        self.log = log_of(self.store)

    def _publish(self, store: MessageStore) -> None:
        number = 0
        for _ in range(ROUNDS):
            for _ in range(self._random.randrange(1, 8)):
                body = b"%d " % number * self._random.randrange(1, 300)
                end = store.put(Message(TOPIC, body, keys=[f"K{number}"]), number % QUEUES).physical_end
                number += 1
            if self._random.random() < 0.7:
                store.wait_durable(end)
                self.acknowledged = end

    def cut(self, number: int, tally: Tally) -> None:
        """One image of either disk."""
        chance = random.Random(number)
        is_replica = bool(number % 2)
        moment = chance.choice(self.recorders[is_replica].moments)
        image = self._folder / "image"
        build_image(moment, chance, image)
        tally.images_of_the_replica += is_replica
        tally.images_of_the_master += not is_replica
        try:
            wrong = self._wrong(image, moment, tally, is_replica)
        except Exception as error:  # any error is a finding, and the next image is to be tried
            wrong = f"{type(error).__name__}: {error}" if moment.facts or not is_replica else ""
        finally:
            shutil.rmtree(image)
        if wrong:
            tally.findings.append(f"image {number} of the {('master', 'replica')[is_replica]} ({moment.what}): {wrong}")

    def _wrong(self, image: Path, moment: Moment, tally: Tally, is_replica: bool) -> str:
        """What is wrong with an image; empty: nothing."""
        required: int = moment.facts
        config = replace(CONFIG, disk=NoDisk())
        if is_replica:
            promote(image, replace(config, sizes=None))
        with MessageStore.open(image, config, create=True) as store:
            end = store.physical_end
            tally.bytes_required += required
            tally.images_with_more_than_required += end > required
            if end < required or log_of(image)[:required] != self.log[:required]:
                return f"it ends at {end}, or differs, and {required} was acknowledged"
            shown = 0
            for queue in store.queues(TOPIC) if TOPIC in store.topics() else ():
                for message in store.read(TOPIC, queue, 0):
                    (key,), offset = message.keys, message.physical_offset
                    shown += offset < required
                    if offset not in [one.physical_offset for one in store.query(TOPIC, key)]:
                        return f"key {key} does not lead to its message"
            if shown != self.messages_before(required):
                return f"{shown} messages are shown of those that were acknowledged"
            return "; ".join(str(one) for one in store.check() if physical_offset_of(one) < required)

    def messages_before(self, end: int) -> int:
        """Number of messages whose record begins before `end`."""
        found = 0
        with MessageStore.open(self.store, replace(CONFIG, disk=NoDisk())) as store:
            for queue in store.queues(TOPIC):
                found += sum(one.physical_offset < end for one in store.read(TOPIC, queue, 0))
        return found


def cut_power(folder: Path, images: int, seed: int) -> Tally:
    """`images` power cuts below `folder`, in runs of a hundred; stops after a run that found something."""
    tally = Tally()
    while tally.images < images and not tally.findings:
        with tempfile.TemporaryDirectory(dir=folder) as place, ExitStack() as stack:
            pair = Pair(Path(place), seed + tally.runs)
            for recorder in pair.recorders:
                stack.enter_context(closing(recorder))
            pair.run()
            tally.runs += 1
            tally.syncs += sum(one.syncs for one in pair.recorders)
            tally.moments += sum(len(one.moments) for one in pair.recorders)
            for number in range(min(IMAGES_A_RUN, images - tally.images)):
                pair.cut(number, tally)
    return tally


def main() -> int:
    """The long form."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=2_000)
    parser.add_argument("--seed", type=int, default=1)
    chosen = parser.parse_args()
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="powerpair-") as folder:
        tally = cut_power(Path(folder), chosen.images, chosen.seed)
    keep("powerpair", {"seed": chosen.seed, **tally.__dict__, "seconds": round(time.monotonic() - began)})
    return 1 if tally.findings else 0


if __name__ == "__main__":
    sys.exit(main())
