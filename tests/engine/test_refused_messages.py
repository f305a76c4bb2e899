"""A message that no record can hold, or no reader would accept, is refused in each way of publishing, with its
batch."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, cast

import pytest
from msgspec.structs import replace

from engine import IllegalMessageError, Message, MessageStore, TopicNotFoundError, WriteError
from engine.record.header import HEADERS, MESSAGE_MAGIC, MESSAGE_MAGIC_V2
from engine.record.message import Host
from tests.engine.storetools import SMALL, bodies, opened

GOOD = Message("T", b"good")


def put(store: MessageStore, bad: Message) -> None:
    store.put(bad, 0)


def put_dealt(store: MessageStore, bad: Message) -> None:
    store.put(bad)


def put_batch_like(store: MessageStore, bad: Message) -> None:
    store.put_batch([GOOD, bad, GOOD], 0)


def put_batch_mixed(store: MessageStore, bad: Message) -> None:
    store.put_batch([GOOD, Message("T", b"unlike", flag=1), bad], 0)


def put_batch_with_a_transaction(store: MessageStore, bad: Message) -> None:
    store.put_batch([GOOD, Message("T", b"committed", sys_flag=8), bad], 0)


def put_batch_delayed(store: MessageStore, bad: Message) -> None:
    store.put_batch([Message("T", b"later", properties={"DELAY": "1"}), bad], 0)


def put_lines(store: MessageStore, bad: Message) -> None:
    store.put_lines("T", b"one\ntwo\n", 0, keys=bad.keys, tags=bad.tags, properties=bad.properties)


WAYS = [
    put,
    put_dealt,
    put_batch_like,
    put_batch_mixed,
    put_batch_with_a_transaction,
    put_batch_delayed,
    put_lines,
]


def bad(
    keys: list[str] | None = None, tags: str = "", properties: Mapping[str, str] | None = None
) -> tuple[list[str], str, Mapping[str, str]]:
    return keys or [], tags, properties or {}


CHARACTERS = {"NUL": "\0", "01": "\x01", "02": "\x02", "surrogate": "\ud800"}
BAD = {
    **{f"{name} in a key": bad([f"k{text}"]) for name, text in CHARACTERS.items()},
    **{f"{name} in the second key": bad(["k", f"{text}k"]) for name, text in CHARACTERS.items()},
    **{f"{name} in a key before tags": bad([f"k{text}"], "tag") for name, text in CHARACTERS.items()},
    **{f"{name} in the tags": bad([], f"t{text}") for name, text in CHARACTERS.items()},
    **{f"{name} in the tags behind a key": bad(["k"], f"{text}t") for name, text in CHARACTERS.items()},
    **{f"{name} in a name": bad(properties={f"n{text}": "v"}) for name, text in CHARACTERS.items()},
    **{f"{name} in a value": bad(properties={"n": f"v{text}"}) for name, text in CHARACTERS.items()},
    **{f"{name} in KEYS": bad(properties={"KEYS": f"v{text}"}) for name, text in CHARACTERS.items()},
    "no name": bad(properties={"": "v"}),
    "an empty key": bad([""]),
    "a key with a space": bad(["a b"]),
    "a number for a key": bad(cast(Any, [7])),
    "a number for a value": bad(properties=cast(Any, {"n": 7})),
    "bytes for a name": bad(properties=cast(Any, {b"n": "v"})),
    **{
        f"DELAY={level[:12]}": bad(properties={"DELAY": level})
        for level in ("x", "-1", "+1", " 1", "1 ", "1_0", "1.5", "٣", "²", "2147483648", "9" * 5_000)
    },
}


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MessageStore]:
    """One store for all cases: refused messages change nothing, so no case disturbs another."""
    with opened(tmp_path_factory.mktemp("refused") / "store") as store:
        store.create_topic("T", 1)
        yield store


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("what", BAD)
def test_it_is_refused_and_nothing_is_stored(
    shared: MessageStore, way: Callable[[MessageStore, Message], None], what: str
) -> None:
    keys, tags, properties = BAD[what]
    before = shared.physical_end, shared.topics()
    with pytest.raises(IllegalMessageError):
        way(shared, Message("T", b"bad", keys, tags, properties))
    assert (shared.physical_end, shared.topics()) == before
    assert shared.read_only_reason is None


def test_a_value_that_is_no_text_is_named(shared: MessageStore) -> None:
    said = r"illegal message: 7 is no text \(int\)"
    with pytest.raises(IllegalMessageError, match=said):
        shared.put(Message("T", b"bad", properties=cast(Any, {"n": 7})))


def test_a_store_that_holds_them_is_read(tmp_path: Path) -> None:
    path = tmp_path / "store"
    with MessageStore.open(path, SMALL, create=True) as store:
        store.put(Message("T", b"body", ["k~"], "t~", {"n": "v~"}), 0)
        store.put(Message("T", b"next"), 0)
    (log,) = (path / "commitlog").glob("0*0")
    log.write_bytes(log.read_bytes().replace(b"~", b"\0"))
    with MessageStore.open(path, SMALL) as store:
        assert bodies(store, "T", 0) == [b"body", b"next"]
        message = store.get("T", 0, 0)
        assert (message.keys, message.tags, message.properties["n"]) == (["k\0"], "t\0", "v\0")


# bodies that hold records for the very place where they would stand


PLANTED_HEAD_BYTES = 36


def holding(body_start: int, magic: int, padding: int = 5) -> bytes:
    """A body, to stand at that physical offset, in which a record seems to begin; not a newline in it."""
    head = struct.pack(">iiiiiqq", 91, magic, 1, 0, 0, 3, body_start + padding)
    return b"x" * padding + head + b"more text"


def put_second_line(store: MessageStore, bad: Message) -> None:
    store.put_lines("T", b"one\n" + bytes(bad.body) + b"\nthree\n", 0)


def put_of_another_host(store: MessageStore, bad: Message) -> None:
    store.put_batch([GOOD, replace(bad, born_host=Host.parse("[::1]:1"))], 0)


def put_over_two_files(store: MessageStore, bad: Message) -> None:
    store.put_batch([Message("T", b"x" * 5_000), bad, Message("T", b"x" * 5_000)], 0)


def put_to_the_next_file(store: MessageStore, bad: Message) -> None:
    """The file ends in a filler by then, which is no message."""
    store.put(replace(bad, body=bytes(bad.body).ljust(7_000)), 0)


def put_where_two_bodies_meet(store: MessageStore, bad: Message) -> None:
    """The planted record begins in one body and goes on in the next record."""
    store.put_batch([replace(bad, body=bytes(bad.body)[: 5 + PLANTED_HEAD_BYTES]), Message("T", b"next")], 0)


@pytest.mark.parametrize("magic", [MESSAGE_MAGIC, MESSAGE_MAGIC_V2])
@pytest.mark.parametrize(
    "way",
    [
        *(way for way in WAYS if way is not put_lines),
        put_second_line,
        put_of_another_host,
        put_over_two_files,
        put_to_the_next_file,
        put_where_two_bodies_meet,
    ],
)
def test_a_record_made_for_where_it_would_stand_is_refused(
    tmp_path: Path, way: Callable[[MessageStore, Message], None], magic: int
) -> None:
    """Elsewhere, a byte beside its place or behind another message, the same is a body like any other."""
    with opened(tmp_path / "twin") as twin:
        twin.create_topic("T", 1)
        twin.put_lines("T", b"first\n" * 15, 0)
        way(twin, Message("T", holding(0, magic)))
        queue = twin.bounds("T", 0)
    log = b"".join(path.read_bytes() for path in sorted((tmp_path / "twin" / "commitlog").iterdir()))
    start = log.index(holding(0, magic)[:13])
    with opened(tmp_path / "store") as store:
        store.create_topic("T", 1)
        store.put_lines("T", b"first\n" * 15, 0)
        with pytest.raises(IllegalMessageError):
            way(store, Message("T", holding(start, magic)))
        assert bodies(store, "T", 0) == [b"first"] * 15
        assert store.read_only_reason is None
        beside = holding(start, magic)[1:]
        store.put(Message("T", beside), 0)
        way(store, Message("T", holding(start, magic)))
        assert beside in bodies(store, "T", 0)
        assert len(bodies(store, "T", 0)) == queue.max_offset + 1


def test_bodies_that_hold_records_of_elsewhere_are_taken(tmp_path: Path) -> None:
    """Pieces of a log, of this store or another: they say other places."""
    with opened(tmp_path / "store") as store:
        store.put_lines("T", b"first\n" * 15, 0)
        (log,) = (store.path / "commitlog").glob("0*0")
        piece = log.read_bytes()[:1_500]
        for _ in range(3):
            store.put(Message("T", piece), 0)
            store.put_batch([Message("T", piece), Message("T", b"text")], 0)
        assert bodies(store, "T", 0).count(piece) == 6


@pytest.mark.parametrize(
    "bad",
    [
        Message("new", b"x", keys=["no key"]),
        Message("new", bytes(5 << 20)),
        Message("new", b"x", properties={"DELAY": "soon"}),
        Message("new", b"x", keys=["no key"], properties={"DELAY": "1"}),
    ],
)
def test_what_is_refused_makes_no_topic(tmp_path: Path, bad: Message) -> None:
    with opened(tmp_path / "store") as store:
        for put in (store.put, lambda message: store.put_batch([Message("new", b"good"), message])):
            with pytest.raises(WriteError):
                put(bad)
        with pytest.raises(TopicNotFoundError):
            store.put(Message("new", b"good"), 77)
        assert store.topics() == []
        assert store.put(Message("new", b"good"), 1).queue == 1
        assert store.put_batch([Message("later", b"good", properties={"DELAY": "1"})]).topic == "SCHEDULE_TOPIC_XXXX"
        assert store.topics() == ["SCHEDULE_TOPIC_XXXX", "later", "new"]


def test_a_delayed_message_that_is_refused_for_its_place_makes_no_queue(tmp_path: Path) -> None:
    with opened(tmp_path / "store") as store:
        store.create_topic("T", 1)
        forged = Message("T", holding(store.physical_end + HEADERS[0].size, MESSAGE_MAGIC), properties={"DELAY": "5"})
        with pytest.raises(IllegalMessageError):
            store.put(forged)
        assert store.topics() == ["T"]
        assert not store.has_queue("SCHEDULE_TOPIC_XXXX", 4)
