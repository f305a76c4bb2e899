"""The suite may be run by root. What fusermount3 mounts for an ordinary user is another mount: these tests again."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.mount.harness import REPOSITORY

AGAIN = (
    "test_outlives.py::test_writers_in_flight_are_stored_once",
    "test_outlives.py::test_the_next_server_waits_and_holds_nothing_that_counts",
    "test_restart.py::test_writers_and_readers_notice_nothing",
    "test_restart.py::test_options_may_change",
    "test_semantics_dropping.py::test_a_file_that_waits_keeps_owner_and_mode",
)
NOBODY = "65534"
AS_NOBODY = """
set -e
# else tests beside this one could not unmount; one by one, as some may be gone by now
findmnt -rn -t fuse.fsstore -o TARGET | xargs -r -n 1 umount -cil || true
at=$1; shift
mount -t tmpfs -o mode=755 none "$at/ours"
mknod -m 666 "$at/ours/fuse" c 10 229
mount --bind "$at/ours/fuse" /dev/fuse
for part in $REACHED; do mkdir -p "$at/ours$part"; mount --rbind "$part" "$at/ours$part"; done
for part in $CLOSED; do mount --rbind "$at/ours$part" "$part"; done
cd "$REPOSITORY"
exec setpriv --reuid NOBODY --regid NOBODY --clear-groups --inh-caps=-all env HOME="$at" TMPDIR="$at" "$@"
""".replace("NOBODY", NOBODY)
"""In a mount namespace of its own: there all users may use /dev/fuse, this interpreter and this project."""


def closed(paths: set[Path]) -> set[Path]:
    """The outermost folders on the way to `paths` that some users may not enter."""
    ways = [[*reversed(path.parents), path] for path in paths]
    shut = (next((one for one in way if not one.stat().st_mode & 0o001), None) for way in ways)
    return {one for one in shut if one is not None}


def test_an_ordinary_users_mount_outlives_its_daemon() -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist"]
    command += [f"tests/mount/{name}" for name in AGAIN]
    folder = Path(tempfile.mkdtemp())
    try:
        environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
        if os.geteuid() == 0:
            (folder / "ours").mkdir()
            os.chown(folder, int(NOBODY), int(NOBODY))
            parts = {Path(sys.base_prefix).resolve(), Path(sys.prefix).resolve(), REPOSITORY}
            environment |= {
                "REACHED": " ".join(map(str, parts)), "CLOSED": " ".join(map(str, closed(parts))),
                "REPOSITORY": str(REPOSITORY),
            }  # fmt: skip
            command = ["unshare", "-m", "--propagation", "private", "sh", "-c", AS_NOBODY, "sh", str(folder), *command]
        done = subprocess.run(command, cwd=REPOSITORY, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        assert " passed" in done.stdout
    finally:
        shutil.rmtree(folder)
