"""Mounts by the command that people type."""

import contextlib
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

MOUNTCTL = Path(sys.executable).with_name("mountctl")
LIMIT_SECONDS = 120


class MountError(Exception):
    """mountctl said no; the message is its own."""


def mountctl(*arguments: str | Path) -> str:
    """Run a verb to its end; what it printed. MountError."""
    done = subprocess.run(
        [MOUNTCTL, *arguments],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=LIMIT_SECONDS,
        check=False,
    )
    if done.returncode:
        raise MountError(f"mountctl {arguments[0]}: {done.stderr or done.stdout}")
    return done.stdout


@contextlib.contextmanager
def mounted(store: Path, mountpoint: Path, *options: str) -> Iterator[Path]:
    """`mountctl mount OPTIONS STORE MOUNTPOINT`; unmounted at the end, whatever happens."""
    mountpoint.mkdir(parents=True, exist_ok=True)
    log_file = mountpoint.with_name(mountpoint.name + ".log")
    mountctl("mount", "--log-file", log_file, *options, store, mountpoint)
    try:
        yield mountpoint
    finally:
        mountctl("umount", mountpoint)


def status(mountpoint: Path) -> dict[str, Any]:
    """What the daemon says about itself and its store."""
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
