"""Power cuts, thousands of them: is every message there that was acknowledged as durable, and nothing torn?

    python -m tests.durability.powerloss [--images 10000] [--seed 1]

A run works on a small store for three sessions (single puts, batches, lines dealt over queues, several topics, large
bodies, a hostile publisher, waits for the disk, full flushes, retention, a deleted topic, clean ends, a flush that the
disk refuses and that the process dies of, with and without a write buffer and files made ahead), while a recorder notes
the syncs. From its moments images are built that a power cut could have left. Each is opened, read whole, checked and
written to. The power of some fails again during their recovery.
"""

from __future__ import annotations

import argparse
import os
import random
import re
import shutil
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from unittest.mock import patch

from engine import (
    DamagedRecordError,
    ExpiredMessageError,
    FileSizes,
    FlushFailedError,
    FlushPolicy,
    Message,
    MessageStore,
    Problem,
    ProblemKind,
    ReadOnlyStoreError,
    Retention,
    StoreConfig,
    StoredMessage,
    WriteError,
    check_store,
)
from engine.derived.consume_queues import MANY_FILES
from engine.files.disk import Disk
from engine.files.watch import SAME_TICK_NS
from tests.durability.attacks import Attacker, Queue, Sight
from tests.durability.bodies import body_of
from tests.durability.figures import keep
from tests.durability.recorder import Moment, Recorder, build_image

TOPICS = ("orders", "events")
HOSTILE = "hostile"
DOOMED = "doomed"
QUEUES = 2
SIZES = FileSizes(commit_log_bytes=16_384, consume_queue_entries=32, index_slots=17, index_entries=96)
QUIET = FlushPolicy(
    interval_ms=3_600_000,
    thorough_interval_ms=3_600_000,
    consume_queue_interval_ms=3_600_000,
    consume_queue_thorough_interval_ms=3_600_000,
    commit_interval_ms=3_600_000,
    commit_thorough_interval_ms=3_600_000,
)
"""Nothing is flushed but on demand, so that a run is much the same each time; `LIVELY` flushes all the time."""
LIVELY = FlushPolicy(
    interval_ms=2,
    least_pages=1,
    thorough_interval_ms=20,
    consume_queue_interval_ms=3,
    consume_queue_least_pages=1,
    consume_queue_thorough_interval_ms=15,
    commit_interval_ms=2,
    commit_least_pages=1,
    commit_thorough_interval_ms=5,
)
RETENTION = Retention(max_bytes=4 * SIZES.commit_log_bytes, clean_interval_ms=3_600_000, delete_pause_ms=0)
SESSIONS = 3
IMAGES_A_RUN = 100

Place = tuple[str, int, int]
"""Topic, queue, queue offset."""


@dataclass(frozen=True, slots=True)
class Sent:
    """A message as it was stored."""

    stored_body: bytes
    physical_offset: int
    physical_end: int
    keys: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Promise:
    """What had been promised at some moment: durable up to there, these topics made, the doomed one being deleted."""

    durable_end: int = 0
    topics: frozenset[str] = frozenset()
    deleting: bool = False
    deleted: bool = False


@dataclass
class Ledger:
    """Every message of a run by its place, and what is promised now."""

    sent: dict[Place, Sent] = field(default_factory=dict)
    promise: Promise = field(default_factory=Promise)
    _seen: Counter[tuple[str, int]] = field(default_factory=Counter)

    def catch_up(self, store: MessageStore) -> None:
        """Note where the newest messages came to stand."""
        for topic in store.topics():
            for queue in store.queues(topic):
                end = store.bounds(topic, queue).max_offset
                for queue_offset in range(self._seen[topic, queue], end):
                    self._take(store.get(topic, queue, queue_offset))
                self._seen[topic, queue] = end

    def _take(self, message: StoredMessage) -> None:
        place = (message.topic, message.queue, message.queue_offset)
        end = message.physical_offset + message.store_size
        self.sent[place] = Sent(bytes(message.stored_body), message.physical_offset, end, tuple(message.keys))

    def promised(self, **changes: object) -> None:
        """Remember one promise more."""
        self.promise = replace(self.promise, **changes)  # type: ignore[arg-type]


class Workload:
    """Three sessions on one recorded store."""

    def __init__(self, path: Path, seed: int, recorder: type[Recorder]) -> None:
        self._path = path
        self._random = random.Random(seed)
        self._number = seed * 100_000
        self._now_ms = 1_700_000_000_000
        self._attacker = Attacker(random.Random(seed), HOSTILE, [Queue(topic, 0) for topic in TOPICS])
        self.ledger = Ledger()
        path.mkdir()
        self.recorder = recorder(path, lambda: self.ledger.promise)

    def run(self, rounds: int) -> None:
        """Do it all."""
        for session in range(SESSIONS):
            if session and self._random.random() < 0.7:
                self._refused_session(session)
            with MessageStore.open(self._path, self._config(session), create=True) as store:
                self._session(store, rounds, last=session == SESSIONS - 1)

    def _refused_session(self, session: int) -> None:
        """The disk refuses a flush once, and the process dies of it. Its written messages stay readable."""
        store = MessageStore.open(self._path, self._config(session))
        with suppress(FlushFailedError, ReadOnlyStoreError):
            for _ in range(self._random.randrange(2, 12)):
                self._random.choice((self._put, self._batch, self._lines))(store)
                self.ledger.catch_up(store)
            self.recorder.refuse_next_sync(random.Random(self._number))
            store.wait_durable(store.physical_end)
            store.flush()
        self.recorder.note("after a flush that failed")
        store._abandon()

    def _config(self, session: int) -> StoreConfig:
        pooled = self._random.random() < 0.25
        return StoreConfig(
            sizes=SIZES,
            flush=LIVELY if self._random.random() < 0.4 else QUIET,
            retention=RETENTION if session else None,
            preallocate=self._random.random() < 0.6,
            transient_pool_buffers=3 if pooled else 0,
            clock=self._clock,
            disk=self.recorder,
            default_queues=QUEUES,
            multi_dispatch=False,
        )

    def _clock(self) -> int:
        self._now_ms += 7
        return self._now_ms

    def _session(self, store: MessageStore, rounds: int, *, last: bool) -> None:
        for topic in (*TOPICS, DOOMED):
            if not store.has_queue(topic, 0) and not (topic == DOOMED and self.ledger.promise.deleting):
                store.create_topic(topic, QUEUES)
                self.ledger.promised(topics=self.ledger.promise.topics | {topic})
        for topic in (f"made-{count}" for count in range(len(store.topics()), len(store.topics()) + 4)):
            store.create_topic(topic, QUEUES)
            self.ledger.promised(topics=self.ledger.promise.topics | {topic})
        acts = [self._put, self._put, self._put, self._batch, self._lines, self._wait, self._wait, self._flush]
        acts.append(self._attack)
        for _ in range(rounds):
            self._random.choice(acts)(store)
            self.ledger.catch_up(store)
            self.recorder.note("after an act")
        if last:
            self._delete(store)
        else:
            store.clean()
        self._put(store)
        self._flush(store)

    def _topic(self) -> str:
        topics = TOPICS if self.ledger.promise.deleting else (*TOPICS, DOOMED)
        return self._random.choice(topics)

    def _message(self, topic: str) -> Message:
        self._number += 1
        size = self._random.choice((30, 90, 300, 700, 3_000))
        keys = [f"K{self._number}", f"S{self._number % 5}"] if self._random.random() < 0.6 else []
        return Message(topic, body_of(0, self._number, size), keys, tags=f"T{self._number % 3}")

    def _put(self, store: MessageStore) -> None:
        store.put(self._message(self._topic()), self._random.choice((None, 0, 1)))

    def _batch(self, store: MessageStore) -> None:
        topic = self._topic()
        store.put_batch([self._message(topic) for _ in range(self._random.randrange(2, 8))])

    def _lines(self, store: MessageStore) -> None:
        topic, count = self._topic(), self._random.randrange(2, 25)
        bodies = [bytes(self._message(topic).body)[:1_000] for _ in range(count)]
        bodies = [body_of(0, self._number - row, min(len(body), 400)) for row, body in enumerate(bodies)]
        store.put_lines(topic, b"".join(body + b"\n" for body in bodies), self._random.choice((None, 0)), keys=["L"])

    def _attack(self, store: MessageStore) -> None:
        """A hostile publisher sends allowed messages."""
        sight = Sight.of(store, [Queue(topic, 0) for topic in TOPICS], self._now_ms)
        with suppress(WriteError):
            store.put_batch(self._attacker.attack(sight).messages, 0)

    def _wait(self, store: MessageStore) -> None:
        end = store.physical_end
        store.wait_durable(end)
        self.ledger.promised(durable_end=max(end, self.ledger.promise.durable_end))

    def _flush(self, store: MessageStore) -> None:
        end = store.physical_end
        store.flush()
        self.ledger.catch_up(store)
        self.ledger.promised(durable_end=max(end, self.ledger.promise.durable_end))

    def _delete(self, store: MessageStore) -> None:
        self._flush(store)  # the ledger has no messages that are still in a write buffer
        self.ledger.promised(deleting=True, topics=self.ledger.promise.topics - {DOOMED})
        store.delete_topic(DOOMED)
        self.ledger.promised(deleted=True)


@dataclass
class Tally:
    """Counts of cases, and the findings."""

    runs: int = 0
    syncs: int = 0
    refused_syncs: int = 0
    moments: int = 0
    images: int = 0
    cut_again_while_recovering: int = 0
    acknowledged_messages_required: int = 0
    other_messages_found_whole: int = 0
    numbers_without_a_message: int = 0
    stretches_between: int = 0
    checked_again_when_closed: int = 0
    lost: int = 0
    findings: list[str] = field(default_factory=list)


class Inspection:
    """Opens one image and holds it to the ledger."""

    def __init__(self, image: Path, moment: Moment, ledger: Ledger, tally: Tally, chance: random.Random) -> None:
        self._image = image
        self._ledger = ledger
        self._tally = tally
        self._random = chance
        self._promise: Promise = moment.facts
        self._required = required(moment, ledger)
        self._wrong: list[str] = []
        self._whole: dict[Place, Sent] = {}
        self._damaged = 0

    def run(self, disk: Disk) -> list[str]:
        """Open, read, check, write, check again; returns the broken promises."""
        config = reopened(disk)
        try:
            with MessageStore.open(self._image, config, create=True) as store:
                self._look(store)
                self._write_on(store)
            self._tally.checked_again_when_closed += (again := self._random.random() < 0.25)
            if again:
                self._note_problems("closed", check_store(self._image))
        except Exception as error:  # any error is a finding, and the next image is to be tried
            self._wrong.append(f"{type(error).__name__}: {error}")
        return self._wrong

    def _look(self, store: MessageStore) -> None:
        for topic in store.topics():
            for queue in store.queues(topic):
                bounds = store.bounds(topic, queue)
                for queue_offset in range(bounds.min_offset, bounds.max_offset):
                    self._look_at(store, (topic, queue, queue_offset))
        missing = [place for place in self._required if place not in self._whole]
        self._tally.lost += len(missing)
        self._tally.acknowledged_messages_required += len(self._required)
        self._tally.other_messages_found_whole += len(self._whole.keys() - self._required.keys())
        self._tally.numbers_without_a_message += self._damaged
        if missing:
            self._wrong.append(f"{len(missing)} acknowledged messages are not there, the first at {missing[0]}")
        if absent := self._promise.topics - set(store.topics()):
            self._wrong.append(f"topics are not there: {sorted(absent)}")
        if self._promise.deleted and any(place[0] == DOOMED for place in self._whole):
            self._wrong.append("messages of the deleted topic came back")
        self._look_at_keys(store)
        self._note_problems("recovered", store.check())

    def _look_at(self, store: MessageStore, place: Place) -> None:
        try:
            message = store.get(*place)
        except (DamagedRecordError, ExpiredMessageError):
            self._damaged += 1
            return
        known = self._ledger.sent.get(place)
        body = bytes(message.stored_body)
        if known is None or known.stored_body != body or known.keys != tuple(message.keys):
            self._wrong.append(f"at {place} is {body[:60]!r} with keys {message.keys[:3]}; sent there: {known}")
            return
        self._whole[place] = known

    def _look_at_keys(self, store: MessageStore) -> None:
        expected: dict[tuple[str, str], set[int]] = defaultdict(set)
        for place, sent in self._whole.items():
            for key in sent.keys:
                expected[place[0], key].add(sent.physical_offset)
        asked = {(place[0], key) for place, sent in self._ledger.sent.items() for key in sent.keys}
        for topic, key in self._random.sample(sorted(asked), min(12, len(asked))):
            found = [message.physical_offset for message in store.query(topic, key, limit=1_000)]
            if len(found) != len(set(found)) or set(found) != expected[topic, key]:
                self._wrong.append(f"key {topic}#{key} leads to {sorted(found)}, not {sorted(expected[topic, key])}")

    def _note_problems(self, when: str, problems: Iterator[Problem]) -> None:
        """Between records that reached the disk by chance some may be missing: nothing else may be found."""
        for problem in problems:
            if physical_offset_of(problem) >= self._promise.durable_end:
                self._tally.stretches_between += when == "recovered"
            else:
                self._wrong.append(f"{when}: {problem}")

    def _write_on(self, store: MessageStore) -> None:
        """The store takes messages again, after the existing ones."""
        for queue in range(QUEUES):
            body = body_of(1, queue, 200)
            result = store.put(Message("orders", body, ["after"]), queue)
            if bytes(store.get("orders", queue, result.queue_offset).body) != body:
                self._wrong.append("what was put after the cut reads otherwise")


def reopened(disk: Disk) -> StoreConfig:
    """How an image is opened."""
    return StoreConfig(
        sizes=SIZES, flush=QUIET, preallocate=False, disk=disk, default_queues=QUEUES, multi_dispatch=False
    )


def physical_offset_of(problem: Problem) -> int:
    """Where in the log records are missing that a finding is about; -1 when it is about something else."""
    if problem.kind is ProblemKind.BAD_RECORD:
        return int(Path(problem.path).name) + problem.position
    if problem.kind is ProblemKind.MISSING_FILE:
        return int(re.findall(r"\d+", problem.text)[0])
    return -1


def required(moment: Moment, ledger: Ledger) -> dict[Place, Sent]:
    """The messages that every image of `moment` must have: all that were promised and not given up since."""
    promise: Promise = moment.facts
    begin = oldest_log_byte(moment)
    return {
        place: sent
        for place, sent in ledger.sent.items()
        if begin <= sent.physical_offset
        and sent.physical_end <= promise.durable_end
        and not (place[0] == DOOMED and promise.deleting)
    }


def oldest_log_byte(moment: Moment) -> int:
    """The log's beginning at that moment; retention had removed earlier messages."""
    node = moment.directories[moment.root][-1].get("commitlog")
    listing = moment.directories[node][-1] if node is not None else {}
    return min((int(name) for name in listing if name.isdigit()), default=0)


class Cuts:
    """Image after image of one run."""

    def __init__(self, folder: Path, tally: Tally, recorder: type[Recorder] = Recorder) -> None:
        self._folder = folder
        self._tally = tally
        self._recorder = recorder

    def run(self, seed: int, images: int, rounds: int = 25) -> None:
        """One workload, then `images` power cuts."""
        workload = Workload(self._folder / "store", seed, self._recorder)
        many_files = (0, MANY_FILES)[seed % 2]  # half of the runs sync their queues by one sync of the filesystem
        with closing(workload.recorder) as recorder:
            with patch("engine.derived.consume_queues.MANY_FILES", many_files):
                workload.run(rounds)
            self._tally.runs += 1
            self._tally.syncs += recorder.syncs
            self._tally.refused_syncs += recorder.refused
            self._tally.moments += len(recorder.moments)
            for number in range(images):
                chance = random.Random(f"{seed}.{number}")
                moment = chance.choice(recorder.moments)
                wrong = self._cut(moment, workload.ledger, chance)
                self._tally.images += 1
                self._tally.findings += [f"seed {seed}, image {number} ({moment.what}): {text}" for text in wrong]
        shutil.rmtree(self._folder / "store")

    def _cut(self, moment: Moment, ledger: Ledger, chance: random.Random) -> list[str]:
        image = self._folder / "image"
        build_image(moment, chance, image)
        new_ns = chance.choice((SAME_TICK_NS, -(1 << 62)))  # every file counts as old: the bytes alone tell of a change
        with patch("engine.derived.queues_at_rest.SAME_TICK_NS", new_ns):
            return self._opened_after(image, moment, ledger, chance)

    def _opened_after(self, image: Path, moment: Moment, ledger: Ledger, chance: random.Random) -> list[str]:
        try:
            if chance.random() < 0.15:
                return self._cut_again(image, moment, ledger, chance)
            return Inspection(image, moment, ledger, self._tally, chance).run(NoDisk())
        finally:
            shutil.rmtree(image)

    def _cut_again(self, image: Path, moment: Moment, ledger: Ledger, chance: random.Random) -> list[str]:
        """The power fails again, during the recovery of an image."""
        second = self._folder / "second"
        with closing(Recorder(image)) as recorder:
            with MessageStore.open(image, reopened(recorder), create=True):
                recovered = len(recorder.moments)
            build_image(chance.choice(recorder.moments[:recovered]), chance, second)
        self._tally.cut_again_while_recovering += 1
        try:
            return Inspection(second, moment, ledger, self._tally, chance).run(NoDisk())
        finally:
            shutil.rmtree(second)


class NoDisk(Disk):
    """Waits for no disk: the power fails in the model only."""

    def sync(self, descriptor: int, path: Path) -> None:
        """Nothing."""

    def sync_directory(self, path: Path) -> None:
        """Nothing."""

    def sync_filesystem(self, descriptor: int, path: Path) -> bool:
        """Nothing."""
        return True


def cut_power(folder: Path, images: int, seed: int, tell: Callable[[Tally], None] = lambda tally: None) -> Tally:
    """`images` power cuts below `folder`, in runs of a hundred; stops after a run that found something."""
    tally = Tally()
    cuts = Cuts(folder, tally)
    while tally.images < images and not tally.findings:
        cuts.run(seed + tally.runs, min(IMAGES_A_RUN, images - tally.images))
        tell(tally)
    return tally


def main() -> int:
    """The long form."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=1)
    chosen = parser.parse_args()
    began = time.monotonic()
    memory = Path("/dev/shm")
    place = memory if os.access(memory, os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix="powerloss-", dir=place) as folder:
        tally = cut_power(Path(folder), chosen.images, chosen.seed, tell)
    keep("powerloss", {"seed": chosen.seed, **tally.__dict__, "seconds": round(time.monotonic() - began)})
    print("NOT well: see the findings" if tally.findings else "nothing was lost")
    return 1 if tally.findings else 0


def tell(tally: Tally) -> None:
    """How far it is, in a line."""
    if tally.runs % 5 == 0:
        print(f"{tally.images:7,} images of {tally.moments:,} moments, {tally.lost} messages lost", flush=True)


if __name__ == "__main__":
    sys.exit(main())
