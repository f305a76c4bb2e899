"""What goes wrong a thousand times a second is logged once a minute, and counted."""

from __future__ import annotations

import errno
import logging
from pathlib import Path

import pytest

from engine import DamagedRecordError, StoreFullError
from fsstore.fuse import errors
from fsstore.fuse.errors import errno_for
from fsstore.interface import FilesystemError
from fsstore.tree.limited_log import MOST_LINES, QUIET_S, RateLimitedLog


class Clock:
    """Seconds that pass when a test says so."""

    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def limited(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> RateLimitedLog:
    """Those that `errno_for` makes."""
    made = RateLimitedLog(clock)
    monkeypatch.setattr(errors, "LIMITED_LOG", made)
    return made


def defect() -> BaseException:
    try:
        raise ZeroDivisionError("a defect of ours")
    except ZeroDivisionError as error:
        return error


def test_damage_that_is_read_again_and_again_is_a_line_a_minute_with_a_count(
    limited: RateLimitedLog, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(1000):
        assert errno_for(DamagedRecordError(4096, "its CRC is wrong"), "lookup") == errno.EIO
    assert len(caplog.records) == 1
    assert "4096" in caplog.text
    clock.now_s += QUIET_S
    errno_for(DamagedRecordError(4096, "its CRC is wrong"), "lookup")
    assert len(caplog.records) == 2
    assert "(999 more of this kind" in caplog.records[1].getMessage()
    assert (limited.made, limited.left_out) == (1001, 999)


def test_a_full_disk_is_a_line(limited: RateLimitedLog, caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(3):
        assert errno_for(StoreFullError(Path("/store/commitlog/0"), 4096), "write") == errno.ENOSPC
    assert len(caplog.records) == 1
    assert "write answered ENOSPC: no space for /store/commitlog/0" in caplog.text


def test_another_place_or_reason_is_another_line(limited: RateLimitedLog, caplog: pytest.LogCaptureFixture) -> None:
    for place in (4096, 8192):
        for during in ("lookup", "read"):
            for _ in range(3):
                errno_for(DamagedRecordError(place, "its CRC is wrong"), during)
    assert len(caplog.records) == 4


def test_a_defect_is_told_with_its_traceback_once(limited: RateLimitedLog, caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(50):
        assert errno_for(defect(), "write") == errno.EIO
    assert len(caplog.records) == 1
    assert "ZeroDivisionError: a defect of ours" in caplog.text
    assert limited.left_out == 49


def test_a_thousand_different_complaints_are_not_a_thousand_lines(
    limited: RateLimitedLog, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    for place in range(5_000):
        errno_for(DamagedRecordError(place, "its CRC is wrong"), "lookup")
    assert len(caplog.records) == MOST_LINES
    clock.now_s += QUIET_S
    errno_for(DamagedRecordError(0, "its CRC is wrong"), "lookup")
    assert len(caplog.records) == MOST_LINES + 1
    assert (limited.made, limited.left_out) == (5_001, 5_000 - MOST_LINES)


def test_refusals_that_are_promised_are_not_logged(limited: RateLimitedLog, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    errno_for(FilesystemError(errno.ENOENT, "no such name"), "lookup")
    assert caplog.records == []
    assert limited.made == 0
