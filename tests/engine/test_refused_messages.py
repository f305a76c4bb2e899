"""What no record can hold, or no reader would take, is refused by every way in, and nothing of its batch is stored."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

from engine import IllegalMessageError, Message, MessageStore
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
    **{
        f"DELAY={level[:12]}": bad(properties={"DELAY": level})
        for level in ("x", "-1", "+1", " 1", "1 ", "1_0", "1.5", "٣", "²", "2147483648", "9" * 5_000)
    },
}


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MessageStore]:
    """One store for all: what is refused changes nothing, so no case disturbs another."""
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


def test_a_store_that_holds_them_is_read(tmp_path: Path) -> None:
    path = tmp_path / "store"
    with MessageStore.open(path, SMALL) as store:
        store.put(Message("T", b"body", ["k~"], "t~", {"n": "v~"}), 0)
        store.put(Message("T", b"next"), 0)
    (log,) = (path / "commitlog").glob("0*0")
    log.write_bytes(log.read_bytes().replace(b"~", b"\0"))
    with MessageStore.open(path, SMALL) as store:
        assert bodies(store, "T", 0) == [b"body", b"next"]
        message = store.get("T", 0, 0)
        assert (message.keys, message.tags, message.properties["n"]) == (["k\0"], "t\0", "v\0")
