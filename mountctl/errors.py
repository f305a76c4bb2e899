"""Errors of verbs: one line for a person, with a remedy, and an exit code.

    CommandError          a verb can't do its work; raised in mountctl
    StoreError            the engine's tree; `exit_codes` has each one's exit code
    MountError            the kernel or fusermount3 refused
    UnusableFileError     a file of the user's, such as one of tokens, can't be used
    OSError               the system's own message, with the path

Exit codes are sysexits.h's, so that scripts and systemd can tell "try again later" from "this is not a store".
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING

import click

from mountctl.output import visible

if TYPE_CHECKING:
    from engine import StoreError

FINDINGS = 1
"""Exit code of `check` with findings, and of `grep` without a match."""
DAMAGED = 3
"""Exit code of a verb that skipped damaged messages, and did the rest."""
INCOMPLETE = 4
"""Exit code of a verb whose answer a limit cut, and which said so."""
INTERRUPTED = 130
"""Exit code after Ctrl-C, or after a question that was not answered with yes."""


class CommandError(Exception):
    """A verb can't do its work: `reason` says why, `remedy` what to do about it; `exit_code` is the process's."""

    def __init__(self, reason: str, remedy: str = "", exit_code: int = os.EX_UNAVAILABLE) -> None:
        super().__init__(reason, remedy, exit_code)
        self.reason = reason
        self.remedy = remedy
        self.exit_code = exit_code

    def __str__(self) -> str:
        return f"{self.reason}: {self.remedy}" if self.remedy else self.reason


def exit_codes() -> Mapping[type[StoreError], int]:
    """Exit code of each branch of the engine's error tree; a subclass has its nearest ancestor's."""
    import engine  # only after a failure: `mount` forks, and must not have numpy's threads by then

    return {
        engine.StoreError: os.EX_SOFTWARE,
        engine.NotAStoreError: os.EX_DATAERR,
        engine.UnsupportedStoreError: os.EX_DATAERR,
        engine.MissingLogError: os.EX_DATAERR,
        engine.StoreLockedError: os.EX_TEMPFAIL,
        engine.StoreBusyError: os.EX_TEMPFAIL,
        engine.AnotherStoreError: os.EX_TEMPFAIL,
        engine.BackupError: os.EX_USAGE,
        engine.ReplicaStoreError: os.EX_NOPERM,
        engine.NotAReplicaError: os.EX_USAGE,
        engine.ReplicationError: os.EX_TEMPFAIL,
        engine.MasterRefusedError: os.EX_DATAERR,
        engine.ProtocolError: os.EX_PROTOCOL,
        engine.OptionError: os.EX_USAGE,
        engine.OpenError: os.EX_UNAVAILABLE,
        engine.ConfigFileError: os.EX_CONFIG,
        engine.ReadOnlyStoreError: os.EX_NOPERM,
        engine.TopicPermissionError: os.EX_NOPERM,
        engine.StoreFullError: os.EX_IOERR,
        engine.WriteError: os.EX_DATAERR,
        engine.FlushFailedError: os.EX_IOERR,
        engine.NoDescriptorError: os.EX_TEMPFAIL,
        engine.ObstructedError: os.EX_CANTCREAT,
        engine.TopicError: os.EX_USAGE,
        engine.ReadError: os.EX_DATAERR,
        engine.RefusedReadError: os.EX_IOERR,
    }


def exit_code(error: BaseException) -> int:
    """The process's exit code for `error`."""
    if isinstance(error, CommandError):
        return error.exit_code
    if isinstance(error, PermissionError):
        return os.EX_NOPERM
    if isinstance(error, OSError):
        return os.EX_IOERR
    from fsstore import MountError
    from fsstore.fleet.unusable import UnusableFileError

    if isinstance(error, MountError):
        return os.EX_UNAVAILABLE
    if isinstance(error, UnusableFileError):
        return os.EX_CONFIG
    codes = exit_codes()
    return next((codes[kind] for kind in type(error).__mro__ if kind in codes), os.EX_SOFTWARE)


def one_line(error: BaseException) -> str:
    """`error` as one line for a person."""
    if isinstance(error, OSError) and error.strerror:
        text = f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    else:
        text = str(error) or type(error).__name__
    return visible(" ".join(text.split()))


def usage_line(error: click.ClickException) -> str:
    """A usage error as one line for a person."""
    text = error.format_message().rstrip(".")
    if isinstance(error, click.NoSuchOption):
        near = f" (did you mean {' or '.join(error.possibilities)}?)" if error.possibilities else ""
        text = f"there is no option {error.option_name}{near}"
    words = visible(" ".join((text[:1].lower() + text[1:]).split()))
    context = error.ctx if isinstance(error, click.UsageError) else None
    if context and text.startswith("Got unexpected extra argument"):
        usage = " ".join(context.command.collect_usage_pieces(context)[1:])  # the first piece is [OPTIONS]
        words += f"; the order is `{context.command_path} {usage}`"
    return f"{words}: see `{context.command_path} --help`" if context else words
