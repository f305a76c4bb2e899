"""mountctl retention: prints what retention would delete now, and why. Deletes nothing."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, replace
from typing import Any

import click

from engine import (
    RETENTION_NAMES,
    Deletion,
    MessageStore,
    OpenMode,
    Retention,
    RetentionPlan,
    StoreConfig,
    options_of,
    retention_from,
)
from mountctl.connect import READING, daemon_of, unmounted
from mountctl.errors import CommandError
from mountctl.local_store import opened
from mountctl.options import StoreSettings, takes_settings
from mountctl.output import human_size, human_time, plural, print_json, visible
from mountctl.places import Mount, Place, find


@click.command("retention", short_help="Say what retention would delete now, and why.")
@click.argument("place")
@click.option("--json", "as_json", is_flag=True, help="Everything, as JSON.")
@takes_settings
def command(place: str, as_json: bool, settings: StoreSettings) -> None:
    """Show which messages retention would delete now, and why. It uses the options in force, or those of -o as
    `mountctl restart -o ...` (`mountctl mount -o ...` for an unmounted store) would apply them. Deletes nothing.

    If the disk is too full, the verb proposes an option that deletes just enough.

    \b
    Examples:
      mountctl retention /mnt/mq
      mountctl retention /mnt/mq -o fileReservedTime=48,deleteWhen=04
      mountctl retention /srv/store -o maxBytes=10G --json
    """
    found = find(place)
    settings.require_store(found.store)
    with _store_of(found, settings) as (store, asked):
        planned = store.plan_retention(asked)
        proposed = None
        if planned.proposed_max_bytes is not None:
            proposed = store.plan_retention(replace(asked or Retention(), max_bytes=planned.proposed_max_bytes))
    if as_json:
        print_json(_as_json(found, planned, proposed))
    else:
        for line in _lines(found, planned, proposed):
            click.echo(visible(line))


@contextmanager
def _store_of(place: Place, settings: StoreSettings) -> Iterator[tuple[MessageStore, Retention | None]]:
    """The store, opened for reading, and the retention to evaluate."""
    if place.mount is None or place.mount.read_only:
        with unmounted(place.store, settings, *READING) as local:
            yield local.store, local.store.asked_retention()
        return
    daemon = daemon_of(place.mount, StoreSettings())
    in_force = daemon.status().get("retention")
    if in_force is None:
        where = place.mount.mountpoint
        raise CommandError(f"the daemon of {where} is of an earlier version", f"mountctl restart {where}")
    asked = _asked(in_force, settings, place.mount)
    with opened(place.store, daemon.store_config(), OpenMode.FOLLOW) as store:
        yield store, asked


def _asked(in_force: Mapping[str, Any], settings: StoreSettings, mount: Mount) -> Retention | None:
    """The mount's retention, or the one that the options would make of it. Options given at the mount remain in force
    beside them; those of config/retention.json don't."""
    others = settings.options.keys() - set(RETENTION_NAMES)
    if others or settings.conf is not None:
        reason = f"{mount.store} is mounted at {mount.mountpoint}, and open with that mount's options"
        raise CommandError(reason, "give options of retention alone", os.EX_USAGE)
    current = retention_from(in_force["options"]) if in_force["in_force"] else None
    if not settings:
        return current
    base = StoreConfig(retention=current if in_force["given"] else None)
    return settings.applied_to(base).retention


def _as_json(place: Place, planned: RetentionPlan, proposed: RetentionPlan | None) -> dict[str, Any]:
    return {
        "store": str(place.store),
        "mountpoint": str(place.mount.mountpoint) if place.mount else None,
        **_plan_as_json(planned),
        "proposed": _plan_as_json(proposed) if proposed else None,
    }


def _plan_as_json(planned: RetentionPlan) -> dict[str, Any]:
    total = _total(planned)
    return {
        "retention": None if planned.retention is None else str(planned.retention),
        "options": {} if planned.retention is None else options_of(planned.retention),
        "files": total.files if total else 0,
        "messages": total.messages if total else 0,
        "bytes": total.bytes if total else 0,
        "oldest_ms": total.oldest_ms if total else None,
        "newest_ms": total.newest_ms if total else None,
        "deletions": [asdict(one) for one in planned.deletions],
        "waiting_files": planned.waiting_files,
        "kept_files": planned.kept_files,
        "kept_bytes": planned.kept_bytes,
        "disk_use": planned.disk_use,
        "disk_use_after": planned.disk_use_after,
    }


def _total(planned: RetentionPlan) -> Deletion | None:
    total: Deletion | None = None
    for one in planned.deletions:
        total = one if total is None else total.and_then(one)
    return total


def _lines(place: Place, planned: RetentionPlan, proposed: RetentionPlan | None) -> Iterator[str]:
    mounted = f", mounted at {place.mount.mountpoint}" if place.mount else ""
    limit = (planned.retention or Retention()).disk_warn_ratio
    yield f"store      {place.store}{mounted}"
    yield f"retention  {planned.retention or 'off: nothing is ever deleted'}"
    yield f"disk       {_percent(planned.disk_use)}"
    if not planned.deletions:
        yield "now        nothing is deleted"
    for deletion in planned.deletions:
        yield f"now        {_in_words(deletion)}"
    if planned.deletions:
        yield f"then       {_kept(planned)}"
    if planned.waiting_files:
        hours = options_of(planned.retention or Retention()).get("deleteWhen", "04")
        files, now = plural(planned.waiting_files, "file"), "-o diskMaxUsedSpaceRatio=75"
        yield f"later      {files} of the log, old enough, when it is deleteWhen={hours}; on a full disk with {now}"
    if proposed is not None:
        yield from _proposal(place, proposed)
    elif planned.disk_use_after > limit:
        yield f"but        the disk stays over {limit:.0%} even without the log: other files fill it"


def _proposal(place: Place, proposed: RetentionPlan) -> Iterator[str]:
    assert proposed.retention is not None
    option = f"-o maxBytes={_size(proposed.retention.max_bytes or 0)}"
    yield ""
    for deletion in proposed.deletions:
        yield f"proposed   {_in_words(deletion)}"
    yield f"then       {_kept(proposed)}"
    if place.mount and not place.mount.read_only:
        yield f"by         mountctl restart {option} {place.mount.mountpoint}"
    else:
        yield f"by         mountctl mount {option} {place.store} MOUNTPOINT"


def _in_words(deletion: Deletion) -> str:
    times = [human_time(one) for one in (deletion.oldest_ms, deletion.newest_ms) if one is not None]
    stored = f" stored {' to '.join(dict.fromkeys(times))}" if times else ""
    what = f"{plural(deletion.files, 'file')} of the log, {human_size(deletion.bytes)}"
    return f"{what}, {plural(deletion.messages, 'message')}{stored}: {deletion.reason}"


def _kept(planned: RetentionPlan) -> str:
    left = f"{human_size(planned.kept_bytes)} of log in {plural(planned.kept_files, 'file')}"
    return f"{left}; the disk {_percent(planned.disk_use_after)}"


def _percent(use: float) -> str:
    return f"{use:.0%} full" if use >= 0 else "of unknown use"


def _size(size: int) -> str:
    """Exact bytes as an option takes them."""
    for shift, unit in ((30, "G"), (20, "M"), (10, "K")):
        if size >> shift << shift == size:
            return f"{size >> shift}{unit}"
    return str(size)
