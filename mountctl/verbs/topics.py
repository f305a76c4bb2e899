"""mountctl topics: lists, creates and deletes topics."""

from __future__ import annotations

import click

from engine import MAX_QUEUES
from mountctl.connect import connect
from mountctl.errors import INTERRUPTED, CommandError
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
@click.argument("place")
@click.option("--json", "as_json", is_flag=True, help="Print names and bounds as JSON.")
@takes_settings
def list_topics(place: str, as_json: bool, settings: StoreSettings) -> None:
    """List topics, with their queues and messages.

    \b
    Example:
      mountctl topics /srv/store --json
    """
    with connect(find(place), settings, writing=False) as client:
        topics = client.topics()
    if as_json:
        print_json(
            {
                topic.name: {
                    str(queue.number): {"min_offset": queue.min_offset, "max_offset": queue.max_offset}
                    for queue in topic.queues
                }
                for topic in topics
            }
        )
        return
    rows = [(topic.name, f"{len(topic.queues):,}", f"{topic.messages:,}") for topic in topics]
    print_table(("TOPIC", "QUEUES", "MESSAGES"), rows)


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
