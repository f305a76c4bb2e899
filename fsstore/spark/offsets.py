"""Offsets of a stream: the position of each queue, with the physical offset that identifies the queue.

{"orders": {"0": "17@4711", "1": 0}}     17 messages have been read, the last one at physical offset 4711

Offsets of a queue begin anew when its topic is deleted and made again. Physical offsets do not, so that of the last
message read distinguishes the queues. A plain number (no message was read, or an older version wrote the checkpoint)
can't.

Where a stream reads several places, the positions of each stand under the name of its broker; a place whose log is that
of another one has the name of that one:

{"a": {"orders": {"0": "17@4711"}}, "b": {}, "b2": "b"}
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias, TypeVar

from fsstore.fleet.sources import Slot
from fsstore.jobs.mount import Bounds, DataLossError, QueueRange, cut
from fsstore.parquet.names import SEGMENT_MESSAGES

OLDEST, NEXT = -2, -1
EARLIEST, LATEST = "earliest", "latest"

_T = TypeVar("_T")
_WRITTEN = re.compile(r"([0-9]{1,19})@([0-9]{1,19})")


class SourceOptionError(ValueError):
    """An unknown option of the source, or an invalid value."""


class Position(NamedTuple):
    """A position in a queue: the next queue offset, and the physical offset of the message before it (None:
    unknown)."""

    offset: int
    last_physical: int | None = None

    @property
    def written(self) -> int | str:
        """As Spark's offset has it."""
        return self.offset if self.last_physical is None else f"{self.offset}@{self.last_physical}"


Ends: TypeAlias = dict[str, dict[int, int]]
"""topic -> queue -> queue offset."""
Positions: TypeAlias = dict[str, dict[int, Position]]
"""topic -> queue -> position."""
Written: TypeAlias = dict[str, dict[str, int | str]]
"""Positions as JSON values."""


def written(positions: Positions) -> Written:
    """Positions in the form that Spark stores."""
    return {
        topic: {str(queue): position.written for queue, position in queues.items()}
        for topic, queues in positions.items()
    }


def parsed(offset: Mapping[str, Mapping[str, int | str]]) -> Positions:
    """The positions of `written`. ValueError, AttributeError for any other value."""
    return {
        topic: {int(queue): _position(value) for queue, value in queues.items()} for topic, queues in offset.items()
    }


def _position(value: object) -> Position:
    if type(value) is int and value >= OLDEST:
        return Position(value)
    found = _WRITTEN.fullmatch(value) if isinstance(value, str) else None
    if found is None:
        raise ValueError(value)
    return Position(int(found[1]), int(found[2]))


class StreamOffset(NamedTuple):
    """The positions up to which each broker has been read. `spares` maps the names of other places with a broker's
    log to that broker."""

    read: Mapping[str, Positions]
    spares: Mapping[str, str] = {}  # nobody changes it


NOTHING = StreamOffset({})
"""The offset of a stream that has not begun."""
Stored: TypeAlias = dict[str, Any]
"""A StreamOffset as JSON values: by brokers, or Written."""


def written_offset(offset: StreamOffset, only: str | None) -> Stored:
    """An offset in the form that Spark stores: by brokers, or that of the store at `only`."""
    if only is not None:
        return dict(written(offset.read[only]))
    return {broker: written(positions) for broker, positions in offset.read.items()} | dict(offset.spares)


def parsed_offset(offset: Stored, only: str | None, brokers: Sequence[str]) -> StreamOffset:
    """The offset of `written_offset`, for a stream over the store at `only`, or over `brokers`. One without brokers
    is that of the only place. SourceOptionError: there are several; ValueError, AttributeError for any other value."""
    queues = [its for value in offset.values() if isinstance(value, Mapping) for its in value.values()]
    has_brokers = any(isinstance(value, str) for value in offset.values()) or bool(
        offset and all(isinstance(its, Mapping) for its in queues)
    )
    if only is not None:
        if has_brokers:
            shown = ", ".join(offset)
            raise SourceOptionError(f"the checkpoint has positions of {shown}: name the places in the option places")
        return StreamOffset({only: parsed(offset)})
    if has_brokers or not (offset or len(brokers) == 1):
        read = {broker: parsed(its) for broker, its in offset.items() if not isinstance(its, str)}
        return StreamOffset(read, {broker: its for broker, its in offset.items() if isinstance(its, str)})
    if len(brokers) > 1:
        raise SourceOptionError(
            "the checkpoint is of one store, and does not say which: start the query with that place alone, under its "
            "name, and then with all"
        )
    return StreamOffset({brokers[0]: parsed(offset)})


def part_of(option: str, text: str, broker: str, brokers: Collection[str]) -> str:
    """The part of an option for one of `brokers`, of which its JSON has an object each. SourceOptionError: it has
    another key."""
    try:
        given = json.loads(text)
    except ValueError:
        return text  # `earliest`, `latest`, or nothing
    if not isinstance(given, dict) or not given.keys() <= set(brokers):
        raise SourceOptionError(f'{option} has an object for each broker, {{"a": {{"orders": {{"0": 17}}}}}}: {text!r}')
    return json.dumps(given.get(broker, {}))


def resolve(option: str, text: str, bounds: Bounds) -> Ends:
    """Offsets of all queues of `bounds` from `earliest`, `latest`, or JSON.

    A queue that JSON leaves out is at its oldest message for startingOffsets, and at its end for endingOffsets.
    """
    if text.strip().lower() in (EARLIEST, LATEST):
        given: Positions = {}
        missing = OLDEST if text.strip().lower() == EARLIEST else NEXT
    else:
        given, missing = _given(option, text), OLDEST if option == "startingOffsets" else NEXT
    found: Ends = {}
    for topic, queues in bounds.items():
        for queue, (oldest, next_offset) in queues.items():
            offset = given.get(topic, {}).get(queue, Position(missing)).offset
            found.setdefault(topic, {})[queue] = {OLDEST: oldest, NEXT: next_offset}.get(offset, offset)
    return found


def _given(option: str, text: str) -> Positions:
    try:
        return parsed(json.loads(text))
    except (ValueError, AttributeError):
        raise SourceOptionError(
            f'{option} must be "earliest", "latest" or JSON like {{"orders": {{"0": 17, "1": -2}}}}: {text!r}'
        ) from None


def resolve_times(
    times: Mapping[str, Mapping[int, int]] | int, bounds: Bounds, offset_at: Callable[[str, int, int], int | None], *,
    latest: bool,
) -> Ends:  # fmt: skip
    """Offsets of all queues of `bounds` at times in epoch milliseconds, one for all or one for each; a queue without a
    time is at its oldest message. `offset_at` takes topic, queue and time, and returns the first queue offset stored at
    or after it. None: there is no such message; then the queue is at its end if `latest`, else SourceOptionError."""
    found = resolve("startingOffsets", EARLIEST, bounds)
    for topic, queues in bounds.items():
        for queue, (_, end) in queues.items():
            time_ms = times if isinstance(times, int) else times.get(topic, {}).get(queue)
            if time_ms is None:
                continue
            offset = offset_at(topic, queue, time_ms)
            if offset is None and not latest:
                raise SourceOptionError(
                    f"{topic}/{queue} has no message stored at or after {time_ms}: "
                    "startingOffsetsByTimestampStrategy=latest begins at its end"
                )
            found[topic][queue] = end if offset is None else offset
    return found


def parse_times(text: str) -> dict[str, dict[int, int]]:
    """The JSON of startingOffsetsByTimestamp. SourceOptionError."""
    try:
        times = {topic: {int(queue): at for queue, at in queues.items()} for topic, queues in json.loads(text).items()}
        if all(type(at) is int and at >= 0 for queues in times.values() for at in queues.values()):
            return times
    except (ValueError, AttributeError):
        pass
    raise SourceOptionError(
        f'startingOffsetsByTimestamp must be JSON like {{"orders": {{"0": 1767225600000}}}}, in epoch ms: {text!r}'
    )


def ends(bounds: Bounds) -> Ends:
    return {
        topic: {queue: end for queue, (_, end) in sorted(queues.items())} for topic, queues in sorted(bounds.items())
    }


class Queues:
    """The present queues of a store."""

    def __init__(
        self, bounds: Bounds, physical_offsets: Callable[[Collection[Slot]], Mapping[Slot, int | None]]
    ) -> None:  # fmt: skip
        """`physical_offsets` looks messages up; None: there is no such message, or it is damaged."""
        self._bounds = bounds
        self._physical_offsets = physical_offsets
        self._known: dict[Slot, int | None] = {}

    def located(self, offsets: Ends, start: Positions | None = None) -> Positions:
        """Offsets as positions. A queue that only `start` has (of a deleted topic) keeps its position."""
        start = start or {}
        self._look_up(Slot(*key, offset - 1) for key, offset in _flat(offsets))
        found: Positions = {topic: dict(queues) for topic, queues in start.items()}
        for topic, queues in offsets.items():
            for queue, offset in queues.items():
                before = start.get(topic, {}).get(queue)
                if before is None or before.offset != offset or not self.is_of(before, topic, queue):
                    position = Position(offset, self._physical_offset(topic, queue, offset - 1) if offset > 0 else None)
                    found.setdefault(topic, {})[queue] = position
        return found

    def is_of(self, position: Position, topic: str, queue: int) -> bool:
        """Whether a position can be of the present queue: nothing known contradicts it."""
        oldest, end = self._bounds_of(topic, queue)
        if position.offset > end:
            return False
        if position.last_physical is None or position.offset <= oldest:
            return True
        return self._physical_offset(topic, queue, position.offset - 1) in (position.last_physical, None)

    def waiting(self, start: Positions, end: Ends) -> list[QueueRange]:
        """The messages between two offsets, a range per queue."""
        found = []
        self._look_up(Slot(*key, position.offset - 1) for key, position in _flat(start))
        for topic, queues in sorted(end.items()):
            for queue, stop in sorted(queues.items()):
                oldest, next_offset = self._bounds_of(topic, queue)
                begin = self._goes_on(start.get(topic, {}).get(queue, Position(0)), topic, queue)
                part = QueueRange(topic, queue, max(begin, oldest), min(stop, next_offset))
                if part.begin < part.end:
                    found.append(part)
        return found

    def plan(self, start: Positions, end: Positions, *, fail_on_data_loss: bool) -> list[tuple[QueueRange, Position]]:
        """The messages to read between two positions, a range per queue, and its end. A queue that `start` does not
        have begins at 0.

        DataLossError: some of them were removed; without `fail_on_data_loss` these are left out.
        """
        found = []
        changed = [
            (topic, queue, begin, stop)
            for (topic, queue), stop in sorted(_flat(end))
            if (begin := start.get(topic, {}).get(queue, Position(0))) != stop
        ]
        self._look_up(Slot(topic, queue, at.offset - 1) for topic, queue, *both in changed for at in both)
        for topic, queue, begin, stop in changed:
            loss = self._loss(topic, queue, begin, stop)
            if loss is not None and fail_on_data_loss:
                raise loss
            if self.is_of(stop, topic, queue):
                parts = self.waiting({topic: {queue: begin}}, {topic: {queue: stop.offset}})
                found += [(part, stop) for part in parts]
        return found

    def _loss(self, topic: str, queue: int, begin: Position, stop: Position) -> DataLossError | None:
        """The error for removed messages of a range; None: there are none."""
        oldest, end = self._bounds_of(topic, queue)
        if not end:
            return DataLossError(topic, queue, begin.offset, end, "the topic was deleted")
        for position in (begin, stop):
            if not self.is_of(position, topic, queue):
                why = "the topic was deleted and made again, or the queue was cut, since the query last saw it"
                return DataLossError(topic, queue, begin.offset, oldest, why)
        if begin.offset < oldest:
            return DataLossError(topic, queue, begin.offset, oldest)
        if stop.offset < begin.offset:
            return DataLossError(topic, queue, begin.offset, stop.offset, "it is to end before it begins")
        return None

    def _goes_on(self, position: Position, topic: str, queue: int) -> int:
        """The queue offset at which to continue after a position."""
        if self.is_of(position, topic, queue):
            return position.offset
        oldest, end = self._bounds_of(topic, queue)
        first_physical = self._physical_offset(topic, queue, oldest) if oldest < end else None
        if (
            first_physical is not None
            and position.last_physical is not None
            and first_physical <= position.last_physical
        ):
            return min(position.offset, end)  # its writer cut the queue, but did not make it again
        return oldest

    def _physical_offset(self, topic: str, queue: int, offset: int) -> int | None:
        slot = Slot(topic, queue, offset)
        self._look_up([slot])
        return self._known.get(slot)

    def _look_up(self, slots: Iterable[Slot]) -> None:
        """Ask for messages together, of which some are at another host: those of queues that are there."""
        asked = {slot for slot in slots if slot not in self._known and self._may_have(slot)}
        if asked:
            self._known |= self._physical_offsets(sorted(asked))

    def _may_have(self, slot: Slot) -> bool:
        oldest, end = self._bounds_of(slot.topic, slot.queue)
        return oldest <= slot.queue_offset < end

    def _bounds_of(self, topic: str, queue: int) -> tuple[int, int]:
        return self._bounds.get(topic, {}).get(queue, (0, 0))


def _flat(queues: Mapping[str, Mapping[int, _T]]) -> list[tuple[tuple[str, int], _T]]:
    """Values by topic and queue."""
    return [((topic, queue), value) for topic, some in queues.items() for queue, value in some.items()]


def shares(waiting: Mapping[str, int], most: int) -> dict[str, int]:
    """Shares of `most` in proportion to what waits at each broker, at least one where something waits."""
    total, left, found = sum(waiting.values()), most, {}
    for broker, size in sorted(waiting.items(), key=lambda one: -one[1]):
        found[broker] = min(size, max(size * most // max(total, 1), 1), left)
        left -= found[broker]
    return found


def limited(end: Ends, waiting: list[QueueRange], most: int) -> Ends:
    """At most `most` waiting messages. A queue's share is in proportion to its waiting messages, at least one."""
    total = sum(part.end - part.begin for part in waiting)
    if total <= most:
        return end
    limits = {topic: dict(queues) for topic, queues in end.items()}
    left = most
    for part in sorted(waiting, key=lambda part: part.begin - part.end):  # the longest first
        size = part.end - part.begin
        share = min(max(size * most // total, 1), left)
        limits[part.topic][part.queue] = part.begin + share
        left -= share
    return limits


def limited_bytes(end: Ends, waiting: list[QueueRange], most: int, size_of: Callable[[QueueRange], int]) -> Ends:
    """About `most` bytes of waiting messages, and at least a message of each queue. Queues have equal shares; a part
    that one does not need is for the others. `size_of` takes ranges from `cut`."""
    limits = {topic: dict(queues) for topic, queues in end.items()}
    parts = sorted(waiting, key=lambda part: part.end - part.begin)
    for number, part in enumerate(parts):
        stop, size = _fitting(part, most // (len(parts) - number), size_of)
        limits[part.topic][part.queue] = stop
        most = max(most - size, 0)
    return limits


def _fitting(whole: QueueRange, most: int, size_of: Callable[[QueueRange], int]) -> tuple[int, int]:
    """The end of the first part of a range that takes about `most` bytes, and the bytes that it takes."""
    taken = 0
    for part in cut(whole):
        size = size_of(part)
        while size > most - taken and part.end > part.begin + 1:
            count = (part.end - part.begin) * max(most - taken, 0) // size
            part = part._replace(end=part.begin + max(count, 1))
            size = size_of(part)
        if size > most - taken and part.begin > whole.begin:
            return part.begin, taken
        taken += size
        if taken >= most or part.end % SEGMENT_MESSAGES:
            return part.end, taken
    return whole.end, taken
