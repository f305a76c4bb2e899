"""Reach: the same verbs on a mounted store (through its mount) and on an unmounted one (by opening it).

    reach(place) ── mounted ───> MountedStore     plain files below the mount point
                └── unmounted ─> OpenedStore      the engine; a store that another process writes is followed

Who reads much (`beside`) follows a mounted store, too, if its files can be read here: a message costs no request then.

Both answer alike, so that a person need not know which it is. Jobs that need a tree of files (`reach_mount`) get the
store's mount, or one of their own for as long as they run.
"""

from __future__ import annotations

import os
import select
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from engine import StoreError, writer_of
from mountctl.access import Access
from mountctl.direct import opened, require_files
from mountctl.errors import CommandError
from mountctl.options import StoreSettings
from mountctl.places import Mount, Place, find, mount_at, require_answer
from mountctl.preflight import fusermount
from mountctl.through_mount import MountedStore


@contextmanager
def reach(
    place: Place, settings: StoreSettings, writing: bool = False, following: bool = False, beside: bool = False
) -> Iterator[Access]:
    """The store at `place` while the block runs: `writing` opens it as its writer, `following` beside one; `beside`
    may read the files of a mounted one."""
    mount = place.mount
    settings.require_store(place.store)
    if mount and settings and not (mount.read_only and writing):
        reason = f"{place.store} is mounted at {mount.mountpoint}, and open with that mount's options"
        raise CommandError(reason, "leave -o and --broker-conf out", os.EX_USAGE)
    if mount and mount.read_only and writing:
        _require_follower(place, mount)
        mount = None
    if mount:
        require_answer(mount)
        require_access(mount)
        mounted = MountedStore(mount)
        with ExitStack() as stack:
            yield (_beside(stack, place.store, mounted) if beside else None) or mounted
    else:
        with opened(place.store, settings, writing, following) as store:
            yield store


@contextmanager
def reach_to_consume(place: Place, settings: StoreSettings) -> Iterator[tuple[Access, Access]]:
    """Whom to ask for a consumer group's places, and whom to read messages from."""
    with reach(place, settings, writing=True) as access, ExitStack() as stack:
        is_mounted = place.mount is not None and not place.mount.read_only
        yield access, stack.enter_context(reach(place, settings, beside=True)) if is_mounted else access


@contextmanager
def reach_mount(text: str, *, writing: bool = False, on_cluster: bool = False) -> Iterator[Path]:
    """A mount point of the store that a person means while the block runs: where it is mounted, or a mount that goes
    with the block, read-only unless `writing`, following a store that another process writes; not `on_cluster`, whose
    hosts would not have it. CommandError."""
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
    """A mount in a folder of its own, served by a process that ends with this one. CommandError with its words."""
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
            if mount_at(Path(folder)) is not None:  # it was killed
                subprocess.run([fusermount(), "-u", "-z", folder], capture_output=True, check=False)


def _is_served(server: subprocess.Popen[bytes], folder: Path) -> bool:
    """Wait until `folder` is a mount point; False where the process that is to serve it ends before."""
    with open("/proc/self/mounts", "rb") as table, ExitStack() as stack:
        process = os.pidfd_open(server.pid)
        stack.callback(os.close, process)
        changes = select.poll()
        changes.register(table, select.POLLERR | select.POLLPRI)  # which is how the kernel tells of a mount
        changes.register(process, select.POLLIN)
        while mount_at(folder) is None:
            if server.poll() is not None:
                return False
            changes.poll()
    return True


def require_access(mount: Mount) -> None:
    """CommandError: the kernel keeps all but one user out, root too."""
    try:
        os.stat(mount.mountpoint)
    except PermissionError:
        reason = f"{mount.mountpoint} shows itself to user {mount.user} alone, who mounted it"
        raise CommandError(reason, "run as that user, or mount with --allow-other", os.EX_NOPERM) from None


def _beside(stack: ExitStack, store: Path, mounted: MountedStore) -> Access | None:
    """A mounted store, followed; None where its files are not to be read here, or are not surely those that the mount
    shows: its daemon must hold their lock, and the whole log lie among them, up to where the daemon has it: a follower
    does not see what lies on a page that the disk refuses."""
    status = mounted.status()  # answered when what was published before is in its queues
    try:
        if writer_of(store) != status["pid"] or not mounted.has_own_log():
            return None
        settings = StoreSettings({"maxMessageSize": str(mounted.body_limit_bytes())})
        found = stack.enter_context(opened(store, settings, writing=False, following=True))
        return found if found.store.physical_end >= status["stats"]["physical_end"] else None
    except (OSError, StoreError):
        return None


def _require_follower(place: Place, mount: Mount) -> None:
    """The store itself can be opened for writing beside `mount`. CommandError when it can't, or was not meant."""
    if place.named_mount:
        raise CommandError(f"{mount.mountpoint} is read-only", "name a mount that can be written", os.EX_NOPERM)
    require_answer(mount)
    if MountedStore(mount).status()["mode"] != "follow":
        reason = f"{place.store} is mounted at {mount.mountpoint}, which relies on it not to change"
        raise CommandError(reason, f"mountctl umount {mount.mountpoint}", os.EX_TEMPFAIL)
