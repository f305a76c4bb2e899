"""mountctl top: shows the current activity of a mount, or of several hosts' mounts, on a screen that is refreshed."""

from __future__ import annotations

import json
import pwd
import shutil
import sys
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import islice
from typing import Any

import click

from mountctl.errors import CommandError
from mountctl.frames import SAME_VERSION, Status
from mountctl.hosts import Fleet, is_fleet, request
from mountctl.output import human_size, plural, print_json_line, shown, visible
from mountctl.places import Mount, find_mount, patiently
from mountctl.replicating import copy_in_words

HISTORY = 20
"""The most rates in a topic's line."""

BROKER_WIDTH = 20
"""The most characters of a broker's name in its column."""

CALLER_COUNTS = ("published_messages", "published_bytes", "read_bytes")
MOST_CALLERS = 5
"""Lines of callers on a screen with topics and groups."""

BARS = " ▁▂▃▄▅▆▇█"
PLAIN_WIDTH = 80


@dataclass(frozen=True, slots=True)
class Look:
    """A mount's status at a time in seconds."""

    at: float
    status: Mapping[str, Any]

    @property
    def is_of(self) -> tuple[int, int]:
        """Identifies the opening of the store to which the counters belong."""
        return self.status["pid"], self.status["stats"]["opened_at_ms"]

    def stored(self, topic: str) -> int:
        """Number of messages ever stored in the topic."""
        queues = self.status["topics"].get(topic, {}).get("queues", {})
        return sum(bounds["max_offset"] for bounds in queues.values())

    def consumed(self, group: str, topic: str) -> int:
        """Number of messages that a group has consumed."""
        queues = self.status["groups"].get(group, {}).get(topic, {})
        return sum(at["offset"] for at in queues.values())


@dataclass(frozen=True, slots=True)
class TopicFigures:
    """A topic; `stored` is in messages per second."""

    topic: str
    queues: int
    messages: int
    stored: float


@dataclass(frozen=True, slots=True)
class GroupFigures:
    """A consumer group in a topic; `consumed` is in messages per second, `lag` in messages."""

    group: str
    topic: str
    lag: int
    consumed: float


@dataclass(frozen=True, slots=True)
class CallerRates:
    """Messages and bytes per second that a process publishes and reads. If `process` is 0, these are the sums of all
    other processes of a user: they have ended, or are not counted separately. `user` is None for users that are not
    counted separately."""

    user: int | None
    process: int
    name: str
    published: float
    published_bytes: float
    read_bytes: float


@dataclass(frozen=True, slots=True)
class Figures:
    """Activity between two looks. `stored` and `read` are in messages per second, other rates in bytes per second;
    `unflushed_bytes` are not on disk yet; `replica_lag_bytes` is the longest lag of a replica; `copy` is the state of a
    store that is a replica itself, as in status."""

    pid: int
    mode: str
    restarts: int
    seconds: float
    stored: float
    stored_bytes: float
    read: float
    read_bytes: float
    unflushed_bytes: int
    memory_bytes: int
    memory_budget_bytes: int
    disk_free_bytes: int
    disk_total_bytes: int
    complaints: int
    replicas: int
    replicas_in_sync: int
    replica_lag_bytes: int
    copy: dict[str, Any] | None
    topics: list[TopicFigures]
    groups: list[GroupFigures]
    callers: list[CallerRates]


def figures(before: Look, now: Look) -> Figures:
    """Activity between two looks at one mount; counters of a new daemon start at 0."""
    seconds = max(now.at - before.at, 1e-6)
    status, stats = now.status, now.status["stats"]
    known = before.status["stats"] if before.is_of == now.is_of else dict.fromkeys(stats, 0)

    def rate(after: int, earlier: int) -> float:
        return round(max(after - earlier, 0) / seconds, 1)

    topics = [
        TopicFigures(
            name,
            len(topic["queues"]),
            sum(bounds["max_offset"] - bounds["min_offset"] for bounds in topic["queues"].values()),
            rate(now.stored(name), before.stored(name)),
        )
        for name, topic in status["topics"].items()
    ]
    groups = [
        GroupFigures(
            group,
            topic,
            sum(at["lag"] for at in queues.values()),
            rate(now.consumed(group, topic), before.consumed(group, topic)),
        )
        for group, by_topic in status["groups"].items()
        for topic, queues in by_topic.items()
    ]
    replication = status.get("replication") or {}
    lags = [one["lag_bytes"] for one in replication.get("replicas", ())]
    return Figures(
        pid=status["pid"],
        mode=status["mode"],
        restarts=status["restarts"] + status["planned_restarts"],
        seconds=round(seconds, 3),
        stored=round(sum(topic.stored for topic in topics), 1),
        stored_bytes=rate(stats["physical_end"], before.status["stats"]["physical_end"]),
        read=rate(stats["read_messages"], known["read_messages"]),
        read_bytes=rate(stats["read_bytes"], known["read_bytes"]),
        unflushed_bytes=max(stats["physical_end"] - stats["durable_end"], 0),
        memory_bytes=sum(status["memory"]["bytes"].values()),
        memory_budget_bytes=status["memory"]["budget_bytes"],
        disk_free_bytes=stats["disk_free_bytes"],
        disk_total_bytes=stats["disk_total_bytes"],
        complaints=status["complaints"]["made"],
        replicas=replication.get("connected", 0),
        replicas_in_sync=replication.get("in_sync", 0),
        replica_lag_bytes=max(lags, default=0),
        copy=status.get("replica"),
        topics=sorted(topics, key=lambda topic: (-topic.stored, topic.topic)),
        groups=sorted(groups, key=lambda group: (-group.lag, group.group, group.topic)),
        callers=_caller_rates(before, now, seconds),
    )


def _caller_rates(before: Look, now: Look, seconds: float) -> list[CallerRates]:
    """The processes that published or read between two looks, and the rest of each user, the busiest first."""
    known = before if before.is_of == now.is_of else None
    rest = {one["user"]: _grown(one, known, "users", "user") for one in now.status["users"]}
    found = []
    for one in now.status["processes"]:
        if not one["name"]:  # a loop of the shell has a process for each line
            continue
        counts = _grown(one, known, "processes", "user", "process")
        rest[one["user"]] = [left - own for left, own in zip(rest[one["user"]], counts, strict=True)]
        found.append((one["user"], one["process"], one["name"], counts))
    found += [(user, 0, "", counts) for user, counts in rest.items()]
    rates = [
        CallerRates(user, process, name, *(round(max(count, 0) / seconds, 1) for count in counts))
        for user, process, name, counts in found
        if max(counts) > 0
    ]
    return sorted(rates, key=lambda one: (-one.published_bytes, -one.read_bytes, one.process))


def _grown(row: Mapping[str, Any], before: Look | None, rows: str, *key: str) -> list[int]:
    """By how much the counters of a row have grown since a look; without one, or without the row there, since 0. A row
    that has less than before began anew."""
    there = () if before is None else before.status[rows]
    earlier: Mapping[str, Any] = next((one for one in there if all(one[part] == row[part] for part in key)), {})
    counts = [row[name] - earlier.get(name, 0) for name in CALLER_COUNTS]
    return [row[name] for name in CALLER_COUNTS] if min(counts) < 0 else counts


class Screen:
    """Figures as lines of text, with a history of each topic's rate."""

    def __init__(self, mount: Mount) -> None:
        self._mount = mount
        self._history: dict[str, deque[float]] = {}

    def lines(self, now: Figures, width: int, height: int) -> list[str]:
        """At most `height` lines of `width` characters: the busiest topics and the groups with the largest lag
        first."""
        for topic in now.topics:
            self._history.setdefault(topic.topic, deque(maxlen=HISTORY)).append(topic.stored)
        head = [
            f"{self._mount.store} at {self._mount.mountpoint}, {now.mode}, process {now.pid}"
            + (f", {plural(now.restarts, 'restart')}" if now.restarts else ""),
            f"in      {now.stored:>12,.0f} messages/s  {human_size(round(now.stored_bytes)):>10}/s"
            f"   not on disk  {human_size(now.unflushed_bytes)}",
            f"out     {now.read:>12,.0f} messages/s  {human_size(round(now.read_bytes)):>10}/s"
            f"   complaints   {now.complaints:,}",
            f"memory  {human_size(now.memory_bytes)} of {human_size(now.memory_budget_bytes)} for clients"
            f"   disk  {human_size(now.disk_free_bytes)} free of {human_size(now.disk_total_bytes)}",
        ]
        if now.replicas:
            head.append(
                f"replicas {now.replicas}, {now.replicas_in_sync} in sync, {human_size(now.replica_lag_bytes)} behind"
            )
        if now.copy:
            head.append(f"copy    {copy_in_words(now.copy)}")
        left = max(height - len(head) - 4, 2)
        callers = list(self._callers(now, min(max(left // 3 - 2, 0), MOST_CALLERS)))
        left -= len(callers)
        most_groups = min(len(now.groups), max(left // 3, left - len(now.topics)))
        table = [*self._topics(now, left - most_groups, width), *self._groups(now, most_groups), *callers]
        return [visible(line)[:width].rstrip() for line in (*head, *table)]

    def _topics(self, now: Figures, most: int, width: int) -> Iterator[str]:
        name_width = max(width - HISTORY - 38, 12)
        yield ""
        yield f"{'TOPIC':<{name_width}}  {'QUEUES':>6}  {'MESSAGES':>13}  {'IN/S':>9}"
        for topic in now.topics[:most]:
            figures = f"{topic.queues:>6,}  {topic.messages:>13,}  {topic.stored:>9,.0f}"
            yield f"{_cut(topic.topic, name_width):<{name_width}}  {figures}  {sparkline(self._history[topic.topic])}"

    def _groups(self, now: Figures, most: int) -> Iterator[str]:
        if not most:
            return
        yield ""
        yield f"{'GROUP':<26}  {'TOPIC':<24}  {'LAG':>13}  {'OUT/S':>9}"
        for group in now.groups[:most]:
            yield f"{_cut(group.group, 26):<26}  {_cut(group.topic, 24):<24}  {group.lag:>13,}  {group.consumed:>9,.0f}"

    def _callers(self, now: Figures, most: int) -> Iterator[str]:
        if not most or not now.callers:
            return
        yield ""
        yield f"{'USER':<12}  {'PROCESS':<22}  {'IN/S':>9}  {'IN':>12}  {'OUT':>12}"
        for one in now.callers[:most]:
            process = f"{one.process} {one.name}" if one.process else "(others)"
            sizes = (f"{human_size(round(size)):>10}/s" for size in (one.published_bytes, one.read_bytes))
            rates = "  ".join((f"{one.published:>9,.0f}", *sizes))
            yield f"{_cut(_user_name(one.user), 12):<12}  {_cut(process, 22):<22}  {rates}"


def _user_name(user: int | None) -> str:
    try:
        return "(others)" if user is None else pwd.getpwuid(user).pw_name
    except KeyError:
        return str(user)


class FleetScreen:
    """Figures of several brokers as lines of text."""

    def lines(self, found: Mapping[str, Figures | None], width: int, height: int) -> list[str]:
        """At most `height` lines of `width` characters: a line for each broker (None: without figures), then topics and
        groups of all, the busiest and the furthest behind first."""
        first = min(max(map(len, ("BROKER", *found))), BROKER_WIDTH)

        def row(broker: str, *cells: str) -> str:
            return "  ".join((f"{_cut(broker, first):<{first}}", *cells))

        known = [(broker, now) for broker, now in found.items() if now is not None]
        topics = sorted(((-one.stored, broker, one) for broker, now in known for one in now.topics), key=_by_two)
        groups = sorted(((-one.lag, broker, one) for broker, now in known for one in now.groups), key=_by_two)
        left = max(height - len(found) - 5, 2)
        most_groups = min(len(groups), max(left // 3, left - len(topics)))
        table = [row("BROKER", f"{'IN/S':>9}", f"{'IN':>12}", f"{'OUT/S':>9}", f"{'NOT ON DISK':>12}", "DISK FREE")]
        table += [row(broker, *_cells(now)) for broker, now in found.items()]
        table += ["", row("BROKER", f"{'TOPIC':<26}", f"{'QUEUES':>6}", f"{'MESSAGES':>13}", f"{'IN/S':>9}")]
        for _, broker, topic in topics[: left - most_groups]:
            figures = f"{topic.queues:>6,}", f"{topic.messages:>13,}", f"{topic.stored:>9,.0f}"
            table.append(row(broker, f"{_cut(topic.topic, 26):<26}", *figures))
        if most_groups:
            table += ["", row("BROKER", f"{'GROUP':<26}", f"{'TOPIC':<24}", f"{'LAG':>13}")]
        for _, broker, group in groups[:most_groups]:
            table.append(
                row(broker, f"{_cut(group.group, 26):<26}", f"{_cut(group.topic, 24):<24}", f"{group.lag:>13,}")
            )
        return [visible(line)[:width].rstrip() for line in table[:height]]


def _by_two(row: tuple[float, str, object]) -> tuple[float, str]:
    return row[:2]


def _cells(now: Figures | None) -> Sequence[str]:
    if now is None:
        return ("no mount answers",)
    rates = f"{now.stored:>9,.0f}", f"{human_size(round(now.stored_bytes)):>10}/s", f"{now.read:>9,.0f}"
    return *rates, f"{human_size(now.unflushed_bytes):>12}", human_size(now.disk_free_bytes)


def sparkline(values: Iterator[float] | deque[float]) -> str:
    """A bar for each value, scaled to the largest."""
    found = list(values)
    most = max(found, default=0)
    return "".join(BARS[-(-int(value * 1000) * (len(BARS) - 1) // int(most * 1000)) if value else 0] for value in found)


def _cut(name: str, width: int) -> str:
    shown = visible(name)
    return shown if len(shown) <= width else f"{shown[: width - 1]}…"


@click.command("top", short_help="Watch a mount's activity.")
@click.argument("places", metavar="MOUNTPOINT...", nargs=-1, required=True)
@click.option("--interval", type=click.FloatRange(0.1), default=1.0, show_default=True, help="Seconds between looks.")
@click.option("-n", "--count", type=click.IntRange(1), help="End after this many looks.")
@click.option("--json", "as_json", is_flag=True, help="One line of JSON per look.")
def command(places: tuple[str, ...], interval: float, count: int | None, as_json: bool) -> int:
    """Show the activity of the mount at MOUNTPOINT, or of the store in that directory, until interrupted: rates in and
    out, rates of each topic, the lag of consumer groups, the processes that publish or read most through the mount,
    memory and disk. Several places (HOST:PLACE by ssh, or @GROUP of ~/.config/fsstore/fleet.toml) get a line each,
    before the topics and groups of all.

    \b
    Examples:
      mountctl top /mnt/mq
      mountctl top /mnt/mq --json --interval 10
      mountctl top host-a:/mnt/mq host-b:/mnt/mq
    """
    if is_fleet(places):
        return _watch_hosts(places, interval, count, as_json)
    mount = find_mount(places[0])
    screen = Screen(mount)
    with shown() as show:
        for now in islice(looks(mount, interval), count):
            if as_json:
                print_json_line(_as_json(now))
            elif now is None:
                show([f"{mount.mountpoint} does not answer"])
            else:
                show(screen.lines(now, *_terminal()))
    return 0


def _watch_hosts(places: Sequence[str], interval: float, count: int | None, as_json: bool) -> int:
    """Exit code of the last look."""
    screen, code = FleetScreen(), 0
    with shown() as show:
        for found, code in islice(looks_at_hosts(places, interval), count):  # noqa: B007
            if as_json:
                print_json_line({broker: _as_json(now) for broker, now in found.items()})
            else:
                show(screen.lines(found, *_terminal()))
    return code


def _as_json(now: Figures | None) -> dict[str, Any]:
    return {"answers": False} if now is None else asdict(now)


def looks_at_hosts(places: Sequence[str], interval: float) -> Iterator[tuple[dict[str, Figures | None], int]]:
    """Figures of each interval by broker, None if no mount answered there, and the exit code for those that did not.
    CommandError: a word is no place, or a status is another version's."""
    before, _ = _look_at_hosts(places)
    due = time.monotonic()
    while True:
        due = max(due + interval, now := time.monotonic())
        time.sleep(due - now)
        after, code = _look_at_hosts(places)
        yield {broker: _figures_of(before.get(broker), look) for broker, look in after.items()}, code
        before |= {broker: look for broker, look in after.items() if look is not None}


def _look_at_hosts(places: Sequence[str]) -> tuple[dict[str, Look | None], int]:
    """The status of each broker; None: it does not answer, or no daemon has the store open there."""
    with Fleet(places, request("status")) as fleet:
        found: dict[str, Look | None] = {host.name: None for host in fleet.hosts}
        for host, frame in fleet.answers(Status):
            found[host.name] = Look(time.monotonic(), frame.status) if "pid" in frame.status else None
        return found, fleet.exit_code()


def _figures_of(before: Look | None, now: Look | None) -> Figures | None:
    """CommandError: a status is another version's."""
    if before is None or now is None:
        return None
    try:
        return figures(before, now)
    except (KeyError, TypeError, AttributeError) as error:
        raise CommandError(f"the status of a host is another version's ({error!r})", SAME_VERSION) from None


def looks(mount: Mount, interval: float) -> Iterator[Figures | None]:
    """Figures of each interval; None if the mount did not answer."""
    before = _look(mount)
    due = time.monotonic()
    while True:
        due = max(due + interval, now := time.monotonic())
        time.sleep(due - now)
        after = _look(mount)
        yield figures(before, after) if before is not None and after is not None else None
        before = after or before


def _look(mount: Mount) -> Look | None:
    def ask() -> Look:
        status = json.loads((mount.mountpoint / "@store/status.json").read_bytes())
        return Look(time.monotonic(), status)

    return patiently(ask, None)


def _terminal() -> tuple[int, int]:
    size = shutil.get_terminal_size((PLAIN_WIDTH, 24))
    return (size.columns, size.lines) if sys.stdout.isatty() else (PLAIN_WIDTH, 1_000)
