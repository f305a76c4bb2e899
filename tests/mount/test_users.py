"""What users of one mount can do to each other, and what they can't."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator

import pytest

from tests.mount.harness import Mounted, as_user, mounted, publish

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="takes other users")

ALICE, BOB = 64_101, 64_102


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mounted]:
    """A mount to which everybody may publish, with a topic `orders`."""
    options = {"allow_other": True, "append_mode": 0o622}
    with mounted(tmp_path_factory.mktemp("users"), options=options) as mount:
        mount.topic("orders")
        yield mount


def test_a_reader_holds_no_queue_of_a_consumer_group(shared: Mounted) -> None:
    publish(shared.root / "orders/0/append", b"one\n")
    offset = shared.root / "@store/groups/billing/orders/0"
    offset.parent.mkdir(parents=True)
    offset.write_text("@first")
    for command in ("flock -n orders/0 true", "flock -ns orders/0 true", "cat orders/0", "echo 1 > orders/0"):
        refused = as_user(BOB, command, shared.root / "@store/groups/billing")
        assert refused.returncode != 0
        assert "Permission denied" in refused.stderr, refused.stderr
    held = subprocess.run(["flock", "-n", offset, "true"], check=False)
    assert held.returncode == 0


def test_what_was_refused_is_told_to_who_wrote_it(shared: Mounted) -> None:
    for user, word in ((ALICE, "hunter1"), (BOB, "hunter2")):
        refused = as_user(user, f"""echo '{{"{word}": 1}}' >> orders/append@format=json""", shared.root)
        assert refused.returncode == 1
    for _ in range(2):
        shown = {user: as_user(user, "cat @store/refusals", shared.root).stdout for user in (ALICE, BOB, BOB + 1, 0)}
        assert ["hunter1" in shown[user] for user in (ALICE, BOB, BOB + 1, 0)] == [True, False, False, True]
        assert ["hunter2" in shown[user] for user in (ALICE, BOB, BOB + 1, 0)] == [False, True, False, True]
    with (shared.root / "@store/refusals").open() as of_all:
        assert as_user(BOB, f"cat /proc/{os.getpid()}/fd/{of_all.fileno()}", shared.root).returncode != 0
