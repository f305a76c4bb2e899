"""Bodies that a command decodes: its limits, and what is left of it when it has ended."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from fsstore.query.decoding import DecodeError, NoDecoderError, decode
from tests.mountctl.conftest import eventually

SLOT = "orders", 2, 17
LIMIT_S = 0.3


def decoded(command: str, body: bytes = b"", seconds: float = 20.0, most_bytes: int = 1 << 20) -> bytes:
    return decode(command, body, SLOT, seconds, most_bytes)


def require_gone(group: Path) -> None:
    """No process of a group runs any more; init may have to wait for those that were killed."""
    number = int(group.read_text())

    def is_gone() -> bool:
        try:
            os.killpg(number, 0)
        except ProcessLookupError:
            return True
        return False

    eventually(is_gone, "the group is gone")


def test_a_body_is_what_the_command_prints() -> None:
    assert decoded("tr a-z A-Z", b"apples" * 100_000) == b"APPLES" * 100_000
    assert decoded("echo $MQ_TOPIC/$MQ_QUEUE/$MQ_OFFSET") == b"orders/2/17\n"
    assert decoded("true", b"a body that nothing reads" * 100_000) == b""


@pytest.mark.parametrize(
    ("command", "reason"),
    [
        ("echo bad wire type >&2; exit 3", "it ended with 3: bad wire type"),
        ("yes no | head -c 9000000 >&2; exit 1", "it ended with 1: no"),
        ("kill -9 $$", "it ended with -9"),
        ("yes", "it printed more than 1,048,576 bytes"),
    ],
)
def test_a_failure_has_a_reason(command: str, reason: str) -> None:
    with pytest.raises(DecodeError) as failed:
        decoded(command)
    assert failed.value.reason == reason


def test_a_command_that_is_not_there_is_another_error() -> None:
    with pytest.raises(NoDecoderError, match="no-such-command"):
        decoded("no-such-command")


@pytest.mark.parametrize(
    "command", ["sleep 60", "sleep 60 & sleep 60", "sleep 60 &", "while :; do echo; sleep 0.01; done"]
)
def test_a_command_ends_with_its_processes_when_its_time_is_over(command: str, tmp_path: Path) -> None:
    began_s = time.monotonic()
    with pytest.raises(DecodeError, match=r"it took longer than 0\.3 s"):
        decoded(f"echo $$ > {tmp_path}/group; {command}", seconds=LIMIT_S)
    assert time.monotonic() - began_s < 20
    require_gone(tmp_path / "group")


def test_what_it_leaves_in_the_background_does_not_outlive_it(tmp_path: Path) -> None:
    assert decoded(f"echo $$ > {tmp_path}/group; sleep 60 > /dev/null 2>&1 & echo done") == b"done\n"
    require_gone(tmp_path / "group")
