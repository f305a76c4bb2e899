"""mountctl topics: lists, creates and deletes topics."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import click

from engine import MAX_QUEUES
from mountctl.client import Topic
from mountctl.connect import connect
from mountctl.errors import INTERRUPTED, CommandError
from mountctl.frames import Topics
from mountctl.hosts import Fleet, is_fleet, request
from mountctl.options import StoreSettings, takes_settings
from mountctl.output import plural, print_json, print_table
from mountctl.places import find
from mountctl.selection import find_topic


class ListedByDefault(click.Group):
    """A group in which `mountctl topics PLACE` means `mountctl topics list PLACE`."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] not in self.commands:
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
@click.option("--json", "as_json", is_flag=True, help="Print names and bounds as JSON.")
@takes_settings
def list_topics(places: tuple[str, ...], as_json: bool, settings: StoreSettings) -> int:
    """List topics, with their queues and messages. Of several places, HOST:PLACE by ssh or @GROUP of
    ~/.config/fsstore/fleet.toml, each with its broker.

    \b
    Examples:
      mountctl topics /srv/store --json
      mountctl topics host-a:/mnt/mq host-b:/mnt/mq
    """
    if is_fleet(places):
        return _list_of_hosts(places, as_json, settings)
    with connect(find(places[0]), settings, writing=False) as client:
        topics = client.topics()
    if as_json:
        print_json(_bounds(topics))
    else:
        print_table(_TITLES, map(_row, topics))
    return 0


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
    """What `--json` prints: the bounds of each queue of each topic."""
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
@click.argument("name")
@click.option("-y", "--yes", is_flag=True, help="Don't ask.")
@takes_settings
def delete(place: str, name: str, yes: bool, settings: StoreSettings) -> None:
    """Delete the topic NAME and all its messages, for good. Asks first.

    Their bytes stay in the log, among those of other topics, until retention deletes the log's files.

    \b
    Example:
      mountctl topics delete /mnt/mq orders --yes
    """
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
