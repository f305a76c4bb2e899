"""mountctl status: shows mounts, stores, and the lag of consumer groups."""

from __future__ import annotations

import io
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import redirect_stdout
from typing import Any

import click

from engine import MasterFigures, RecoveryReport, StoreStats, rows_of
from fsstore.topic_facts import is_system_topic
from mountctl.connect import connect
from mountctl.errors import CommandError
from mountctl.frames import SAME_VERSION, Status
from mountctl.hosts import Fleet, is_fleet, request
from mountctl.options import StoreSettings, takes_settings
from mountctl.output import (
    human_seconds,
    human_size,
    human_time,
    plural,
    print_json,
    print_json_line,
    print_table,
    shown,
    visible,
)
from mountctl.places import Answer, Mount, Place, answer_of, find, mounts
from mountctl.replicating import copy_in_words

WATCH_SECONDS = 1.0


@click.command("status", short_help="Show stores, mounts, and consumer lag.")
@click.argument("places", metavar="[PLACE]...", nargs=-1)
@click.option("--json", "as_json", is_flag=True, help="Everything, as JSON.")
@click.option("--all", "every", is_flag=True, help="List empty topics of RocketMQ's own, too.")
@click.option("--watch", is_flag=True, help="Repeat every second, until interrupted; JSON is then one line.")
@takes_settings
def command(places: tuple[str, ...], as_json: bool, every: bool, watch: bool, settings: StoreSettings) -> int:
    """Show a store or mount: sizes, topics, and each consumer group's lag. Without PLACE: everything mounted here.
    Several places (HOST:PLACE by ssh, or @GROUP of ~/.config/fsstore/fleet.toml) get a line each.

    \b
    Examples:
      mountctl status
      mountctl status /mnt/mq --json
      mountctl status host-a:/mnt/mq host-b:/mnt/mq
    """
    if watch and not as_json:
        with shown() as show:
            while True:
                show(_lines(places, settings, every))
                time.sleep(WATCH_SECONDS)
    printing = print_json if as_json and not watch else print_json_line if as_json else None
    code = _report(places, settings, every, printing)
    while watch:
        time.sleep(WATCH_SECONDS)
        _report(places, settings, every, print_json_line)
    return code


def _lines(places: Sequence[str], settings: StoreSettings, every: bool) -> list[str]:
    """The lines to print, or the error."""
    text = io.StringIO()
    try:
        with redirect_stdout(text):
            _report(places, settings, every, None)
    except CommandError as error:
        return [str(error)]
    return text.getvalue().splitlines()


def _report(
    places: Sequence[str], settings: StoreSettings, every: bool, print_as_json: Callable[[Any], None] | None
) -> int:
    if not places:
        _show_mounts(print_as_json)
        return 0
    if is_fleet(places):
        return _report_hosts(places, settings, print_as_json)
    found = find(places[0])
    with connect(found, settings, writing=False) as client:
        status = client.status()
    if print_as_json is not None:
        print_as_json(status)
    else:
        _show(found, status, every)
    return 0


def _report_hosts(places: Sequence[str], settings: StoreSettings, print_as_json: Callable[[Any], None] | None) -> int:
    with Fleet(places, request("status", settings=settings)) as fleet:
        found = {host.name: frame.status for host, frame in fleet.answers(Status)}
        code = fleet.exit_code()
    if print_as_json is not None:
        print_as_json(found)
    elif found:
        try:
            _show_hosts(found)
        except (KeyError, TypeError, AttributeError) as error:
            raise CommandError(f"the status of a host is another version's ({error!r})", SAME_VERSION) from None
    return code


def _show_hosts(found: Mapping[str, Mapping[str, Any]]) -> None:
    titles = ("BROKER", "ACCESS", "TOPICS", "QUEUES", "MESSAGES", "LOG", "DISK FREE")
    print_table(titles, [(broker, *_figures(status)) for broker, status in found.items()])
    lags = [(broker, *lag) for broker, status in found.items() for lag in _lags(status["groups"])]
    if lags:
        click.echo()
        print_table(("BROKER", "GROUP", "TOPIC", "QUEUE", "OFFSET", "LAG", "EXPIRED"), lags)


def _figures(status: Mapping[str, Any]) -> Iterator[str]:
    """Cells of a store's row."""
    stats = status["stats"]
    yield f"{_mode(status)}{_why_not(status)}"
    yield from (f"{stats[name]:,}" for name in ("topics", "queues", "messages"))
    yield human_size(stats["physical_end"] - stats["min_physical_offset"])
    yield human_size(stats["disk_free_bytes"])


def _show_mounts(print_as_json: Callable[[Any], None] | None) -> None:
    found = [(mount, answer_of(mount.mountpoint) if mount.is_trusted else Answer.NOT_ASKED) for mount in mounts()]
    if print_as_json is not None:
        rows = [
            {
                "mountpoint": str(mount.mountpoint),
                "store": str(mount.store),
                "read_only": mount.read_only,
                "answers": answers.value,
            }
            for mount, answers in found
        ]
        print_as_json(rows)
    elif not found:
        click.echo("no store is mounted here; mount one with `mountctl mount STORE MOUNTPOINT`")
    else:
        table = [(str(mount.mountpoint), str(mount.store), _access(mount, answers)) for mount, answers in found]
        print_table(("MOUNTPOINT", "STORE", "ACCESS"), table)


def _access(mount: Mount, answers: Answer) -> str:
    if answers is Answer.NO:
        return f"dead (mountctl umount {mount.mountpoint})"
    if answers is Answer.NOT_ASKED:
        return f"not asked: mounted by user {mount.user}"
    how = "read-only" if mount.read_only else "read and write"
    return how if answers is Answer.YES else f"{how}, not answering"


def _show(place: Place, status: Mapping[str, Any], every: bool) -> None:
    for line in _summary(place, status):
        click.echo(visible(line))
    listed = [name for name in sorted(status["topics"]) if every or not _is_empty_system_topic(name, status)]
    if listed:
        click.echo()
        rows = [(name, *_topic_row(status["topics"][name]["queues"])) for name in listed]
        print_table(("TOPIC", "QUEUES", "MESSAGES"), rows)
    if hidden := len(status["topics"]) - len(listed):
        click.echo(
            f"\n{plural(hidden, 'empty topic')} of RocketMQ's own: --all lists {'it' if hidden == 1 else 'them'}"
        )
    if status["groups"]:
        click.echo()
        print_table(("GROUP", "TOPIC", "QUEUE", "OFFSET", "LAG", "EXPIRED"), _lags(status["groups"]))


def _summary(place: Place, status: Mapping[str, Any]) -> Iterator[str]:
    stats = status["stats"]
    yield f"store      {place.store}"
    mounted = f"at {place.mount.mountpoint} by process {status['pid']}" if place.mount else "no"
    yield f"mounted    {mounted}"
    if status.get("restarts"):
        yield f"restarted  {plural(status['restarts'], 'time')}, after the daemon was killed: see its log"
    if status.get("planned_restarts"):
        replaced = plural(status["planned_restarts"], "time")
        yield f"replaced   {replaced}, by mountctl restart; version {status['version']}"
    if place.mount:
        yield f"access     {_mode(status)}{_why_not(status)}"
    if problem := status.get("log_problem"):
        yield f"log file   {problem}"
    for problem in status["settings_problems"]:
        yield f"settings   {problem}"
    for problem in status.get("refused_queues", ()):
        yield f"refused    {problem}"
    yield f"messages   {stats['messages']:,} in {plural(stats['topics'], 'topic')}, {plural(stats['queues'], 'queue')}"
    log_bytes = stats["physical_end"] - stats["min_physical_offset"]
    files = plural(stats["commit_log_files"], "file")
    kind = stats["commit_log_kind"]
    whose = "" if kind == "RocketMQ" else f" ({kind})"
    yield f"log        {human_size(log_bytes)} in {files} of {human_size(stats['commit_log_file_bytes'])}{whose}"
    waiting = stats["physical_end"] - stats["durable_end"]
    yield f"on disk    {'all of it' if waiting <= 0 else f'all but the newest {human_size(waiting)}'}"
    yield f"disk       {human_size(stats['disk_free_bytes'])} free of {human_size(stats['disk_total_bytes'])}"
    yield from _retention(status)
    recovery = stats["recovery"]
    how = "clean" if recovery["clean"] else "recovered: its last writer did not close it"
    yield f"opened     {human_time(stats['opened_at_ms'])} in {human_seconds(recovery['seconds'])} ({how})"
    if stats["index"] != "in use":
        yield f"index      {stats['index']}: {stats['index_reason']}"
    if stats["queues_derived"]:
        yield f"queues     derived from the log: {stats['queues_derived']}"
    for sentence in stats["not_shown"]:
        yield f"not shown  {sentence}"
    if replica := status.get("replica"):
        yield f"copy       {copy_in_words(replica)}"
        if replica["lacks"]:
            yield f"lacking    {replica['lacks']}"
    if check := status.get("last_check"):
        yield f"checked    {_check_in_words(check)}"
    replication = status.get("replication") or {}
    yield from _replication(replication)
    for record, values in ((RecoveryReport, recovery), (StoreStats, stats), (MasterFigures, replication)):
        for name, row in rows_of(record):
            if row.notice and (number := int(row.number(values[name])) if name in values else 0):
                label, noun, rest = row.notice.split(" ", 2)
                yield f"{label:<11}{plural(number, noun)} {rest.format_map(values)}"


def _mode(status: Mapping[str, Any]) -> str:
    return str(status["mode"]).replace("_", "-")


def _why_not(status: Mapping[str, Any]) -> str:
    """The reason why nothing can be published now, as a suffix."""
    if reason := status["read_only_reason"]:
        return f", refused: {reason}" if status["mode"] == "write" else f": {reason}"
    no_space = status["stats"].get("no_space_reason")
    return f", refused: {no_space}" if no_space else ""


def _retention(status: Mapping[str, Any]) -> Iterator[str]:
    """Retention in force, and deletions since the daemon opened the store."""
    if status["mode"] != "write" or "retention" not in status:  # a daemon of an earlier version says nothing of it
        return
    yield f"retention  {status['retention']['in_force'] or 'off'}"
    stats, last = status["stats"], status["stats"]["last_deletion"]
    if last:
        what = (
            f"{plural(stats['expired_files'], 'file')} of the log with {plural(stats['expired_messages'], 'message')}"
        )
        yield f"deleted    {what}, last {human_time(last['at_ms'])}: {last['reason']}"


def _replication(master: Mapping[str, Any]) -> Iterator[str]:
    """The role of a store that serves replicas, and a line for each of them."""
    if not master:
        return
    waits = f"; a sync waits for {plural(master['needed'], 'replica')}" if master["needed"] else ""
    yield f"replicas   {master['connected']} at {master['address']} ({master['role']}{waits})"
    for one in master["replicas"]:
        behind = f"{human_size(one['lag_bytes'])} behind" if one["lag_bytes"] else "has all of it"
        heard = f"heard {human_seconds(one['last_heard_seconds'])} ago"
        yield f"replica    {one['replica']} {behind}, {heard}{'' if one['is_in_sync'] else ', not in sync'}"


def _check_in_words(check: Mapping[str, Any]) -> str:
    begun, share = human_time(check["begun_ms"]), check["done_bytes"] / max(check["total_bytes"], 1)
    if check["state"] != "ended":
        so_far = f"at {share:.0%} of {human_size(check['total_bytes'])}, begun {begun}"
        return f"now, {so_far}" if check["state"] == "running" else f"not to the end: {so_far}"
    took = human_seconds((check["ended_ms"] - check["begun_ms"]) / 1000)
    found = f"{plural(check['findings'], 'finding')}" if check["findings"] else "no findings"
    more = f": {check['first'][0]}" if check["first"] else ""
    return f"{begun}, {human_size(check['done_bytes'])} in {took}: {found}{more}"


def _is_empty_system_topic(name: str, status: Mapping[str, Any]) -> bool:
    """Whether RocketMQ made the topic for itself, and none of its queues has a message or is refused by the disk."""
    refused = any(sentence.startswith(f"{name}/") for sentence in status.get("refused_queues", ()))
    queues = status["topics"][name]["queues"].values()
    return is_system_topic(name) and not refused and all(one["min_offset"] == one["max_offset"] for one in queues)


def _topic_row(queues: Mapping[str, Mapping[str, int]]) -> tuple[str, str]:
    messages = sum(bounds["max_offset"] - bounds["min_offset"] for bounds in queues.values())
    return f"{len(queues):,}", f"{messages:,}"


def _lags(groups: Mapping[str, Any]) -> Iterator[tuple[str, ...]]:
    for group, topics in sorted(groups.items()):
        for topic, queues in sorted(topics.items()):
            for queue, at in sorted(queues.items(), key=lambda item: int(item[0])):
                yield group, topic, queue, f"{at['offset']:,}", f"{at['lag']:,}", f"{at.get('expired', 0):,}"
