"""mountctl replicate: what its command line takes; what it promises is in test_replication_promises_copy.py."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.mountctl.conftest import mountctl


@pytest.mark.parametrize(
    ("words", "what"),
    [
        (["broker", "store", "more"], "give the broker's HOST"),
        (["store"], "give the broker's HOST"),
        (["broker:0", "store"], "'0' is no port"),
        (["broker", "store", "--remoting", "a b"], "option --remoting"),
        (["broker", "store", "-o", "haSendHeartbeatInterval=soon"], "option haSendHeartbeatInterval"),
        (["broker", "store", "-o", "haSendHeartbeat=5"], "haSendHeartbeat: there is no such option"),
    ],
)
def test_a_command_line_that_is_none_is_refused(tmp_path: Path, words: list[str], what: str) -> None:
    done = mountctl("replicate", *(str(tmp_path / one) if one == "store" else one for one in words))
    assert (done.returncode, what in done.stderr) == (64, True), done.stderr
    assert not any(tmp_path.iterdir())


def test_a_master_that_does_not_answer_is_told_before_anything_is_made(tmp_path: Path) -> None:
    done = mountctl("replicate", "127.0.0.1:2", tmp_path / "copy")
    assert (done.returncode, "127.0.0.1:1 did not answer a connection" in done.stderr) == (75, True), done.stderr
    assert not any(tmp_path.iterdir())


def test_the_master_may_come_from_a_broker_conf(tmp_path: Path) -> None:
    conf = tmp_path / "broker.conf"
    conf.write_text("haMasterAddress=127.0.0.1:2\nhaSendHeartbeatInterval=1000\n")
    done = mountctl("replicate", "--broker-conf", conf, tmp_path / "copy")
    assert "127.0.0.1:1 did not answer a connection" in done.stderr
