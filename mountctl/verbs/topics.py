"""mountctl topics: lists, creates and deletes topics."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence

import click

from engine import MAX_QUEUES, QueueState
from fsstore.topic_facts import TopicFacts, facts_of
from mountctl.client import Topic
from mountctl.connect import connect, reading
from mountctl.errors import INTERRUPTED, CommandError
from mountctl.frames import Topics
from mountctl.hosts import Fleet, is_fleet, request
from mountctl.options import StoreSettings, takes_settings
from mountctl.output import human_size, human_time, plural, print_json, print_table, visible
from mountctl.places import find
from mountctl.selection import find_topic, placed


class ListedByDefault(click.Group):
    """A group in which `mountctl topics PLACE` means `mountctl topics list PLACE`."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] not in self.commands:
            if len(args) > 1 and args[1] in self.commands:
                order = f"`{ctx.command_path} {args[1]} {visible(' '.join((args[0], *args[2:])))}`"
                raise click.UsageError(f"{args[1]} stands before the place: {order}", ctx)
            args = ["list", *args]
        return super().resolve_command(ctx, args)


@click.group("topics", cls=ListedByDefault, short_help="List, create and delete topics.")
def command() -> None:
    """List, create and delete the topics of a store or mount.

    \b
    Examples:
      mountctl topics /mnt/mq
      mountctl topics create /mnt/mq orders bills --queues 8
      mountctl topics delete /mnt/mq orders
    """


@command.command("list")
@click.argument("places", metavar="PLACE...", nargs=-1, required=True)
@click.option(
    "-l",
    "--long",
    "is_long",
    is_flag=True,
    help="Also bytes in the log, oldest and newest message, messages per second.",
)
@click.option("--json", "as_json", is_flag=True, help="Print names and bounds as JSON.")
@takes_settings
def list_topics(places: tuple[str, ...], is_long: bool, as_json: bool, settings: StoreSettings) -> int:
    """List topics, with their queues and messages. With --long also the bytes of their records in the log, the store
    times of the oldest and newest message, and messages per second of the last minute; ~ marks estimates, of a large
    topic.

    With several places (HOST:PLACE by ssh, or @GROUP of ~/.config/fsstore/fleet.toml) each topic is listed with its
    broker.

    \b
    Examples:
      mountctl topics /mnt/mq --long
      mountctl topics /srv/store --json
      mountctl topics host-a:/mnt/mq host-b:/mnt/mq
    """
    if is_long:
        return _list_long(places, as_json, settings)
    if is_fleet(places):
        return _list_of_hosts(places, as_json, settings)
    with connect(find(places[0]), settings, writing=False) as client:
        topics = client.topics()
    if as_json:
        print_json(_bounds(topics))
    else:
        print_table(_TITLES, map(_row, topics))
    return 0


def _list_long(places: Sequence[str], as_json: bool, settings: StoreSettings) -> int:
    if is_fleet(places):
        raise CommandError("--long is for a place of this host", "leave it out", os.EX_USAGE)
    with reading(find(places[0]), settings, "ls -l", [""]) as store:
        topics, states, now_ms = store.topics(), store.store.queue_states(), store.store.config.clock()
        queues: dict[str, list[QueueState]] = {topic.name: [] for topic in topics}
        for state in states:
            queues.setdefault(state.topic, []).append(state)
        facts = [facts_of(store.store, topic.name, queues[topic.name], now_ms) for topic in topics]
    if as_json:
        bounds = _bounds(topics)
        print_json({one.topic: {**one._asdict(), "queues": bounds[one.topic]} for one in facts})
    else:
        rows = [(*_row(topic), *_cells(one)) for topic, one in zip(topics, facts, strict=True)]
        print_table((*_TITLES, "BYTES", "OLDEST", "NEWEST", "PER SECOND"), rows)
    return 0


def _cells(facts: TopicFacts) -> Iterator[str]:
    """Cells of a topic's facts; estimates begin with ~."""
    about = "" if facts.is_exact else "~"
    yield about + human_size(facts.stored_bytes)
    yield from (
        "-" if time_ms is None else about + human_time(time_ms) for time_ms in (facts.oldest_ms, facts.newest_ms)
    )
    yield f"{about}{facts.per_second:,.1f}"


def _list_of_hosts(places: Sequence[str], as_json: bool, settings: StoreSettings) -> int:
    with Fleet(places, request("topics", settings=settings)) as fleet:
        found = {host.name: frame.topics for host, frame in fleet.answers(Topics)}
        code = fleet.exit_code()
    if as_json:
        print_json({broker: _bounds(topics) for broker, topics in found.items()})
    elif found:
        rows = [(broker, *_row(topic)) for broker, topics in found.items() for topic in topics]
        print_table(("BROKER", *_TITLES), rows)
    return code


_TITLES = ("TOPIC", "QUEUES", "MESSAGES")


def _row(topic: Topic) -> tuple[str, str, str]:
    return topic.name, f"{len(topic.queues):,}", f"{topic.messages:,}"


def _bounds(topics: Iterable[Topic]) -> dict[str, dict[str, dict[str, int]]]:
    """The bounds of each queue of each topic, for `--json`."""
    return {
        topic.name: {
            str(queue.number): {"min_offset": queue.min_offset, "max_offset": queue.max_offset}
            for queue in topic.queues
        }
        for topic in topics
    }


@command.command("create")
@click.argument("place")
@click.argument("names", metavar="NAME...", nargs=-1, required=True)
@click.option(
    "--queues", default=4, show_default=True, type=click.IntRange(1, MAX_QUEUES), help="Number of queues of each topic."
)
@takes_settings
def create(place: str, names: tuple[str, ...], queues: int, settings: StoreSettings) -> None:
    """Create a topic of each NAME. If one of them exists or is no topic's name, none is created.

    \b
    Example:
      mountctl topics create /mnt/mq orders bills --queues 8
    """
    topics = dict.fromkeys(names, queues)
    with connect(find(place), settings) as client:
        client.create_topics(topics)
    of_each = f"{plural(queues, 'queue')}{' each' if len(topics) > 1 else ''}"
    click.echo(f"made {names[0] if len(topics) == 1 else plural(len(topics), 'topic')} with {of_each}")


@command.command("delete")
@click.argument("place")
@click.argument("name", required=False)
@click.option("-y", "--yes", is_flag=True, help="Don't ask.")
@takes_settings
def delete(place: str, name: str | None, yes: bool, settings: StoreSettings) -> None:
    """Delete the topic NAME and all its messages, for good. Asks first. A path below PLACE names both: /mnt/mq/orders.

    Their bytes stay in the log, among those of other topics, until retention deletes the log's files.

    \b
    Example:
      mountctl topics delete /mnt/mq orders --yes
    """
    place, (name, *_) = placed(place, [name], "NAME")
    with connect(find(place), settings) as client:
        messages = plural(find_topic(client, name).messages, "message")
        if not yes and not _agreed(f"Delete {name} and its {messages}, for good?"):
            raise CommandError(f"{name} is not deleted", "answer y, or say --yes", INTERRUPTED)
        client.delete_topic(name)
    click.echo(f"deleted {name} with {messages}; retention will free their space with the log's files")


def _agreed(question: str) -> bool:
    try:
        return click.confirm(question)
    except click.Abort:  # standard input is closed
        click.echo()
        return False
