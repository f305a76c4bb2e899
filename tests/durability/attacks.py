"""Messages of a hostile publisher, drawn from a seed: it may append, and tries to make others lose messages.

It sees what every publisher can see (`Sight`), so it knows the physical offset of its next record. It writes forged
records into bodies: whole and half ones, chained, at borders, with any topic, number and time. Its keys, tags and
properties are any bytes that a field can hold. `body_of(FORGER, …)` is in forged records only: it is never published.
"""

from __future__ import annotations

import base64
import json
import random
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, NamedTuple
from zlib import crc32

import lz4.frame
import msgspec
import zstandard

from engine import Message, MessageStore, WriteError
from engine.log.delay import SCHEDULE_TOPIC
from engine.log.tombstone import TOMBSTONE_TOPIC
from engine.record.header import BLANK_BYTES, BLANK_MAGIC, HEADERS, MESSAGE_MAGIC
from engine.record.kernel.encode import encode_properties
from engine.record.multi_dispatch import MULTI_DISPATCH, MULTI_QUEUE_OFFSET
from engine.record.record import SECTOR_BYTES
from tests.durability.bodies import body_of

FORGER = 666
"""The writer that forged records name."""

HEADER = HEADERS[0]
BORN_HOST = bytes((127, 0, 0, 1, 0, 0, 42, 159))
MINUTE_MS = 60_000
BODY_SIZES = (0, 20, 20, 90, 300, 600)

SPECIAL_NAMES = (
    MULTI_DISPATCH, MULTI_DISPATCH, MULTI_QUEUE_OFFSET, "DELAY", "KEYS", "TAGS", "UNIQ_KEY", "WAIT", "TRAN_MSG",
    "PGROUP", "REAL_TOPIC", "REAL_QID", "RETRY_TOPIC", "TIMER_DELAY_SEC", "TIMER_DELIVER_MS", "TIMER_OUT_MS",
    "MIN_OFFSET", "MAX_OFFSET", "CLUSTER", "DUP_INFO", "__CRC32#", "INSTANCE_ID", "INNER_NUM", "", "x", "a\0b", "ü",
)  # fmt: skip
TEXTS = (
    "", "0", "1", "-1", "18", "19", "3000000", "2147483648", "9223372036854775807", "9223372036854775808",
    "9999999999999999999", "1" * 5_000, "٣", "1e3", "0x10", "+1", " 1", "true", ",", ",,,", "0,1", "0,0", "\x01",
    "a\x02b", "\0", "\0" * 8, "k" + "\0" * 32, "\0" * 1_200, "@all", "..", ".", "a/b", "caf\u00e9", "cafe\u0301",
    "\udc80", "a b", "%LMQ%x", "Aa" * 8, "BB" * 8, "K" * 6_000, "K" * 32_000,
)  # fmt: skip
TOPICS = (
    "CURRENT", "IDENTITY", "LOCK", "MANIFEST-000001", "000001%sst", "__HIVE_DEFAULT_PARTITION__", "%RETRY%group",
    "%LMQ%light", SCHEDULE_TOPIC, TOMBSTONE_TOPIC, "RMQ_SYS_TRANS_HALF_TOPIC", "TBW102", "keys", "append", "-rf",
    "t" * 127, "t" * 128, "", ".", "..", "a/b", "@store", "@all", "x.log", "caf\u00e9", "cafe\u0301", "a\0b",
    "\udc80", "a b", "topic=orders",
)  # fmt: skip


class Queue(NamedTuple):
    """A queue of another topic's publishers."""

    topic: str
    queue_id: int


@dataclass(frozen=True, slots=True)
class Sight:
    """What anybody can see: the physical offset at which the next record begins, unless it does not fit into its file;
    the size of such files; the next queue offset of each queue that is to be hurt; the time."""

    end: int
    file_bytes: int
    next_offsets: Mapping[Queue, int]
    now_ms: int

    @classmethod
    def of(cls, store: MessageStore, queues: Sequence[Queue], now_ms: int) -> Sight:
        """Of an open store."""
        offsets = {queue: store.bounds(*queue).max_offset if store.has_queue(*queue) else 0 for queue in queues}
        return cls(store.physical_end, store.sizes.commit_log_bytes, offsets, now_ms)

    @classmethod
    def of_status(cls, status: Mapping[str, Any], file_bytes: int, queues: Sequence[Queue], now_ms: int) -> Sight:
        """Of a mount's @store/status.json."""
        offsets = {
            queue: status["topics"][queue.topic]["queues"][str(queue.queue_id)]["max_offset"] for queue in queues
        }
        return cls(status["stats"]["physical_end"], file_bytes, offsets, now_ms)

    def place_of(self, record_bytes: int) -> int:
        """Where a record of that size will begin."""
        left = self.file_bytes - self.end % self.file_bytes
        return self.end if record_bytes + BLANK_BYTES <= left else self.end + left


@dataclass(frozen=True, slots=True)
class Attack:
    """The messages to send together, and a short description of the attack."""

    what: str
    messages: list[Message]

    def json_lines(self) -> bytes:
        """The same for append@format=json, which knows no flags, times and hosts."""
        return b"".join(_json_line(message) for message in self.messages)


def _json_line(message: Message) -> bytes:
    fields: dict[str, object] = {"body_base64": base64.b64encode(message.body).decode(), "keys": list(message.keys)}
    fields |= {"tags": message.tags, "properties": dict(message.properties)}
    return json.dumps(fields).encode() + b"\n"


MALFORMED_LINES = (
    b'{"body":"x"',
    b'{"body":"x"}{"body":"y"}',
    b'{"body":1}',
    b'{"body":null}',
    b"[]",
    b"null",
    b"1" * 5_000,
    b'{"body":"\\ud800"}',
    b'{"body":"x","keys":["\\ud800"]}',
    b'{"body":"x","properties":{"\\udfff":"\\ud800"}}',
    b'{"body":"\xff\xfe"}',
    b"[" * 100_000,
    b'{"a":' * 100_000,
    b'{"body":"x","properties":' + b'{"a":' * 1_000 + b"}" * 1_001,
    b'{"body":"x","body_base64":"eA=="}',
    b'{"body_base64":"e"}',
    b'{"body":"x","keys":{}}',
    b'{"body":"x","keys":[""]}',
    b'{"body":"x","properties":{"":"x"}}',
    b'{"body":"x","properties":{"a":NaN}}',
    b'{"body":NaN}',
    b'{"body":"x","queue":0}',
    b"\0",
    b"\xef\xbb\xbf{}",
)
"""Lines that append@format=json has to refuse."""


class Attacker:
    """Draws attacks. Each draw depends only on `chance` and on the attacker's `Sight`."""

    def __init__(self, chance: random.Random, topic: str, victims: Sequence[Queue]) -> None:
        """`topic` is one that he may publish to; `victims` are queues that belong to others, or that he shares."""
        self._random = chance
        self._topic = topic
        self._victims = victims

    def attack(self, sight: Sight) -> Attack:
        """Messages of his topic: one, or a few to be sent as one batch."""
        messages, said = [], []
        for _ in range(self._random.choice((1, 1, 1, 2, 4))):
            message, what = self._message(sight)
            messages.append(message)
            said.append(what)
            sight = replace(sight, end=sight.place_of(record_bytes(message)) + record_bytes(message))
        return Attack("; ".join(said), messages)

    def strange_topic(self) -> str:
        """A topic's name, legal or not."""
        return self._random.choice(TOPICS)

    def in_another_guise(self, message: Message, now_ms: int) -> Message:
        """As `draw`, with fields that only the engine's API accepts: flags, times, a compressed body."""
        chance = self._random
        changes: list[dict[str, object]] = [
            {"sys_flag": chance.choice((1, 2, 4, 8, 0xC, 0x30, 0x101, 0x201, 0x301, 0x701, -1, 1 << 31))},
            {"born_time_ms": chance.choice((0, -1, now_ms + 10 * MINUTE_MS, 1 << 62, 1 << 63))},
            {"flag": chance.choice((-1, 1 << 31)), "reconsume_times": chance.choice((-1, 1 << 31))},
            {"prepared_transaction_offset": chance.choice((-1, 1 << 62))},
            chance.choice(bombs()),
        ]
        return msgspec.structs.replace(message, **chance.choice(changes))

    # one message

    def _message(self, sight: Sight) -> tuple[Message, str]:
        chance = self._random
        keys, tags, properties, said = self._labels(sight)
        tail = record_tail(self._topic, keys, tags, properties)
        seed, kind = chance.random(), chance.choice(BODY_KINDS)
        body, place = b"", sight.end
        for _ in range(3):  # the offset of the record depends on its length, which depends on the offset
            planter = Planter(random.Random(seed), self._victims, self._topic, tail)
            body = kind(planter, sight, place + HEADER.size)
            place = sight.place_of(HEADER.size + len(body) + len(tail))
        return Message(self._topic, body, keys, tags, properties), f"{kind.__name__} {said}".rstrip()

    def _labels(self, sight: Sight) -> tuple[list[str], str, dict[str, str], str]:
        """Keys, tags, properties, and what they are."""
        chance = self._random
        kind = chance.randrange(20)
        if kind < 10:
            return [], "", {}, ""
        if kind == 10:
            nulls = "\0" * chance.choice((1, 8, 32, 1_200))
            return ["k" + nulls], "", {}, f"{len(nulls)} NULs in a key"
        if kind == 11:
            nulls = "\0" * chance.choice((1, 8, 32, 1_200))
            return [], chance.choice(("", nulls)), {"p": nulls}, f"{len(nulls)} NULs in properties"
        if kind < 15:
            keys = chance.choice((["Aa"] * 500, ["AaBB", "BBAa", "AaAa", "BBBB"], ["K0", "K1", "K0"], ["@all", ".."]))
            return keys, "", {}, f"keys {keys[:3]}"
        properties = self._properties(sight)
        return [], chance.choice(("", "T", chance.choice(TEXTS))), properties, f"properties {_shown(properties)}"

    def _properties(self, sight: Sight) -> dict[str, str]:
        chance = self._random
        if chance.random() < 0.5:
            return self._further_queues(sight)
        return {chance.choice(SPECIAL_NAMES): self._text() for _ in range(chance.choice((1, 1, 2, 4)))}

    def _text(self) -> str:
        chance = self._random
        victim = chance.choice(self._victims).topic
        return chance.choice((*TEXTS, *TEXTS, self._topic, victim, f"{victim},{victim}", f"{victim},{self._topic}"))

    def _further_queues(self, sight: Sight) -> dict[str, str]:
        """A message that names queues and offsets for multi-dispatch."""
        chance = self._random
        victim = chance.choice(self._victims)
        names = chance.choice(
            (
                [victim.topic],
                [self._topic],
                [victim.topic] * 3,
                [self._topic, victim.topic],
                ["CURRENT"],
                [chance.choice(TOPICS)],
                [f"n{number}" for number in range(chance.choice((3, 300)))],
            )
        )
        following = sight.next_offsets[victim]
        offset = chance.choice((0, 1, following, following + 1, following + 3, 3_000_000, (1 << 63) - 1, 10**19 - 1))
        given = ",".join(str(offset + row) for row in range(len(names)))
        further = {MULTI_DISPATCH: ",".join(names)}
        return further if chance.random() < 0.3 else further | {MULTI_QUEUE_OFFSET: given}


def record_bytes(message: Message) -> int:
    """Size of the record of a message with IPv4 hosts."""
    tail = record_tail(message.topic, message.keys, message.tags, message.properties)
    return HEADER.size + len(message.body) + len(tail)


def record_tail(topic: str, keys: Sequence[str], tags: str, properties: Mapping[str, str]) -> bytes:
    """The bytes after the body; without properties when these can't be stored."""
    try:
        labels = encode_properties(keys, tags, properties)
    except WriteError:
        labels = b""
    name = topic.encode(errors="replace")
    return bytes((len(name) % 128,)) + name + len(labels).to_bytes(2, "big") + labels


def _shown(properties: Mapping[str, str]) -> str:
    return ", ".join(f"{name[:30]!r}={text[:30]!r}" for name, text in properties.items())


# forged records


class Planter:
    """Draws forged records. The same seed draws the same, wherever they are to stand."""

    def __init__(self, chance: random.Random, victims: Sequence[Queue], own_topic: str, tail: bytes) -> None:
        """`tail` is the bytes after the body in the real record."""
        self.random = chance
        self.tail = tail
        self._victims = victims
        self._own_topic = own_topic

    def records(self, sight: Sight, place: int, count: int, tail: bytes = b"") -> bytes:
        """`count` records, one behind the other, for the physical offset `place` on: good in all that can be checked,
        or nearly. The last one's properties end with `tail`, which is not part of the result."""
        chance = self.random
        victim = chance.choice(self._victims)
        following = sight.next_offsets[victim]
        offset = chance.choice((following, following, following, following + 1, 0, -1, 1 << 40, (1 << 63) - 9))
        now_ms = sight.now_ms
        time_ms = chance.choice((now_ms, now_ms, now_ms + MINUTE_MS, now_ms + 10**9, now_ms - MINUTE_MS, 0, 1 << 62))
        topic = chance.choice(
            (victim.topic, victim.topic, victim.topic, self._own_topic, TOMBSTONE_TOPIC, "", "CURRENT")
        )
        step_ms = chance.choice((0, 1, 60_000))
        found = b""
        for row in range(count):
            ending = tail if row == count - 1 else b""
            times = (time_ms + row * step_ms, chance.choice((time_ms, 0)))
            forged = self._record(place + len(found), topic, victim.queue_id, offset + row, times, ending)
            found += forged
        return found

    def _record(
        self, place: int, topic: str, queue_id: int, queue_offset: int, times_ms: tuple[int, int], tail: bytes
    ) -> bytes:
        chance = self.random
        body = body_of(FORGER, chance.randrange(1_000), chance.choice((30, 90, 600)))
        properties = chance.choice(PROPERTIES)
        name = topic.encode()
        sys_flag = chance.choice((0, 0, 0, 0, 4, 8, 0xC))
        properties_size = len(properties) + len(tail)
        size = HEADER.size + len(body) + 1 + len(name) + 2 + properties_size
        crc = crc32(body) & 0x7FFFFFFF
        head = HEADER.pack(
            size, MESSAGE_MAGIC, crc, queue_id, 0, queue_offset, place, sys_flag,
            times_ms[1], BORN_HOST, times_ms[0], BORN_HOST, 0, 0, len(body),
        )  # fmt: skip
        return b"".join((head, body, bytes((len(name),)), name, properties_size.to_bytes(2, "big"), properties))

    def padding(self) -> bytes:
        """The bytes before a record in a body."""
        return bytes(self.random.choice((b"", b"x", b"pad" * 40, bytes(8), bytes(700))))


PROPERTIES = (
    b"",
    b"KEYS\x01K0",
    b"KEYS\x01K0 K1\x02TAGS\x01T\0\0\0\0",
    b"INNER_MULTI_DISPATCH\x01events\x02INNER_MULTI_QUEUE_OFFSET\x010",
    b"p\x01" + bytes(600),
)


def ordinary(planter: Planter, sight: Sight, place: int) -> bytes:
    """Nothing but text."""
    return body_of(1, planter.random.randrange(1_000_000), planter.random.choice(BODY_SIZES))


def planted(planter: Planter, sight: Sight, place: int) -> bytes:
    """A record that is right at its physical offset."""
    padding = planter.padding()
    return padding + planter.records(sight, place + len(padding), 1) + planter.padding()


def chained(planter: Planter, sight: Sight, place: int) -> bytes:
    """Several, one behind the other."""
    padding = planter.padding()
    return padding + planter.records(sight, place + len(padding), planter.random.choice((2, 3, 6))) + planter.padding()


def bordered(planter: Planter, sight: Sight, place: int) -> bytes:
    """A record at, or a few bytes beside, a sector's, a page's or the file's border."""
    unit = planter.random.choice((SECTOR_BYTES, 4_096, sight.file_bytes))
    beside = planter.random.choice((0, 0, -1, -4, -8, 1, 8))
    padding = b"-" * min((beside - place) % unit, 8_000)
    return padding + planter.records(sight, place + len(padding), planter.random.choice((1, 2)))


def ending(planter: Planter, sight: Sight, place: int) -> bytes:
    """Records of which the last ends where the real one around it ends: behind it comes what is really next."""
    padding = planter.padding()
    return padding + planter.records(sight, place + len(padding), planter.random.choice((1, 2)), planter.tail)


def half(planter: Planter, sight: Sight, place: int) -> bytes:
    """A truncated record: its size reaches into the bytes after it."""
    record = planter.records(sight, place, 1)
    return record[: planter.random.randrange(len(record))]


def headless(planter: Planter, sight: Sight, place: int) -> bytes:
    """A batch whose first eight bytes are zeros, as an unpublished one has."""
    return bytes(8) + planter.records(sight, place, 3)[8:]


def elsewhere(planter: Planter, sight: Sight, place: int) -> bytes:
    """Records for another place: before this one, behind it, in another file."""
    other = planter.random.choice((0, place - HEADER.size, place + 1, place + 4_096, place + sight.file_bytes, -1))
    return planter.padding() + planter.records(sight, other, 2)


def filler(planter: Planter, sight: Sight, place: int) -> bytes:
    """The head of a filler, and a record behind it."""
    left = sight.file_bytes - place % sight.file_bytes
    size = planter.random.choice((left, left, 8, 0, -1, (1 << 31) - 1))
    head = size.to_bytes(4, "big", signed=True) + BLANK_MAGIC.to_bytes(4, "big", signed=True)
    return head + planter.records(sight, place + len(head), 1)


def magics(planter: Planter, sight: Sight, place: int) -> bytes:
    """Many places where a record seems to begin."""
    magic = MESSAGE_MAGIC.to_bytes(4, "big", signed=True)
    sizes = [planter.random.choice((91, 200, 5_000, 1 << 30, -1)) for _ in range(40)]
    return b"".join(size.to_bytes(4, "big", signed=True) + magic + bytes(12) for size in sizes)


def zeros(planter: Planter, sight: Sight, place: int) -> bytes:
    """Sectors of zeros, and a record behind them."""
    padding = bytes(planter.random.choice((SECTOR_BYTES, 1_500, 4_096)))
    return padding + planter.records(sight, place + len(padding), 1)


BODY_KINDS = (
    ordinary, planted, planted, chained, chained, bordered, ending, ending, half, headless, elsewhere, filler, magics,
    zeros,
)  # fmt: skip


@cache
def bombs() -> tuple[dict[str, object], ...]:
    """Compressed bodies that become as large as a body may, or larger: the fields of a message that has one."""
    big, found = bytes(3 << 20), []
    for size in (1 << 20, len(big)):
        found += [
            {"body": zlib.compress(big[:size]), "sys_flag": 1},
            {"body": lz4.frame.compress(big[:size]), "sys_flag": 0x101},
            {"body": zstandard.compress(big[:size]), "sys_flag": 0x201},
        ]
    return tuple(found)
