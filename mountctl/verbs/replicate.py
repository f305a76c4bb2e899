"""mountctl replicate: keeps a store a live copy of a remote broker's."""

from __future__ import annotations

import os
import signal
import threading
from functools import partial
from pathlib import Path

import click

from engine import MASTER_NAMES, ReplicaOptions, StoreConfig, begin_again, parse_address, replicate
from mountctl.daemon import tell_systemd
from mountctl.errors import CommandError
from mountctl.log_file import log_to_stderr
from mountctl.options import StoreSettings, takes_settings
from mountctl.output import visible
from mountctl.places import require_here
from mountctl.process import raise_open_files, set_up_allocator
from mountctl.replicating import CONTROLLER, MASTER, end_with_mount

HA_PORT = 10_912
"""haListenPort's default."""
_INTERVALS = {"haSendHeartbeatInterval": "heartbeat_seconds", "haHousekeepingInterval": "silence_seconds"}
"""The field of ReplicaOptions that each option sets, in ms."""


@click.command("replicate", short_help="Keep a live copy of a remote broker.")
@click.argument("places", metavar="[HOST[:PORT]] STORE", nargs=-1, required=True)
@click.option("--remoting", metavar="HOST:PORT", help="The broker's listenPort; default: its replication port minus 1.")
@click.option("--begin-again", "is_begun_again", is_flag=True, help="Set the old copy aside, and make a new one.")
@click.option("--while-mounted", type=Path, hidden=True)  # of `mountctl mount --replicate`
@partial(takes_settings, own=frozenset((MASTER, CONTROLLER, *_INTERVALS, *MASTER_NAMES)))
def command(
    places: tuple[str, ...],
    remoting: str | None,
    is_begun_again: bool,
    while_mounted: Path | None,
    settings: StoreSettings,
) -> None:
    """Keep STORE a copy of the broker at HOST (haListenPort, 10912), as it grows. Runs until SIGTERM or SIGINT.

    If STORE is empty or missing, it is created with the broker's sizes. `mountctl mount --follow STORE` shows it
    meanwhile. Messages acknowledged to the broker are on this disk. With --remoting none topics and groups are not
    copied; if the broker has a controller, add -o enableControllerMode=true. To serve replicas of the copy: -o
    brokerRole=ASYNC_MASTER,haListenPort=PORT.

    \b
    Examples:
      mountctl replicate broker-a.example /srv/copy
      mountctl replicate broker-a.example:10912 --remoting broker-a.example:10911 /srv/copy
    """
    known = {**settings.broker, **settings.options}
    if len(places) > 2 or (len(places) == 1 and MASTER not in known):
        raise CommandError("give the broker's HOST and the STORE of the copy", "", os.EX_USAGE)
    store = Path(places[-1])
    require_here(store)
    settings.require_store(store)
    options = _options(places[0] if len(places) == 2 else known[MASTER], remoting, known)
    config = settings.without({MASTER, CONTROLLER, *_INTERVALS}).applied_to(StoreConfig())
    raise_open_files()
    set_up_allocator()
    log_to_stderr()
    if is_begun_again:
        for sentence in begin_again(store, config):
            click.echo(visible(sentence))
    stopping = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stopping.set())
    if while_mounted is not None:
        end_with_mount(while_mounted, stopping.set)
    replicate(store, options, config, stopping, started=lambda: _ready(store, options))


def _options(master: str, remoting: str | None, known: dict[str, str]) -> ReplicaOptions:
    """OptionError, CommandError."""
    address = parse_address(master, HA_PORT, "HOST")
    if remoting == "none":
        asked = None
    elif remoting is not None:
        asked = parse_address(remoting, address.port - 1, "--remoting")
    else:
        asked = address._replace(port=address.port - 1)
    seconds = {field: _seconds(name, known[name]) for name, field in _INTERVALS.items() if name in known}
    return ReplicaOptions(address, asked, **seconds, has_controller=_flag(CONTROLLER, known.get(CONTROLLER, "false")))


def _flag(name: str, text: str) -> bool:
    if text.strip() not in ("true", "false"):
        raise CommandError(f"option {name}: {text!r} is neither true nor false", "", os.EX_USAGE)
    return text.strip() == "true"


def _seconds(name: str, text: str) -> float:
    if not text.strip().isdecimal() or not 0 < int(text) <= 3_600_000:
        raise CommandError(f"option {name}: {text!r} is no interval", "give milliseconds, like 5000", os.EX_USAGE)
    return int(text) / 1000


def _ready(store: Path, options: ReplicaOptions) -> None:
    click.echo(visible(f"{store} is a replica of {options.master} (process {os.getpid()})"))
    tell_systemd("READY=1")
