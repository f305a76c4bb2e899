"""The one table from errors to errnos."""

from __future__ import annotations

import errno

from engine import (
    BodyTooLargeError,
    ConfigFileError,
    DamagedRecordError,
    DuplicateLogFileError,
    ExpiredMessageError,
    FlushFailedError,
    IllegalMessageError,
    IllegalTopicError,
    MessageNotFoundError,
    MessageTooLargeError,
    MissingLogError,
    NoDescriptorError,
    NotAStoreError,
    ObstructedError,
    OptionError,
    QueueGapError,
    ReadOnlyStoreError,
    RetiredFileError,
    StoreClosedError,
    StoreError,
    StoreFullError,
    StoreLockedError,
    TopicExistsError,
    TopicNotFoundError,
    TruncatedFileError,
    UnreadableRangeError,
    UnsupportedStoreError,
)

ERRNOS: dict[type[StoreError], int] = {
    NotAStoreError: errno.EIO,
    UnsupportedStoreError: errno.EIO,
    DuplicateLogFileError: errno.EIO,
    MissingLogError: errno.EIO,
    StoreLockedError: errno.EBUSY,
    ReadOnlyStoreError: errno.EROFS,
    StoreFullError: errno.ENOSPC,
    IllegalMessageError: errno.EINVAL,
    MessageTooLargeError: errno.EFBIG,
    FlushFailedError: errno.EIO,
    NoDescriptorError: errno.ENFILE,
    ObstructedError: errno.EIO,
    StoreClosedError: errno.EIO,
    TopicNotFoundError: errno.ENOENT,
    TopicExistsError: errno.EEXIST,
    IllegalTopicError: errno.EINVAL,
    MessageNotFoundError: errno.ENOENT,
    ExpiredMessageError: errno.ENOENT,
    DamagedRecordError: errno.EIO,
    BodyTooLargeError: errno.EIO,
    TruncatedFileError: errno.EIO,
    RetiredFileError: errno.EIO,
    UnreadableRangeError: errno.EIO,
    QueueGapError: errno.EIO,
    ConfigFileError: errno.EIO,
    OptionError: errno.EINVAL,
}


def errno_of(error: BaseException) -> int | None:
    """The errno that answers `error`; None for an exception that is a defect of ours (log it, answer EIO)."""
    if isinstance(error, OSError):
        return error.errno or errno.EIO
    if isinstance(error, StoreError):
        return next((ERRNOS[kind] for kind in type(error).__mro__ if kind in ERRNOS), errno.EIO)
    return None
