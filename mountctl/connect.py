"""Connect: the client of the store that a command line names, mounted or not.

    connect(place) ── mounted ───> MountClient    the daemon, by files below the mount point: it writes
                  └── unmounted ─> LocalStore     the engine, in this process
    reading(place) ──────────────> LocalStore     the engine; beside a daemon it follows the store's files

A verb that needs a tree of files (`mounted_tree`) gets the store's mount, or a temporary one while it runs.
"""

from __future__ import annotations

import os
import select
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from engine import AnotherStoreError, MessageStore, NotAStoreError, OpenMode, StoreConfig, StoreError, writer_of
from mountctl.client import StoreClient
from mountctl.errors import CommandError, one_line
from mountctl.local_store import LocalStore, opened
from mountctl.mount_client import MountClient
from mountctl.options import StoreSettings
from mountctl.places import Mount, Place, find, mount_at, require_answer
from mountctl.preflight import fusermount

CATCHING_UP_SECONDS = 10.0
LOOK_SECONDS = 0.02
READING = (OpenMode.READ_ONLY, OpenMode.FOLLOW)
"""Modes for reading a store: a store that another process writes is followed."""


@contextmanager
def connect(place: Place, settings: StoreSettings, writing: bool = True) -> Iterator[StoreClient]:
    """The client of the store's writer during the block: its daemon, or this process. This process opens an unmounted
    store read-only unless `writing`. CommandError, StoreError, OSError."""
    mount = place.mount
    if mount and mount.read_only and writing:
        _require_follower(place, mount)
        mount = None
    settings.require_store(place.store)
    if mount:
        yield daemon_of(mount, settings)
    else:
        with unmounted(place.store, settings, *([OpenMode.WRITE] if writing else READING)) as store:
            yield store


@contextmanager
def reading(
    place: Place, settings: StoreSettings, plainly: str, paths: Iterable[str], following: bool = False
) -> Iterator[LocalStore]:
    """The store, opened for reading messages during the block. `following` also shows messages that another process
    writes later. `plainly` is an ordinary command that does the same with `paths` below a mount point; the error for a
    user who may not read the store's files names it. CommandError, StoreError, OSError."""
    settings.require_store(place.store)
    if place.mount is None:
        with unmounted(place.store, settings, *([OpenMode.FOLLOW] if following else READING)) as store:
            yield store
        return
    daemon, mountpoint = daemon_of(place.mount, settings), place.mount.mountpoint
    remedy = " ".join(["through the mount:", plainly, *(f"{mountpoint}/{path}" for path in paths)])
    with ExitStack() as stack:
        try:
            store = stack.enter_context(_beside(place.store, daemon, remedy))
        except (PermissionError, FileNotFoundError, AnotherStoreError, NotAStoreError) as error:
            reason = f"the files of the store can't be read here ({one_line(error)})"
            raise CommandError(reason, remedy, os.EX_NOPERM) from None
        yield store


@contextmanager
def reading_and_writing(
    place: Place, settings: StoreSettings, plainly: str, paths: Iterable[str]
) -> Iterator[tuple[LocalStore, StoreClient]]:
    """The store, opened for reading and for writing. `plainly`, `paths` and errors as for `reading`."""
    with connect(place, settings) as client, ExitStack() as stack:
        if isinstance(client, LocalStore):
            yield client, client
        else:
            yield stack.enter_context(reading(place, settings, plainly, paths)), client


@contextmanager
def unmounted(path: Path, settings: StoreSettings, *modes: OpenMode) -> Iterator[LocalStore]:
    """The store at `path`, opened by this process in the first of `modes` whose lock is free. CommandError, StoreError,
    OSError."""
    if not settings.log_paths:
        require_files(path)
    with opened(path, settings.applied_to(StoreConfig()), *modes) as store:
        yield LocalStore(store)


def daemon_of(mount: Mount, settings: StoreSettings) -> MountClient:
    """The daemon of a mount. CommandError: it does not answer, the mount excludes this user, or `settings` are given,
    which only the mount itself could use."""
    if settings:
        reason = f"{mount.store} is mounted at {mount.mountpoint}, and open with that mount's options"
        raise CommandError(reason, "leave -o and --broker-conf out", os.EX_USAGE)
    require_answer(mount)
    require_access(mount)
    return MountClient(mount)


@contextmanager
def mounted_tree(text: str, *, writing: bool = False, on_cluster: bool = False) -> Iterator[Path]:
    """A mount point of the store that `text` names, for the block. An unmounted store is mounted for the block:
    read-only unless `writing`, following a store that another process writes; with `on_cluster` that is an error, since
    other hosts would not have the mount. CommandError."""
    place = find(text)
    mount = place.mount
    if mount is None and on_cluster:
        raise CommandError(f"{text} is not mounted", f"mount it first, on each host: mountctl mount {text} MOUNTPOINT")
    if mount is None:
        with _mounted_meanwhile(place.store, writing) as mountpoint:
            yield mountpoint
        return
    require_answer(mount)
    if writing and mount.read_only:
        raise CommandError(f"{mount.mountpoint} is read-only", "name a mount that can be written", os.EX_NOPERM)
    yield mount.mountpoint


@contextmanager
def _mounted_meanwhile(store: Path, writing: bool) -> Iterator[Path]:
    """A temporary mount, served by a process that ends with this one. CommandError has that process's message."""
    require_files(store)
    mode = [] if writing else ["--follow" if writer_of(store) else "--read-only"]
    with tempfile.TemporaryDirectory(prefix="mountctl-") as folder, tempfile.TemporaryFile("w+") as said:
        serve = [sys.executable, "-P", "-m", "mountctl", "mount", "--foreground", *mode, str(store), folder]
        server = subprocess.Popen(["setpriv", "--pdeathsig", "TERM", *serve], stderr=said, process_group=0)
        try:
            if not _is_served(server, Path(folder)):
                said.seek(0)
                words = [line for line in said.read().splitlines() if line.startswith("mountctl: ")]
                reason = words[-1].removeprefix("mountctl: ") if words else f"{store} can't be mounted"
                raise CommandError(reason, exit_code=max(server.returncode, 0) or os.EX_UNAVAILABLE)
            yield Path(folder)
        finally:
            server.terminate()
            server.wait()
            if mount_at(Path(folder)) is not None:  # its process was killed
                subprocess.run([fusermount(), "-u", "-z", folder], capture_output=True, check=False)


def _is_served(server: subprocess.Popen[bytes], folder: Path) -> bool:
    """Wait until `folder` is a mount point; False if the serving process ends first."""
    with open("/proc/self/mounts", "rb") as table, ExitStack() as stack:
        process = os.pidfd_open(server.pid)
        stack.callback(os.close, process)
        changes = select.poll()
        changes.register(table, select.POLLERR | select.POLLPRI)  # the kernel signals changes of the mount table so
        changes.register(process, select.POLLIN)
        while mount_at(folder) is None:
            if server.poll() is not None:
                return False
            changes.poll()
    return True


def require_files(path: Path) -> None:
    """CommandError: the folder is empty, so it is no store; it may be a mount point without its mount."""
    if not any(path.iterdir()):
        reason = f"nothing is mounted at {path}, and no store is in it"
        raise CommandError(reason, f"`mountctl mount STORE {path}`, or name the store", os.EX_NOINPUT)


def require_access(mount: Mount) -> None:
    """CommandError: the kernel lets only the mount's user in, and not even root."""
    try:
        os.stat(mount.mountpoint)
    except PermissionError:
        reason = f"{mount.mountpoint} is accessible only to user {mount.user}, who mounted it"
        raise CommandError(reason, "run as that user, or mount with --allow-other", os.EX_NOPERM) from None


@contextmanager
def _beside(path: Path, daemon: MountClient, remedy: str) -> Iterator[LocalStore]:
    """A mounted store, read beside its daemon. CommandError: fewer messages can be read here than the daemon has, for
    example because the disk refuses a page. StoreError, OSError."""
    status = daemon.status()  # its answer comes after earlier messages were dispatched
    mode = OpenMode.READ_ONLY if status["mode"] == "read_only" else OpenMode.FOLLOW
    give_up = time.monotonic() + CATCHING_UP_SECONDS
    with opened(path, daemon.store_config(), mode) as store:
        while _is_behind(store, status):
            if time.monotonic() > give_up:
                reason = f"the log can be read up to byte {store.physical_end:,} here, and the daemon has more"
                reason = "; ".join([reason, *store.not_shown])
                raise CommandError(reason, remedy, os.EX_IOERR)
            time.sleep(LOOK_SECONDS)
            store.refresh()
        yield LocalStore(store, daemon)


def _is_behind(store: MessageStore, status: Mapping[str, Any]) -> bool:
    """Whether `store` shows fewer messages than the daemon's `status` says."""
    stats = status["stats"]
    if status["mode"] == "follow" and stats["queues_derived"] and not store.queues_derived:
        return True
    if store.physical_end >= stats["physical_end"]:
        return False
    # The daemon's log may end after pages that the disk refuses, with no message in them.
    return any(
        _end_of(store, topic, int(queue)) < bounds["max_offset"]
        for topic, its in status["topics"].items()
        for queue, bounds in its["queues"].items()
    )


def _end_of(store: MessageStore, topic: str, queue: int) -> int:
    """The queue offset after the newest message; -1 if the queue can't be read."""
    try:
        return store.bounds(topic, queue).max_offset
    except StoreError:
        return -1


def _require_follower(place: Place, mount: Mount) -> None:
    """Require that the store itself can be opened for writing beside `mount`. CommandError: it can't."""
    if place.named_mount:
        raise CommandError(f"{mount.mountpoint} is read-only", "name a mount that can be written", os.EX_NOPERM)
    require_answer(mount)
    if MountClient(mount).status()["mode"] != "follow":
        reason = f"{place.store} is mounted at {mount.mountpoint}, which relies on it not to change"
        raise CommandError(reason, f"mountctl umount {mount.mountpoint}", os.EX_TEMPFAIL)
