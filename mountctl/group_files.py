"""Group files: the messages that a consumer group has not had, as files of `@parquet`; its offsets follow their use."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from fsstore.jobs.mount import QueueRange, cut, range_path
from mountctl.client import Claim, LeftOut
from mountctl.errors import CommandError
from mountctl.mount_client import MountClient
from mountctl.output import visible


class GroupFiles:
    """A member of a consumer group, which claims the queues of a topic when it is asked for the topic's files.
    `left_out` records the messages that expired before the group had them."""

    def __init__(self, client: MountClient, mountpoint: Path, group: str) -> None:
        self.left_out = LeftOut()
        self._client = client
        self._root = str(mountpoint)
        self._group = group
        self._claims: list[Claim] = []
        self._ranges: dict[str, list[tuple[Claim, QueueRange]]] = {}

    def of_topic(self, topic: str, bounds: Mapping[int, tuple[int, int]]) -> list[str]:
        """The files of a topic whose queues have these bounds, the same ones each time. CommandError: another member
        has a queue."""
        if topic not in self._ranges:
            self._ranges[topic] = [self._claimed(topic, queue, *bounds[queue]) for queue in sorted(bounds)]
        return [range_path(self._root, piece) for _, part in self._ranges[topic] for piece in cut(part)]

    def _claimed(self, topic: str, queue: int, oldest: int, end: int) -> tuple[Claim, QueueRange]:
        claim = self._client.claim(self._group, topic, queue)
        if claim is None:
            reason = f"another member of {visible(self._group)} consumes {visible(topic)}/{queue}"
            raise CommandError(reason, "wait for it", os.EX_TEMPFAIL)
        self._claims.append(claim)
        known = claim.offset()
        begin = oldest if known is None else max(known, oldest)
        if known is not None:
            self.left_out.expire(topic, queue, known, oldest)
        return claim, QueueRange(topic, queue, begin, max(begin, end))

    def commit(self) -> None:
        """The group has had the messages of all files."""
        for claimed in self._ranges.values():
            for claim, part in claimed:
                if claim.offset() != part.end:
                    claim.commit(part.end)

    def release(self) -> None:
        """Let other members claim the queues."""
        for claim in self._claims:
            claim.release()
