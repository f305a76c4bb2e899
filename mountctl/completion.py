"""Shell completion: verbs, options, stores and mounts, topics with queues and offsets, groups, names for -o.

click asks this module, which chooses proposals by the names of the verbs' arguments. It must be quick and print
nothing, so errors just mean fewer proposals. Shells insert a proposal into the command line without quoting it, and a
store's owner chooses the names in it. So only names that a shell takes literally are proposed.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import click
from click.shell_completion import CompletionItem

from mountctl.errors import CommandError
from mountctl.places import find, mounts

ASKED = "_MOUNTCTL_COMPLETE"
"""The environment variable with which a shell's script requests completion."""

_INERT = re.compile(r"[A-Za-z0-9_%./:@,+=-]*")
"""Characters that no shell expands, splits or runs."""

Proposals = Callable[[click.Context, str], Iterator[CompletionItem]]


def _places(context: click.Context, begun: str) -> Iterator[CompletionItem]:
    """Directories and mount points."""
    yield CompletionItem(begun, type="dir")  # first: bash's script ignores proposals before this one
    for mount in mounts():
        for path in (mount.mountpoint, mount.store):
            if str(path).startswith(begun):
                yield CompletionItem(str(path), help="mounted")


def _topics_at(argument: str) -> Proposals:
    def topics(context: click.Context, begun: str) -> Iterator[CompletionItem]:
        """Topics of the store at PLACE, then queues, then the oldest and the newest queue offset."""
        place = find(context.params[argument])
        topic, _, rest = begun.rpartition("/")
        names = _below_mount(place.mount.mountpoint, topic) if place.mount else _in_store(place.store, topic)
        for name in names:
            if name.startswith(rest):
                yield CompletionItem(f"{topic}/{name}" if topic else name)

    return topics


def _below_mount(root: Path, topic: str) -> list[str]:
    """Topics, the queues of a topic, or the oldest and the newest offset of a queue, listed below a mount point."""
    if "/" in topic:
        links = (os.readlink(root / topic / link) for link in ("@first", "@last"))
        return [str(int(os.path.basename(link))) for link in links]
    names = sorted(os.listdir(root / topic))
    return list(filter(str.isdecimal, names)) if topic else [name for name in names if not set("@.") & set(name)]


def _in_store(root: Path, topic: str) -> list[str]:
    """As `_below_mount`, without offsets, from the store's directories."""
    known = json.loads((root / "config/topics.json").read_bytes())["topicConfigTable"]
    return [str(queue) for queue in range(known[topic]["readQueueNums"])] if topic else sorted(known)


def _groups(context: click.Context, begun: str) -> Iterator[CompletionItem]:
    """Consumer groups that have an offset in the store at PLACE."""
    place = find(context.params["place"] or "".join(context.args[:1]))  # click sets no parameters after a bare -g
    if place.mount:
        names = os.listdir(place.mount.mountpoint / "@store/groups")
    else:
        noted = json.loads((place.store / "config/consumerOffset.json").read_bytes())["offsetTable"]
        names = [at.partition("@")[2] for at in noted]
    for name in sorted({*names}):
        if name.startswith(begun):
            yield CompletionItem(name)


def _options(context: click.Context, begun: str) -> Iterator[CompletionItem]:
    """Names for -o, after the last comma."""
    from mountctl.options import option_words

    before, comma, word = begun.rpartition(",")
    for name in option_words(for_mount=context.info_name == "mount"):
        if name.lower().startswith(word.lower()):
            yield CompletionItem(f"{before}{comma}{name}")


_BY_NAME: dict[str, Proposals] = {
    **dict.fromkeys(("place", "places", "to_place", "store", "mountpoint"), _places),
    **dict.fromkeys(("target", "targets", "source", "name"), _topics_at("place")),
    "to_topic": _topics_at("to_place"),
    "group": _groups,
    "options": _options,
}


def propose_for(command: click.Command) -> None:
    """Set the completion of a verb's parameters."""
    for parameter in command.params:
        if parameter.name in _BY_NAME:
            setattr(parameter, "shell_complete", _quietly(_BY_NAME[parameter.name]))  # noqa: B010 (a method of click's)
    if isinstance(command, click.Group):
        for part in command.commands.values():
            propose_for(part)


def _quietly(proposals: Proposals) -> Callable[[click.Context, str], list[CompletionItem]]:
    def proposed(context: click.Context, incomplete: str) -> list[CompletionItem]:
        found: list[CompletionItem] = []
        with suppress(OSError, CommandError, KeyError, TypeError, ValueError):
            found.extend(item for item in proposals(context, incomplete) if _is_safe(item))
        return found

    return proposed


def _is_safe(item: CompletionItem) -> bool:
    """Whether a shell takes the proposal literally. Shells quote directories, their own proposals, themselves."""
    return item.type != "plain" or _INERT.fullmatch(item.value) is not None
