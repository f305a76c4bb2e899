"""The brokers of a stream: at which place each is read, and which are away.

    read        a place of the broker answers
    away        none does: the stream goes on without it, and asks again at each trigger
    spare       a place whose log is that of a broker that is read elsewhere; it stands in when that place is away, as
                soon as it has what was read
    waiting     a new place that does not answer yet; or a new one while a broker is away whose log it might have

Names of brokers label positions. The name in a checkpoint stays that of a log, whichever place is read.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Future, wait
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from threading import Thread
from typing import NamedTuple, TypeVar

from fsstore.fleet.datasets import BrokerError
from fsstore.fleet.identity import Roles, Witness, roles
from fsstore.fleet.sources import FAILURES, Slot, Source
from fsstore.jobs.mount import PATIENCE_S, RETRY_PAUSE_S, Bounds
from fsstore.spark.offsets import Positions, Queues, StreamOffset

ANSWER_S = 2.0
"""Seconds that a trigger waits for a place."""

log = logging.getLogger("fsstore.spark")

T = TypeVar("T")


class Present(NamedTuple):
    """A broker that answers: its places, first the one that is read; the bounds of its queues, as far as the stream
    reads them; the queues."""

    sources: Sequence[Source]
    bounds: Bounds
    queues: Queues


class _Questions:
    """Asks places, each in a thread of its own: one that hangs keeps no other waiting, and is asked nothing more."""

    def __init__(self) -> None:
        self._pending: dict[Source, Future[object]] = {}

    def ask(self, asked: Mapping[Source, Callable[[], T]], patience_s: float) -> dict[Source, T | Exception]:
        """The answer of each place, or the error that it raised; a TimeoutError means that it has not answered yet."""
        fresh: dict[Source, Future[T]] = {}
        for one, question in asked.items():
            pending = self._pending.get(one)
            if pending is None or pending.done():
                fresh[one] = self._pending[one] = _in_thread(one, question)  # type: ignore[assignment]
        wait(fresh.values(), patience_s)
        found: dict[Source, T | Exception] = {}
        for one in asked:
            outcome = _outcome(fresh.get(one))
            found[one] = outcome
        return found


def _in_thread(one: Source, question: Callable[[], T]) -> Future[T]:
    """The answer of a place, in a thread that keeps no process alive."""
    future: Future[T] = Future()

    def run() -> None:
        try:
            one.require_there()
            future.set_result(question())
        except BaseException as error:
            future.set_exception(error)

    Thread(target=run, name="fsstore-ask", daemon=True).start()
    return future


def _outcome(future: Future[T] | None) -> T | Exception:
    if future is None or not future.done():
        return TimeoutError("it does not answer")
    try:
        return future.result()
    except FAILURES as error:
        return error


@dataclass(eq=False, slots=True)
class _Broker:
    name: str
    sources: list[Source]
    """The first is read."""
    has_read: bool = False
    """Whether the first place is known to have everything that was read."""
    away_since_s: float | None = None
    """By the monotonic clock."""
    reason: str = ""


@dataclass(slots=True)
class Brokers:
    """The brokers at some places. `select` leaves the topics that the stream reads. A broker may be away for
    `patience_s`, or for ever unless `fail_on_loss`. Thread safety: one thread."""

    places: Sequence[Source]
    select: Callable[[Bounds], Bounds]
    patience_s: float
    fail_on_loss: bool
    _brokers: dict[str, _Broker] | None = field(default=None, init=False)
    _waiting: dict[Source, _Broker] = field(default_factory=dict, init=False)
    _questions: _Questions = field(default_factory=_Questions, init=False)

    @property
    def away(self) -> dict[str, str]:
        """The brokers that are away, and since when and why."""
        return {broker.name: _away(broker) for broker in self._every() if broker.away_since_s is not None}

    @property
    def spares(self) -> dict[str, str]:
        """Names of places whose log is that of another broker, and the name of that one."""
        known = (self._brokers or {}).values()
        return {one.broker: broker.name for broker in known for one in broker.sources if one.broker != broker.name}

    def present(self, known: StreamOffset) -> dict[str, Present]:
        """The brokers that answer now. `known` is how far the stream has read. BrokerError: one has been away for too
        long."""
        brokers = self._settled(known)
        found = self._present(list(brokers.values()), known)
        if self._waiting and len(found) == len(brokers):
            self._ask_waiting()
            if all(broker.away_since_s is None for broker in self._waiting.values()):  # all logs can be compared
                with suppress(*FAILURES):  # one is gone again: the next trigger tries it
                    brokers = self._brokers = self._settle(known)
                    found |= self._present([one for name, one in brokers.items() if name not in found], known)
        for broker in self._every():
            if self.fail_on_loss and _seconds_away(broker) >= self.patience_s:
                raise self._error(broker)
        return found

    def every(self, known: StreamOffset) -> dict[str, Present]:
        """All brokers. One that does not answer is waited for, a minute at most, and is a BrokerError then. Unless
        `fail_on_loss` it is left out, but for the last one."""
        deadline = time.monotonic() + min(self.patience_s, PATIENCE_S)
        while True:
            found = self.present(known)
            missing = [broker for broker in self._every() if broker.away_since_s is not None]
            if not missing or (found and not self.fail_on_loss):
                return found
            if time.monotonic() > deadline:
                raise self._error(missing[0])
            time.sleep(RETRY_PAUSE_S)

    def one(self, name: str, known: StreamOffset) -> Present:
        """A broker, which is waited for. BrokerError."""
        broker = self._settled(known).get(name)
        if broker is None:
            raise BrokerError(name, "none of the places", "a batch that was begun has messages of it")
        while True:
            found = self._present([broker], known)
            if found:
                return found[name]
            if _seconds_away(broker) >= self.patience_s:
                raise self._error(broker)
            time.sleep(RETRY_PAUSE_S)

    def bounds_of_places(self) -> dict[str, Bounds]:
        """The bounds of all places that answer, by name."""
        found = self._questions.ask({one: one.bounds for one in self.places}, PATIENCE_S)
        return {one.broker: self.select(its) for one, its in found.items() if not isinstance(its, Exception)}

    def lose(self, name: str, error: Exception) -> None:
        """A broker that answered does not any more."""
        assert self._brokers is not None
        _note_away(self._brokers[name], error)

    def _every(self) -> list[_Broker]:
        return [*(self._brokers or {}).values(), *self._waiting.values()]

    def _error(self, broker: _Broker) -> BrokerError:
        return BrokerError(broker.name, broker.sources[0].place, f"{_away(broker)}; failOnBrokerLoss=false waits")

    # which places are read

    def _settled(self, known: StreamOffset) -> dict[str, _Broker]:
        """The brokers by name. Where there are several places, their logs are compared."""
        if self._brokers is None:
            self._brokers = self._settle(known)
            for name in known.read.keys() - self._brokers.keys() - self.spares.keys():
                if name not in {broker.name for broker in self._waiting.values()}:
                    log.warning("broker %s is none of the places: it is not read, and its position stays", name)
        return self._brokers

    def _settle(self, known: StreamOffset) -> dict[str, _Broker]:
        witnesses = self._witnesses()
        chosen: Roles[Source] = roles([(one, its) for one, its in witnesses.items() if isinstance(its, Witness)])
        answering = {one.broker for one, its in witnesses.items() if isinstance(its, Witness)}
        named: dict[str, list[Source]] = {}
        new: list[list[Source]] = []
        for read in chosen.read:
            alike = [read, *(spare for spare, its in chosen.spare if its is read)]
            name = self._known_name(alike, known, answering)
            if name is None:
                new.append(alike)
            else:
                named.setdefault(name, []).extend(alike)
        self._waiting = {}
        for one, its in witnesses.items():
            if not isinstance(its, Witness):
                name = one.broker if one.broker in known.read else known.spares.get(one.broker)
                if name is None:
                    self._wait_for(one, its)
                else:
                    named.setdefault(name, []).append(one)
        lost = [name for name, some in named.items() if answering.isdisjoint(one.broker for one in some)]
        for alike in new:
            if lost:
                why = BrokerError(alike[0].broker, alike[0].place, f"it may have the log of {lost[0]}, which is away")
                self._wait_for(alike[0], why)
            else:
                named[alike[0].broker] = alike
        for spare, read in chosen.spare:
            log.warning("%s at %s has the log of %s at %s", spare.broker, spare.place, read.broker, read.place)
        return {name: _Broker(name, some, has_read=len(some) == 1) for name, some in named.items()}

    def _witnesses(self) -> dict[Source, Witness | Exception]:
        """The witness of each place, or the reason why it does not answer. The only place has nothing to compare."""
        if len(self.places) == 1:
            return {self.places[0]: Witness(0, None)}
        return self._questions.ask({one: one.witness for one in self.places}, PATIENCE_S)

    def _known_name(self, alike: Collection[Source], known: StreamOffset, answering: Collection[str]) -> str | None:
        """The name by which a stream knows the log of places; None: it does not."""
        names = [one.broker for one in sorted(alike, key=self.places.index)]
        read = [name for name in names if name in known.read]
        if read:  # several: they became one, as a copy does that was empty
            return max(read, key=lambda name: _newest(known.read[name]) or (-1,))
        return next((known.spares[name] for name in names if known.spares.get(name, name) not in answering), None)

    def _wait_for(self, one: Source, error: Exception) -> None:
        self._waiting[one] = _Broker(one.broker, [one])
        _note_away(self._waiting[one], error)

    def _ask_waiting(self) -> None:
        for one, its in self._questions.ask({one: one.bounds for one in self._waiting}, ANSWER_S).items():
            if isinstance(its, Exception):
                _note_away(self._waiting[one], its)
            else:
                _note_back(self._waiting[one])

    # what they answer

    def _present(self, brokers: Sequence[_Broker], known: StreamOffset) -> dict[str, Present]:
        """Those of some brokers that answer."""
        found = {}
        asked = {broker.sources[0]: self._question(broker, known) for broker in brokers}
        answers = self._questions.ask(asked, ANSWER_S)
        for broker in brokers:
            its = answers[broker.sources[0]]
            if isinstance(its, Exception):
                its = self._stand_in(broker, known, its)
            if isinstance(its, Exception):
                _note_away(broker, its)
            else:
                _note_back(broker)
                broker.has_read = True
                bounds = self.select(its)
                queues = Queues(bounds, broker.sources[0].physical_offsets)
                found[broker.name] = Present(tuple(broker.sources), bounds, queues)
        return found

    def _stand_in(self, broker: _Broker, known: StreamOffset, error: Exception) -> Bounds | Exception:
        """The bounds of a spare, which becomes the place that is read; or `error`."""
        for _ in broker.sources[1:]:
            broker.sources.append(broker.sources.pop(0))
            broker.has_read = False
            first = broker.sources[0]
            its = self._questions.ask({first: self._question(broker, known)}, ANSWER_S)[first]
            if not isinstance(its, Exception):
                log.warning("broker %s is read at %s: %s", broker.name, first.place, error)
                return its
        if len(broker.sources) > 1:
            broker.sources.append(broker.sources.pop(0))
        return error

    def _question(self, broker: _Broker, known: StreamOffset) -> Callable[[], Bounds]:
        """Asks the first place of a broker for its bounds, and first whether it has everything that was read. A log
        is copied in order, so a place with the newest message has all before it."""
        first, newest = broker.sources[0], None if broker.has_read else _newest(known.read.get(broker.name, {}))

        def ask() -> Bounds:
            if newest is not None and first.physical_offsets([newest[1]])[newest[1]] != newest[0]:
                raise BrokerError(broker.name, first.place, "it lacks messages that were read elsewhere")
            return first.bounds()

        return ask


def _newest(positions: Positions) -> tuple[int, Slot] | None:
    """The physical offset and the place of the newest message that was read."""
    found = [
        (position.last_physical, Slot(topic, queue, position.offset - 1))
        for topic, queues in positions.items()
        for queue, position in queues.items()
        if position.last_physical is not None
    ]
    return max(found, default=None)


def _note_away(broker: _Broker, error: Exception) -> None:
    if broker.away_since_s is None:
        log.warning("broker %s at %s is away: %s", broker.name, broker.sources[0].place, error)
        broker.away_since_s = time.monotonic()
    broker.reason = error.reason if isinstance(error, BrokerError) else str(error)


def _note_back(broker: _Broker) -> None:
    if broker.away_since_s is not None:
        log.warning("broker %s at %s is back", broker.name, broker.sources[0].place)
        broker.away_since_s = None


def _seconds_away(broker: _Broker) -> float:
    return 0.0 if broker.away_since_s is None else time.monotonic() - broker.away_since_s


def _away(broker: _Broker) -> str:
    since = datetime.now(UTC) - timedelta(seconds=_seconds_away(broker))
    return f"away since {since:%Y-%m-%dT%H:%M:%SZ}: {broker.reason}"
