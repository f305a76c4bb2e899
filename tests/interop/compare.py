"""Comparisons of a RocketMQ's view of a store with our engine's."""

import hashlib
from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any

from engine import MessageStore, QueueBounds, StoredMessage
from tests.interop.messages import Put

QUERY_LIMIT = 64  # the most that RocketMQ answers
ALL_TIMES_MS = (1 << 62) - 1

Place = tuple[str, int]
"""A topic and a queue of it."""


@dataclass(slots=True)
class Tally:
    """The comparisons that were made, and the differences as sentences."""

    messages: int = 0
    queries: int = 0
    differences: list[str] = field(default_factory=list)

    def expect(self, what: str, theirs: object, ours: object) -> None:
        """Note a difference unless both are equal."""
        if theirs != ours:
            self.differences.append(f"{what}: RocketMQ {theirs!r}, ours {ours!r}"[:1000])


def message_fields(message: StoredMessage) -> dict[str, Any]:
    """A message of ours in the driver's words (Records.java, decoded)."""
    return {
        "topic": message.topic,
        "queue": message.queue,
        "queue_offset": message.queue_offset,
        "physical_offset": message.physical_offset,
        "store_size": message.store_size,
        "flag": message.flag,
        "sys_flag": message.sys_flag,
        "born_time_ms": message.born_time_ms,
        "born_host": f"{message.born_host.address.hex()}:{message.born_host.port}",
        "store_time_ms": message.store_time_ms,
        "store_host": f"{message.store_host.address.hex()}:{message.store_host.port}",
        "reconsume_times": message.reconsume_times,
        "prepared_transaction_offset": message.prepared_transaction_offset,
        "body_crc": message.body_crc,
        "msg_id": message.msg_id,
        "stored_body": digest(message.stored_body),
        "body": digest(message.body),
        "properties": message.properties,
    }


def digest(body: bytes | memoryview) -> list[Any]:
    """Length and SHA-256."""
    return [len(body), hashlib.sha256(body).hexdigest()]


def our_dump(store: MessageStore) -> dict[str, Any]:
    """The messages that our engine delivers, in the driver's format (Stores.java, dump)."""
    queues = []
    messages = []
    for topic in store.topics():
        for queue_id in store.queues(topic):
            bounds = store.bounds(topic, queue_id)
            queues.append(
                {
                    "topic": topic,
                    "queue": queue_id,
                    "min_offset": bounds.min_offset,
                    "max_offset": bounds.max_offset,
                    "tags_codes": tags_codes(store, topic, queue_id, bounds),
                }
            )
            messages += [
                {**message_fields(message), "queue_topic": topic, "queue_id": queue_id}
                for message in store.read(topic, queue_id, bounds.min_offset)
            ]
    return {"queues": queues, "messages": messages}


def tags_codes(store: MessageStore, topic: str, queue_id: int, bounds: QueueBounds) -> list[int]:
    """The third column of a queue's entries; `entries` may stop where a file does."""
    codes: list[int] = []
    while len(codes) < bounds.count:
        entries = store.entries(topic, queue_id, bounds.min_offset + len(codes), bounds.count - len(codes))
        codes += entries["tags_code"].tolist()
        if not len(entries):
            break
    return codes


def compare_dump(tally: Tally, dump: dict[str, Any], store: MessageStore) -> None:
    """Every queue's bounds, every message and every tags code of RocketMQ's `dump` against our open store."""
    compare_dumps(tally, dump, our_dump(store))


def compare_dumps(tally: Tally, theirs: dict[str, Any], ours: dict[str, Any]) -> None:
    """Two dumps. A queue that never held a message counts as no queue: RocketMQ makes some when it reads."""
    their_queues, our_queues = queues_of(theirs), queues_of(ours)
    mend_due_times(their_queues, our_queues)
    tally.expect("queues", sorted(their_queues), sorted(our_queues))
    their_messages, our_messages = messages_of(theirs), messages_of(ours)
    for place in sorted(their_queues.keys() & our_queues.keys()):
        where = f"{place[0]}/{place[1]}"
        tally.expect(f"{where} bounds and tags codes", their_queues[place], our_queues[place])
        compare_messages(tally, where, their_messages[place], our_messages[place])


def queues_of(dump: dict[str, Any]) -> dict[Place, list[Any]]:
    """Bounds and tags codes of each queue that ever held a message."""
    return {
        (queue["topic"], queue["queue"]): [queue["min_offset"], queue["max_offset"], queue["tags_codes"]]
        for queue in dump["queues"]
        if queue["max_offset"]
    }


def mend_due_times(theirs: dict[Place, list[Any]], ours: dict[Place, list[Any]]) -> None:
    """Where RocketMQ 4.9 dispatched a delayed message again after a crash, it wrote the hash of its tags in place of
    its due time (it reads the delay levels only afterwards), and would deliver it at once. Ours is the due time."""
    for place in theirs.keys() & ours.keys():
        if place[0] == "SCHEDULE_TOPIC_XXXX":
            theirs[place][2] = [
                our if is_hash(their) and not is_hash(our) else their
                for their, our in zip(theirs[place][2], ours[place][2], strict=False)
            ]


def is_hash(tags_code: int) -> bool:
    """Whether a tags code fits 32 bits; a time does not."""
    return -(1 << 31) <= tags_code < 1 << 31


def messages_of(dump: dict[str, Any]) -> dict[Place, list[dict[str, Any]]]:
    """The dump's messages by the queue in which they were found."""
    queues: dict[Place, list[dict[str, Any]]] = defaultdict(list)
    for message in dump["messages"]:
        fields = dict(message)
        queues[fields.pop("queue_topic"), fields.pop("queue_id")].append(fields)
    return queues


def compare_messages(tally: Tally, where: str, theirs: list[dict[str, Any]], ours: list[dict[str, Any]]) -> None:
    """Two lists of messages, field by field."""
    tally.expect(f"{where} number of messages", len(theirs), len(ours))
    for index, (their, our) in enumerate(zip(theirs, ours, strict=False)):
        tally.messages += 1
        if their != our:
            names = [name for name in their if their[name] != our.get(name)]
            tally.expect(
                f"{where}[{index}] {', '.join(names)}", [their[n] for n in names], [our.get(name) for name in names]
            )


def queries_for(puts: list[Put], limit: int) -> list[dict[str, Any]]:
    """Up to `limit` queries over the put messages, spread evenly, and some without a result."""
    asked = sorted({(message.topic, key) for put in puts for message in put.messages for key in message.keys})
    step = max(1, len(asked) // limit)
    chosen = [*asked[::step], ("orders", "no-such-key"), ("no-such-topic", "K1-0")]
    return [
        {"topic": topic, "key": key, "limit": QUERY_LIMIT, "begin_ms": 0, "end_ms": ALL_TIMES_MS}
        for topic, key in chosen
    ]


def compare_queries(
    tally: Tally,
    queries: list[dict[str, Any]],
    theirs: list[list[int]],
    store: MessageStore,
    *,
    ours_may_find_more: bool,
) -> None:
    """Query by query, in physical order. RocketMQ's answer may hold hash hits without the key: they don't count.

    `ours_may_find_more`: after a crash RocketMQ may have lost index entries that ours rebuilds.
    """
    for query, their_offsets in zip(queries, theirs, strict=True):
        tally.queries += 1
        found = store.query(query["topic"], query["key"], QUERY_LIMIT)
        ours = sorted(message.physical_offset for message in found)
        their = sorted({offset for offset in their_offsets if carries(store, offset, query["topic"], query["key"])})
        if ours_may_find_more:
            their = sorted({*their, *ours}) if set(their) <= set(ours) else their
        tally.expect(f"query {query['topic']}#{query['key']}", their, ours)


def carries(store: MessageStore, physical_offset: int, topic: str, key: str) -> bool:
    """Whether the message there has that key."""
    message = store.at(physical_offset)
    return message.topic == topic and (key in message.keys or key == message.unique_key)
