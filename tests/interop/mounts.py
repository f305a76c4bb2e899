"""Mounts by the command that people type."""

import contextlib
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from fsstore.fuse.mount import device_of

MOUNTCTL = Path(sys.executable).with_name("mountctl")
LIMIT_SECONDS = 120


class MountError(Exception):
    """mountctl said no; the message is its own."""


def mountctl(*arguments: str | Path) -> str:
    """Run a verb to its end, which whatever interrupts us waits for: one that is killed may leave a daemon that mounts
    later. What it printed. MountError."""
    command = [MOUNTCTL, *arguments]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe, text=True) as process:
        try:
            printed, errors = process.communicate(timeout=LIMIT_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            raise
    if process.returncode:
        raise MountError(f"mountctl {arguments[0]}: {errors or printed}")
    return printed


@contextlib.contextmanager
def mounted(store: Path, mountpoint: Path, *options: str) -> Iterator[Path]:
    """`mountctl mount OPTIONS STORE MOUNTPOINT`; unmounted at the end in any case."""
    mountpoint.mkdir(parents=True, exist_ok=True)
    log_file = mountpoint.with_name(mountpoint.name + ".log")
    try:
        mountctl("mount", "--log-file", log_file, *options, store, mountpoint)
        yield mountpoint
    finally:
        if device_of(mountpoint.resolve()) is not None:
            mountctl("umount", mountpoint)


def status(mountpoint: Path) -> dict[str, Any]:
    """The daemon's status, with its store's."""
    said: dict[str, Any] = json.loads((mountpoint / "@store" / "status.json").read_text())
    return said


def written_by(pid: int, store: Path) -> list[str]:
    """Files below `store` that a process could write to: open for writing, mapped shared and writable, or locked."""
    found = []
    for descriptor in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(OSError):
            target = descriptor.readlink()
            flags = int(re.findall(r"flags:\s+(\d+)", Path(f"/proc/{pid}/fdinfo/{descriptor.name}").read_text())[0], 8)
            if target.is_relative_to(store) and flags & 0o3:
                found.append(f"open for writing: {target}")
    for row in Path(f"/proc/{pid}/maps").read_text().splitlines():
        fields = row.split(maxsplit=5)
        if len(fields) == 6 and fields[5].startswith(f"{store}/") and fields[1][1] == "w" and fields[1][3] == "s":
            found.append(f"mapped for writing: {fields[5]}")
    return found
