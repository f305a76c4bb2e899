"""mountctl promote: makes a replica a store to write."""

from __future__ import annotations

from pathlib import Path

import click

from engine import StoreConfig, promote
from mountctl.options import StoreSettings, takes_settings
from mountctl.output import human_size, visible
from mountctl.places import require_here


@click.command("promote", short_help="Make a replica a store to write.")
@click.argument("store", type=Path)
@takes_settings
def command(store: Path, settings: StoreSettings) -> None:
    """Turn the replica STORE into a writable store, for a mount or for a broker. Refused while its replication runs.

    It ends with its last whole message. The rest of an interrupted transfer is cut; a copy of these bytes goes to
    STORE/fsstore/damaged.

    \b
    Example:
      mountctl promote /srv/copy
    """
    require_here(store)
    settings.require_store(store)
    report = promote(store, settings.applied_to(StoreConfig()))
    for sentence in report.notes:
        click.echo(visible(sentence), err=True)
    cut = f", after a cut of {human_size(report.cut_bytes)}" if report.cut_bytes else ""
    click.echo(visible(f"{store} can be written{cut}: `mountctl mount`, or a broker with its master's settings"))
