"""Finds the store and the mount that a command line's PLACE means: a store's directory, or its mount point.

The kernel's mount table connects the two: our mounts have type `fuse.fsstore` and the store's path as their source.

Any user may mount a filesystem of that type. A mount is trusted only if its user, which the kernel records, is this
process's, root, or the owner of the store. Verbs neither read an untrusted mount nor write to it.

A mount may hang, and every system call in it, too. Such calls are made in a thread and abandoned after a moment.
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
_READERS = frozenset(("cat", "tail", "grep", "hist", "fields", "consume", "wait", "dlq", "sql", "export"))
"""Verbs that read messages: a word that is no path was hardly meant to be a new store."""


@dataclass(frozen=True, slots=True)
class Mount:
    """A mounted store, as in the mount table; `device` (major:minor) identifies the mount. `allows_others`: the kernel
    lets users in who did not mount it."""

    mountpoint: Path
    store: Path
    read_only: bool
    user: int
    device: str
    allows_others: bool = False

    @property
    def is_trusted(self) -> bool:
        """Whether this process's user, root, or the store's owner made it."""
        return self.user in (os.geteuid(), 0) or self.user == _owner(self.store)


@dataclass(frozen=True, slots=True)
class Place:
    """A store named on the command line, and its mount, if any; `named_mount`: the path was the mount's."""

    store: Path
    mount: Mount | None
    named_mount: bool = False


def mounts(table: Path = MOUNT_TABLE) -> list[Mount]:
    """All mounted stores, oldest first."""
    return list(_parse(table.read_text(errors="surrogateescape")))


def _parse(table: str) -> Iterator[Mount]:
    for row in parse_mounts(table):
        if row.kind == FILESYSTEM_TYPE:
            found = re.search(r"(?:^|,)user_id=(\d+)", row.super_options)
            user, others = int(found[1]) if found else -1, "allow_other" in row.super_options.split(",")
            yield Mount(row.mountpoint, row.source, "ro" in row.options, user, row.device, others)


def patiently(ask: Callable[[], T], late: T) -> T:
    """The result of `ask`, or its OSError or ValueError; `late` if it takes longer than PATIENCE_SECONDS."""
    answer: Future[T] = Future()

    def run() -> None:
        try:
            answer.set_result(ask())
        except (OSError, ValueError) as error:
            answer.set_exception(error)

    threading.Thread(target=run, daemon=True).start()  # a call that hangs must not keep the process alive
    done, _ = wait([answer], PATIENCE_SECONDS)
    return answer.result() if done else late


def _owner(store: Path) -> int | None:
    try:
        return patiently(lambda: store.stat().st_uid, None)
    except OSError:
        return None


def absolute(path: str | Path) -> Path:
    """`path` as the mount table spells it. It does not wait for a hanging mount's daemon, as lstat would."""
    return Path(patiently(lambda: os.path.realpath(path), os.path.abspath(path)))


def mount_at(mountpoint: Path, table: Path = MOUNT_TABLE) -> Mount | None:
    """The store mounted on exactly this directory; the newest of stacked mounts."""
    return next((mount for mount in reversed(mounts(table)) if mount.mountpoint == mountpoint), None)


def require_outside_mounts(target: Path) -> None:
    """CommandError: the absolute path `target` is in a mount."""
    if within := next(filter(None, map(mount_at, (target, *target.parents))), None):
        reason = f"{target} is in the mount of {within.store}, where a folder is a topic"
        raise CommandError(reason, "name a directory elsewhere", os.EX_USAGE)


def mount_of(store: Path, table: Path = MOUNT_TABLE) -> Mount | None:
    """The mount of `store`: a writable one, if any, otherwise the newest. Untrusted mounts are skipped with a
    warning."""
    found = []
    for mount in mounts(table):
        if mount.store == store:
            if mount.is_trusted:
                found.append(mount)
            else:
                click.echo(f"mountctl: ignored: {_untrusted(mount)}", err=True)
    return next((mount for mount in found if not mount.read_only), found[-1] if found else None)


def _untrusted(mount: Mount) -> str:
    made = f"{visible(mount.mountpoint)} was mounted by user {mount.user}"
    return f"{made}, who is neither you nor root nor the owner of {visible(mount.store)}"


class Answer(Enum):
    """The result of asking a mount: YES; NO: its daemon is gone; LATE: no answer in time, it may hang; NOT_ASKED: it is
    not trusted."""

    YES = "yes"
    NO = "no"
    LATE = "late"
    NOT_ASKED = "not asked"


def answer_of(mountpoint: Path) -> Answer:
    """Ask the filesystem at `mountpoint` for a sign of life, within PATIENCE_SECONDS. It is one that costs the daemon
    nothing, however many queues there are."""

    def ask() -> Answer:
        try:
            os.listxattr(mountpoint)  # the kernel's cache would answer a stat long after the daemon's end
        except OSError as error:
            return Answer.NO if error.errno == errno.ENOTCONN else Answer.YES
        return Answer.YES

    return patiently(ask, Answer.LATE)


def require_answer(mount: Mount) -> None:
    """CommandError: the mount's daemon is gone, or does not answer."""
    answer = answer_of(mount.mountpoint)
    if answer is Answer.NO:
        raise CommandError(f"the mount at {mount.mountpoint} is dead", f"mountctl umount {mount.mountpoint}")
    if answer is Answer.LATE:
        raise _late(mount)


def _late(mount: Mount) -> CommandError:
    """The error for a mount that does not answer, with the reason that its processes give."""
    from mountctl.control import state_of  # rarely needed

    reason, remedy = f"the daemon of {mount.mountpoint} is not answering", "look into its log, or try again later"
    if stopped := _stopped_writer(mount.store):
        reason, remedy = f"{reason}: process {stopped} is stopped", f"kill -CONT {stopped}"
    elif (state := state_of(mount.device, mount.user)) is not None and not state.is_serving:
        reason = f"{reason}: {state.reason or 'it is taking over from the last one'}"
        remedy = f"the next daemon takes over as soon as it can; `mountctl umount {mount.mountpoint}` ends the mount"
    return CommandError(reason, remedy, os.EX_TEMPFAIL)


def _stopped_writer(store: Path) -> int | None:
    """Pid of the process that has the store open for writing, if it is stopped."""
    from engine import writer_of  # rarely needed

    try:
        pid = patiently(lambda: writer_of(store), None)
    except OSError:
        return None
    return pid if pid is not None and is_stopped(pid) else None


def nothing_mounted(place: str | Path) -> CommandError:
    """The error of a verb that needs a mount."""
    return CommandError(f"no store is mounted at {place}", "see what is mounted with `mountctl status`", os.EX_NOINPUT)


def find_mount(text: str) -> Mount:
    """The mount of the store that `text` names. CommandError: there is none, or its daemon does not answer."""
    mount = find(text).mount
    if mount is None:
        raise nothing_mounted(text)
    require_answer(mount)
    return mount


def require_here(text: str | Path) -> None:
    """CommandError: the text names a place of another host, or a group of them, and the verb takes none."""
    from fsstore.fleet.places import is_place  # rarely needed

    if is_place(str(text)) and not patiently(Path(text).exists, True):
        remedy = "cat, tail, grep, topics, status and top take such places; run this verb on that host"
        raise CommandError(f"'{text}' is a place of another host", remedy, os.EX_USAGE)


def find(text: str, table: Path = MOUNT_TABLE) -> Place:
    """The store and mount that `text` names: a mount point, a path below one, or a store's directory. CommandError."""
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
        require_here(text)
        raise CommandError(f"{text!r} is neither a store nor a mount point", _remedy(text, path, table), os.EX_NOINPUT)
    return Place(path, None)


def split_path(text: str, table: Path = MOUNT_TABLE) -> tuple[str, str]:
    """A path that leads into a mount or a store: the mount point or the store, and the rest, which names a topic, a
    queue or a message; for `mq/orders/0.log` mq and orders/0. The rest is empty for any other text."""
    path = absolute(text)
    for above in path.parents:
        if mount_at(above, table) or (_is_place(above, table) and not patiently(path.exists, True)):
            return str(above), str(path.relative_to(above)).removesuffix(".log")
    return text, ""


def _remedy(text: str, path: Path, table: Path) -> str:
    """A remedy for `text`, which is no PLACE."""
    context = click.get_current_context(silent=True)
    if context is not None and (swapped := _behind_place(context, text)) and _leads_to_place(swapped, table):
        usage = " ".join(context.command.collect_usage_pieces(context)[1:])
        return f"{swapped!r} is one, and the order is `{context.command_path} {usage}`"
    may_be_new = (os.sep in text or not _reads(context)) and not patiently(path.exists, True)
    make = f"`mountctl init {shlex.quote(text)}` makes a store there, " if may_be_new else ""
    return f"{make}`mountctl status` lists what is mounted"


def _reads(context: click.Context | None) -> bool:
    """Whether the verb has a use for a store with messages alone."""
    return context is not None and context.info_name in _READERS


def _behind_place(context: click.Context, text: str) -> str:
    """The argument after PLACE, if `text` is the PLACE; otherwise ""."""
    names = [argument.name or "" for argument in context.command.params if isinstance(argument, click.Argument)]
    if len(names) < 2 or context.params.get(names[0]) != text:
        return ""
    value = context.params.get(names[1]) or ""
    return str(next(iter(value), "") if isinstance(value, tuple) else value)


def _leads_to_place(text: str, table: Path) -> bool:
    return _is_place(absolute(text), table) or split_path(text, table)[1] != ""


def _is_place(path: Path, table: Path) -> bool:
    return mount_at(path, table) is not None or patiently((path / "commitlog").is_dir, False)
