"""mountctl umount: unmounts a store; returns when it is closed."""

from __future__ import annotations

import errno
import json
import os
import select
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import click

from mountctl.control import Wish, state_of
from mountctl.errors import CommandError, one_line
from mountctl.places import (
    Answer,
    Mount,
    absolute,
    answer_of,
    mount_at,
    mount_of,
    mounts,
    nothing_mounted,
    require_answer,
    require_here,
)
from mountctl.preflight import fusermount
from mountctl.process import is_stopped

BUSY_SECONDS = 1.0
"""Time after which a busy mount is an error: a program that lists all mounts has a file open in each for a moment."""
RESTART_LOOKS = 3
"""Number of further tries: a killed daemon may be about to be replaced."""
CLOSE_SECONDS = 60.0
NAMESPACE_SECONDS = 3.0
"""Time for the daemon to close the store before other mount namespaces are searched for the mount."""


@click.command("umount", short_help="Unmount a store; returns when it is closed.")
@click.argument("place", metavar="MOUNTPOINT", type=Path)
@click.option("-l", "--lazy", is_flag=True, help="Unmount at once; the store is closed when its last user ends.")
def command(place: Path, lazy: bool) -> None:
    """Unmount the store at MOUNTPOINT, which may also be the store's own directory.

    Returns when everything is on disk and the store is closed. A mount in use is refused, with the names of its
    processes. With --lazy the mount disappears at once, and the store is closed when the last process that uses it has
    ended.

    \b
    Examples:
      mountctl umount /mnt/mq
      mountctl umount --lazy /mnt/mq
    """
    require_here(place)
    mount = _mounted(absolute(place))
    answer = _answer_of(mount)
    if answer is Answer.LATE:
        _end_unserved(mount)
        return
    pids = [] if answer is Answer.NO else _daemon_of(mount)
    users = list(_users_of(mount.mountpoint)) if lazy else []
    _unmount(mount.mountpoint, lazy)
    if users:
        click.echo(f"{mount.mountpoint} is unmounted; the store is closed when {', '.join(users)} has ended")
        return
    for pid in pids:
        _wait_for_end(pid, mount)


def _unmount(mountpoint: Path, lazy: bool) -> None:
    """Unmount. CommandError: a process uses the mount for longer than BUSY_SECONDS."""
    command = [fusermount(), "-u", *(["-z"] if lazy else []), str(mountpoint)]
    deadline = time.monotonic() + BUSY_SECONDS
    while (outcome := subprocess.run(command, capture_output=True, text=True, check=False)).returncode:
        busy = "busy" in outcome.stderr
        if busy and time.monotonic() < deadline:
            time.sleep(0.02)
            continue
        if busy and (users := ", ".join(_users_of(mountpoint))):
            raise CommandError(f"{mountpoint} is in use by {users}", "end these, or add --lazy", os.EX_TEMPFAIL)
        raise CommandError(outcome.stderr.strip() or f"{mountpoint} can't be unmounted")


def _mounted(path: Path) -> Mount:
    mount = mount_at(path) or mount_of(path)
    if not mount:
        raise nothing_mounted(path)
    return mount


def _answer_of(mount: Mount) -> Answer:
    """As `answer_of`, repeated: a killed daemon may be about to be replaced."""
    answer = answer_of(mount.mountpoint)
    for _ in range(RESTART_LOOKS):
        if answer is not Answer.LATE:
            break
        answer = answer_of(mount.mountpoint)
    return answer


def _end_unserved(mount: Mount) -> None:
    """End a mount that waits for its next daemon. CommandError: a daemon serves it and hangs, as this process would."""
    state = state_of(mount.device, mount.user, Wish.END)
    if state is None or state.is_serving:
        require_answer(mount)
        raise CommandError(f"{mount.mountpoint} was served by another daemon just now", "try again", os.EX_TEMPFAIL)
    click.echo(f"mountctl: the store was not closed: {state.reason}", err=True)
    _wait_for_end(state.keeper, mount)


def _daemon_of(mount: Mount) -> list[int]:
    """Pids of the serving process and of its keeper, which would replace it; none if they are gone."""
    try:
        status = json.loads((mount.mountpoint / "@store/status.json").read_bytes())
        return [status["pid"], *filter(None, [status.get("keeper_pid")])]
    except OSError as error:
        if error.errno == errno.ENOTCONN:
            return []
        state = state_of(mount.device, mount.user)  # it is alive but has no answer, perhaps for lack of descriptors
        return [_writer_of(mount, error)] if state is None else [*filter(None, [state.server]), state.keeper]


def _writer_of(mount: Mount, error: OSError) -> int:
    """Pid of the process with the store's lock: only the mount's daemon can have it."""
    from engine import writer_of  # rarely needed

    pid = None if mount.read_only else writer_of(mount.store)
    if pid:
        return pid
    reason = f"cannot tell which process serves {mount.mountpoint} ({one_line(error)})"
    raise CommandError(reason, "look into its log, and try again", os.EX_TEMPFAIL)


def _wait_for_end(pid: int, mount: Mount) -> None:
    """Wait for the process's end: its last act is closing the store."""
    try:
        process = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        poll = select.poll()
        poll.register(process, select.POLLIN)
        if poll.poll(NAMESPACE_SECONDS * 1000):
            return
        if is_stopped(pid):
            reason = f"{mount.mountpoint} is unmounted, but process {pid}, which closes it, is stopped"
            raise CommandError(reason, f"kill -CONT {pid}", os.EX_TEMPFAIL)
        if holders := ", ".join(_holders_of(mount)):
            reason = f"{mount.mountpoint} is unmounted here, but the mount namespace of {holders} holds it"
            raise CommandError(reason, f"end these, and process {pid} closes the store", os.EX_TEMPFAIL)
        if not poll.poll(CLOSE_SECONDS * 1000):
            raise CommandError(
                f"{mount.store} is still being closed by process {pid}", "look into its log", os.EX_TEMPFAIL
            )
    finally:
        os.close(process)


def _holders_of(mount: Mount) -> Iterator[str]:
    """One process of each mount namespace that still contains `mount`, as 'name (pid)'."""
    seen = {os.readlink("/proc/self/ns/mnt")}

    def holds(process: Path) -> bool:
        namespace = os.readlink(process / "ns/mnt")
        if namespace in seen:
            return False
        seen.add(namespace)
        # another mount may have the device's number by now
        there = ((other.device, other.store) for other in mounts(process / "mountinfo"))
        return (mount.device, mount.store) in there

    return _processes(holds)


def _users_of(mountpoint: Path) -> Iterator[str]:
    """Processes with a file or their working directory below `mountpoint`, as 'name (pid)'."""
    return _processes(
        lambda process: any(_below(link, mountpoint) for link in (process / "cwd", *(process / "fd").iterdir()))
    )


def _processes(wanted: Callable[[Path], bool]) -> Iterator[str]:
    """Processes whose folder in /proc is `wanted`, as 'name (pid)'."""
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if wanted(process):
                yield f"{(process / 'comm').read_text().strip()} ({process.name})"
        except OSError:
            continue  # it has ended, or belongs to another user


def _below(link: Path, mountpoint: Path) -> bool:
    try:
        target = Path(os.readlink(link))
    except OSError:
        return False
    return target == mountpoint or mountpoint in target.parents
