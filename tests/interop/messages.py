"""Random messages, the same ones for both stores: every field of a record, in many combinations."""

import base64
import random
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import lz4.frame
import zstandard

from engine import Host, Message

BORN_MS = 1_700_000_000_000
COMPRESSED = 0x1
PREPARED, COMMIT, ROLLBACK = 0x4, 0x8, 0xC
TRANSACTION = 0xC
COMPRESSION_FLAGS = {"LZ4": 0x100, "ZSTD": 0x200, "ZLIB": 0x300}
HOSTS = ("10.0.0.5:10911", "192.168.1.10:54321", "255.255.255.255:65535", "[2001:db8::7]:10911", "[fe80::1]:1")
TOPICS = ("TopicTest", "orders", "%RETRY%group-1", "%DLQ%group-1", "a|b_c-1", "T" * 127)
WORDS = (
    "paid",
    "ünïcödé",
    "订单",
    "🚀🌍",
    "x",
    "a=b,c",
    "tab\tin",
    "'quote\"",
    "ORDER-17",
    "%25",
    "\u00a0",
    "polygenelubricants",
)
FIRST_LONG_DELAY_LEVEL = 9  # five minutes: nothing is delivered while a scenario runs


@dataclass(frozen=True, slots=True)
class Put:
    """One put of either store; with `items` a batch. Properties are pairs, in the order in which they are encoded."""

    topic: str
    queue: int
    body: bytes = b""
    properties: tuple[tuple[str, str], ...] = ()
    flag: int = 0
    sys_flag: int = 0
    born_time_ms: int = BORN_MS
    born_host: str = HOSTS[0]
    store_host: str = HOSTS[0]
    reconsume_times: int = 0
    prepared_transaction_offset: int = 0
    compress: str | None = None
    items: tuple["Put", ...] = ()

    @property
    def messages(self) -> tuple["Put", ...]:
        """The messages that it stores, one after the other."""
        return self.items or (self,)

    @property
    def keys(self) -> set[str]:
        """Every key that finds it, UNIQ_KEY included."""
        named = dict(self.properties)
        keys = {key for key in named.get("KEYS", "").split(" ") if key}
        return keys | ({named["UNIQ_KEY"]} if named.get("UNIQ_KEY") else set())

    def to_java(self) -> dict[str, Any]:
        """As the driver takes it."""
        fields: dict[str, Any] = {
            name: getattr(self, name)
            for name in (
                "topic",
                "queue",
                "flag",
                "sys_flag",
                "born_time_ms",
                "born_host",
                "store_host",
                "reconsume_times",
                "prepared_transaction_offset",
                "compress",
                "properties",
            )
        }
        fields["body"] = base64.b64encode(self.body).decode()
        if self.items:
            fields["items"] = [item.to_java() for item in self.items]
        return fields

    def to_message(self) -> Message:
        """As our engine takes it, compressed by us where it is to be."""
        sys_flag, body = self.sys_flag, self.body
        if self.compress:
            sys_flag |= COMPRESSED | COMPRESSION_FLAGS[self.compress]
            body = compress(self.compress, body)
        return Message(
            self.topic,
            body,
            properties=dict(self.properties),
            flag=self.flag,
            sys_flag=sys_flag,
            born_time_ms=self.born_time_ms,
            born_host=Host.parse(self.born_host),
            store_host=Host.parse(self.store_host),
            reconsume_times=self.reconsume_times,
            prepared_transaction_offset=self.prepared_transaction_offset,
        )


def compress(kind: str, body: bytes) -> bytes:
    """The body in RocketMQ's format of that name."""
    if kind == "LZ4":
        return bytes(lz4.frame.compress(body))
    if kind == "ZSTD":
        return zstandard.ZstdCompressor().compress(body)
    return zlib.compress(body)


@dataclass(frozen=True, slots=True)
class Mix:
    """The mixture of a generator. `body_bytes` bounds bodies; the rest are chances (0 to 1) of a kind of message."""

    topics: tuple[str, ...] = TOPICS
    queues: int = 4
    body_bytes: int = 6_000
    batches: float = 0.06
    transactions: float = 0.08
    delays: float = 0.05
    compressed: float = 0.15
    empty_bodies: float = 0.05


def random_puts(seed: int, count: int, mix: Mix) -> Iterator[Put]:
    """`count` puts; the same ones for the same arguments, however many are taken."""
    chance = random.Random(seed)
    for number in range(count):
        put = random_put(chance, number, mix)
        if chance.random() < mix.batches:
            items = tuple(as_item(put, random_put(chance, number, mix)) for _ in range(chance.randint(1, 12)))
            put = replace(put, sys_flag=put.sys_flag & ~TRANSACTION, properties=(), items=items, compress=None)
        yield put


def random_put(chance: random.Random, number: int, mix: Mix) -> Put:
    """One message. `number` goes into its keys, so that keys tell messages apart."""
    compressed = chance.random() < mix.compressed
    body = random_body(chance, mix, compressible=compressed)
    sys_flag = chance.choice((0, 0, 0x2, 0x40))
    if chance.random() < mix.transactions:
        sys_flag |= chance.choice((PREPARED, COMMIT, ROLLBACK))
    properties = random_properties(chance, number)
    # a prepared or rolled back message is not delayed, and a batch never is
    if chance.random() < mix.delays and sys_flag & TRANSACTION in (0, COMMIT):
        properties.append(("DELAY", str(chance.randint(FIRST_LONG_DELAY_LEVEL, 18))))
    return Put(
        topic=chance.choice(mix.topics),
        queue=chance.randrange(mix.queues),
        body=body,
        properties=tuple(properties),
        flag=chance.choice((0, 1, -1, chance.randint(-(1 << 31), (1 << 31) - 1))),
        sys_flag=sys_flag,
        born_time_ms=BORN_MS + chance.randint(-(10**9), 10**9),
        born_host=chance.choice(HOSTS),
        store_host=chance.choice(HOSTS),
        reconsume_times=chance.choice((0, 0, 3)),
        prepared_transaction_offset=chance.choice((0, 0, 1 << 40)),
        compress=chance.choice(("LZ4", "ZSTD", "ZLIB")) if compressed and body else None,
    )


def as_item(batch: Put, item: Put) -> Put:
    """`item` as one message of a batch: topic, queue, hosts and times are the batch's."""
    return replace(
        batch,
        body=item.body,
        flag=item.flag,
        sys_flag=batch.sys_flag & ~TRANSACTION,
        properties=tuple(pair for pair in item.properties if pair[0] != "DELAY"),
        prepared_transaction_offset=0,
        compress=None,
    )


def random_body(chance: random.Random, mix: Mix, *, compressible: bool) -> bytes:
    if chance.random() < mix.empty_bodies:
        return b""
    size = int(mix.body_bytes ** chance.random())  # small ones are as common as large ones
    if compressible:
        return (random_text(chance, 12).encode() * (size // 20 + 1))[:size]
    return chance.randbytes(size)


def random_text(chance: random.Random, words: int) -> str:
    return "-".join(chance.choice(WORDS) for _ in range(chance.randint(1, words)))


def random_properties(chance: random.Random, number: int) -> list[tuple[str, str]]:
    """KEYS, TAGS and UNIQ_KEY often, others sometimes, in no particular order."""
    properties = []
    if chance.random() < 0.8:
        keys = [f"K{number}-{index}" for index in range(chance.choice((1, 1, 2, 3, 40)))]
        keys += [f"{chance.choice(WORDS)}{number % 17}".replace(" ", "")] * chance.randint(0, 2)
        separator = chance.choice((" ", " ", "  "))
        properties.append(("KEYS", separator.join(keys)))
    if chance.random() < 0.6:
        properties.append(("TAGS", random_text(chance, 3)))
    if chance.random() < 0.7:
        properties.append(("UNIQ_KEY", f"AC1F0001{number:016X}"))
    properties += [(f"p{index}", random_text(chance, 8)) for index in range(chance.choice((0, 0, 1, 5)))]
    if chance.random() < 0.05:
        properties.append(("名前", "x" * chance.randint(1, 3_000)))
    chance.shuffle(properties)
    return properties


def large_puts(seed: int, sizes: tuple[int, ...]) -> list[Put]:
    """One message of each body size, not compressible."""
    chance = random.Random(seed)
    return [
        Put("large", index % 2, chance.randbytes(size), (("KEYS", f"size-{size}"),)) for index, size in enumerate(sizes)
    ]
