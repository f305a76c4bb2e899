"""A mounted store against a model of a few lines: random steps, and after each the same answer from both.

    python -m tests.durability.mountmodel [--examples 200] [--steps 60]

The model knows, for each queue, its messages in order, and of the whole store the order of publishing. Steps publish in
every framing (cut into writes anywhere), attack, read, list, follow links and keys, attempt refused operations, make
topics and queues, end the daemon cleanly and by kill -9, and publish so much that retention removes the oldest.
"""

from __future__ import annotations

import argparse
import errno
import json
import os
import random
import shutil
import sys
import tempfile
import time
from collections import Counter
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, ClassVar

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from engine import check_store
from tests.durability.attacks import Attacker, Sight
from tests.durability.attacks import Queue as VictimsQueue
from tests.durability.figures import keep
from tests.mount.harness import Mounted, mounted, offset_names, publish, refused_with, until

SIZES = {"commit_log_bytes": 32 << 10, "consume_queue_entries": 64, "index_slots": 50, "index_entries": 200}
MAX_BYTES = 96 << 10
CONFIG: dict[str, Any] = {
    "sizes": SIZES,
    "retention": {"max_bytes": MAX_BYTES, "clean_interval_ms": 20, "delete_pause_ms": 0},
    "multi_dispatch": False,
}
MKDIR_QUEUES = 4
STEPS_A_LIFE = 8
REFUSED = {errno.EINVAL, errno.EFBIG, errno.EMSGSIZE, errno.E2BIG}

TOPICS = st.sampled_from(["orders", "events", "a-b_c"])
QUEUES = st.integers(0, 4)
LINES = st.lists(st.binary(min_size=1, max_size=200).map(lambda line: line.replace(b"\n", b" ")), max_size=6)
BODIES = st.binary(min_size=1, max_size=2_500)
TEXTS = st.text(st.characters(codec="utf-8"), min_size=1, max_size=60)
KEYS = st.sampled_from(["A", "B", "ORDER-17", "x@y", "50%", "ü"])
CUTS = st.lists(st.integers(0, 1_000), max_size=3)


@dataclass
class Queue:
    """A queue as it should be: messages from offset `first` on."""

    first: int = 0
    bodies: list[bytes] = field(default_factory=list)

    @property
    def end(self) -> int:
        return self.first + len(self.bodies)

    def expire(self, first: int) -> None:
        """Messages before `first` are gone."""
        assert self.first <= first <= self.end, f"first went from {self.first} to {first}, the end is {self.end}"
        del self.bodies[: first - self.first]
        self.first = first


@dataclass(frozen=True)
class Keyed:
    """A message with a key, in the order of publishing."""

    key: str
    queue: int
    offset: int


class MountedStore(RuleBasedStateMachine):
    """The steps."""

    counts: ClassVar[Counter[str]] = Counter()

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(prefix="mountmodel-"))
        self.topics: dict[str, list[Queue]] = {}
        self.keyed: dict[str, list[Keyed]] = {}
        self.stack = ExitStack()
        self.mount: Mounted
        self.steps_of_this_daemon = 0
        self.is_killed: bool | None = None
        """How the last daemon ended; None: none did."""

    @initialize()
    def begin(self) -> None:
        """Mount a new store."""
        self._mount()
        self.make_topic("orders")

    def _mount(self) -> None:
        self.mount = self.stack.enter_context(mounted(self.folder, store=self.folder / "store", config=CONFIG))
        self.steps_of_this_daemon = 0

    def teardown(self) -> None:
        """End cleanly; the store has to be without fault."""
        try:
            if hasattr(self, "mount"):
                self.stack.close()
                assert list(check_store(self.folder / "store")) == []
        finally:
            self.stack.close()
            shutil.rmtree(self.folder)

    def _settled(self) -> None:
        """Wait until retention has nothing more to remove, and remove the same messages from the model."""

        def at_rest() -> bool:
            stats = self.mount.status()["stats"]
            return bool(stats["physical_end"] - stats["min_physical_offset"] <= MAX_BYTES)

        until("retention has done its work", at_rest)
        while (status := self.mount.status()) != (again := self.mount.status()):
            if status["topics"] == again["topics"]:
                break
        for topic, queues in self.topics.items():
            shown = again["topics"][topic]["queues"]
            assert {int(queue) for queue in shown} == set(range(len(queues)))
            for number, queue in enumerate(queues):
                assert shown[str(number)]["max_offset"] == queue.end
                queue.expire(shown[str(number)]["min_offset"])

    def _queue(self, topic: str, number: int) -> tuple[Path, Queue | None]:
        queues = self.topics.get(topic, [])
        return self.mount.root / topic / str(number), queues[number] if number < len(queues) else None

    # publishing

    @rule(topic=TOPICS, number=QUEUES, lines=LINES, rest=st.booleans(), cuts=CUTS)
    def publish_lines(self, topic: str, number: int, lines: list[bytes], rest: bool, cuts: list[int]) -> None:
        """Lines to a queue, cut into writes anywhere, the last one perhaps unterminated."""
        path, queue = self._queue(topic, number)
        text = b"\n".join(lines) + (b"" if rest else b"\n")
        if self._written(path / "append", queue is not None, pieces(text, cuts)) and queue is not None:
            queue.bodies += lines

    @rule(topic=TOPICS, lines=LINES)
    def publish_to_topic(self, topic: str, lines: list[bytes]) -> None:
        """Lines to a topic: its queues take turns, beginning with one of them."""
        queues = self.topics.get(topic)
        text = b"".join(line + b"\n" for line in lines)
        if not self._written(self.mount.root / topic / "append", queues is not None, [text]) or not queues or not lines:
            return
        shown = self.mount.status()["topics"][topic]["queues"]
        gained = [shown[str(number)]["max_offset"] - queue.end for number, queue in enumerate(queues)]
        starts = [s for s in range(len(queues)) if gained == dealt(len(lines), len(queues), s)]
        assert starts, f"{len(lines)} lines were dealt as {gained}"
        for start in starts:
            tails = [lines[(number - start) % len(queues) :: len(queues)] for number in range(len(queues))]
            if all(self._ends_with(topic, number, tail) for number, tail in enumerate(tails)):
                for queue, tail in zip(queues, tails, strict=True):
                    queue.bodies += tail
                return
        raise AssertionError("the lines are not in the queues' order")

    def _ends_with(self, topic: str, number: int, tail: list[bytes]) -> bool:
        end = self.topics[topic][number].end
        folder = self.mount.root / topic / str(number)
        return all((folder / str(end + index)).read_bytes() == body for index, body in enumerate(tail))

    @rule(topic=TOPICS, number=QUEUES, body=BODIES, frame=st.sampled_from(["file", "write"]), key=KEYS, cuts=CUTS)
    def publish_one(self, topic: str, number: int, body: bytes, frame: str, key: str, cuts: list[int]) -> None:
        """One message with a key, as a file in pieces or as one write."""
        path, queue = self._queue(topic, number)
        name = f"append@frame={frame},keys={encoded(key)}"
        parts = [body] if frame == "write" else pieces(body, cuts)
        if self._written(path / name, queue is not None, parts) and queue is not None:
            self.keyed.setdefault(topic, []).append(Keyed(key, number, queue.end))
            queue.bodies.append(body)

    @rule(topic=TOPICS, number=QUEUES, texts=st.lists(TEXTS, min_size=1, max_size=4), key=KEYS)
    def publish_json(self, topic: str, number: int, texts: list[str], key: str) -> None:
        """JSON lines with a key each."""
        path, queue = self._queue(topic, number)
        text = b"".join(json.dumps({"body": one, "keys": [key]}).encode() + b"\n" for one in texts)
        if self._written(path / "append@format=json", queue is not None, [text]) and queue is not None:
            for one in texts:
                self.keyed.setdefault(topic, []).append(Keyed(key, number, queue.end))
                queue.bodies.append(one.encode())

    @rule(topic=TOPICS, number=QUEUES, seed=st.integers(0, 1 << 32))
    def attack(self, topic: str, number: int, seed: int) -> None:
        """A hostile publisher: its messages are stored as any other, or refused."""
        path, queue = self._queue(topic, number)
        if queue is None:
            return
        victims = [VictimsQueue(topic, other) for other in range(len(self.topics[topic]))]
        now_ms = int(time.time() * 1_000)
        sight = Sight.of_status(self.mount.status(), SIZES["commit_log_bytes"], victims, now_ms)
        attack = Attacker(random.Random(seed), topic, victims).attack(sight)
        if any("DELAY" in message.properties for message in attack.messages):
            return  # it would not be in this topic
        self.counts["attacks"] += 1
        try:
            publish(path / "append@format=json", attack.json_lines())
        except OSError as error:
            if error.errno not in REFUSED:
                raise
        else:
            queue.bodies += [bytes(message.body) for message in attack.messages]

    @rule(topic=TOPICS, number=QUEUES)
    def publish_much(self, topic: str, number: int) -> None:
        """So much that retention has something to do."""
        path, queue = self._queue(topic, number)
        lines = [b"%d %s" % (index, b"much" * 250) for index in range(60)]
        if self._written(path / "append", queue is not None, [b"\n".join(lines)]) and queue is not None:
            queue.bodies += lines

    def _written(self, path: Path, exists: bool, parts: list[bytes]) -> bool:
        self.counts["publishings"] += 1
        if not exists:
            assert refused_with(os.open, path, os.O_WRONLY | os.O_APPEND) == errno.ENOENT
            return False
        fd = os.open(path, os.O_WRONLY | os.O_APPEND)
        try:
            for part in parts:
                assert os.write(fd, part) == len(part)
        finally:
            os.close(fd)
        return True

    # reading

    @rule(topic=TOPICS, number=QUEUES, offset=st.integers(0, 300), digits=st.sampled_from([1, 5, 20]))
    def read_message(self, topic: str, number: int, offset: int, digits: int) -> None:
        """One message by its offset, in any spelling."""
        self._settled()
        self.counts["looks"] += 1
        path, queue = self._queue(topic, number)
        place = path / f"{offset:0{digits}d}"
        if queue is None or not queue.first <= offset < queue.end:
            assert refused_with(os.stat, place) == errno.ENOENT
            return
        body = queue.bodies[offset - queue.first]
        assert place.read_bytes() == body
        assert place.stat().st_size == len(body)

    @rule(topic=TOPICS)
    def read_topic(self, topic: str) -> None:
        """A topic's stream: its size and all bytes of its messages, in any order."""
        self._settled()
        path = self.mount.root / f"{topic}.log"
        if topic not in self.topics:
            assert not path.exists()
            return
        text = path.read_bytes()
        expected = b"".join(body + b"\n" for queue in self.topics[topic] for body in queue.bodies)
        assert path.stat().st_size == len(text) == len(expected)
        assert sorted(text) == sorted(expected)

    @rule(topic=TOPICS, number=QUEUES, start=st.integers(0, 5_000), length=st.integers(0, 5_000))
    def read_stream(self, topic: str, number: int, start: int, length: int) -> None:
        """A queue's stream: its size, all of it, any part of it."""
        self._settled()
        self.counts["looks"] += 1
        path, queue = self._queue(topic, number)
        stream = path.with_name(f"{number}.log")
        if queue is None:
            assert refused_with(os.stat, stream) == errno.ENOENT
            return
        text = b"".join(body + b"\n" for body in queue.bodies)
        assert stream.stat().st_size == len(text)
        assert stream.read_bytes() == text
        with stream.open("rb") as file:
            assert os.pread(file.fileno(), length, start) == text[start : start + length]

    @rule(topic=TOPICS, number=QUEUES)
    def list_queue(self, topic: str, number: int) -> None:
        """Names of a queue, and its links."""
        self._settled()
        self.counts["looks"] += 1
        path, queue = self._queue(topic, number)
        if queue is None:
            assert refused_with(os.listdir, path) == errno.ENOENT
            return
        assert offset_names(path) == [f"{offset:020d}" for offset in range(queue.first, queue.end)]
        for link, offset in (("@first", queue.first), ("@last", queue.end - 1)):
            if queue.bodies:
                assert (path / link).readlink().name == f"{offset:020d}"
            else:
                assert refused_with(os.readlink, path / link) == errno.ENOENT

    @rule()
    def list_topics(self) -> None:
        """Names of the root and of each topic."""
        shown = [*self.topics, *(f"{topic}.log" for topic in self.topics)]
        assert sorted(name for name in os.listdir(self.mount.root) if name[0] != "@") == sorted(shown)
        for topic, queues in self.topics.items():
            names = [str(number) for number in range(len(queues))]
            expected = ["append", "drop", "keys", *names, *(f"{name}.log" for name in names)]
            assert sorted(os.listdir(self.mount.root / topic)) == sorted(expected)

    @rule(topic=TOPICS, key=KEYS)
    def follow_key(self, topic: str, key: str) -> None:
        """A key leads to its newest message, `@all` to each."""
        self._settled()
        self.counts["looks"] += 1
        folder = self.mount.root / topic / "keys"
        found = [one for one in self.keyed.get(topic, []) if one.key == key and self._is_there(topic, one)]
        link = folder / encoded(key)
        if not found:
            assert refused_with(os.readlink, link) == errno.ENOENT
            return
        newest = found[-1]
        assert os.readlink(link) == f"../{newest.queue}/{newest.offset:020d}"
        queue = self.topics[topic][newest.queue]
        assert link.read_bytes() == queue.bodies[newest.offset - queue.first]
        shown = os.listdir(folder / f"{encoded(key)}@all")
        assert sorted(os.readlink(folder / f"{encoded(key)}@all" / name) for name in shown) == sorted(
            f"../../{one.queue}/{one.offset:020d}" for one in found
        )

    def _is_there(self, topic: str, one: Keyed) -> bool:
        return one.offset >= self.topics[topic][one.queue].first

    # topics, and refused operations

    @rule(topic=TOPICS)
    def make_topic(self, topic: str) -> None:
        """mkdir of a topic."""
        path = self.mount.root / topic
        if topic in self.topics:
            assert refused_with(path.mkdir) == errno.EEXIST
            return
        path.mkdir()
        self.topics[topic] = [Queue() for _ in range(MKDIR_QUEUES)]

    @rule(topic=TOPICS, number=QUEUES)
    def grow_topic(self, topic: str, number: int) -> None:
        """mkdir of a queue."""
        path, queue = self._queue(topic, number)
        if topic not in self.topics or queue is not None:
            assert refused_with(path.mkdir) == (errno.EEXIST if topic in self.topics else errno.ENOENT)
            return
        path.mkdir()
        self.topics[topic] += [Queue() for _ in range(number + 1 - len(self.topics[topic]))]

    @rule(number=QUEUES)
    def attempt_what_is_refused(self, number: int) -> None:
        """Nothing but publishing and mkdir changes the tree."""
        self._settled()
        self.counts["looks"] += 1
        topic = self.mount.root / "orders"
        path, queue = self._queue("orders", number)
        attempts: list[tuple[Any, ...]] = [
            (os.rename, topic, self.mount.root / "other"),
            (os.rmdir, topic),
            (os.unlink, topic / "0.log"),
            (os.symlink, "x", topic / "link"),
            (os.open, topic / "new", os.O_WRONLY | os.O_CREAT),
        ]
        if queue is not None and queue.bodies:
            message = path / f"{queue.end - 1:020d}"
            attempts += [
                (os.rename, message, path / f"{queue.end:020d}"),
                (os.unlink, message),
                (os.truncate, message, 0),
                (os.chmod, message, 0o777),
                (os.open, message, os.O_WRONLY),
                (os.link, message, path / "linked"),
            ]
        for use, *arguments in attempts:
            found = refused_with(use, *arguments)
            assert found == errno.EPERM, f"{use.__name__}: {errno.errorcode.get(found, found)}"

    # lives of the daemon

    @precondition(lambda machine: machine.steps_of_this_daemon >= STEPS_A_LIFE)
    @rule(first=st.booleans())
    def end_and_mount_again(self, first: bool) -> None:
        """The daemon ends as it should, or is killed, in turn from the `first` on; the next one serves the same."""
        self.is_killed = first if self.is_killed is None else not self.is_killed
        self.counts["kills" if self.is_killed else "clean ends"] += 1
        if self.is_killed:
            self.mount.kill()
        self.stack.close()
        self._mount()

    @invariant()
    def count(self) -> None:
        """Figures."""
        self.counts["steps"] += 1
        self.steps_of_this_daemon += 1


def pieces(text: bytes, cuts: list[int]) -> list[bytes]:
    """`text` cut at these places (modulo its length), without empty pieces."""
    places = sorted({0, len(text), *(cut % (len(text) + 1) for cut in cuts)})
    return [text[start:end] for start, end in pairwise(places)]


def dealt(count: int, queues: int, start: int) -> list[int]:
    """How many messages each queue gets when they take turns from queue `start` on."""
    return [len(range((number - start) % queues, count, queues)) for number in range(queues)]


def encoded(key: str) -> str:
    """A key as it is spelt in names."""
    return key.replace("%", "%25").replace("@", "%40")


def compare(examples: int, steps: int) -> Counter[str]:
    """Run the machine; the figures."""
    MountedStore.counts = Counter()
    run_state_machine_as_test(
        MountedStore,
        settings=settings(settings.get_profile("fsstore"), max_examples=examples, stateful_step_count=steps),
    )
    return MountedStore.counts


def main() -> int:
    """The long form."""
    import tests.conftest  # noqa: F401 (the profile)

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--examples", type=int, default=200)
    parser.add_argument("--steps", type=int, default=60)
    chosen = parser.parse_args()
    began = time.monotonic()
    counts = compare(chosen.examples, chosen.steps)
    keep(
        "mountmodel",
        {"examples": chosen.examples, **counts, "findings": [], "seconds": round(time.monotonic() - began)},
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
