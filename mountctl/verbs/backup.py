"""mountctl backup: copies a store, mounted or not; each run brings the copy up to date."""

from __future__ import annotations

import os
from pathlib import Path

import click

from engine import BackedUp, CheckProgress, StoreConfig, back_up, check_store
from mountctl.connect import daemon_of
from mountctl.errors import FINDINGS, CommandError
from mountctl.options import StoreSettings, takes_settings
from mountctl.output import human_size, plural, progress, visible
from mountctl.places import Place, absolute, find, mount_of, require_here, require_outside_mounts
from mountctl.process import raise_open_files


@click.command("backup", short_help="Copy a store, and bring the copy up to date.")
@click.argument("place")
@click.argument("directory", type=Path)
@click.option("--verify", is_flag=True, help="Afterwards check the whole copy, not only the data of this run.")
@takes_settings
def command(place: str, directory: Path, verify: bool, settings: StoreSettings) -> None:
    """Copy the store at PLACE to DIRECTORY, or bring an existing copy up to date: only new data is copied.

    The store may be mounted and written, closed, or a broker's. The copy is a store: mount it, or copy it back with
    `mountctl restore`. Copied data is read again and checked. An interrupted run leaves the old copy good.

    \b
    Examples:
      mountctl backup /mnt/mq /backup/mq
      mountctl backup --verify /srv/store /backup/mq
    """
    found, target = find(place), unmounted_target(directory)
    raise_open_files()
    with progress() as show:

        def report(now: CheckProgress) -> None:
            show(now.stage, now.done_bytes, now.total_bytes)

        done = back_up(absolute(found.store), target, report, _config(found, settings))
        findings = list(check_store(target, report)) if verify else []
    for finding in findings:
        click.echo(visible(str(finding)))
    click.echo(visible(f"{found.store}: {_in_words(done)}"))
    tell(done, target, len(findings))


def unmounted_target(directory: Path) -> Path:
    """The absolute path of a directory to copy a store to. CommandError: it is of another host, or in a mount, or a
    store that is mounted."""
    require_here(directory)
    target = absolute(directory)
    if mount := mount_of(target):
        raise CommandError(
            f"{target} is mounted at {mount.mountpoint}", f"mountctl umount {mount.mountpoint}", os.EX_TEMPFAIL
        )
    require_outside_mounts(target)
    return target


def tell(done: BackedUp, target: Path, findings: int = 0) -> None:
    """Say on standard error what the copy lacks, and end with FINDINGS then."""
    for name in done.refused:
        click.echo(f"mountctl: {name} can't be read in part: the copy lacks the messages there", err=True)
    if done.missing:
        click.echo(
            f"mountctl: {human_size(done.missing)} at the log's end can't be read: the next run tries again", err=True
        )
    for name in done.left_out:
        click.echo(f"mountctl: {name} can't be read: the copy keeps its older version, if any", err=True)
    if findings or done.damaged:
        damaged = plural(findings or done.damaged, "finding" if findings else "damaged place")
        click.echo(f"mountctl: {damaged} in the copy: see `mountctl check {target}`", err=True)
    if findings or done.damaged or done.left_out or done.refused:
        click.get_current_context().exit(FINDINGS)


def _config(place: Place, settings: StoreSettings) -> StoreConfig:
    """The configuration for reading the store's log; a daemon that writes it flushes first."""
    if place.mount is None or place.mount.read_only:
        settings.require_store(place.store)
        return settings.applied_to(StoreConfig())
    daemon = daemon_of(place.mount, settings)
    daemon.flush()
    return daemon.store_config()


def _in_words(done: BackedUp) -> str:
    copied = human_size(done.end - done.start)
    return f"{copied} copied; the copy has {plural(done.messages, 'message')} in {human_size(done.end - done.begin)}"
