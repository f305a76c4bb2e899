"""mountctl consume: prints a topic's messages, or runs a command with each, as a member of a consumer group."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterable, Iterator

import click

from mountctl.client import Claim, MessageRow, StoreClient, Topic
from mountctl.connect import reading_and_writing
from mountctl.errors import INTERRUPTED, CommandError
from mountctl.local_store import LocalStore
from mountctl.options import StoreSettings, takes_settings
from mountctl.output import visible
from mountctl.places import find, split_path
from mountctl.selection import (
    Range,
    Selection,
    find_topic,
    messages_in,
    narrowed,
    parse_target,
    parse_time,
    parse_where,
    takes_where,
)
from mountctl.showing import Printer, takes_format, tell_left_out

POLL_SECONDS = 0.2
BATCH_MESSAGES = 1_000
COMMIT_SECONDS = 0.5
"""Interval of commits while there are more messages: each commit durably replaces a file."""


@click.command("consume", short_help="Take messages as a member of a consumer group.")
@click.argument("place")
@click.argument("target", metavar="TOPIC[/QUEUE]", required=False)
@click.argument("program", metavar="[-- COMMAND...]", nargs=-1, type=click.UNPROCESSED)
@click.option("-g", "--group", required=True, metavar="NAME", help="The consumer group; its next offsets are kept.")
@click.option("-f", "--follow", is_flag=True, help="Wait for new messages, until interrupted.")
@click.option("-n", "--count", type=click.IntRange(min=1), help="End after this many messages.")
@click.option(
    "--from", "begin", default="first", metavar="first|last|TIME", show_default=True, help="Where a new group begins."
)
@takes_where
@takes_format
@takes_settings
def command(
    place: str, target: str | None, program: tuple[str, ...], group: str, follow: bool, count: int | None, begin: str,
    where: str | None, printer: Printer, settings: StoreSettings,
) -> int:  # fmt: skip
    """Print the messages that a consumer group has not consumed yet, or run COMMAND with the body of each on its
    standard input.

    A message is consumed when it is printed, or when COMMAND has ended with 0; after a failure or a kill it is
    delivered again. Several members of a group share the queues. A broker's clients of the group continue from the same
    offsets. Messages that are damaged, or expired before the group consumed them, are skipped with a warning; the exit
    code is then 3, or 4. With --where the group skips the other messages for good. COMMAND has MQ_TOPIC,
    MQ_QUEUE, MQ_OFFSET, MQ_KEYS and MQ_TAGS in its environment.

    \b
    Examples:
      mountctl consume /mnt/mq orders -g billing
      mountctl consume /mnt/mq orders -g auditing -- sha256sum
    """
    above, below = split_path(place)
    if below:
        place, target, program = above, below, (() if target is None else (target, *program))
    elif target is None:
        raise click.UsageError("Missing argument 'TOPIC[/QUEUE]'.", click.get_current_context())
    wanted = parse_target(target)
    if wanted.offset is not None:
        raise CommandError("a group goes on at its own offset, not at OFFSET", "name a topic or a queue", os.EX_USAGE)
    use = _Use(printer, program, count, Selection(where=parse_where(where)))
    start = begin if begin in ("first", "last") else parse_time(begin)
    try:
        consume = reading_and_writing(find(place), settings, "tail -n +1 -f", [wanted.plain_path])
        with consume as (reader, client):
            topic = find_topic(reader, wanted.topic)
            reader.left_out.tell = tell_left_out
            taken = _Taken(client, reader, group, topic, {queue.number for queue in narrowed(topic, wanted)}, start)
            try:
                _consume(taken, reader, use, follow)
            finally:
                taken.release()
            return reader.left_out.exit_code()
    except KeyboardInterrupt:
        if not follow:
            raise
        return INTERRUPTED  # the usual end of --follow


class _Held:
    """A claimed queue, and the next offset of the group in it."""

    def __init__(self, claim: Claim, begin: int) -> None:
        """Start at `begin`, which is committed unless the group's offset is the same."""
        self.claim = claim
        self.had = begin
        """All messages before this offset have been consumed."""
        self._committed = begin
        self._committed_at = time.monotonic()
        if claim.offset() != begin:
            claim.commit(begin)

    @property
    def is_due(self) -> bool:
        """Whether the last commit was long ago."""
        return time.monotonic() - self._committed_at > COMMIT_SECONDS

    def commit(self) -> None:
        """Commit the next offset."""
        if self.had != self._committed:
            self.claim.commit(self.had)
            self._committed, self._committed_at = self.had, time.monotonic()


class _Taken:
    """The queues that this member of the group has claimed."""

    def __init__(
        self, client: StoreClient, reader: LocalStore, group: str, topic: Topic, queues: set[int], begin: str | int
    ) -> None:
        """`begin` of a new group: the `first` or `last` message, or a time in epoch milliseconds."""
        self._client = client
        self._reader = reader
        self.topic = topic.name
        self.held: dict[int, _Held] = {}
        self._group = group
        self._queues = queues
        self._begin = begin

    def take(self) -> None:
        """Claim the queues that no member has."""
        for queue in sorted(self._queues - self.held.keys()):
            claim = self._client.claim(self._group, self.topic, queue)
            if claim is None:
                continue
            try:
                self.held[queue] = _Held(claim, self._begin_of(claim, queue))
            except BaseException:
                claim.release()
                raise

    def _begin_of(self, claim: Claim, queue: int) -> int:
        bounds = self._reader.bounds(self.topic, queue)
        known = claim.offset()
        if known is not None:
            return known
        if self._begin in ("first", "last"):
            return bounds.min_offset if self._begin == "first" else bounds.max_offset
        assert isinstance(self._begin, int)
        return self._reader.offset_at(self.topic, queue, self._begin)

    def release(self) -> None:
        """Release the claims."""
        for held in self.held.values():
            held.claim.release()


class _Use:
    """Consumes messages: prints each, or runs the command with it."""

    def __init__(self, printer: Printer, program: tuple[str, ...], count: int | None, selection: Selection) -> None:
        self._printer = printer
        self._selection = selection
        self._program = program
        self._left = count

    @property
    def is_over(self) -> bool:
        """Whether --count messages were consumed."""
        return self._left == 0

    @property
    def each_counts(self) -> bool:
        """Whether each message is committed at once, since its command must not run twice."""
        return bool(self._program)

    def messages(self, reader: LocalStore, chosen: Range) -> Iterator[MessageRow]:
        """The messages of a range that the group consumes, oldest first."""
        return messages_in(reader, chosen, self._selection, self._printer.attributes or self.each_counts)

    def use(self, message: MessageRow) -> None:
        """Consume a message. CommandError: the command failed."""
        if self._program:
            self._run(message)
        else:
            self._printer.line(message)
        self._left = None if self._left is None else self._left - 1

    def _run(self, message: MessageRow) -> None:
        about = {
            "MQ_TOPIC": message.topic,
            "MQ_QUEUE": str(message.queue),
            "MQ_OFFSET": str(message.offset),
            "MQ_KEYS": message.attributes.get("keys", ""),
            "MQ_TAGS": message.attributes.get("tags", ""),
        }
        try:
            done = subprocess.run(self._program, input=message.body, env={**os.environ, **about}, check=False)
        except OSError as error:
            raise CommandError(f"{self._program[0]}: {error.strerror}", exit_code=os.EX_USAGE) from None
        if done.returncode:
            where = visible(f"{message.topic}/{message.queue}/{message.offset}")
            reason = f"{visible(self._program[0])} ended with {done.returncode} for {where}"
            raise CommandError(reason, "the message will be delivered again", os.EX_TEMPFAIL)

    def flush(self) -> None:
        """Flush printed output."""
        self._printer.flush()


def _consume(taken: _Taken, reader: LocalStore, use: _Use, follow: bool) -> None:
    try:
        _consume_all(taken, reader, use, follow)
    except KeyboardInterrupt:
        _commit(taken.held.values(), use)
        raise
    _commit(taken.held.values(), use)


def _commit(held: Iterable[_Held], use: _Use) -> None:
    use.flush()
    for one in held:
        one.commit()


def _consume_all(taken: _Taken, reader: LocalStore, use: _Use, follow: bool) -> None:
    while not use.is_over:
        taken.take()
        if not taken.held and not follow:
            reason = f"other members of the group consume every queue of {visible(taken.topic)}"
            raise CommandError(reason, "wait for them, or use --follow", os.EX_TEMPFAIL)
        found = [_consume_some(taken, reader, queue, use) for queue in list(taken.held)]
        if not any(found):
            if not follow:
                return
            time.sleep(POLL_SECONDS)


def _consume_some(taken: _Taken, reader: LocalStore, queue: int, use: _Use) -> bool:
    """Consume the next messages of a queue; returns whether there were any."""
    held = taken.held[queue]
    bounds = reader.bounds(taken.topic, queue)
    begin = max(held.had, bounds.min_offset)
    reader.left_out.expire(taken.topic, queue, held.had, begin)
    held.had = begin
    end = min(begin + BATCH_MESSAGES, bounds.max_offset)
    if begin >= end or use.is_over:
        return False
    for message in use.messages(reader, Range(taken.topic, queue, begin, end)):
        use.use(message)
        held.had = message.offset + 1
        if use.each_counts:
            held.commit()
        if use.is_over:
            return True
    held.had = end  # also past damaged messages at the end, which `left_out` has
    if end == bounds.max_offset or held.is_due:
        _commit([held], use)
    return True
