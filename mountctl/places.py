"""Places: what a path on the command line means, a mounted store or a store's own directory.

The kernel's mount table knows both: a mount of ours has type `fuse.fsstore` and the store's path as its source, so a
person may name either side, and the verb finds the other.

Anybody may mount a filesystem that calls itself so. A mount counts when the user who made it, whom the kernel names, is
this process's, root, or the owner of the store; another is neither asked nor written to.

What is mounted may hang, and with it everybody who looks at it: whatever could is asked in a thread, for a moment.
"""

from __future__ import annotations

import errno
import os
import re
import shlex
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, wait
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import TypeVar

import click

from fsstore.mount_table import MOUNT_TABLE, parse_mounts
from mountctl.errors import CommandError
from mountctl.output import visible
from mountctl.process import is_stopped

T = TypeVar("T")

FILESYSTEM_TYPE = "fuse.fsstore"
PATIENCE_SECONDS = 2.0


@dataclass(frozen=True, slots=True)
class Mount:
    """A store mounted on this machine, as the mount table shows it; `device` (major:minor) tells it from all others."""

    mountpoint: Path
    store: Path
    read_only: bool
    user: int
    device: str

    @property
    def is_trusted(self) -> bool:
        """Whether it was made by this process's user, root, or the owner of the store."""
        return self.user in (os.geteuid(), 0) or self.user == _owner(self.store)


@dataclass(frozen=True, slots=True)
class Place:
    """What a path means: a store, and the mount to reach it through when there is one; `named_mount` when the path was
    the mount's."""

    store: Path
    mount: Mount | None
    named_mount: bool = False


def mounts(table: Path = MOUNT_TABLE) -> list[Mount]:
    """Every mounted store, oldest first."""
    return list(_parse(table.read_text(errors="surrogateescape")))


def _parse(table: str) -> Iterator[Mount]:
    for row in parse_mounts(table):
        if row.kind == FILESYSTEM_TYPE:
            user = re.search(r"(?:^|,)user_id=(\d+)", row.super_options)
            yield Mount(row.mountpoint, row.source, "ro" in row.options, int(user[1]) if user else -1, row.device)


def patiently(ask: Callable[[], T], late: T) -> T:
    """What `ask` returns or raises; `late` when it does not within PATIENCE_SECONDS, for it may never."""
    answer: Future[T] = Future()

    def run() -> None:
        try:
            answer.set_result(ask())
        except (OSError, ValueError) as error:
            answer.set_exception(error)

    threading.Thread(target=run, daemon=True).start()  # one that never returns must not keep us
    done, _ = wait([answer], PATIENCE_SECONDS)
    return answer.result() if done else late


def _owner(store: Path) -> int | None:
    try:
        return patiently(lambda: store.stat().st_uid, None)
    except OSError:
        return None


def absolute(path: str | Path) -> Path:
    """`path` as the mount table would spell it; works for a mount whose daemon is gone or hangs, where lstat does not
    answer."""
    return Path(patiently(lambda: os.path.realpath(path), os.path.abspath(path)))


def mount_at(mountpoint: Path, table: Path = MOUNT_TABLE) -> Mount | None:
    """The store mounted on exactly this directory (the newest, when they are stacked)."""
    return next((mount for mount in reversed(mounts(table)) if mount.mountpoint == mountpoint), None)


def require_outside_mounts(target: Path) -> None:
    """CommandError: `target`, which is absolute, is in a mount."""
    if within := next(filter(None, map(mount_at, (target, *target.parents))), None):
        reason = f"{target} is in the mount of {within.store}, where a folder is a topic"
        raise CommandError(reason, "name a directory elsewhere", os.EX_USAGE)


def mount_of(store: Path, table: Path = MOUNT_TABLE) -> Mount | None:
    """Where `store` is mounted: for writing when it is, otherwise the newest mount. One that is not trusted is left
    out, with a word on standard error."""
    found = []
    for mount in mounts(table):
        if mount.store == store:
            if mount.is_trusted:
                found.append(mount)
            else:
                click.echo(f"mountctl: left out: {_untrusted(mount)}", err=True)
    return next((mount for mount in found if not mount.read_only), found[-1] if found else None)


def _untrusted(mount: Mount) -> str:
    made = f"{visible(mount.mountpoint)} was mounted by user {mount.user}"
    return f"{made}, who is neither you nor root nor the owner of {visible(mount.store)}"


class Answer(Enum):
    """How a mount answers: YES; NO, its daemon is gone; LATE, not within a moment, it may hang; NOT_ASKED, it is not
    trusted."""

    YES = "yes"
    NO = "no"
    LATE = "late"
    NOT_ASKED = "not asked"


def answer_of(mountpoint: Path) -> Answer:
    """Ask what is mounted there (or the directory, when nothing is) for a sign of life, without waiting for ever."""

    def ask() -> Answer:
        try:
            os.statvfs(mountpoint)  # a stat would be answered from the kernel's cache, long after the daemon is gone
        except OSError as error:
            return Answer.NO if error.errno == errno.ENOTCONN else Answer.YES
        return Answer.YES

    return patiently(ask, Answer.LATE)


def require_answer(mount: Mount) -> None:
    """CommandError when the daemon behind `mount` is gone, or does not answer."""
    answer = answer_of(mount.mountpoint)
    if answer is Answer.NO:
        raise CommandError(f"the mount at {mount.mountpoint} is dead", f"mountctl umount {mount.mountpoint}")
    if answer is Answer.LATE:
        raise _late(mount)


def _late(mount: Mount) -> CommandError:
    """Why a mount does not answer, as far as its processes say."""
    from mountctl.control import state_of  # rarely

    reason, remedy = f"the daemon of {mount.mountpoint} is not answering", "look into its log, or try again later"
    if stopped := _stopped_writer(mount.store):
        reason, remedy = f"{reason}: process {stopped} is stopped", f"kill -CONT {stopped}"
    elif (state := state_of(mount.device, mount.user)) is not None and not state.is_serving:
        reason = f"{reason}: {state.reason or 'it takes over from another one'}"
        remedy = f"another one goes on as soon as it can; `mountctl umount {mount.mountpoint}` ends the mount"
    return CommandError(reason, remedy, os.EX_TEMPFAIL)


def _stopped_writer(store: Path) -> int | None:
    """Process that has the store open for writing, if somebody stopped it."""
    from engine import writer_of  # rarely

    try:
        pid = patiently(lambda: writer_of(store), None)
    except OSError:
        return None
    return pid if pid is not None and is_stopped(pid) else None


def nothing_mounted(place: str | Path) -> CommandError:
    """The refusal of a verb that needs a mount."""
    return CommandError(f"no store is mounted at {place}", "see what is mounted with `mountctl status`", os.EX_USAGE)


def find_mount(text: str) -> Mount:
    """The mount that the person means, which answers; CommandError where there is none, or its daemon does not."""
    mount = find(text).mount
    if mount is None:
        raise nothing_mounted(text)
    require_answer(mount)
    return mount


def find(text: str, table: Path = MOUNT_TABLE) -> Place:
    """What the person means by `text`: a mount point (or a path below one) or a store's directory."""
    if not text:
        raise CommandError("'' is no path", "name a store or a mount point", os.EX_USAGE)
    path = absolute(text)
    for candidate in (path, *path.parents):
        if mount := mount_at(candidate, table):
            if not mount.is_trusted:
                raise CommandError(_untrusted(mount), "only their mounts are trusted", os.EX_NOPERM)
            return Place(mount.store, mount, named_mount=True)
    if mount := mount_of(path, table):
        return Place(path, mount)
    if not patiently(path.is_dir, False):
        raise CommandError(f"{text!r} is neither a store nor a mount point", _remedy(text, path, table), os.EX_NOINPUT)
    return Place(path, None)


def _remedy(text: str, path: Path, table: Path) -> str:
    """What to do about `text`, which was given as a place and is none."""
    context = click.get_current_context(silent=True)
    if context is not None and (swapped := _behind_place(context, text)) and _is_place(absolute(swapped), table):
        usage = " ".join(context.command.collect_usage_pieces(context)[1:])
        return f"{swapped!r} is one, and the order is `{context.command_path} {usage}`"
    make = "" if patiently(path.exists, True) else f"`mountctl init {shlex.quote(text)}` makes a store there, "
    return f"{make}`mountctl status` lists what is mounted"


def _behind_place(context: click.Context, text: str) -> str:
    """The argument of a verb that stands behind PLACE, where `text` is its PLACE; "" where there is none."""
    first, *others = (
        argument.name or "" for argument in context.command.params if isinstance(argument, click.Argument)
    )
    if context.params.get(first) != text or not others:
        return ""
    value = context.params.get(others[0]) or ""
    return str(next(iter(value), "") if isinstance(value, tuple) else value)


def _is_place(path: Path, table: Path) -> bool:
    return mount_at(path, table) is not None or patiently((path / "commitlog").is_dir, False)
