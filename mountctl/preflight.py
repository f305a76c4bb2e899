"""Preflight: checks before a daemon is started. Each error has a remedy."""

from __future__ import annotations

import json
import os
import resource
import shutil
import subprocess
from importlib.metadata import version
from pathlib import Path

import click

from fsstore.options import DISTRIBUTION
from mountctl.errors import CommandError
from mountctl.installation import require_unmixed
from mountctl.places import Answer, Mount, answer_of, mount_at, mounts, patiently

FUSE_DEVICE = Path("/dev/fuse")
FUSE_CONFIG = Path("/etc/fuse.conf")


def check_machine(device: Path = FUSE_DEVICE) -> None:
    """CommandError: this machine can't mount FUSE filesystems, or this program's installation is damaged."""
    require_unmixed()
    if not device.exists():
        raise CommandError(f"{device} is missing", "load the module (modprobe fuse), or give the container the device")
    if not os.access(device, os.R_OK | os.W_OK):
        raise CommandError(f"{device} can't be opened", "let this user read and write it", os.EX_NOPERM)
    fusermount()


LEAST_OPEN_FILES = 1024
LEAST_ADDRESS_BYTES = 4 << 30
"""The handover memory (1 GiB) and the store's files are mapped into the address space."""


def warn_of_limits() -> None:
    """Warn on standard error of limits of this process that a daemon would reach."""
    _, files = resource.getrlimit(resource.RLIMIT_NOFILE)
    if files != resource.RLIM_INFINITY and files < LEAST_OPEN_FILES:
        _warn(f"at most {files:,} open files (ulimit -Hn): with many queues or clients requests are refused (EMFILE)")
    size, _ = resource.getrlimit(resource.RLIMIT_FSIZE)
    if size != resource.RLIM_INFINITY:
        _warn(f"at most {size:,} bytes a file (ulimit -f): a write beyond that is refused (EFBIG)")
    size, _ = resource.getrlimit(resource.RLIMIT_AS)
    if size != resource.RLIM_INFINITY and size < LEAST_ADDRESS_BYTES:
        _warn(
            f"at most {size:,} bytes of address space (ulimit -v): a daemon that is killed may not be replaced, and"
            " requests fail for want of memory"
        )


def _warn(text: str) -> None:
    click.echo(f"mountctl: warning: {text}", err=True)


def fusermount() -> str:
    """Path of fusermount3: it mounts for ordinary users, and unmounts for all."""
    found = shutil.which("fusermount3")
    if not found:
        raise CommandError("fusermount3 is missing", "install it (apt install fuse3)")
    return found


def check_mountpoint(mountpoint: Path) -> None:
    """CommandError: `mountpoint` is no empty directory, or is in use. A dead daemon's mount is unmounted."""
    clear_dead_mount(mountpoint)
    if mounted := mount_at(mountpoint):
        reason = f"mount point {mountpoint} is busy: {mounted.store} is mounted there"
        if older := _version_to_replace(mounted):
            reason += f" by version {older}, and this is {version(DISTRIBUTION)}"
            raise CommandError(reason, f"mountctl restart {mountpoint} replaces its daemon by this version")
        raise CommandError(reason, f"mountctl umount {mountpoint}")
    if not mountpoint.exists():
        raise CommandError(f"mount point {mountpoint} does not exist", f"mkdir {mountpoint}", os.EX_NOINPUT)
    if not mountpoint.is_dir():
        raise CommandError(f"mount point {mountpoint} is not a directory", "name an empty directory", os.EX_NOINPUT)
    if os.path.ismount(mountpoint):
        raise CommandError(f"mount point {mountpoint} is busy: something is mounted there", "name another directory")
    if (mountpoint / "commitlog").is_dir():
        reason = f"mount point {mountpoint} is a store"
        raise CommandError(reason, "name an empty directory; the order is `mountctl mount STORE MOUNTPOINT`")
    if any(mountpoint.iterdir()):
        raise CommandError(f"mount point {mountpoint} is not empty", "name an empty directory")


def _version_to_replace(mount: Mount) -> str | None:
    """Version of the mount's daemon, if `mountctl restart` would replace it by another version."""

    def ask() -> str | None:
        status = json.loads((mount.mountpoint / "@store/status.json").read_bytes())
        found: str | None = status.get("version") if status.get("outlives_daemon") else None
        return None if found == version(DISTRIBUTION) else found

    try:
        return patiently(ask, None) if mount.is_trusted else None
    except (OSError, ValueError):
        return None


def clear_dead_mount(mountpoint: Path) -> None:
    """Unmount a dead daemon's mount, in which every access fails with ENOTCONN."""
    if answer_of(mountpoint) is Answer.NO:
        subprocess.run([fusermount(), "-u", "-z", str(mountpoint)], check=True, capture_output=True)


def check_apart(store: Path, mountpoint: Path) -> None:
    """CommandError: store and mount point overlap. The daemon would wait for itself."""
    if mountpoint == store or store in mountpoint.parents or mountpoint in store.parents:
        raise CommandError(
            f"store {store} and mount point {mountpoint} overlap",
            "the mount point must not be inside the store, nor the store inside the mount point",
            os.EX_USAGE,
        )


def check_store(store: Path, may_create: bool) -> None:
    """CommandError: `store` is no directory and can't be made."""
    if store.exists():
        if not store.is_dir():
            raise CommandError(f"store {store} is not a directory", "name a store's directory", os.EX_NOINPUT)
    elif not may_create:
        raise CommandError(f"store {store} does not exist", "a read-only mount creates nothing", os.EX_NOINPUT)
    elif not store.parent.is_dir():
        raise CommandError(f"{store.parent} does not exist", f"mkdir -p {store.parent}", os.EX_NOINPUT)


def check_unmounted(store: Path) -> None:
    """CommandError: the store is mounted for writing. Opening it finds other writers."""
    for mount in mounts():
        if (
            mount.store == store
            and not mount.read_only
            and mount.is_trusted
            and answer_of(mount.mountpoint) != Answer.NO
        ):
            reason = f"{store} is mounted at {mount.mountpoint}"
            remedy = f"use that, or `mountctl umount {mount.mountpoint}`, or mount it here with --follow"
            raise CommandError(reason, remedy, os.EX_TEMPFAIL)


def check_allow_other(config: Path = FUSE_CONFIG) -> None:
    """CommandError: an ordinary user may not use --allow-other here. Root always may."""
    if os.geteuid() == 0:
        return
    lines = config.read_text().splitlines() if config.exists() else []
    if "user_allow_other" not in (line.strip() for line in lines):
        raise CommandError(
            "--allow-other is not permitted to ordinary users here", f"add user_allow_other to {config}", os.EX_NOPERM
        )
