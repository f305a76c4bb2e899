"""Targets: how a command line names messages. `orders` is a topic, `orders/0` a queue, `orders/0/42` one message."""

from __future__ import annotations

import os
from dataclasses import dataclass

from mountctl.access import Access, Queue, find_topic
from mountctl.errors import CommandError


@dataclass(frozen=True, slots=True)
class Target:
    """A topic, narrowed to a queue and to a queue offset where those are given."""

    topic: str
    queue: int | None = None
    offset: int | None = None


def parse_target(text: str) -> Target:
    """`TOPIC[/QUEUE[/OFFSET]]`, as the path below a mount point would be."""
    topic, *numbers = text.strip("/").split("/")
    if not topic or len(numbers) > 2 or not all(number.isdecimal() for number in numbers):
        raise CommandError(f"{text!r} names no messages", "give TOPIC, TOPIC/QUEUE or TOPIC/QUEUE/OFFSET", os.EX_USAGE)
    return Target(topic, *map(int, numbers))


def queues_of(access: Access, target: Target) -> tuple[Queue, ...]:
    """The queues that `target` names, as they stand now."""
    topic = find_topic(access, target.topic)
    if target.queue is None:
        return topic.queues
    for queue in topic.queues:
        if queue.number == target.queue:
            return (queue,)
    raise CommandError(f"topic {target.topic} has no queue {target.queue}", f"it has {len(topic.queues)}", os.EX_USAGE)
