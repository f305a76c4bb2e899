"""Serving a store at a mount point: what the daemon, or a foreground mount, does from opening to closing."""

from __future__ import annotations

import faulthandler
import logging
import os
import socket
import sys
from collections.abc import Callable
from dataclasses import replace

from engine import FlushPolicy, MessageStore, OpenMode, RecoveryProgress, StoreConfig, with_options
from fsstore import ServeOptions, serve
from mountctl.daemon import Report, Reporter
from mountctl.limits import raise_open_files
from mountctl.options import MountRequest
from mountctl.output import human_seconds, human_size, throttled

log = logging.getLogger("mountctl")

LOG_INTERVAL_SECONDS = 5.0
SHOW_INTERVAL_SECONDS = 0.1


def serve_request(request: MountRequest, reporter: Reporter) -> None:
    """Open the store, serve it at the mount point until it is unmounted or told to end, and close it."""
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    faulthandler.enable(sys.stderr)
    raise_open_files()
    log.info("process %d opens %s (%s)", os.getpid(), request.store, request.mode)
    with MessageStore.open(request.store, _config(request, reporter)) as store:
        _log_recovery(store)
        serve(store, request.mountpoint, _serve_options(request), ready=lambda: _ready(request, reporter))
        log.info("unmounted; closing the store")
    log.info("closed %s", request.store)


def _config(request: MountRequest, reporter: Reporter) -> StoreConfig:
    config = StoreConfig(
        mode=OpenMode(request.mode),
        flush=FlushPolicy(sync=request.sync_flush),
        progress=_progress(reporter),
    )
    return with_options(config, request.store_options or {})


def _serve_options(request: MountRequest) -> ServeOptions:
    options = ServeOptions(
        allow_other=request.allow_other, mount_options=request.kernel_options, parquet=request.parquet
    )
    return options if request.append_mode is None else replace(options, append_mode=request.append_mode)


def _progress(reporter: Reporter) -> Callable[[RecoveryProgress], None]:
    """Tell how far recovery is: often to the person who waits, now and then to the log."""

    def to_log(stage: str, done: int, total: int) -> None:
        log.info("%s: %s of %s", stage, human_size(done), human_size(total))

    def to_command(stage: str, done: int, total: int) -> None:
        reporter.tell(Report("progress", stage, done=done, total=total))

    logged, shown = throttled(to_log, LOG_INTERVAL_SECONDS), throttled(to_command, SHOW_INTERVAL_SECONDS)

    def progress(now: RecoveryProgress) -> None:
        logged(now.stage, now.done_bytes, now.total_bytes)
        shown(now.stage, now.done_bytes, now.total_bytes)

    return progress


def _log_recovery(store: MessageStore) -> None:
    found = store.recovery
    if not found.clean:
        log.warning("the store was not closed by its last writer: it was recovered")
    log.info(
        "opened in %s: %s of log read, %s of torn tail cut, %d damaged stretches",
        human_seconds(found.seconds),
        human_size(found.scanned_bytes),
        human_size(found.cut_bytes),
        len(found.damaged),
    )
    for name in found.rebuilt:
        log.info("rebuilt: %s", name)
    for note in found.notes:
        log.warning("%s", note)


def _ready(request: MountRequest, reporter: Reporter) -> None:
    log.info("%s is mounted at %s", request.store, request.mountpoint)
    reporter.tell(Report("ready"))
    reporter.close()
    _tell_systemd("READY=1")


def _tell_systemd(words: str) -> None:
    """Tell the service manager, where one started us with Type=notify (sd_notify(3))."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if address:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notify:
            notify.connect("\0" + address[1:] if address.startswith("@") else address)
            notify.send(words.encode())
