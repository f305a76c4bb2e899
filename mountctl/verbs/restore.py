"""mountctl restore: makes a store of a backup."""

from __future__ import annotations

from pathlib import Path

import click

from engine import CheckProgress, restore
from mountctl.output import human_size, plural, progress, visible
from mountctl.places import find
from mountctl.process import raise_open_files
from mountctl.verbs.backup import tell, unmounted_target


@click.command("restore", short_help="Make a store of a backup.")
@click.argument("backup", type=Path)
@click.argument("store", type=Path)
def command(backup: Path, store: Path) -> None:
    """Restore the backup BACKUP into STORE, a new or empty directory. The backup stays as it is.

    Copied data is read again and checked. To continue an interrupted run, give the same command again. Consumer groups
    continue from their offsets in the backup. A config/retention.json applies as soon as STORE is mounted.

    \b
    Examples:
      mountctl restore /backup/mq /srv/restored
    """
    source, target = find(str(backup)).store, unmounted_target(store)
    raise_open_files()
    with progress() as show:

        def report(now: CheckProgress) -> None:
            show(now.stage, now.done_bytes, now.total_bytes)

        done = restore(source, target, report)
    amount = f"{plural(done.messages, 'message')} in {human_size(done.end - done.begin)}"
    click.echo(visible(f"{target}: a store with {amount}; mountctl mount {store} MOUNTPOINT mounts it"))
    tell(done, target)
