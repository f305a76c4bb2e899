"""Effects of one mount's users on each other, and their limits."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from collections.abc import Iterator

import pytest

from tests.mount.harness import Mounted, as_user, bodies, mounted, publish
from tests.mount.test_outlives import kill
from tests.mountctl.conftest import Site, succeed

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="takes other users")

ALICE, BOB = 64_101, 64_102


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mounted]:
    """A mount to which all users may publish, with a topic `orders`."""
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


FOR_ALL = ("--allow-other", "--append-mode", "222")


def test_a_file_that_waits_stays_its_droppers_through_every_death(site: Site) -> None:
    site.mounted(*FOR_ALL)
    (site.mountpoint / "t@queues=1").mkdir()
    topic = site.mountpoint / "t"
    makes = "umask 077; echo draft > drop/.secret; echo shared > drop/.shared; chmod 644 drop/.shared"
    assert as_user(ALICE, makes, topic).stderr == ""

    def mount_again() -> None:
        succeed("umount", site.mountpoint)
        site.mounted(*FOR_ALL)

    for go_on in (lambda: None, lambda: succeed("restart", site.mountpoint), lambda: kill(site), mount_again):
        go_on()
        shown = {name: (topic / "drop" / name).stat() for name in (".secret", ".shared")}
        modes = {name: (found.st_uid, found.st_mode & 0o777) for name, found in shown.items()}
        assert modes == {".secret": (ALICE, 0o600), ".shared": (ALICE, 0o644)}
        for command in ("cat drop/.secret", "echo >> drop/.shared", "mv drop/.shared drop/my", "rm -f drop/.shared"):
            assert as_user(BOB, command, topic).returncode != 0, command
        assert as_user(BOB, "cat drop/.shared", topic).stdout == "shared\n"
        assert as_user(ALICE, "echo more >> drop/.secret", topic).returncode == 0
    assert as_user(ALICE, "mv drop/.secret drop/final && rm drop/.shared", topic).stderr == ""
    assert bodies(topic / "0") == [b"draft\n" + 4 * b"more\n"]


HOLD = """
import os, sys
held = []
try:
    while True:
        held.append(os.open(f"drop/.f{len(held)}", os.O_CREAT | os.O_WRONLY))
except OSError as error:
    print(len(held), error.errno, flush=True)
sys.stdin.read()
"""


PUBLISH = "for queue in 0 1 2 3; do head -c 60000 /dev/zero | tr '\\0' x >> $queue/append; done"


def test_a_dropper_takes_no_descriptors_of_others(site: Site) -> None:
    """One user has as many files open in a box as he can; others publish and read, and the daemon is replaced."""
    command = [*("prlimit", "--nofile=512", sys.executable, "-m", "mountctl", "mount"), *FOR_ALL]
    command += ["-o", "mappedFileSizeCommitLog=65536", "--log-file", str(site.log)]
    subprocess.run([*command, site.store, site.mountpoint], check=True, timeout=60)
    (site.mountpoint / "t@queues=4").mkdir()
    topic = site.mountpoint / "t"
    who = ["setpriv", f"--reuid={ALICE}", f"--regid={ALICE}", "--clear-groups"]
    with subprocess.Popen(
        [*who, sys.executable, "-c", HOLD], cwd=topic, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdin is not None
        held, number = map(int, holder.stdout.readline().split())
        assert (held <= 64, number) == (True, errno.EMFILE)
        assert as_user(ALICE, "echo refused > drop/.more", topic).returncode != 0
        for _ in range(2):
            done = as_user(BOB, f"{PUBLISH}; cat 0/0 > /dev/null; echo drop > drop/file", topic)
            assert (done.returncode, done.stderr) == (0, "")
            succeed("restart", site.mountpoint)
            assert as_user(ALICE, "echo refused > drop/.more", topic).returncode != 0
        holder.stdin.close()
    assert as_user(ALICE, "echo taken > drop/more", topic).returncode == 0
    assert sum(len(bodies(topic / queue)) for queue in "0123") == 8 + 2 + 1
