"""The store against a plain dict: put, batch, lines, attacks, flush, close, crash, lost files, read-only looks, in any
order."""

from __future__ import annotations

import random
import shutil
import tempfile
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from engine import Message, MessageStore, OpenMode, StoreConfig, TopicError, WriteError, check_store
from tests.durability.attacks import Attacker, Queue, Sight
from tests.engine.storetools import SMALL, require_clean

TOPICS = ("a", "b")
QUEUES = 2
HOSTILE = "hostile"

topics = st.sampled_from(TOPICS)
queues = st.integers(0, QUEUES - 1)
bodies = st.binary(max_size=300)
lines = st.lists(st.binary(min_size=1, max_size=300).filter(lambda line: b"\n" not in line), max_size=80)
keys = st.lists(st.sampled_from(["k0", "k1", "k2"]), max_size=2, unique=True)

Stored = tuple[bytes, tuple[str, ...]]
"""Body and keys."""


class StoreMachine(RuleBasedStateMachine):
    """`model` has the messages of every queue; `order` the keyed messages in the order of the log."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(prefix="fsstore-machine-"))
        self.generation = 0
        self.model: dict[tuple[str, int], list[Stored]] = {
            (topic, queue): [] for topic in TOPICS for queue in range(QUEUES)
        }
        self.order: list[tuple[str, int, int, tuple[str, ...]]] = []
        self.store = MessageStore.open(self.path, self.config, create=True)

    @property
    def path(self) -> Path:
        return self.folder / str(self.generation)

    config: StoreConfig = replace(SMALL, multi_dispatch=False)

    def teardown(self) -> None:
        require_clean(self.store.check())
        self.store.close()
        require_clean(check_store(self.path))
        shutil.rmtree(self.folder)

    @initialize()
    def make_topics(self) -> None:
        for topic in TOPICS:
            self.store.create_topic(topic, QUEUES)

    def _note(self, topic: str, queue: int, stored: Stored) -> None:
        self.order.append((topic, queue, len(self.model[topic, queue]), stored[1]))
        self.model[topic, queue].append(stored)

    @rule(topic=topics, queue=queues, body=bodies, keys=keys)
    def put(self, topic: str, queue: int, body: bytes, keys: list[str]) -> None:
        put = self.store.put(Message(topic, body, keys), queue)
        assert put.queue_offset == len(self.model[topic, queue])
        self._note(topic, queue, (body, tuple(keys)))

    @rule(topic=topics, queue=queues, parts=st.lists(st.tuples(bodies, keys), max_size=20))
    def put_batch(self, topic: str, queue: int, parts: list[tuple[bytes, list[str]]]) -> None:
        put = self.store.put_batch([Message(topic, body, keys) for body, keys in parts], queue)
        assert put.count == len(parts)
        assert not parts or put.queue_offset == len(self.model[topic, queue])
        for body, keys in parts:
            self._note(topic, queue, (body, tuple(keys)))

    @rule(topic=topics, queue=queues | st.none(), lines=lines, keys=keys)
    def put_lines(self, topic: str, queue: int | None, lines: list[bytes], keys: list[str]) -> None:
        put = self.store.put_lines(topic, b"".join(line + b"\n" for line in lines), queue, keys=keys)
        assert put.count == len(lines)
        for row, line in enumerate(lines):
            self._note(topic, (put.queue + row) % QUEUES if queue is None else queue, (line, tuple(keys)))

    @rule(seed=st.integers(0, 1 << 32))
    def attack(self, seed: int) -> None:
        """A hostile publisher, to a topic of his own: taken or refused, it costs the others nothing."""
        victims = [Queue(topic, queue) for topic in TOPICS for queue in range(QUEUES)]
        sight = Sight.of(self.store, victims, int(time.time() * 1_000))
        with suppress(WriteError, TopicError):
            self.store.put_batch(Attacker(random.Random(seed), HOSTILE, victims).attack(sight).messages, 0)

    @rule()
    def flush(self) -> None:
        self.store.flush()
        assert self.store.durable_end == self.store.physical_end

    @rule()
    def close_and_open(self) -> None:
        self.store.close()
        self.store = MessageStore.open(self.path, self.config)
        assert self.store.recovery.clean

    @rule(bare=st.booleans())
    def die(self, bare: bool) -> None:
        """The process dies: its files are opened. `bare`: without the marks that make the opening quick."""
        left = self.path
        self.generation += 1
        shutil.copytree(left, self.path)
        self.store.close()
        shutil.rmtree(left)
        if bare:
            shutil.rmtree(self.path / "fsstore", ignore_errors=True)
        self.store = MessageStore.open(self.path, self.config)
        assert not self.store.recovery.clean

    @rule(names=st.sets(st.sampled_from(["consumequeue", "index", "fsstore", "checkpoint"]), min_size=1))
    def lose_what_is_derived(self, names: set[str]) -> None:
        self.store.close()
        for name in names:
            shutil.rmtree(self.path / name, ignore_errors=True)
            if (self.path / name).is_file():
                (self.path / name).unlink()
        self.store = MessageStore.open(self.path, self.config)

    @precondition(lambda self: self.order)
    @rule(mode=st.sampled_from([OpenMode.READ_ONLY, OpenMode.FOLLOW]))
    def look_from_outside(self, mode: OpenMode) -> None:
        """A follower beside the writer, or a reader of a dead writer's store, sees the same."""
        place = self.path
        if mode is OpenMode.READ_ONLY:
            place = self.folder / "look"
            shutil.copytree(self.path, place)
        with MessageStore.open(place, replace(self.config, mode=mode)) as seen:
            self.require_model(seen)
        shutil.rmtree(self.folder / "look", ignore_errors=True)

    @invariant()
    def holds_the_model(self) -> None:
        self.require_model(self.store)

    def require_model(self, store: MessageStore) -> None:
        for (topic, queue), stored in self.model.items():
            if not store.has_queue(topic, queue):
                assert not stored
                continue
            bounds = store.bounds(topic, queue)
            assert (bounds.min_offset, bounds.max_offset) == (0, len(stored))
            found = [(bytes(one.body), tuple(one.keys)) for one in store.read(topic, queue, 0)]
            assert found == stored
            stream = store.stream(topic, queue)
            text = b"".join(body + b"\n" for body, _ in stored)
            assert stream.size == len(text)
            assert bytes(stream.read(0, len(text) + 1)) == text
        for topic in TOPICS:
            for key in ("k0", "k1", "k2"):
                expected = [place[1:3] for place in self.order if place[0] == topic and key in place[3]]
                if store.has_queue(topic, 0) and not self._index_lags(store):
                    hits = [(one.queue, one.queue_offset) for one in store.query(topic, key, 10_000)]
                    assert hits == expected[::-1]

    @staticmethod
    def _index_lags(store: MessageStore) -> bool:
        """A follower sees keys when their writer has brought them from its memory into the index's files."""
        return store.mode is OpenMode.FOLLOW


class PooledMachine(StoreMachine):
    """The same through a transient pool: everything is committed before anyone looks."""

    config = replace(SMALL, multi_dispatch=False, transient_pool_buffers=3)

    @invariant()
    def holds_the_model(self) -> None:
        self.store.flush()
        self.require_model(self.store)


limits = settings(max_examples=25, stateful_step_count=20)
TestStoreMachine = StoreMachine.TestCase
TestStoreMachine.settings = limits
TestPooledMachine = PooledMachine.TestCase
TestPooledMachine.settings = limits
