"""mountctl check: compares all derived data with the commit log. With --repair, repairs the store."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable
from pathlib import Path

import click

from engine import CheckProgress, Problem, StoreConfig, check_online, check_store, repair_store
from mountctl.connect import daemon_of
from mountctl.errors import FINDINGS, CommandError
from mountctl.mount_client import MountClient
from mountctl.options import StoreSettings, parse_size, takes_settings
from mountctl.output import Show, human_size, plural, print_json_line, print_line, progress, visible
from mountctl.places import absolute, find
from mountctl.process import raise_open_files

DEFAULT_RATE = "64M"
NICENESS = 10


@click.command("check", short_help="Check a store, mounted or not, and repair it.")
@click.argument("place")
@click.option("--repair", is_flag=True, help="Rebuild derived data, cut or mark damaged data; then check again.")
@click.option(
    "--rate",
    default=DEFAULT_RATE,
    show_default=True,
    metavar="SIZE",
    help="Limit for reading the log of a mounted store, in bytes a second; 0: no limit.",
)
@click.option("--json", "as_json", is_flag=True, help="One JSON object per finding.")
@takes_settings
def command(place: str, repair: bool, rate: str, as_json: bool, settings: StoreSettings) -> None:
    """Check a store: derive every byte of consume queues and index from the commit log, and compare.

    Each finding is one line; the exit code is 1 if there are any. A mounted store is checked while it is used, up to
    the end of the data on disk at the check's start; `mountctl status` shows the progress and the findings, too.
    --repair needs an unmounted store. It changes no good record, prints each change, and may be interrupted and run
    again.

    \b
    Examples:
      mountctl check /srv/store
      mountctl check --rate 200M /mnt/mq
      mountctl check --repair /srv/store
    """
    found = find(place)
    if found.mount and not found.mount.read_only:
        if repair:
            where = found.mount.mountpoint
            reason = f"{found.store} is mounted at {where} and changes"
            raise CommandError(reason, f"mountctl umount {where}", os.EX_TEMPFAIL)
        daemon = daemon_of(found.mount, settings)
        _end(found.store, _check_served(daemon, parse_size(rate), as_json), as_json)
        return
    path = absolute(found.store)
    settings.require_store(path)
    config = settings.applied_to(StoreConfig())
    if repair:
        _repair(path, config, as_json)
    with progress() as show:
        findings = _print(check_store(path, _reporting(show), config), as_json)
    _end(path, findings, as_json)


def _check_served(served: MountClient, rate: int, as_json: bool) -> int:
    """Check beside the mount's daemon, after a flush; returns the number of findings."""
    path = served.store
    os.nice(NICENESS)
    raise_open_files()
    with progress() as show:
        found = check_online(path, served.flush, paced(_reporting(show), rate), served.store_config())
    if not as_json:
        click.echo(f"{path}: checked {human_size(found.end - found.begin)} while mounted")
    return _print(found.problems, as_json)


def _end(path: Path, findings: int, as_json: bool) -> None:
    if findings:
        click.echo(f"mountctl: {plural(findings, 'finding')}", err=True)
        click.get_current_context().exit(FINDINGS)
    if not as_json:
        click.echo(f"{path}: no findings")


def _print(problems: Iterable[Problem], as_json: bool) -> int:
    """Print each finding; returns their number."""
    count = 0
    for problem in problems:
        count += 1
        if as_json:
            print_json_line(
                {
                    "kind": problem.kind.value,
                    "path": problem.path,
                    "position": problem.position,
                    "text": problem.text,
                }
            )
        else:
            print_line(visible(str(problem)))
    return count


def _repair(path: Path, config: StoreConfig, as_json: bool) -> None:
    """Repair, and print a sentence for each action."""
    with progress() as show:
        for done in repair_store(path, _reporting(show), config):
            if as_json:
                print_json_line({"repaired": done})
            else:
                print_line(f"repaired: {visible(done)}")


def _reporting(show: Show) -> Callable[[CheckProgress], None]:
    return lambda now: show(now.stage, now.done_bytes, now.total_bytes)


def paced(
    tell: Callable[[CheckProgress], None],
    rate: int,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> Callable[[CheckProgress], None]:
    """`tell`, which returns so late that no more than `rate` bytes a second are done; 0: at once."""
    began, done, stage = clock(), 0, ""
    before = 0

    def told(now: CheckProgress) -> None:
        nonlocal done, stage, before
        if now.stage != stage:
            stage, before = now.stage, 0
        done += max(now.done_bytes - before, 0)
        before = now.done_bytes
        tell(now)
        early = began + done / rate - clock() if rate else 0.0
        if early > 0:
            sleep(early)

    return told
