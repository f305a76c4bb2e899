"""Several brokers' stores on one page: each is asked for its data, and what they answer is joined.

All are asked at once, and have ANSWER_S in all. A broker that does not answer by then, or whose answer is none, has a
reason in the place of its data, which the page shows.

Which brokers hold one log takes many questions where there are many brokers or queues. A thread asks them, and a page
shows what is known.
"""

from __future__ import annotations

import heapq
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, wait
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from typing import Any, Generic, NamedTuple, TypeVar

import msgspec

from engine import StoreError
from fsstore.fleet.datasets import BrokerError
from fsstore.fleet.http import Question, Server
from fsstore.fleet.identity import Facts, Witness, roles
from fsstore.fleet.places import Place
from fsstore.fleet.unusable import UnusableFileError
from fsstore.query.hist import edges_of, fitting_span_ms
from fsstore.serve.page.chart import MOST_BARS, Bar, Chart
from fsstore.serve.page.data import DATA, Count, MessagesData, RowData
from fsstore.serve.page.messages import PAGE_ROWS
from fsstore.serve.page.selection import MAX_OFFSET, FormError, Parameters
from fsstore.serve.tree import PathError, RefusedError

ANSWER_S = 5.0
MOST_BYTES = 4 << 20
"""The longest answer of a broker."""
MOST_UNANSWERED = 8
"""Questions to one broker that may wait for its answer at a time."""
WITNESS = "/witness"
"""The name of the question by which a log is recognized, and its path at a server."""
COMPARED_S = 600.0
"""How long it is believed which brokers hold one log."""
_REASON_CHARACTERS, _NUMBER_CHARACTERS = 300, 19
_ERRORS = (BrokerError, RefusedError, UnusableFileError, StoreError, OSError)

_FACTS: Any = dict[str, str] | None

T = TypeVar("T")
Own = Callable[[str, Parameters], Any]
"""Answers a question of this name without a server. Errors as OwnData."""


class FleetRow(NamedTuple):
    """A message of a broker; `at_ms` orders it among those of others."""

    at_ms: int
    broker: str
    message: RowData


@dataclass(frozen=True, slots=True)
class Answers(Generic[T]):
    """Answers of brokers, and the reasons of those without one, each by the broker's name."""

    found: Mapping[str, T]
    problems: Mapping[str, str]


class Broker:
    """A broker of the page. `url` leads to its own page; empty: there is none, or it is this one. Thread safety: any
    thread."""

    def __init__(self, place: Place, token: str | None, own: Own | None) -> None:
        """`own` answers if the place is the mount beside this server."""
        self.name = place.name
        self.is_own = own is not None
        self.url = "" if self.is_own else place.url or ""
        self._server = Server(place.name, self.url, token)
        self._own = own
        self._free = threading.BoundedSemaphore(MOST_UNANSWERED)

    def ask(self, name: str, parameters: Parameters, kind: type[T]) -> tuple[Future[T], Question]:
        """The answer to come, and the question, to give it up. The answer raises what _ERRORS has, and FormError."""
        path = name if name == WITNESS else DATA.decode() + name
        question = Question(self._server, path, parameters, ANSWER_S, MOST_BYTES)
        future: Future[T] = Future()

        def work() -> None:
            try:
                future.set_result(self._answer(name, parameters, kind, question))
            except Exception as error:
                future.set_exception(error)
            finally:
                self._free.release()

        if self._free.acquire(blocking=False):
            threading.Thread(target=work, name=f"fleet-{self.name}"[:15], daemon=True).start()
        else:
            future.set_exception(PathError(503, f"{MOST_UNANSWERED} questions wait for its answer already"))
        return future, question

    def _answer(self, name: str, parameters: Parameters, kind: type[T], question: Question) -> T:
        if self._own is not None:
            found: T = self._own(name, parameters)
            return found
        if not self.url:
            raise PathError(501, "the page asks servers: the fleet file has no url for it")
        content = question.ask()
        try:
            return msgspec.json.decode(content, type=kind)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise BrokerError(self.name, self.url, f"its answer is none of `mountctl serve`: {error}") from None


class Fleet:
    """The brokers of a page, and the name of their group. Thread safety: any thread."""

    def __init__(self, name: str, brokers: Sequence[Broker]) -> None:
        self.name = name
        self.brokers = {broker.name: broker for broker in brokers}
        self._compared_s: float | None = None
        self._same_log: Mapping[str, str] = {}

    def chosen(self, parameters: Parameters) -> dict[str, Broker]:
        """The brokers that the parameter `broker` names; all without it. PathError."""
        if (name := parameters.get("broker")) is None:
            return self.brokers
        if name not in self.brokers:
            raise PathError(404, f"{self.name} has no such broker")
        return {name: self.brokers[name]}

    def ask(self, name: str, each: Mapping[str, Parameters], kind: type[T]) -> Answers[T]:
        """Ask the brokers for which `each` has parameters. FormError: the input is invalid for one of them."""
        asked = {broker: self.brokers[broker].ask(name, parameters, kind) for broker, parameters in each.items()}
        wait([future for future, _ in asked.values()], ANSWER_S)
        found: dict[str, T] = {}
        problems: dict[str, str] = {}
        for broker, (future, question) in asked.items():
            if not future.done():
                question.give_up()
                problems[broker] = f"no answer within {ANSWER_S:g} s"
                continue
            try:
                found[broker] = future.result()
            except FormError:
                raise
            except _ERRORS as error:
                said = error.reason if isinstance(error, BrokerError | RefusedError) else str(error)
                problems[broker] = said[:_REASON_CHARACTERS]
        return Answers(found, problems)

    def same_log(self) -> Mapping[str, str]:
        """Brokers whose log another one holds, too, with that one, as far as it is known. Does not block."""
        now_s = time.monotonic()
        if self._compared_s is None or now_s >= self._compared_s + COMPARED_S:
            self._compared_s = now_s
            threading.Thread(target=self._compare, name="fleet-compare", daemon=True).start()
        return self._same_log

    def _compare(self) -> None:
        known = []
        for broker in self.brokers.values():
            holder = _Holder(self, broker)
            with suppress(BrokerError):
                known.append((holder, holder.witness()))
        self._same_log = {spare.broker: read.broker for spare, read in roles(known).spare}


class _Holder:
    """A broker, as far as its log is concerned."""

    def __init__(self, fleet: Fleet, broker: Broker) -> None:
        self._fleet = fleet
        self.broker = broker.name
        self.place = broker.url

    def witness(self) -> Witness:
        """As Holder. BrokerError: there is no answer."""
        answers = self._fleet.ask(WITNESS, {self.broker: {}}, Witness)
        found = answers.found.get(self.broker)
        if found is None:
            raise BrokerError(self.broker, self.place, answers.problems[self.broker])
        at = "0" if found.newest is None else found.newest.facts.get("physical_offset", "")
        if not at.isdecimal() or len(at) > _NUMBER_CHARACTERS:
            raise BrokerError(self.broker, self.place, "its newest record is nowhere")
        return found

    def facts(self, topic: str, queue: int, queue_offset: int) -> Facts | None:
        """As Holder; None also without an answer."""
        asked = {"topic": topic, "queue": str(queue), "offset": str(queue_offset)}
        answers: Answers[Any] = self._fleet.ask(WITNESS, {self.broker: asked}, _FACTS)
        found: Facts | None = answers.found.get(self.broker)
        return found


def merged(
    found: Mapping[str, MessagesData], before: Mapping[str, int]
) -> tuple[list[FleetRow], dict[str, int] | None]:
    """The newest PAGE_ROWS of what brokers found, by store time, those of one broker in its own order; and before
    which physical offset of each the next page goes on, None without one. `before` is where this page began."""
    rows = list(islice(heapq.merge(*map(_timed, found, found.values()), key=lambda row: -row.at_ms), PAGE_ROWS))
    shown = Counter(row.broker for row in rows)
    older, goes_on = dict(before), False
    for broker, one in found.items():
        count = shown[broker]
        if count == len(one.rows):
            older[broker] = 0 if one.before is None else one.before
            goes_on |= one.before is not None
        else:
            older[broker] = (
                one.rows[count - 1].physical_offset if count else min(one.rows[0].physical_offset, MAX_OFFSET - 1) + 1
            )
            goes_on = True
    return rows, older if goes_on else None


def _timed(broker: str, found: MessagesData) -> Iterator[FleetRow]:
    """The rows of a broker; one whose time is not known comes right behind the one before it."""
    at_ms = MAX_OFFSET
    for message in found.rows:
        at_ms = at_ms if message.time_ms is None else message.time_ms
        yield FleetRow(at_ms, broker, message)


def parse_before(text: str) -> dict[str, int]:
    """The physical offsets before which a page goes on, by broker: JSON. PathError."""
    try:
        return msgspec.json.decode(text or "{}", type=dict[str, Count])
    except (msgspec.DecodeError, UnicodeEncodeError):
        raise PathError(400, "before is JSON with a number for each broker") from None


def spans_of(found: Mapping[str, MessagesData]) -> tuple[list[int], int] | None:
    """The edges of the histogram that has the messages of all, and the length of a span; None: there are no messages,
    or a time of theirs is in no calendar."""
    times = [time for one in found.values() for time in (one.first_ms, one.last_ms) if time is not None]
    if not times:
        return None
    span_ms = fitting_span_ms(min(times), max(times), MOST_BARS - 1)
    try:
        edges = edges_of(min(times), max(times), span_ms)
    except ValueError:
        return None
    return (edges, span_ms) if edges[0] >= 0 and len(edges) <= MOST_BARS + 1 else None


def summed_chart(
    edges: Sequence[int], span_ms: int, counts: Sequence[Sequence[int]], link: Callable[[int, int], str]
) -> Chart:
    """The histogram of all brokers, of the counts of each. `link` leads to the messages stored in [begin, end)."""
    sums = [sum(some) for some in zip(*counts, strict=True)] or [0] * (len(edges) - 1)
    bars = [
        Bar(begin, end, count, None, link(begin, end))
        for begin, end, count in zip(edges, edges[1:], sums, strict=False)
    ]
    begin, end = edges[0], edges[-1]
    width = end - begin
    return Chart(bars, span_ms, link(begin - width, end + width), link(begin - width, begin), link(end, end + width))
