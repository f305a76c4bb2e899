"""The stores that are looked at: one of a shop, and topics of a publisher that would like to run a script."""

from __future__ import annotations

import base64
import json
import random
import time
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from struct import pack

from engine import Message, MessageStore, StoreConfig

LEVELS = ("info",) * 90 + ("warning",) * 7 + ("error",) * 3
HOURS = 6
STEPS = 2_000
"""Moments at which orders come."""

ATTACK = "window.owned=1"
MARKUP = (
    f"<script>{ATTACK}</script><img src=x onerror={ATTACK}><svg onload={ATTACK}></svg>"
    f"<a href='javascript:{ATTACK}'>k</a><style>body{{display:none}}</style><base href=//evil.example/>"
    "<meta http-equiv=refresh content='0;url=//evil.example/'><!--{{7*7}}${7*7}"
)
HOSTILE_TOPIC = f'"><img src=x onerror={ATTACK}>'
SVG = f'<svg xmlns="http://www.w3.org/2000/svg" onload="{ATTACK}"><script>{ATTACK}</script></svg>'.encode()


@dataclass
class Clock:
    """The time of a store that is being made."""

    now_ms: int

    def __call__(self) -> int:
        return self.now_ms


def picture() -> bytes:
    """A PNG of 96 x 96 pixels."""
    rows = b"".join(
        b"\0" + b"".join(bytes((80 + x, 120 + y, 255 - x)) for x in range(96)) for y in range(96)
    )  # fmt: skip

    def chunk(kind: bytes, content: bytes) -> bytes:
        return pack(">I", len(content)) + kind + content + pack(">I", zlib.crc32(kind + content))

    head = pack(">IIBBBBB", 96, 96, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")


def orders(count: int) -> Iterator[bytes]:
    """Bodies of a shop, always the same."""
    chance = random.Random(7)
    for number in range(count):
        level = chance.choice(LEVELS)
        took_ms = int(chance.lognormvariate(3, 1)) * (20 if level == "error" else 1)
        body = {
            "id": 10_000 + number,
            "level": level,
            "ms": took_ms,
            "user": {"id": chance.randrange(900), "paid": True},
        }
        yield json.dumps(body).encode()


def make(path: Path, count: int) -> None:
    """A store with `count` orders of the last hours, some topics beside them, and the hostile ones."""
    begin_ms = int(time.time() * 1000) - HOURS * 3_600_000
    clock = Clock(begin_ms)
    chance, together = random.Random(11), max(count // STEPS, 1)
    with MessageStore.open(path, StoreConfig(clock=clock), create=True) as store:
        store.create_topics({"orders": 4, "payments": 4, "BenchmarkTest": 64, "TBW102": 8, "media": 1, "hostile": 1})
        bodies, moments = orders(count), sorted(chance.betavariate(2, 1.4) for _ in range(-(-count // together)))
        for number, moment in enumerate(moments):
            clock.now_ms = begin_ms + int(moment * HOURS * 3_600_000)
            store.put_lines("orders", [body + b"\n" for body in islice(bodies, together)], queue=number % 4, tags="web")
        clock.now_ms = begin_ms + HOURS * 3_600_000
        for number in range(40):
            keys = [f"ORDER-{number}", f"user-{number % 7}"]
            store.put(Message("payments", b'{"order": %d, "state": "paid"}' % number, keys, "paid"), queue=number % 4)
        store.put(Message("media", picture(), ["logo"], properties={"type": "image"}), queue=0)
        store.put(Message("media", b"a long text " * (4 << 20 >> 4)), queue=0)
        for body in (MARKUP.encode(), json.dumps({MARKUP: [MARKUP]}).encode(), SVG, b"GIF89a" + MARKUP.encode()):
            properties = {MARKUP.replace(" ", "_"): MARKUP, "\u202egnp.exe": "\u202egnp.exe"}
            store.put(Message("hostile", body, [MARKUP.replace(" ", "_")], MARKUP, properties), queue=0)
        store.put(Message("x" * len(HOSTILE_TOPIC), MARKUP.encode()), queue=0)
        for group, offset in (("billing", 0), ("stock", store.bounds("orders", 0).max_offset)):
            store.commit_offset(group, "orders", 0, offset)
        store.commit_offset("g" + base64.b16encode(b"long").decode() * 8, "payments", 1, 3)
    rename_topic(path, "x" * len(HOSTILE_TOPIC), HOSTILE_TOPIC)


def rename_topic(store: Path, name: str, other: str) -> None:
    """Give a topic a name of as many bytes that no put accepts, as another program's store may have it."""
    for path in (store / "commitlog").iterdir():
        path.write_bytes(path.read_bytes().replace(name.encode(), other.encode()))
    topics = store / "config/topics.json"
    topics.write_text(topics.read_text().replace(json.dumps(name), json.dumps(other)))
    (store / "consumequeue" / name).rename(store / "consumequeue" / other)
