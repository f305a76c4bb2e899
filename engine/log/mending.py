"""Mending: messages of which one word about themselves is damaged, read by the entry that leads to them
(docs/format.md, 12).

RocketMQ delivers a message by its consume queue's entry, and looks at no word of the record that the entry says, too:
its size and physical offset, whose queue's message it is, and which number. So does this, where exactly one of them
differs, all the rest fits and the body's CRC holds. An entry may be wrong as well: it is not believed where the record
does not lie between those of the entries before and behind it, stands in the place that it names itself, or is
explained by another entry as well, nor where the queue's entries lead to other queues' messages.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

from engine.errors import DamagedRecordError, ReadError
from engine.log.delay import SCHEDULE_TOPIC
from engine.record.header import HOSTLESS_BYTES, INNER_BATCH, LAYOUTS, MESSAGE_MAGIC_V2, is_queued, position_of
from engine.record.kernel.decode import StoredMessage
from engine.record.multi_dispatch import MULTI_DISPATCH, Place, inner_count, places
from engine.record.record import decode_record, read_header

if TYPE_CHECKING:
    from engine.log.commit_log import CommitLog
    from engine.log.consume_queues import ConsumeQueues

MOST_NOTED = 1 << 16
"""Of so many damaged places, and mended messages, it is known that they were met."""

NEIGHBOURS = 3
"""So many numbers to each side are asked whether their queue's entries lead to its own messages."""

_SIZE, _QUEUE_ID, _QUEUE_OFFSET, _PHYSICAL_OFFSET = (
    (position_of(name), LAYOUTS[0][name].itemsize)
    for name in ("store_size", "queue_id", "queue_offset", "physical_offset")
)
"""Position and bytes of each word in a record."""


class Entry(NamedTuple):
    """An entry of a consume queue, and where it stands."""

    topic: str
    queue_id: int
    queue_offset: int
    physical_offset: int
    size: int
    tags_code: int


class Word(NamedTuple):
    """A word of a record that its entry denies: what it is, where in the record, and what it should be, None where too
    much of it differs. `is_name`: it says whose queue's which number the record is."""

    what: str
    position: int
    right: bytes | None
    is_name: bool


class Mended(NamedTuple):
    """A message with its damaged word put right, which was `word` in the log."""

    message: StoredMessage
    word: Word


class MetDamage:
    """What readers met, up to MOST_NOTED of each kind. Thread safety: any thread."""

    def __init__(self) -> None:
        self._damaged: set[int] = set()
        self._mended: OrderedDict[int, Place] = OrderedDict()  # whose first one is found at once

    @property
    def damaged(self) -> int:
        """Places of the log that could not be read."""
        return len(self._damaged)

    @property
    def mended(self) -> int:
        """Messages that were shown by their entries."""
        return len(self._mended)

    def note_damaged(self, physical_offset: int) -> None:
        """A record there could not be read."""
        if len(self._damaged) < MOST_NOTED:
            self._damaged.add(physical_offset)

    def note_mended(self, physical_offset: int, place: Place) -> None:
        """The record there was shown by the entry at `place`."""
        if physical_offset not in self._mended and len(self._mended) >= MOST_NOTED:
            self._mended.popitem(last=False)
        self._mended[physical_offset] = place

    def place_of(self, physical_offset: int) -> Place | None:
        """The place of a message that was mended, by where its record starts."""
        return self._mended.get(physical_offset)

    def forget(self) -> None:
        """Another log is there."""
        self._damaged.clear()
        self._mended.clear()


class Mender:
    """Mends what it can. Thread safety: stateless; any thread."""

    def __init__(self, log: CommitLog, queues: ConsumeQueues, body_limit_bytes: int) -> None:
        self._log = log
        self._queues = queues
        self._body_limit_bytes = body_limit_bytes

    def mend(self, entry: Entry) -> Mended | None:
        """The message that an entry leads to; None when more is damaged than one word, or the entry may be wrong."""
        try:
            record = self._log.view(entry.physical_offset, entry.size)
            if not self._is_in_order(entry):
                return None
            words = differing_words(record, entry)
            names = [word for word in words if word.is_name]
            if len(words) == 1:
                mended = self._with(record, entry, words[0])
                return None if mended is None or (names and not self._is_believed(entry, mended)) else mended
            frame = [word for word in words if not word.is_name]
            if len(frame) != 1 or MULTI_DISPATCH.encode() not in bytes(record):
                return None
            mended = self._with(record, entry, frame[0])  # one of its further places leads to it
            place = Place(entry.topic, entry.queue_id, entry.queue_offset)
            return mended if mended is not None and place in further_places(mended.message) else None
        except (ReadError, OverflowError):  # a damaged record may have made a queue with a number that none can say
            return None

    def _with(self, record: memoryview, entry: Entry, word: Word) -> Mended | None:
        """The message with that word put right, None when it is not whole then. Errors as `CommitLog.view`."""
        if word.right is None:
            return None
        changed = bytearray(record)
        changed[word.position : word.position + len(word.right)] = word.right
        try:
            message = decode_record(
                memoryview(bytes(changed)), entry.physical_offset, body_limit_bytes=self._body_limit_bytes
            )
        except DamagedRecordError:
            return None
        if message.store_size != entry.size or not is_queued(message.sys_flag):
            return None
        self._log.require_framed(entry.physical_offset, entry.size)
        return Mended(message, word)

    # whether it is the entry that is wrong

    def _is_in_order(self, entry: Entry) -> bool:
        """Whether the record lies between those of the entries before and behind this one."""
        before, after = (self._entry(Place(entry.topic, entry.queue_id, entry.queue_offset + step)) for step in (-1, 1))
        if before is not None and before[0] + before[1] > entry.physical_offset:
            return False
        return after is None or entry.physical_offset + entry.size <= after[0]

    def _is_believed(self, entry: Entry, mended: Mended) -> bool:
        """Whether the record is the one that is wrong about its name."""
        found = self._own_words(entry.physical_offset, entry.size)
        if found is None:
            return False
        is_for_a_lost_number = entry.tags_code == 0 and mended.message.tags and entry.topic != SCHEDULE_TOPIC
        if is_for_a_lost_number and found.queue_offset == entry.queue_offset:
            return False  # of any queue of that many messages
        if self._leads_to(found, entry.physical_offset) or self._stands(found) is False:
            return False
        return not any(self._leads_to(place, entry.physical_offset) for place in self._rivals(entry, found)) and (
            self._leads_to_its_own(entry)
        )

    def _own_words(self, physical_offset: int, size: int) -> Place | None:
        """What the record there says of itself."""
        try:
            message = decode_record(self._log.view(physical_offset, size), physical_offset, verify=False)
        except ReadError:
            return None
        return Place(message.topic, message.queue_id, message.queue_offset)

    def _rivals(self, entry: Entry, found: Place) -> Iterator[Place]:
        """The places of other queues that would explain the record as well: the same word would be the damaged one."""
        if found.queue_offset != entry.queue_offset:
            return
        topics = [entry.topic]
        if found.topic != entry.topic:
            topics = [topic for topic in self._queues.topics() if _differ_in_one(found.topic.encode(), topic.encode())]
        for topic in topics:
            queue_ids = [entry.queue_id] if found.topic != entry.topic else self._queues.queue_ids(topic)
            for queue_id in queue_ids:
                if (topic, queue_id) != (entry.topic, entry.queue_id):
                    yield Place(topic, queue_id, entry.queue_offset)

    def _leads_to_its_own(self, entry: Entry) -> bool:
        """Whether the queue's entries around this one lead to messages of its own, as far as these can be read."""
        for step in (-1, 1):
            for distance in range(1, NEIGHBOURS + 1):
                queue_offset = entry.queue_offset + step * distance
                stands = self._stands(Place(entry.topic, entry.queue_id, queue_offset))
                if stands is False:
                    return False
                if stands:
                    break
        return True

    def _leads_to(self, place: Place, physical_offset: int) -> bool:
        entry = self._entry(place)
        return entry is not None and entry[0] == physical_offset

    def _stands(self, place: Place) -> bool | None:
        """Whether the record that the entry there leads to says that it stands there; None: there is none."""
        entry = self._entry(place)
        if entry is None:
            return None
        try:
            message = decode_record(self._log.rest(entry[0]), entry[0], verify=False)
        except ReadError:
            return None
        return stands_at(message, place)

    def _entry(self, place: Place) -> tuple[int, int, int] | None:
        try:
            queue = self._queues.get(place.topic, place.queue_id)
            return queue.entry(place.queue_offset) if queue is not None else None
        except ReadError:
            return None


def stands_at(message: StoredMessage, place: Place) -> bool:
    """Whether the record says that it stands there: in its own queue, as a batch with that number, too, or as in one of
    its further places."""
    if (message.topic, message.queue_id) == place[:2]:
        number = place.queue_offset - message.queue_offset
        if number == 0:
            return True
        if message.sys_flag & INNER_BATCH and 0 < number < inner_count(message.properties, message.queue_offset):
            return True
    return place in further_places(message)


def further_places(message: StoredMessage) -> Sequence[Place]:
    """The places in other queues that a record claims."""
    if not message.find_property(MULTI_DISPATCH.encode()):
        return ()
    return places(message.properties, message.queue_id)


def differing_words(record: memoryview, entry: Entry) -> list[Word]:
    """The words of a record, as long as its entry says, that the entry denies. DamagedRecordError."""
    header = read_header(record, entry.physical_offset)
    words = [
        Word(what, position, right.to_bytes(size, "big", signed=True), is_name)
        for what, (position, size), found, right, is_name in (
            ("size", _SIZE, header.store_size, entry.size, False),
            ("physical offset", _PHYSICAL_OFFSET, header.physical_offset, entry.physical_offset, False),
            ("queue id", _QUEUE_ID, header.queue_id, entry.queue_id, True),
            ("queue offset", _QUEUE_OFFSET, header.queue_offset, entry.queue_offset, True),
        )
        if found != right
    ]
    topic = entry.topic.encode()
    is_v2 = header.magic == MESSAGE_MAGIC_V2
    start = (
        HOSTLESS_BYTES + 1 + len(header.born_host) + len(header.store_host) + is_v2 + max(header.stored_body_size, 0)
    )
    found_topic = bytes(record[start : start + len(topic)])
    if found_topic != topic:
        words.append(Word("topic", start, topic if _differ_in_one(found_topic, topic) else None, True))
    return words


def _differ_in_one(first: bytes, second: bytes) -> bool:
    return len(first) == len(second) and sum(one != other for one, other in zip(first, second, strict=True)) == 1
