"""mountctl restart: replaces a mount's daemon by one that runs the installed program."""

from __future__ import annotations

import json
import os
from typing import Any

import click

from mountctl import control
from mountctl.errors import CommandError
from mountctl.options import MountRequest, parse
from mountctl.output import progress
from mountctl.places import Mount, find_mount


@click.command("restart", short_help="Replace the daemon of a mount; its users notice a pause.")
@click.argument("place", metavar="MOUNTPOINT")
@click.option("-o", "options", multiple=True, metavar="NAME[=VALUE],...", help="Options to change.")
def command(place: str, options: tuple[str, ...]) -> None:
    """Replace the daemon of the mount at MOUNTPOINT, which may also be the store's own directory. The new daemon runs
    this command's program: after an upgrade, the new version.

    It is loaded while the old one serves. Then the old one closes the store, and the new one opens it.
    Programs that use the mount wait for that moment and see no error: open files stay open, with all unfinished writes.
    Returns when the new daemon serves. If it can't be started, the old one stays.

    -o accepts store options, sync_flush, append_mode and parquet_memory.

    \b
    Examples:
      mountctl restart /mnt/mq
      mountctl restart -o fileReservedTime=48 /mnt/mq
    """
    MountRequest.require_changeable(parse(options))
    mount = _mounted(place)
    _require_keeper(mount)
    pid = control.restart(mount.device, mount.user, options, progress)
    click.echo(f"{mount.store} at {mount.mountpoint} is served by process {pid}")


def _mounted(place: str) -> Mount:
    mount = find_mount(place)
    if os.geteuid() not in (0, mount.user):
        raise CommandError(
            f"{mount.mountpoint} was mounted by user {mount.user}", "restart it as that user or root", 77
        )
    return mount


def _require_keeper(mount: Mount) -> None:
    status: dict[str, Any] = json.loads((mount.mountpoint / "@store/status.json").read_bytes())
    if not status.get("outlives_daemon"):
        raise CommandError(
            f"the mount at {mount.mountpoint} can't outlive its daemon",
            "that takes Linux 6.9, no --foreground, and the daemon's keeper; umount, then mount",
        )
