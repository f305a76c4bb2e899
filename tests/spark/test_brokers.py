"""The brokers of a stream without Spark: which place is read, and what becomes of one that does not answer."""

from __future__ import annotations

import time
from collections.abc import Collection
from dataclasses import dataclass, field
from threading import Event
from typing import Any, cast

import pytest

from fsstore.fleet.datasets import BrokerError
from fsstore.fleet.identity import Facts, Record, Witness
from fsstore.fleet.sources import Slot
from fsstore.jobs.mount import Bounds
from fsstore.spark import brokers
from fsstore.spark.brokers import Brokers
from fsstore.spark.offsets import NOTHING, Position, StreamOffset


@dataclass(eq=False)
class Place:
    """A store with so many messages in orders/0, a byte each; `log` names its log."""

    broker: str
    log: str
    count: int
    answers: Event = field(default_factory=Event)
    refuses: bool = False

    def __post_init__(self) -> None:
        self.answers.set()

    @property
    def place(self) -> str:
        return f"place of {self.broker}"

    def require_there(self) -> None:
        self.answers.wait(20)
        if self.refuses:
            raise ConnectionRefusedError("nobody listens")

    def bounds(self) -> Bounds:
        return {"orders": {0: (0, self.count)}}

    def physical_offsets(self, slots: Collection[Slot]) -> dict[Slot, int | None]:
        return {slot: slot.queue_offset if slot.queue_offset < self.count else None for slot in slots}

    def facts(self, topic: str, queue: int, queue_offset: int) -> Facts | None:
        known = {"physical_offset": str(queue_offset), "log": self.log}
        return known if 0 <= queue_offset < self.count else None

    def witness(self) -> Witness:
        newest = self.facts("orders", 0, self.count - 1)
        return Witness(self.count, None if newest is None else Record("orders", 0, self.count - 1, newest))


@pytest.fixture(autouse=True)
def _little_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(brokers, "ANSWER_S", 0.2)
    monkeypatch.setattr(brokers, "PATIENCE_S", 0.5)


def over(*places: Place, patience_s: float = 60.0, fail_on_loss: bool = True) -> Brokers:
    return Brokers(cast(Any, places), lambda bounds: bounds, patience_s, fail_on_loss)


def read_at(found: dict[str, brokers.Present]) -> dict[str, str]:
    """The place at which each broker is read."""
    return {name: there.sources[0].broker for name, there in found.items()}


def offset(**counts: int) -> StreamOffset:
    """So many messages of each broker have been read."""
    read = {name: {"orders": {0: Position(count, count - 1 if count else None)}} for name, count in counts.items()}
    return StreamOffset(read)


def test_a_place_that_hangs_keeps_no_other_waiting_for_long() -> None:
    a, b = Place("a", "A", 5), Place("b", "B", 5)
    stream, known = over(a, b), offset(a=5, b=5)
    assert read_at(stream.present(known)) == {"a": "a", "b": "b"}
    b.answers.clear()
    assert read_at(stream.present(known)) == {"a": "a"}
    began_s = time.monotonic()
    assert read_at(stream.present(known)) == {"a": "a"}
    assert time.monotonic() - began_s < 0.2, "it is known to hang"
    assert stream.away["b"].endswith(": it does not answer")
    b.answers.set()
    while "b" in stream.away:
        stream.present(known)
    assert read_at(stream.present(known)) == {"a": "a", "b": "b"}


def test_a_broker_may_be_away_for_a_time() -> None:
    a, b = Place("a", "A", 5), Place("b", "B", 5)
    for fails in (True, False):
        b.refuses = False
        stream = over(a, b, patience_s=0.1, fail_on_loss=fails)
        stream.present(offset(a=5, b=5))
        b.refuses = True
        stream.present(offset(a=5, b=5))
        time.sleep(0.11)
        if fails:
            with pytest.raises(BrokerError, match=r"broker b at place of b: away since .*: nobody listens"):
                stream.present(offset(a=5, b=5))
        else:
            assert read_at(stream.present(offset(a=5, b=5))) == {"a": "a"}
        with pytest.raises(BrokerError, match="broker b"):
            stream.one("b", offset(a=5, b=5))


def test_at_its_first_start_a_stream_wants_all_of_them() -> None:
    a, b = Place("a", "A", 5), Place("b", "B", 5, refuses=True)
    with pytest.raises(BrokerError, match="broker b"):
        over(a, b).every(NOTHING)
    assert read_at(over(a, b, fail_on_loss=False).every(NOTHING)) == {"a": "a"}
    with pytest.raises(BrokerError, match="broker b"):
        over(b, fail_on_loss=False).every(NOTHING)


def test_a_new_place_joins_when_its_log_can_be_compared() -> None:
    a, b = Place("a", "A", 5, refuses=True), Place("b", "B", 5)
    other, alike = Place("other", "C", 5), Place("alike", "A", 4)
    stream, known = over(a, b, other, alike), offset(a=5, b=5)
    assert read_at(stream.present(known)) == {"b": "b"}
    assert stream.away.keys() == {"a", "other", "alike"}
    a.refuses = False
    found = read_at(stream.present(known))
    assert found == {"a": "a", "b": "b", "other": "other"}
    assert stream.spares == {"alike": "a"}


def test_a_spare_stands_in_as_soon_as_it_has_what_was_read() -> None:
    a, copy = Place("a", "A", 5), Place("copy", "A", 4)
    stream, known = over(copy, a), offset(a=5)
    assert read_at(stream.present(known)) == {"a": "a"}
    a.refuses = True
    assert read_at(stream.present(known)) == {}
    copy.count = 5
    assert read_at(stream.present(known)) == {"a": "copy"}
    again = over(copy, a)
    assert read_at(again.present(known._replace(spares={"copy": "a"}))) == {"a": "copy"}, "at another start, too"
    assert read_at(over(copy, a).present(known)) == {}, "unless nothing says that it has this log"
    a.refuses, copy.refuses = False, True
    last = over(copy, a)
    assert read_at(last.present(known._replace(spares={"copy": "a"}))) == {"a": "a"}
    assert last.away == {}, "a spare is no broker of its own"


def test_brokers_that_turn_out_to_be_one_go_on_from_the_furthest_position() -> None:
    a, copy = Place("a", "A", 5), Place("copy", "A", 5)
    stream = over(copy, a)
    assert read_at(stream.present(offset(copy=0, a=5))) == {"a": "copy"}
    assert stream.spares == {"copy": "a"}
