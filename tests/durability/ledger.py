"""The publishers' notes of acknowledged and unanswered messages, and their comparison with a store.

A store agrees if messages seen before have the same offsets, unless they expired; if only messages published since
follow them, each once, in each publisher's order; and if it has every acknowledged message.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field

Queue = tuple[str, int]
"""Topic and queue id."""

Identity = tuple[int, int]
"""Writer and number of a message (see `tests.durability.bodies`)."""


@dataclass
class Request:
    """Messages that one call published, or tried to."""

    topic: str
    messages: list[Identity]
    keys: list[str] = field(default_factory=list)


@dataclass
class Contents:
    """The content of a queue when it was read: the messages from offset `first` on."""

    first: int
    messages: list[Identity]

    @property
    def end(self) -> int:
        return self.first + len(self.messages)


@dataclass
class Tally:
    """Figures over all rounds."""

    acknowledged: int = 0
    in_flight: int = 0
    in_flight_kept: int = 0
    torn_requests: int = 0
    expired: int = 0
    lost: int = 0


class Ledger:
    """Keeps the publishers' word and holds a store to it. Thread safety: none; publishers fill lists of their own."""

    def __init__(self) -> None:
        self.tally = Tally()
        self._seen: dict[Queue, Contents] = {}

    def settle(self, acknowledged: list[Request], in_flight: list[Request], found: dict[Queue, Contents]) -> list[str]:
        """Compare a store's queues with the messages published since the last time; returns findings as sentences."""
        wrong = [text for queue, old in self._seen.items() for text in self._kept(queue, old, found.get(queue))]
        new = {queue: self._new_part(queue, contents) for queue, contents in found.items()}
        wrong += _places(new, acknowledged, in_flight)
        there = {identity for messages in new.values() for identity in messages}
        lost = [one for request in acknowledged for one in request.messages if one not in there]
        wrong += [f"acknowledged, and lost: {len(lost)}, as number {lost[0][1]} of writer {lost[0][0]}"] if lost else []
        self._count(acknowledged, in_flight, there, len(lost))
        self._seen = found
        return wrong

    def _kept(self, queue: Queue, old: Contents, now: Contents | None) -> list[str]:
        """Messages seen before must still exist, or have expired."""
        if now is None:
            return [f"{queue} is gone"]
        if now.end < old.end or now.first < old.first:
            return [f"{queue} held [{old.first}, {old.end}), now [{now.first}, {now.end})"]
        first = max(now.first, old.first)
        self.tally.expired += min(first, old.end) - old.first
        kept, still = old.messages[first - old.first :], now.messages[first - now.first :][: max(old.end - first, 0)]
        return [] if kept == still else [f"{queue} holds other messages than before"]

    def _new_part(self, queue: Queue, contents: Contents) -> list[Identity]:
        old = self._seen.get(queue)
        return contents.messages[max(old.end - contents.first, 0) :] if old else contents.messages

    def _count(self, acknowledged: list[Request], in_flight: list[Request], there: set[Identity], lost: int) -> None:
        tally = self.tally
        tally.lost += lost
        tally.acknowledged += sum(len(request.messages) for request in acknowledged)
        for request in in_flight:
            kept = sum(one in there for one in request.messages)
            tally.in_flight += len(request.messages)
            tally.in_flight_kept += kept
            tally.torn_requests += 0 < kept < len(request.messages)


def _places(new: dict[Queue, list[Identity]], acknowledged: list[Request], in_flight: list[Request]) -> list[str]:
    """Each new message was published to that topic, occurs once, and is in its writer's order."""
    topics = {one: request.topic for request in (*acknowledged, *in_flight) for one in request.messages}
    places: dict[Identity, Queue] = {}
    wrong = []
    for queue, messages in new.items():
        last: dict[int, int] = defaultdict(lambda: -1)
        for writer, number in messages:
            if topics.get((writer, number)) != queue[0]:
                wrong.append(f"{queue}: nobody published number {number} of writer {writer} there")
            if (writer, number) in places:
                wrong.append(f"{queue}: number {number} of writer {writer} is in {places[writer, number]} too")
            if number <= last[writer]:
                wrong.append(f"{queue}: number {number} of writer {writer} comes after {last[writer]}")
            places[writer, number] = queue
            last[writer] = number
    return wrong[:10]
