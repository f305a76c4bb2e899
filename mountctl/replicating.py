"""A replica beside a mount: `mountctl mount --replicate` starts the process of `mountctl replicate`, and it ends when
the mount does. The words for a replica's state."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from mountctl.errors import CommandError
from mountctl.log_file import open_log
from mountctl.options import StoreSettings
from mountctl.output import human_seconds, human_size, human_time
from mountctl.places import mounts

MASTER, CONTROLLER = "haMasterAddress", "enableControllerMode"
"""Options that only a replica has."""

MOUNTED = b"mounted\n"
LOOK_SECONDS = 0.5


@contextmanager
def replica_beside(
    mountpoint: Path, master: str, store: Path, settings: StoreSettings, log_file: Path
) -> Iterator[None]:
    """Have a replica of `master` write `store` until the mount at `mountpoint` is gone; the block makes that mount. If
    it fails, the replica ends. CommandError: the replica did not start, as `log_file` says."""
    conf = () if settings.conf is None else ("--broker-conf", str(settings.conf))
    options = [word for name, value in settings.options.items() for word in ("-o", f"{name}={value}")]
    words = ["replicate", *conf, *options, "--while-mounted", str(mountpoint), master, str(store)]
    log = open_log(log_file)
    try:
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "mountctl", *words],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            start_new_session=True,
        )
    finally:
        os.close(log)
    assert process.stdin is not None
    assert process.stdout is not None
    with process.stdin as words_to_it:
        with process.stdout as said:
            if not said.readline():  # it ended; else its first line says that the store is open
                raise CommandError(f"the replica of {master} did not start", f"see {log_file}", process.wait())
        yield
        with suppress(BrokenPipeError):
            words_to_it.write(MOUNTED)
            words_to_it.flush()


def end_with_mount(mountpoint: Path, end: Callable[[], None]) -> None:
    """Have a thread call `end` when the mount at `mountpoint` is gone; at once, if standard input ends before the
    process that mounts has said there that it is mounted."""

    def watch() -> None:
        if os.read(0, len(MOUNTED)) == MOUNTED:  # no buffer: the process may end meanwhile
            while any(mount.mountpoint == mountpoint for mount in mounts()):
                time.sleep(LOOK_SECONDS)
        end()

    threading.Thread(target=watch, name="mount-watch", daemon=True).start()


def copy_in_words(replica: Mapping[str, Any]) -> str:
    """The state of a replica, as `replica` of status has it: master, state with its reason, lag, epoch, last heard."""
    state, reason = replica["state"], f": {replica['reason']}" if replica["reason"] else ""
    of = f"of {replica['master']}"
    if not replica["is_running"]:
        return f"{of}, not running since {human_time(replica['noted_ms'])} ({state}{reason})"
    behind = epoch = heard = ""
    if replica["lag_bytes"] > 0:
        behind = f", {human_size(replica['lag_bytes'])} and {human_seconds(replica['lag_ms'] / 1000)} behind"
    if replica.get("epoch", -1) >= 0:
        epoch = f", epoch {replica['epoch']} confirmed up to {replica['confirmed_end']:,}"
    if replica["heard_ms"]:
        heard = f", heard {human_seconds(max(replica['noted_ms'] - replica['heard_ms'], 0) / 1000)} ago"
    return f"{of}, {state}{behind}{epoch}{heard}{reason}"
