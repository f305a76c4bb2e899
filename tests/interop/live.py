"""They write, we read: the store of a real broker with real clients, with all that brokers add of their own."""

import random
from typing import Any

from engine import MessageStore
from tests.interop.brokers import Broker, client_batch, client_message, live_broker
from tests.interop.compare import compare_dump, compare_queries, queries_for
from tests.interop.messages import Put, random_text
from tests.interop.room import LARGE, Room, java_config

TOPIC = "live"
GROUP = "readers"
QUEUES = 4
LATE_LEVEL, NEVER_LEVEL = "1", "18"  # a second, and two hours


def broker_and_clients(room: Room) -> None:
    """Sends, batches, compression, delays, transactions, a consumer with dead letters; then the broker stops."""
    path = room.folder / "theirs"
    with room.driver(threads=True) as driver, live_broker(driver, path, java_config(LARGE)) as broker:
        offsets = work(room, broker)
    queries = queries_for([Put(TOPIC, 0, properties=(("KEYS", f"key-{index}"),)) for index in range(60)], 60)
    copy = room.copy(path, "ours")
    with room.driver() as driver, driver.store(path, java_config(LARGE)) as store:
        dump = store.dump()
        answers = store.query(queries)
    with MessageStore.open(copy) as ours:
        compare_dump(room.tally, dump, ours)
        compare_queries(room.tally, queries, answers, ours, ours_may_find_more=False)
        compare_offsets(room, offsets, ours)
        room.tally.expect("dead letters", True, f"%DLQ%{GROUP}" in ours.topics())
        room.tally.expect("half messages", True, "RMQ_SYS_TRANS_HALF_TOPIC" in ours.topics())
        room.tally.expect("delayed messages", True, "SCHEDULE_TOPIC_XXXX" in ours.topics())


def work(room: Room, broker: Broker) -> dict[str, dict[str, int]]:
    """Run the clients; returns the consumer offsets at their end."""
    broker.make_topic(TOPIC, QUEUES)
    sent = 0
    for compress_type in ("ZLIB", "LZ4", "ZSTD"):
        messages = random_messages(random.Random(f"{room.seed}-{compress_type}"), sent)
        broker.send(messages, compress_type=compress_type)
        sent += sum(len(message.get("items", [message])) for message in messages)
    broker.send([client_message(TOPIC, b"late", DELAY=LATE_LEVEL) for _ in range(5)])
    broker.send([client_message(TOPIC, b"never", DELAY=NEVER_LEVEL) for _ in range(5)])
    broker.send_transactions(
        [
            {**client_message(TOPIC, b"transaction %d" % number), "fate": "commit" if number % 2 else "rollback"}
            for number in range(10)
        ]
    )
    count = sent + 5 + 5  # those that came late, and those that were committed
    broker.consume(TOPIC, GROUP, count, reject_every=9)
    return broker.await_offsets(TOPIC, GROUP, count)


def random_messages(chance: random.Random, first: int) -> list[dict[str, Any]]:
    """Thirty sends, some of them batches, some large enough to be compressed."""
    messages = []
    for number in range(first, first + 30):
        body = (
            random_text(chance, 2_000).encode() if chance.random() < 0.4 else chance.randbytes(chance.randint(1, 500))
        )
        message = client_message(
            TOPIC,
            body,
            KEYS=f"key-{number % 60} other-{number}",
            TAGS=random_text(chance, 2),
            note=random_text(chance, 5),
        )
        if chance.random() < 0.2:
            item = client_message(TOPIC, b"item", KEYS=f"key-{number % 60}")
            messages.append(client_batch(TOPIC, [item] * chance.randint(2, 9)))
        else:
            messages.append(message)
    return messages


def compare_offsets(room: Room, theirs: dict[str, dict[str, int]], ours: MessageStore) -> None:
    """Every group's offset in every queue, as the broker had it in memory when it stopped."""
    expected: dict[str, dict[str, dict[int, int]]] = {}
    for topic_at_group, queues in theirs.items():
        topic, group = topic_at_group.rsplit("@", 1)
        expected.setdefault(group, {})[topic] = {int(queue): offset for queue, offset in queues.items()}
    found = ours.consumer_offsets()  # the broker's own housekeeping may have added groups of its own since
    room.tally.expect("consumer offsets", expected, {group: found.get(group) for group in expected})
