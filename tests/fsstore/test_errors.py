"""Every engine error has an errno of its own choosing."""

from __future__ import annotations

import errno
from collections.abc import Iterator

import pytest

from engine import (
    DamagedRecordError,
    ExpiredMessageError,
    IllegalMessageError,
    MessageTooLargeError,
    ReadOnlyStoreError,
    StoreError,
    StoreFullError,
)
from fsstore.fuse.errors import ERRNOS, errno_of
from fsstore.interface import FilesystemError


def leaves(kind: type[StoreError]) -> Iterator[type[StoreError]]:
    """Error classes that nothing derives from: those that are raised."""
    below = kind.__subclasses__()
    if not below:
        yield kind
    for subclass in below:
        yield from leaves(subclass)


@pytest.mark.parametrize("kind", sorted(set(leaves(StoreError)), key=str))
def test_every_engine_error_is_in_the_table(kind: type[StoreError]) -> None:
    assert kind in ERRNOS
    assert errno_of(kind.__new__(kind)) == ERRNOS[kind]


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (MessageTooLargeError("body", 2, 1), errno.EFBIG),
        (StoreFullError.__new__(StoreFullError), errno.ENOSPC),
        (ReadOnlyStoreError("why"), errno.EROFS),
        (IllegalMessageError("why"), errno.EINVAL),
        (DamagedRecordError(0, "why"), errno.EIO),
        (ExpiredMessageError("t", 0, 0, 1), errno.ENOENT),
        (FilesystemError(errno.ENODATA), errno.ENODATA),
        (OSError("no number"), errno.EIO),
        (FileNotFoundError(errno.ENOENT, "a file of the store"), errno.EIO),
        (PermissionError(errno.EACCES, "a file of the store"), errno.EACCES),
        (StoreError(), errno.EIO),
    ],
)
def test_errors_that_people_meet_say_what_they_mean(error: Exception, expected: int) -> None:
    assert errno_of(error) == expected


def test_a_defect_of_ours_has_no_errno() -> None:
    assert errno_of(KeyError("handle")) is None
