"""mountctl check: does every derived byte follow from the commit log? And --repair."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import click

from engine import CheckProgress, StoreConfig, check_store, repair_store
from mountctl.errors import FINDINGS, CommandError
from mountctl.options import StoreSettings, takes_settings
from mountctl.output import Show, plural, print_json_line, progress, visible
from mountctl.places import absolute, find


@click.command("check", short_help="Check a store, and repair it.")
@click.argument("store")
@click.option("--repair", is_flag=True, help="Rebuild what is derived, cut or mark what is damaged; then check again.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object a finding.")
@takes_settings
def command(store: str, repair: bool, as_json: bool, settings: StoreSettings) -> None:
    """Check STORE, not mounted: re-derives every consume-queue and index byte from the commit log.

    One line per finding, and exit code 1 when there is any. --repair never touches a good record, says what it did, and
    may be stopped and run again.

    \b
    Examples:
      mountctl check /srv/store
      mountctl check --repair /srv/store
    """
    place = find(store)
    if place.mount and not place.mount.read_only:
        where = place.mount.mountpoint
        raise CommandError(
            f"{place.store} is mounted at {where} and changes", f"mountctl umount {where}", os.EX_TEMPFAIL
        )
    path = absolute(place.store)
    settings.require_store(path)
    config = settings.applied_to(StoreConfig())
    if repair:
        _repair(path, config, as_json)
    findings = _check(path, config, as_json)
    if findings:
        click.get_current_context().exit(FINDINGS)
    if not as_json:
        click.echo(f"{path}: no findings")


def _check(path: Path, config: StoreConfig, as_json: bool) -> int:
    """Print each finding; returns how many there were."""
    count = 0
    with progress() as show:
        for problem in check_store(path, _reporting(show), config):
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
                click.echo(visible(str(problem)))
    if count:
        click.echo(f"mountctl: {plural(count, 'finding')}", err=True)
    return count


def _repair(path: Path, config: StoreConfig, as_json: bool) -> None:
    """Repair, and print a sentence for each thing done."""
    with progress() as show:
        for done in repair_store(path, _reporting(show), config):
            if as_json:
                print_json_line({"repaired": done})
            else:
                click.echo(f"repaired: {visible(done)}")


def _reporting(show: Show) -> Callable[[CheckProgress], None]:
    return lambda now: show(now.stage, now.done_bytes, now.total_bytes)
