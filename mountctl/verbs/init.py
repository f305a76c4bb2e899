"""mountctl init: makes an empty store."""

from __future__ import annotations

import os
from pathlib import Path

import click

from engine import BROKER_SIZES, EMBEDDED_SIZES, MessageStore, StoreConfig
from mountctl.errors import CommandError
from mountctl.options import StoreSettings, parse_mode, takes_settings
from mountctl.output import human_size, plural, print_json
from mountctl.places import absolute, require_here

SIZES = {"embedded": EMBEDDED_SIZES, "broker": BROKER_SIZES}


@click.command("init", short_help="Make an empty store.")
@click.argument("store", type=click.Path(path_type=Path))
@click.option(
    "--sizes", type=click.Choice(list(SIZES)), default="embedded", show_default=True, help="Sizes of its files."
)
@click.option("--mode", metavar="OCTAL", help="Permission bits of its directory; 0700 for a new one.")
@click.option("--json", "as_json", is_flag=True, help="Print the sizes as JSON.")
@takes_settings
def command(store: Path, sizes: str, mode: str | None, as_json: bool, settings: StoreSettings) -> None:
    """Make an empty STORE, with `embedded` sizes for a laptop, or `broker` sizes, RocketMQ's defaults.

    \b
    Example:
      mountctl init --sizes broker --mode 0750 /srv/store
    """
    bits = None if mode is None else parse_mode(mode)
    require_here(store)
    path = absolute(store)
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise CommandError(f"{store} is not empty", "name a new or empty directory", os.EX_USAGE)
    settings.require_store(path)
    config = settings.applied_to(StoreConfig(sizes=SIZES[sizes], preallocate=False))
    with MessageStore.open(path, config, create=True) as made:
        found = made.sizes
    if bits is not None:
        path.chmod(bits)
    if as_json:
        print_json({"store": str(path), **{name: getattr(found, name) for name in found.__slots__}})
        return
    click.echo(
        f"{path}: an empty store, files of {human_size(found.commit_log_bytes)} (commit log), "
        f"{plural(found.consume_queue_entries, 'message')} (consume queue), "
        f"{plural(found.index_entries, 'key')} (index)"
    )
