"""Messages that a multi-dispatching broker writes: one message in several queues. Our puts never do that."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from engine import Message, MessageStore, PutResult
from engine.derived.consume_queues import ConsumeQueues
from engine.derived.dispatch import WriteDispatcher
from engine.record.header import is_queued
from engine.record.kernel.encode import EncodedBatch
from engine.record.multi_dispatch import (
    MULTI_DISPATCH,
    MULTI_QUEUE_OFFSET,
    Slot,
    queue_names,
    secondary_slots,
    slot_queue_id,
)


def naming(names: str, body: bytes = b"x", topic: str = "T", **more: str) -> Message:
    """A message that asks to stand in these queues, too."""
    return Message(topic, body, properties={MULTI_DISPATCH: names, **more})


def put_as_broker(store: MessageStore, message: Message, queue_id: int) -> PutResult:
    """Store a message as a broker does: in its queue, and in the further ones that it names, each of them once. A
    transaction that is prepared or rolled back is in none, and names numbers all the same."""
    writer = store._require_write_side().writer
    keys = [(name, slot_queue_id(name, queue_id)) for name in queue_names(message.properties)]
    with writer._log.lock:
        numbers = [writer._queues.get_or_create(*key).reserve(1) for key in keys]
        given = {**message.properties, MULTI_QUEUE_OFFSET: ",".join(map(str, numbers))}
        record = writer._encoder.encode(replace(message, properties=given), queue_id, writer._config.clock())
        queue = writer._queues.get_or_create(message.topic, queue_id) if is_queued(message.sys_flag) else None
        queue_offset = queue.reserve(1) if queue is not None else 0
        physical_offset, time_ms = writer._log.append(record, queue_offset)
        place = (message.topic, queue_id, queue_offset, physical_offset)
        stored = PutResult(*place, record.size, time_ms, record.store_host)
        writer._dispatcher.put(queue, stored, record)
        if queue is not None:
            add_further(writer._dispatcher, writer._queues, stored, record, secondary_slots(given, queue_id))
        return stored


def add_further(
    dispatcher: WriteDispatcher,
    queues: ConsumeQueues,
    stored: PutResult,
    record: EncodedBatch,
    further: Sequence[Slot],
) -> None:
    """Append the entries of a stored record in further queues."""
    for topic, queue_id, queue_offset in further:
        queue = queues.get_or_create(topic, queue_id)
        queue.append_one(queue_offset, stored.physical_offset, stored.store_size, record.tags_code)
        queue.note_batch(record, slice(1), queue_offset, stored.physical_offset)
        dispatcher.touched.add(queue)
        dispatcher._appended(topic, queue_id)
