"""A disk whose sync takes its time, where the real one does not sync (rows 6 and 7).

A file of peer/slowdisk.c, which sleeps in fsync; a loop device over it, which hands flushes down as fsync; ext4 on
that:

    store ─ ext4 ─ loop device ─ slowdisk (FUSE, in memory)
"""

import contextlib
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

from fsstore.fuse.mount import device_of
from tests.bench.measure import LeftOutError
from tests.bench.room import MOUNT_LIMIT_SECONDS, Room, wait_for_mount

SYNC_US = 1_500
DISK_BYTES = 2 << 30
"""It takes memory only for written bytes."""
MAKE_EXT4 = (
    "mkfs.ext4", "-q", "-F", "-J", "size=16", "-E", "nodiscard,lazy_itable_init=0,lazy_journal_init=0",
)  # fmt: skip


@contextlib.contextmanager
def slow_disk(room: Room) -> Iterator[Path]:
    """A folder on such a disk, which is gone afterwards. LeftOutError where nobody may mount one."""
    if os.geteuid() != 0:
        raise LeftOutError("only root has loop devices")
    folder = room.new_folder()
    device, mountpoint = folder / "slowdisk", folder / "ext4"
    device.mkdir()
    mountpoint.mkdir()
    command: list[str | Path] = [room.fuse_binary("slowdisk"), str(SYNC_US), str(DISK_BYTES), device]
    with subprocess.Popen(command, process_group=0) as process:
        try:
            wait_for_mount(process, device)
            with ext4(device / "disk", mountpoint):
                yield mountpoint
        finally:
            unmounted = subprocess.run(["fusermount3", "-u", "-z", device], check=False)
            try:
                process.wait(MOUNT_LIMIT_SECONDS if unmounted.returncode == 0 else 0)
            except subprocess.TimeoutExpired:
                process.kill()


@contextlib.contextmanager
def ext4(file: Path, mountpoint: Path) -> Iterator[None]:
    """ext4 in a file, mounted. The loop device goes when it is unmounted, as mount(8) asks the kernel to see to."""
    try:
        run(*MAKE_EXT4, file)
        run("mount", "-o", "loop,nodiscard", file, mountpoint)
        yield
    finally:
        if device_of(mountpoint.resolve()) is not None:
            unmounted = subprocess.run(["umount", mountpoint], check=False)
            if unmounted.returncode:
                run("umount", "--lazy", mountpoint)


def run(*command: str | Path) -> None:
    """LeftOutError with the command's output."""
    try:
        subprocess.run(command, check=True, capture_output=True, text=True)
    except OSError as error:
        raise LeftOutError(str(error)) from error
    except subprocess.CalledProcessError as error:
        raise LeftOutError(f"{command[0]}: {error.stderr.strip()}") from error
