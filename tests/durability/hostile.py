"""A hostile publisher beside an ordinary one, thousands of cases: the other's acknowledged messages stay stored.

    python -m tests.durability.hostile [--cases 10000] [--seed 1]

In a case a victim and a hostile publisher (tests/durability/attacks.py) share a small store. Then the store ends: it is
closed, killed, or its power fails after the durable end. The remaining files are unchanged, copied, or without marks
and derived files; a record may be damaged. Each acknowledged message has to be at its queue offset, equal, and found by
its keys; no message may be shown that was not sent there; the store opens, takes messages and checks clean.
"""

from __future__ import annotations

import os
import random
import shutil
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path

from engine import (
    FileSizes,
    IllegalMessageError,
    Message,
    MessageStore,
    OpenMode,
    PutRange,
    ReadError,
    StoreConfig,
    StoredMessage,
    StoreError,
    TopicError,
    WriteError,
    check_store,
    repair_store,
)
from engine.log.delay import SCHEDULE_TOPIC
from engine.record.header import BLANK_BYTES, TRANSACTION_MASK
from engine.record.multi_dispatch import MULTI_DISPATCH, queue_names
from engine.record.record import SECTOR_BYTES
from fsstore.tree.json_messages import parse_json_lines
from fsstore.tree.names import AppendOptions
from tests.durability.attacks import MALFORMED_LINES, Attacker, Queue, Sight
from tests.durability.bodies import body_of
from tests.durability.cases import CaseTally, HangError, Tell, main, no_progress, run_cases
from tests.durability.reached import Reached
from tests.engine.light_queues import put_as_broker
from tests.engine.storetools import QUIET, HastyDisk, letting_forgeries_in

SIZES = FileSizes(commit_log_bytes=16_384, consume_queue_entries=32, index_slots=17, index_entries=96)
MAX_MESSAGE_BYTES = 12_000
VICTIMS = (Queue("ordersBB", 0), Queue("ordersBB", 1), Queue("events", 0))
OWN_TOPIC = "ordersAa"
"""The hostile publisher's. In Java "Aa" and "BB" have one hash, and so have equal keys in both topics."""

KEYS = ("K0", "K1", "K2")
ENDS = ("closed", "killed", "torn")
TRACES = ("as left", "as left", "copied", "bare", "log alone")
"""Files that remain besides the log: all; all with new times; all but marks and checkpoint; settings alone."""
LOOKS = ("write", "write", "read", "repair")
REFUSED = "a hostile message that was refused"
FURTHER = "a hostile message in further queues"

Place = tuple[str, int, int]
"""Topic, queue, queue offset."""

Damage = Callable[[bytes, int, int, int, random.Random], bytes]
"""A file with damage in it, made from its content, start, end and body size of the record that is hit, and chance."""


@dataclass(frozen=True, slots=True)
class Sent:
    """An acknowledged message: its fields, and the physical offset of its record."""

    stored_body: bytes
    keys: tuple[str, ...]
    start: int
    end: int
    is_hostile: bool


@dataclass
class Account:
    """What both publishers sent: `places` were acknowledged there, `sent` are bodies that may be found in a topic."""

    places: dict[Place, Sent] = field(default_factory=dict)
    sent: dict[str, set[bytes]] = field(default_factory=lambda: defaultdict(set))

    def ends(self) -> dict[tuple[str, int], int]:
        """The queue offset behind the last acknowledged message of each queue."""
        found: dict[tuple[str, int], int] = {}
        for topic, queue, queue_offset in self.places:
            found[topic, queue] = max(found.get((topic, queue), 0), queue_offset + 1)
        return found


# damage to the record at [start, end) of a file


def _flipped(content: bytes, position: int, chance: random.Random) -> bytes:
    return b"".join(
        (content[:position], bytes((content[position] ^ 1 << chance.randrange(8),)), content[position + 1 :])
    )


def flip_in_head(content: bytes, start: int, end: int, body_bytes: int, chance: random.Random) -> bytes:
    """A bit of size, magic, CRC, queue, numbers or body size."""
    return _flipped(content, start + chance.choice((*range(8), 9, 10, 14, *range(20, 36), *range(84, 88))), chance)


def flip_in_body(content: bytes, start: int, end: int, body_bytes: int, chance: random.Random) -> bytes:
    """A bit of the body."""
    return _flipped(content, start + 88 + chance.randrange(max(body_bytes, 1)), chance)


def flip_in_tail(content: bytes, start: int, end: int, body_bytes: int, chance: random.Random) -> bytes:
    """A bit of the sizes behind the body, or of the topic."""
    return _flipped(content, start + 88 + body_bytes + chance.choice((0, 1, 5)), chance)


def flip_in_place(content: bytes, start: int, end: int, body_bytes: int, chance: random.Random) -> bytes:
    """A bit of the queue id or the topic, which no checksum covers."""
    return _flipped(content, start + chance.choice((14, 15, 15, 88 + body_bytes + 1 + chance.randrange(4))), chance)


def zero_head(content: bytes, start: int, end: int, body_bytes: int, chance: random.Random) -> bytes:
    """The first bytes are zeros: the record was never published."""
    size = chance.choice((BLANK_BYTES, 88))
    return content[:start] + bytes(size) + content[start + size :]


def zero_sectors(content: bytes, start: int, end: int, body_bytes: int, chance: random.Random) -> bytes:
    """A sector or more that the record has a part of."""
    first = chance.randrange(start, end) // SECTOR_BYTES * SECTOR_BYTES
    last = min(first + SECTOR_BYTES * chance.choice((1, 1, 8)), len(content))
    return content[:first] + bytes(last - first) + content[last:]


def cut(content: bytes, start: int, end: int, body_bytes: int, chance: random.Random) -> bytes:
    """The file ends in the record; not before its first byte, as if it were missing."""
    return content[: max(chance.randrange(start, end), 1)]


def gone(content: bytes, start: int, end: int, body_bytes: int, chance: random.Random) -> bytes:
    """The file is missing."""
    return b""


DAMAGES: tuple[Damage, ...] = (
    flip_in_head,
    flip_in_head,
    flip_in_body,
    flip_in_tail,
    flip_in_place,
    zero_head,
    zero_sectors,
    cut,
    gone,
)


@dataclass
class Tally(CaseTally):
    """Counts of cases, and the findings."""

    ends: Counter[str] = field(default_factory=Counter)
    traces: Counter[str] = field(default_factory=Counter)
    damages: Counter[str] = field(default_factory=Counter)
    looks: Counter[str] = field(default_factory=Counter)
    victim_messages: int = 0
    hostile_messages: int = 0
    hostile_messages_refused: int = 0
    messages_required: int = 0
    damaged_messages_refused: int = 0
    in_further_queues: int = 0
    forged: int = 0

    def missed(self) -> list[str]:
        """Possible events that no case had."""
        damages = [damage.__name__ for damage in DAMAGES]
        wanted = ((ENDS, self.ends), (TRACES, self.traces), (LOOKS, self.looks), (damages, self.damages))
        reached = Reached(REFUSED, FURTHER, *(name for names, _ in wanted for name in names))
        reached.note(REFUSED, self.hostile_messages_refused)
        reached.note(FURTHER, self.in_further_queues)
        for _, times in wanted:
            for name in times:
                reached.note(name, times[name])
        return reached.missed()


class Case:
    """One store, its two publishers, its end, and the checks after it."""

    def __init__(self, folder: Path, chance: random.Random, tally: Tally) -> None:
        self._folder = folder
        self._random = chance
        self._tally = tally
        self._attacker = Attacker(random.Random(chance.random()), OWN_TOPIC, VICTIMS)
        self._config = StoreConfig(
            sizes=SIZES,
            flush=QUIET,
            preallocate=False,
            disk=HastyDisk(),
            max_message_bytes=MAX_MESSAGE_BYTES,
            multi_dispatch=chance.random() < 0.3,
            default_queues=2,
        )
        self._account = Account()
        self._number = 0
        self._lives = 0
        self._durable_end = 0
        self._unhurt = True
        self._is_comparable = self._is_shared_known = True
        self._numbers_stay = True
        self._excused: set[Place] = set()
        self._adrift: set[bytes] = set()
        """Bodies of damaged records: no checksum covers a record's topic and queue, so they may show elsewhere."""
        self._hurt_starts: set[int] = set()
        self._keyless: set[int] = set()
        """Damaged records: their messages may be shown, by their entries, and be under no key before a repair."""
        self._is_whole_or_absent = False
        self._wrong: list[str] = []
        self.done: list[str] = []

    @property
    def _path(self) -> Path:
        return self._folder / str(self._lives)

    def run(self) -> list[str]:
        """Publish, end and check; returns the broken promises."""
        try:
            end, trace = self._random.choice(ENDS), self._random.choice(TRACES)
            # a broker accepts messages that we refuse; only files beside the log tell them from records
            as_broker = trace != "log alone" and self._random.random() < 0.5
            with letting_forgeries_in() if as_broker else nullcontext():
                self._publish(closed=end == "closed")
            self.done.append("as a broker lets it in" if as_broker else "as we let it in")
            self._leave(end, trace)
            self._look()
        except HangError:
            self._wrong.append("it hangs")
        except Exception as error:  # any error is a finding, and the next case is to be tried
            self._wrong.append(f"{type(error).__name__}: {str(error)[:300]}")
        return self._wrong[:5]

    # publishing

    def _publish(self, *, closed: bool) -> None:
        acts = (self._put, self._put_batch, self._put_lines, self._attack, self._attack, self._attack, self._flush)
        store = self._open()
        for topic, queues in ((VICTIMS[0].topic, 2), (VICTIMS[2].topic, 1), (OWN_TOPIC, 1)):
            store.create_topic(topic, queues)
        for _ in range(self._random.choice((3, 6, 12, 20))):
            if store.read_only_reason is None:
                self._random.choice(acts)(store)
            if self._random.random() < 0.05:
                store = self._open_again(store, killed=self._random.random() < 0.5)
        if self._random.random() < 0.5 and store.read_only_reason is None:
            self._put(store)
        self._durable_end = store.durable_end
        if closed:
            store.close()
        else:
            self._kill(store)

    def _open(self) -> MessageStore:
        return MessageStore.open(self._path, self._config, create=True)

    def _open_again(self, store: MessageStore, *, killed: bool) -> MessageStore:
        self.done.append("killed" if killed else "closed")
        if killed:
            self._kill(store)
        else:
            store.close()
        return self._open()

    def _kill(self, store: MessageStore) -> None:
        """The process dies: the files it left are the store from now on."""
        left = self._path
        self._lives += 1
        shutil.copytree(left, self._path)
        store.close()
        shutil.rmtree(left)

    def _flush(self, store: MessageStore) -> None:
        self.done.append("flush")
        store.flush()

    def _victims_message(self, topic: str) -> Message:
        self._number += 1
        size = self._random.choice((30, 90, 300, 700, 3_000))
        keys = self._random.sample(KEYS, self._random.randrange(3))
        return Message(topic, body_of(0, self._number, size), keys, tags=self._random.choice(("", "T")))

    def _put(self, store: MessageStore) -> None:
        topic, queue = self._random.choice(VICTIMS)
        message = self._victims_message(topic)
        put = store.put(message, queue)
        self._note(store, put.topic, put.queue, put.queue_offset, [message])
        self.done.append(f"put {topic}/{queue}/{put.queue_offset} at {put.physical_offset}")

    def _put_batch(self, store: MessageStore) -> None:
        topic, queue = self._random.choice(VICTIMS)
        messages = [self._victims_message(topic) for _ in range(self._random.randrange(1, 7))]
        self._note_range(store, store.put_batch(messages, queue), messages)

    def _put_lines(self, store: MessageStore) -> None:
        topic, queue = self._random.choice(VICTIMS)
        self._number += 20
        messages = [Message(topic, body_of(0, self._number - row, 60), ["K0"]) for row in range(10)]
        text = b"".join(bytes(message.body) + b"\n" for message in messages)
        self._note_range(store, store.put_lines(topic, text, queue, keys=["K0"]), messages)

    def _note_range(self, store: MessageStore, put: PutRange, messages: Sequence[Message]) -> None:
        self._note(store, put.topic, put.queue, put.queue_offset, messages)
        what = f"put {put.count} {put.topic}/{put.queue}/{put.queue_offset} at {put.physical_offset}"
        self.done.append(what)

    def _note(
        self,
        store: MessageStore,
        topic: str,
        queue: int,
        first: int,
        messages: Sequence[Message],
        is_hostile: bool = False,
    ) -> None:
        """Note acknowledged messages, which must be readable at once."""
        self._tally.victim_messages += 0 if is_hostile else len(messages)
        for queue_offset, message in enumerate(messages, first):
            place = (topic, queue, queue_offset)
            if place in self._account.places and (place not in self._excused or self._numbers_stay):
                self._wrong.append(f"{place} was given twice")
            self._excused.discard(place)
            body, keys = bytes(message.body), tuple(message.keys)
            try:
                found = store.get(*place)
            except ReadError as error:
                self._wrong.append(f"{place} was acknowledged, and can't be read: {error}")
                continue
            sent = Sent(body, keys, found.physical_offset, found.physical_offset + found.store_size, is_hostile)
            self._account.places[place] = sent
            self._account.sent[topic].add(body)
            self._require_equal(place, found, sent)

    # attacking

    def _attack(self, store: MessageStore) -> None:
        acts = [self._send_api, self._send_api, self._send_json, self._send_malformed, self._send_elsewhere]
        if self._config.multi_dispatch:
            acts.append(self._send_as_broker)
        try:
            self._random.choice(acts)(store)
        except (WriteError, TopicError) as error:
            self._tally.hostile_messages_refused += 1
            self.done.append(f"refused: {str(error)[:60]}")
        except StoreError as error:
            self._wrong.append(f"an attack raised {type(error).__name__}: {error}")
        if store.read_only_reason is not None:
            self._wrong.append(f"nobody can publish any more: {store.read_only_reason}")

    def _sight(self, store: MessageStore) -> Sight:
        return Sight.of(store, VICTIMS, int(time.time() * 1_000))

    def _send_api(self, store: MessageStore) -> None:
        """As the engine's API takes it."""
        attack = self._attacker.attack(self._sight(store))
        messages = attack.messages
        if self._random.random() < 0.3:
            messages = [self._attacker.in_another_guise(messages[0], int(time.time() * 1_000))]
        self.done.append(f"attack at {store.physical_end}: {attack.what}")
        if len(messages) == 1:
            put = store.put(messages[0], 0)
            self._note_hostile(store, put.queue_offset, messages)
        else:
            self._note_hostile(store, store.put_batch(messages, 0).queue_offset, messages)

    def _send_as_broker(self, store: MessageStore) -> None:
        """Into the victims' queues, too, as a broker that multi-dispatches does it: a put of ours refuses that."""
        attack = self._attacker.attack(self._sight(store))
        names = ",".join(self._random.sample([VICTIMS[0].topic, VICTIMS[2].topic], self._random.choice((1, 2))))
        message = Message(OWN_TOPIC, attack.messages[0].body, properties={MULTI_DISPATCH: names})
        self.done.append(f"attack on further queues {names} at {store.physical_end}: {attack.what}")
        self._note_hostile(store, put_as_broker(store, message, 0).queue_offset, [message])
        self._tally.in_further_queues += 1

    def _send_json(self, store: MessageStore) -> None:
        """As append@format=json takes it."""
        attack = self._attacker.attack(self._sight(store))
        self.done.append(f"attack in JSON at {store.physical_end}: {attack.what}")
        lines = attack.json_lines().splitlines(keepends=True)
        messages = parse_json_lines(OWN_TOPIC, lines, AppendOptions())
        self._note_hostile(store, store.put_batch(messages, 0).queue_offset, messages)

    def _send_malformed(self, store: MessageStore) -> None:
        """JSON that append@format=json has to refuse, after a good line."""
        line = self._random.choice(MALFORMED_LINES)
        end = store.physical_end
        self.done.append(f"malformed {line[:40]!r}")
        try:
            messages = parse_json_lines(OWN_TOPIC, [b'{"body":"right"}\n', line + b"\n"], AppendOptions())
            store.put_batch(messages, 0)
        except IllegalMessageError:
            if store.physical_end != end:
                self._wrong.append(f"a line of {line[:40]!r} was refused, and stored something")
        else:
            self._wrong.append(f"{line[:40]!r} was taken for a message")

    def _send_elsewhere(self, store: MessageStore) -> None:
        """To a topic of a strange name, or to the victim's own queue."""
        attack = self._attacker.attack(self._sight(store))
        topic = self._attacker.strange_topic() if self._random.random() < 0.5 else VICTIMS[0].topic
        self.done.append(f"attack on {topic!r} at {store.physical_end}: {attack.what}")
        message = Message(topic, attack.messages[0].body, properties={})
        self._account.sent[topic]  # publishing to it may make it
        put = store.put(message, 0)
        self._note(store, put.topic, put.queue, put.queue_offset, [message], is_hostile=True)

    def _note_hostile(self, store: MessageStore, first: int, messages: Sequence[Message]) -> None:
        self._tally.hostile_messages += len(messages)
        if not any(_goes_astray(message) for message in messages):
            self._note(store, OWN_TOPIC, 0, first, messages, is_hostile=True)
            return
        for message in messages:
            further = queue_names(message.properties) if self._config.multi_dispatch else []
            for topic in (OWN_TOPIC, SCHEDULE_TOPIC, *further):
                self._account.sent[topic].add(bytes(message.body))

    # the end

    def _leave(self, end: str, trace: str) -> None:
        self.done += [end, trace]
        self._tally.ends[end] += 1
        self._tally.traces[trace] += 1
        if end == "torn":
            self._tear(trace)
        elif self._random.random() < 0.5:
            self._damage(end, trace)
        if trace in ("bare", "log alone"):
            shutil.rmtree(self._path / "fsstore")
            (self._path / "checkpoint").unlink(missing_ok=True)
        if trace == "log alone":
            shutil.rmtree(self._path / "consumequeue")
            shutil.rmtree(self._path / "index", ignore_errors=True)
        if trace == "copied":
            for path in self._path.rglob("*"):
                os.utime(path)

    def _tear(self, trace: str) -> None:
        """The power fails: each sector of data that is not durable is on disk, or not."""
        likely = self._random.choice((0.0, 0.5, 0.9))
        for path in sorted((self._path / "commitlog").iterdir()):
            content, start = bytearray(path.read_bytes()), int(path.name)
            for sector in range(0, len(content), SECTOR_BYTES):
                if start + sector >= self._durable_end and self._random.random() >= likely:
                    content[sector : sector + SECTOR_BYTES] = bytes(SECTOR_BYTES)
            path.write_bytes(content)
        self._unhurt = self._numbers_stay = False
        self._excused = {place for place, sent in self._account.places.items() if sent.end > self._durable_end}
        self._is_whole_or_absent = trace == "as left"  # else nothing tells that zeros in texts are ours
        if not self._is_whole_or_absent:
            self._hurt_starts = {self._account.places[place].start for place in self._excused}

    def _damage(self, end: str, trace: str) -> None:
        """Damage one record, usually a hostile one. Records that were surely on disk keep their queue offsets."""
        places = sorted(self._account.places.items(), key=lambda item: item[1].start)
        hostile = [one for one in places if one[1].is_hostile]
        if not places:
            return
        newest = list({place[:2]: (place, sent) for place, sent in places}.values())
        likely = newest if self._random.random() < 0.3 else hostile if self._random.random() < 0.8 else places
        _, sent = self._random.choice(likely or places)
        file_start = sent.start - sent.start % SIZES.commit_log_bytes
        path = self._path / "commitlog" / f"{file_start:020d}"
        if not path.exists():
            return
        hurt = self._random.choice([kind for kind in DAMAGES if self._may_come(kind, end, trace, path)])
        before, times = path.read_bytes(), path.stat()
        start = sent.start - file_start
        after = hurt(before, start, start + sent.end - sent.start, len(sent.stored_body), self._random)
        if hurt is gone:
            path.unlink()
        else:
            path.write_bytes(after)
        if hurt is not gone and self._random.random() < 0.7:
            os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
        self._tally.damages[hurt.__name__] += 1
        self.done.append(f"{hurt.__name__} of the record at {sent.start}")
        self._unhurt = False
        self._excused = set(self._touched(file_start, before, after))
        hurt_records = [self._account.places[place] for place in self._excused]
        self._adrift = {sent.stored_body for sent in hurt_records}
        self._hurt_starts = self._keyless = {sent.start for sent in hurt_records}
        was_durable = end == "closed" or all(sent.end <= self._durable_end for sent in hurt_records)
        is_told = trace == "as left" or (end == "closed" and trace != "log alone")
        self._numbers_stay = not self._excused or (was_durable and is_told)

    def _may_come(self, kind: Damage, end: str, trace: str, path: Path) -> bool:
        """Whether a store may be damaged so: where no queue is left, a batch without a head was never published; a log
        of which no file is left is refused."""
        if kind is zero_head:
            return (end, trace) != ("killed", "log alone")
        return kind is not gone or len(list(path.parent.iterdir())) > 1

    def _touched(self, file_start: int, before: bytes, after: bytes) -> Iterator[Place]:
        for place, sent in self._account.places.items():
            first, last = sent.start - file_start, sent.end - file_start
            if 0 <= first < len(before) and before[first:last] != after[first:last]:
                yield place

    # looking

    def _look(self) -> None:
        how = self._random.choice(LOOKS)
        self.done.append(how)
        self._tally.looks[how] += 1
        self._is_comparable = self._unhurt
        if how == "read":
            with MessageStore.open(self._path, replace(self._config, mode=OpenMode.READ_ONLY)) as store:
                self._require_all(store)
        if how == "repair":
            # nothing but queues tells a repair that multi-dispatch was on
            self._is_shared_known = not self._config.multi_dispatch or "log alone" not in self.done
            self._is_comparable = self._unhurt and self._is_shared_known
            list(repair_store(self._path))
            self._keyless = set()
            self._wrong += [f"repaired: {problem}" for problem in check_store(self._path)][:3]
        for _ in range(2):
            log = self._log_bytes()
            with self._open() as store:
                self._require_all(store)
                self._require_log(log)
                self._put(store)
                self._attack(store)
                if store.read_only_reason is None:
                    self._put(store)
                if self._is_comparable:
                    self._wrong += [f"open: {problem}" for problem in store.check()][:3]
            if self._is_comparable:
                self._wrong += [f"closed: {problem}" for problem in check_store(self._path)][:3]

    def _require_all(self, store: MessageStore) -> None:
        """All that was acknowledged is there, and nothing else."""
        account, right = self._account, set()
        known = {OWN_TOPIC, SCHEDULE_TOPIC, *account.sent, *(one.topic for one in VICTIMS)}
        for topic in store.topics():
            if topic not in known and not self._adrift:
                self._wrong.append(f"a topic {topic!r} that nobody published to")
            for queue in store.queues(topic):
                right |= set(self._right_places(store, topic, queue))
        required = account.places.keys() - self._excused
        self._tally.messages_required += len(required)
        self._tally.damaged_messages_refused += len(self._excused - right)
        if lost := required - right:
            self._tally.lost += len(lost)
            self._wrong.append(f"lost: {len(lost)}, the first {min(lost)} at {account.places[min(lost)].start}")
        if not self._numbers_stay:  # then others may stand there from now on
            for place in self._excused - right:
                del account.places[place]
            self._excused &= right
        self._require_keys(store, right)
        self._require_stream(store)

    def _right_places(self, store: MessageStore, topic: str, queue: int) -> Iterator[Place]:
        bounds = store.bounds(topic, queue)
        if bounds.count > 5_000:
            self._wrong.append(f"{topic}/{queue} has {bounds.count:,} messages")
            return
        if self._unhurt and bounds.max_offset < self._account.ends().get((topic, queue), 0):
            self._wrong.append(f"{topic}/{queue} ends at {bounds.max_offset}")
        for queue_offset in range(bounds.min_offset, bounds.max_offset):
            place = (topic, queue, queue_offset)
            try:
                found = store.get(*place)
            except ReadError as error:
                if self._unhurt and (place in self._account.places or self._is_shared_known):
                    self._wrong.append(f"{place}: {error}")
                continue
            sent = self._account.places.get(place)
            if sent is not None:
                if self._require_equal(place, found, sent):
                    yield place
            elif bytes(found.stored_body) not in self._account.sent[topic] | self._adrift:
                self._tally.forged += 1
                self._wrong.append(f"forged: {place} at {found.physical_offset}: {bytes(found.stored_body)[:30]!r}")

    def _require_equal(self, place: Place, found: StoredMessage, sent: Sent) -> bool:
        if bytes(found.stored_body) == sent.stored_body:
            if tuple(found.keys)[: len(sent.keys)] == sent.keys:
                return True
            if place in self._excused and not self._is_whole_or_absent:  # no checksum covers the properties
                return False
        self._wrong.append(f"{place} reads {bytes(found.stored_body)[:30]!r} {found.keys[:3]}")
        return False

    def _require_keys(self, store: MessageStore, right: set[Place]) -> None:
        """Each key leads to its messages, the newest first, and to no other; to a damaged one it may."""
        for topic in {one.topic for one in VICTIMS}:
            for key in KEYS:
                starts = [
                    sent.start
                    for place, sent in self._account.places.items()
                    if place in right and place[0] == topic and key in sent.keys
                ]
                found = [message.physical_offset for message in store.query(topic, key, limit=10_000)]
                found = [start for start in found if start not in self._hurt_starts or start in starts]
                starts = [start for start in starts if start not in self._keyless or start in found]
                if found != sorted(starts, reverse=True):
                    missing, more = sorted({*starts} - {*found}), sorted({*found} - {*starts})
                    self._wrong.append(f"key {topic}#{key} does not lead to {missing[:3]}, but to {more[:3]}")

    def _require_stream(self, store: MessageStore) -> None:
        """A stream shows the bodies, and nothing between them."""
        topic, queue = self._random.choice(VICTIMS)
        if not self._unhurt or self._config.multi_dispatch:
            return
        stream = store.stream(topic, queue)
        bodies = [
            sent.stored_body for place, sent in sorted(self._account.places.items()) if place[:2] == (topic, queue)
        ]
        if bytes(stream.read(0, stream.size)) != b"".join(body + b"\n" for body in bodies):
            self._wrong.append(f"{topic}/{queue}.log is not what its messages are")

    def _log_bytes(self) -> bytes:
        """The log up to the last acknowledged record."""
        end = max((sent.end for sent in self._account.places.values()), default=0)
        log = bytearray(end)
        for path in (self._path / "commitlog").iterdir():
            start = int(path.name)
            if start < end:
                content = path.read_bytes()[: end - start]
                log[start : start + len(content)] = content
        return bytes(log)

    def _require_log(self, before: bytes) -> None:
        """An opening changes no byte of a whole record."""
        after = self._log_bytes()
        for place, sent in self._account.places.items():
            if place not in self._excused and before[sent.start : sent.end] != after[sent.start : sent.end]:
                self._wrong.append(f"the opening changed the record of {place} at {sent.start}")


def _goes_astray(message: Message) -> bool:
    """Whether a message may stand in other places than in its topic's next one, or read as another body than sent."""
    special = {"DELAY", MULTI_DISPATCH, "KEYS"} & message.properties.keys()
    return bool(special or message.sys_flag & TRANSACTION_MASK)


def attack_stores(
    folder: Path,
    cases: int,
    seed: int,
    *,
    first: int = 0,
    most_findings: int = 1,
    tell: Tell[Tally] = no_progress,
) -> Tally:
    """Cases `first` to `first` + `cases` of `seed`, below `folder`; stops when that many have found something."""
    tally = Tally()

    def make(store: Path, chance: random.Random) -> Case:
        store.mkdir()
        return Case(store, chance, tally)

    return run_cases(make, folder, tally, range(first, first + cases), seed, most_findings, tell)


if __name__ == "__main__":
    well = "nothing was lost, and nothing forged was shown"
    sys.exit(main("hostile", __doc__, attack_stores, {"lost": "messages lost", "forged": "forged ones shown"}, well))
