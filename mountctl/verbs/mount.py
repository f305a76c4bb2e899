"""mountctl mount: mounts a store."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import click

from fsstore import ParquetOptions
from fsstore.handover.keeper import Keeper
from mountctl import daemon, preflight
from mountctl.keeper import start
from mountctl.launch import Served
from mountctl.log_file import LogFile, default_log_file, open_log, redirect
from mountctl.options import BROKER_CONF, MountRequest, StoreSettings, parse, parse_mode, root_of, settings_of
from mountctl.output import progress, visible
from mountctl.places import absolute, require_here
from mountctl.process import set_up_allocator
from mountctl.replicating import replica_beside


@click.command("mount", short_help="Mount a store.")
@click.argument("store", type=Path)
@click.argument("mountpoint", type=Path, required=False)
@click.option("-f", "--foreground", is_flag=True, help="Serve in this process, and log to standard error.")
@click.option("-r", "--read-only", is_flag=True, help="Never write to the store; refused while it has a writer.")
@click.option("--follow", is_flag=True, help="Read-only, beside the store's writer (a broker, a mount).")
@click.option("--replicate", metavar="HOST[:PORT]", help="Follow, and keep STORE a live copy of that broker meanwhile.")
@click.option("--sync-flush", is_flag=True, help="Each write returns when its bytes are on disk.")
@click.option("--allow-other", is_flag=True, help="Let other users read; --append-mode lets them publish.")
@click.option("--append-mode", metavar="OCTAL", help="Permission bits of the append files, like 222.")
@click.option("--log-file", type=click.Path(path_type=Path), help="The daemon's log.")
@click.option("--cache", type=click.Path(path_type=Path), help="Directory for queues that --follow derives.")
@click.option("-o", "options", multiple=True, metavar="NAME[=VALUE],...", help="Store options by RocketMQ's names.")
@BROKER_CONF
def command(
    store: Path,
    mountpoint: Path | None,
    foreground: bool,
    replicate: str | None,
    append_mode: str | None,
    log_file: Path | None,
    cache: Path | None,
    options: tuple[str, ...],
    broker_conf: Path | None,
    **switches: bool,
) -> None:
    """Mount STORE at MOUNTPOINT; a STORE that doesn't exist or is empty is created. With --broker-conf, STORE may be
    omitted: the default is the file's storePathRootDir.

    Returns when the mount is ready. Retention is off unless -o sets it: fileReservedTime (hours), maxBytes,
    deleteWhen, diskMaxUsedSpaceRatio. For a log elsewhere, or over several paths: storePathCommitLog=PATH,PATH.
    To serve replicas: brokerRole=ASYNC_MASTER or SYNC_MASTER, haListenPort, inSyncReplicas, slaveTimeout. --replicate
    takes what -o of `mountctl replicate` takes, too.

    \b
    Examples:
      mountctl mount /srv/store /mnt/mq
      mountctl mount --follow /root/store /mnt/broker
      mountctl mount -o fileReservedTime=72,maxBytes=10G /srv/store /mnt/mq
    """
    words = parse(options)
    settings = settings_of(words.store, broker_conf or words.broker_conf)
    store, mountpoint = _places(store, mountpoint, settings)
    require_here(store)
    chosen = words.switches | {name for name, on in switches.items() if on}
    if replicate is not None:
        chosen |= {"follow"}
    request = MountRequest(
        store=absolute(store),
        mountpoint=absolute(mountpoint),
        mode="follow" if "follow" in chosen else "read-only" if "read_only" in chosen else "write",
        sync_flush="sync_flush" in chosen,
        allow_other="allow_other" in chosen,
        append_mode=words.append_mode if append_mode is None else parse_mode(append_mode),
        settings=settings,
        kernel_options=words.kernel,
        parquet=words.parquet or ParquetOptions(),
        follow_interval_ms=words.follow_interval_ms,
        cache=absolute(cache or words.cache or daemon.default_cache()),
        has_replica=replicate is not None,
    )
    log_file = log_file or words.log_file
    log_file = log_file and absolute(log_file)
    with ExitStack() as stack:
        if replicate is not None:
            where, log_of_replica = request.mountpoint.resolve(), log_file or absolute(default_log_file(request.store))
            stack.enter_context(replica_beside(where, replicate, request.store, settings, log_of_replica))
        _preflight(request)
        if foreground:
            _serve_here(request, log_file)
        else:
            _start_daemon(request, log_file or absolute(default_log_file(request.store)))


def _places(store: Path, mountpoint: Path | None, settings: StoreSettings) -> tuple[Path, Path]:
    """Paths of store and mount point. A single path is the mount point of broker.conf's store."""
    if mountpoint is None:
        root = root_of(settings.broker)
        if root is None:
            raise click.UsageError("Missing argument 'MOUNTPOINT'.")
        return root, store
    settings.require_store(store)
    return store, mountpoint


def _preflight(request: MountRequest) -> None:
    preflight.check_machine()
    preflight.warn_of_limits()
    for path in (request.store, *request.settings.log_paths):
        preflight.check_apart(path, request.mountpoint)
    preflight.check_store(request.store, may_create=request.mode == "write")
    preflight.check_mountpoint(request.mountpoint)
    if request.mode != "follow":
        preflight.check_unmounted(request.store)
    if request.allow_other:
        preflight.check_allow_other()


def _serve_here(request: MountRequest, log_file: Path | None) -> None:
    if log_file:
        redirect(open_log(log_file))
    daemon.hold_hangups()
    _server(request, log_file)(daemon.Reporter(), None)


def _start_daemon(request: MountRequest, log_file: Path) -> None:
    request = replace(request, mountpoint=request.mountpoint.resolve())
    served = Served(_server(request, log_file), request.mountpoint, log_file, request.to_text())
    ready = start(served, progress)
    click.echo(f"{request.store} is mounted at {request.mountpoint} (process {ready.pid}, log {log_file})")
    for sentence in ready.text.splitlines():
        click.echo(visible(f"mountctl: {sentence}"), err=True)


def _server(request: MountRequest, log_file: Path | None) -> daemon.Server:
    def server(reporter: daemon.Reporter, keeper: Keeper | None) -> None:
        set_up_allocator()  # before a thread starts
        from mountctl.serving import serve_request  # only the serving process loads the engine

        serve_request(request, reporter, LogFile(log_file) if log_file is not None else None, keeper)

    return server
