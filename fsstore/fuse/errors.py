"""The errno of each exception, in one table. Every exception of a handler ends here: one that left it would end the
mount.

A refusal of the core or the engine has its errno. A defect of ours is logged with its traceback and answered EIO.
"""

from __future__ import annotations

import errno
import logging

import engine
from fsstore.interface import FilesystemError
from fsstore.tree.limited_log import LIMITED_LOG

ERRNOS: dict[type[engine.StoreError], int] = {
    engine.NotAStoreError: errno.EIO,
    engine.UnsupportedStoreError: errno.EIO,
    engine.DuplicateLogFileError: errno.EIO,
    engine.MissingLogError: errno.EIO,
    engine.StoreBusyError: errno.EBUSY,
    engine.BackupError: errno.EIO,
    engine.ReplicationError: errno.EIO,
    engine.ProtocolError: errno.EPROTO,
    engine.RemotingError: errno.EIO,
    engine.NotReplicatedError: errno.ETIMEDOUT,
    engine.ListenError: errno.EADDRINUSE,
    engine.ConnectionEndedError: errno.EIO,
    engine.MasterRefusedError: errno.EIO,
    engine.ReplicaStoreError: errno.EROFS,
    engine.NotAReplicaError: errno.EIO,
    engine.StoreLockedError: errno.EBUSY,
    engine.AnotherStoreError: errno.ESTALE,
    engine.ReadOnlyStoreError: errno.EROFS,
    engine.StoreFullError: errno.ENOSPC,
    engine.IllegalMessageError: errno.EINVAL,
    engine.MessageTooLargeError: errno.EFBIG,
    engine.TopicPermissionError: errno.EACCES,
    engine.FlushFailedError: errno.EIO,
    engine.NoDescriptorError: errno.ENFILE,
    engine.ObstructedError: errno.EIO,
    engine.StoreClosedError: errno.EIO,
    engine.TopicNotFoundError: errno.ENOENT,
    engine.TopicExistsError: errno.EEXIST,
    engine.IllegalTopicError: errno.EINVAL,
    engine.TopicsRefusedError: errno.EINVAL,
    engine.ConsumerOffsetError: errno.EINVAL,
    engine.MessageNotFoundError: errno.ENOENT,
    engine.ExpiredMessageError: errno.ENOENT,
    engine.DamagedRecordError: errno.EIO,
    engine.RefusedReadError: errno.EIO,
    engine.BodyTooLargeError: errno.EIO,
    engine.TruncatedFileError: errno.EIO,
    engine.RetiredFileError: errno.EIO,
    engine.UnreadableRangeError: errno.EIO,
    engine.QueueGapError: errno.EIO,
    engine.ConfigFileError: errno.EIO,
    engine.OptionError: errno.EINVAL,
}


def errno_of(error: BaseException) -> int | None:
    """The errno that answers `error`; None for a defect of ours (log it, answer EIO)."""
    if isinstance(error, FilesystemError):
        return error.errno
    if isinstance(error, OSError):  # of a file below the store, not of the name in the request
        return errno.EIO if error.errno in (None, errno.ENOENT, errno.ENOTDIR, errno.EEXIST) else error.errno
    if isinstance(error, engine.StoreError):
        return next((ERRNOS[kind] for kind in type(error).__mro__ if kind in ERRNOS), errno.EIO)
    return None


log = logging.getLogger(__name__)


def errno_for(error: BaseException, during: str) -> int:
    """The errno that answers `error`. Defects (with tracebacks), damage and full disks are logged by
    `RateLimitedLog`."""
    number = errno_of(error)
    LIMITED_LOG.count(errno.EIO if number is None else number)
    if number is None:
        defect = during, type(error), _raised_at(error)
        LIMITED_LOG.log_once(log, logging.ERROR, defect, f"{during} failed, answered EIO", error)
        return errno.EIO
    if number in (errno.EIO, errno.ENOSPC):
        text = f"{during} answered {errno.errorcode[number]}: {error}"
        LIMITED_LOG.log_once(log, logging.WARNING, text, text)
    return number


def _raised_at(error: BaseException) -> tuple[str, int] | None:
    """File and line where an exception was raised."""
    trace = error.__traceback__
    if trace is None:
        return None
    while trace.tb_next is not None:
        trace = trace.tb_next
    return trace.tb_frame.f_code.co_filename, trace.tb_lineno
