"""End-to-end demo with the commands a user would type: make a store, mount it, publish real lines, read them with
everyday tools and with Spark, then do the same with a store that Apache RocketMQ wrote.

    ./run demo [--quick]

`--quick` leaves out Spark and getfattr, so that it needs no more than mounting does.
Each step prints its command and its duration. All files are in one temporary folder, which is removed at the end, as
the mounts are, also after an error.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

PROJECT = Path(__file__).resolve().parent.parent
LINES_WANTED = 100_000
PATIENCE_SECONDS = 60
SHOWN_LINES = 20
PYTHON_FOLDERS = ("asyncio", "email", "http", "importlib", "json", "multiprocessing", "unittest", "xml")


class StepFailedError(Exception):
    """A command of the demo failed or had another result than expected."""


class Demo:
    """Runs commands in `folder` as a shell there would, and shows them."""

    def __init__(self, folder: Path, *, quick: bool) -> None:
        self.quick = quick
        self._folder = folder
        self._environment = {
            **os.environ,
            "PATH": f"{Path(sys.executable).parent}:{os.environ.get('PATH', os.defpath)}",
        }

    def title(self, text: str) -> None:
        """Begin a part."""
        print(f"\n\033[1m{text}\033[0m" if sys.stdout.isatty() else f"\n# {text}", flush=True)

    def run(self, command: str) -> str:
        """Run `command` in a shell; prints the first lines of its output, returns all of it. A failure ends the
        demo."""
        print(f"$ {command}", flush=True)
        began = time.monotonic()
        with self._shell(command, errors=subprocess.STDOUT) as shell:
            said = shell.communicate()[0].decode("utf-8", "replace")
        seconds = time.monotonic() - began
        self._show(said)
        print(f"  [{seconds:.2f} s]", flush=True)
        if shell.returncode:
            raise StepFailedError(f"exit code {shell.returncode} from: {command}")
        return said

    @contextmanager
    def _shell(self, command: str, errors: int | None = None) -> Iterator[subprocess.Popen[bytes]]:
        """A shell that is killed at the end of the block, with all processes that it started."""
        shell = subprocess.Popen(
            ["bash", "-c", command], cwd=self._folder, env=self._environment, stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=errors, start_new_session=True,
        )  # fmt: skip
        try:
            yield shell
        finally:
            if shell.poll() is None:
                os.killpg(shell.pid, signal.SIGKILL)
                shell.wait()

    def _show(self, said: str) -> None:
        lines = said.splitlines()
        for line in lines[:SHOWN_LINES]:
            print(f"  {line[:150]}")
        if len(lines) > SHOWN_LINES:
            print(f"  ... and {len(lines) - SHOWN_LINES:,} lines more")

    def watch(self, watching: str, publishing: str, awaited: str) -> None:
        """Start `watching`, run `publishing`, and wait until the first one prints `awaited`."""
        print(f"$ {watching} &", flush=True)
        with self._shell(watching) as watcher, PatienceAlarm():
            assert watcher.stdout is not None
            watcher.stdout.readline()  # the last line before: it is watching now
            self.run(publishing)
            began = time.monotonic()
            while awaited not in (line := watcher.stdout.readline().decode()):
                if not line:
                    raise StepFailedError(f"{watching} ended without showing {awaited!r}")
            print(f"  {line.rstrip()}\n  [{time.monotonic() - began:.2f} s until tail -f showed it]", flush=True)


class PatienceAlarm:
    """A deadline for a blocking read: StepFailedError when it has passed."""

    def __enter__(self) -> None:
        signal.signal(signal.SIGALRM, self._ring)
        signal.alarm(PATIENCE_SECONDS)

    def __exit__(self, *_: object) -> None:
        signal.alarm(0)

    @staticmethod
    def _ring(_number: int, _frame: FrameType | None) -> None:
        raise StepFailedError(f"nothing came in {PATIENCE_SECONDS} s")


def publish(demo: Demo) -> None:
    """Publish real text of this machine, at least 100,000 lines."""
    library = sysconfig.get_paths()["stdlib"]
    demo.title("Publish real lines with >>: Python's own sources, one key a file; each line becomes a message")
    demo.run("mkdir mnt/sources mnt/licences mnt/packages mnt/versions")
    files = f"{library}/*.py {library}/{{{','.join(PYTHON_FOLDERS)}}}/*.py"
    demo.run(f"for f in {files}; do cat $f >> mnt/sources/append@tags=python,keys=${{f##*/}}; done")
    demo.run("for f in /usr/share/common-licenses/*; do cat $f >> mnt/licences/append@tags=${f##*/}; done")
    demo.title("This machine's packages: as JSON lines, and as messages with a key each")
    fields = r'{"package":"${Package}","section":"${Section}","kib":"${Installed-Size}"}\n'
    keyed = r'{"body":"${Package} ${Version}","keys":["${Package}"],"tags":"dpkg"}\n'
    demo.run(f"dpkg-query -W -f '{fields}' >> mnt/packages/append")
    demo.run(f"dpkg-query -W -f '{keyed}' >> mnt/versions/append@format=json")
    demo.run("mountctl topics mnt")
    topics = json.loads(demo.run("mountctl topics mnt --json"))
    published = sum(queue["max_offset"] for queues in topics.values() for queue in queues.values())
    print(f"  {published:,} messages")
    if published < LINES_WANTED:
        raise StepFailedError(f"{published:,} messages are fewer than {LINES_WANTED:,}")


def read_with_everyday_tools(demo: Demo) -> None:
    """Read with ls, cat, grep, tail, getfattr."""
    demo.title("Topics are folders, queues are folders, messages are files")
    demo.run("ls mnt mnt/sources")
    demo.run("ls -l mnt/sources/0 | head -n 5")
    demo.run("cat mnt/sources/0/42")
    demo.run("readlink mnt/licences/0/@last; cat mnt/licences/0/@last")
    demo.title("Find a message by its key: a link to the newest one, a folder of links to all")
    demo.run("ls -l mnt/versions/keys/bash && cat mnt/versions/keys/bash")
    demo.run("ls mnt/sources/keys/argparse.py@all | wc -l")
    demo.title("A topic is also one growing text, and so is each queue: <topic>.log, <queue>.log")
    demo.run("ls -l mnt/sources.log mnt/sources/0.log")
    demo.run("grep -c 'import' mnt/sources.log")
    demo.run("grep -hm 3 'class .*Error' mnt/sources.log")
    demo.run('grep -l \'"section":"libs"\' mnt/packages/0/0* | head -n 3')
    demo.watch("tail -n 1 -f mnt/sources/0.log", "echo 'one line more' >> mnt/sources/0/append", "one line more")
    if not demo.quick:
        demo.title("All metadata of a message: extended attributes")
        demo.run("getfattr -d mnt/versions/keys/bash")
    demo.run("mountctl status mnt")


def read_with_spark(demo: Demo) -> None:
    """Read the mounted tree with PySpark: no connector, plain paths."""
    demo.title("Spark reads the mounted tree as it reads any files")
    script = PROJECT / "examples" / "demo_spark.py"
    paths = "--messages 'mnt/packages/0/0*' --text 'mnt/sources/*.log' --json 'mnt/packages/*.log'"
    demo.run(f"python {script} {paths} 2> spark.log")


def read_a_store_that_rocketmq_wrote(demo: Demo) -> None:
    """Mount the golden store `basic` read-only and read it with the same tools."""
    demo.title("A store that Apache RocketMQ 4.9.8 wrote, mounted read-only, read in the same way")
    archive = PROJECT / "tests/data/golden/basic.tar.xz"
    demo.run(f"python -W ignore -m tarfile -e {archive} rocketmq")
    demo.run("mkdir broker && mountctl mount --read-only --log-file broker.log rocketmq/store broker")
    demo.run("ls broker broker/TopicA")
    demo.run("ls -l broker/TopicA/0 | head -n 5")
    demo.run("cat broker/TopicA/0/@first | head -c 120; echo")
    demo.run("grep -ac '' broker/TopicA/0.log")
    if not demo.quick:
        demo.run("getfattr -d broker/TopicA/0/@first")
        script = PROJECT / "examples" / "demo_spark.py"
        demo.run(f"python {script} --messages 'broker/TopicA/0/0*' --text 'broker/*/*.log' 2> spark.log")
    demo.run("mountctl umount broker")


def show_logs(folder: Path) -> None:
    """Print the last lines of the daemons' and Spark's logs, because the folder is about to be removed."""
    for log in sorted(folder.glob("*.log")):
        print(f"--- {log.name}", *log.read_text(errors="replace").splitlines()[-30:], sep="\n", file=sys.stderr)


@contextmanager
def workplace() -> Iterator[Path]:
    """A temporary folder. At the end of the block, its mounts are unmounted, and it is removed."""
    folder = Path(tempfile.mkdtemp(prefix="fsstore-demo-")).resolve()
    try:
        yield folder
    finally:
        mountctl = [sys.executable, "-m", "mountctl", "umount"]
        for mountpoint in (folder / "mnt", folder / "broker"):
            if os.path.ismount(mountpoint):
                unmounted = subprocess.run([*mountctl, str(mountpoint)], cwd=PROJECT, check=False).returncode == 0
                if not unmounted:
                    subprocess.run(["fusermount3", "-u", "-z", str(mountpoint)], check=False)
        shutil.rmtree(folder, ignore_errors=True)


def main() -> int:
    """Run the demo; returns the exit code."""
    parser = argparse.ArgumentParser(description="A store, mounted: publish, read, search, and read a broker's store.")
    parser.add_argument("--quick", action="store_true", help="without Spark")
    quick = parser.parse_args().quick
    signal.signal(signal.SIGTERM, lambda _number, _frame: sys.exit(143))
    began = time.monotonic()
    with workplace() as folder:
        demo = Demo(folder, quick=quick)
        try:
            demo.title(f"In {folder}: a store, mounted")
            demo.run("mkdir mnt && mountctl mount --log-file mount.log store mnt")
            publish(demo)
            read_with_everyday_tools(demo)
            if not quick:
                read_with_spark(demo)
            demo.title("Unmounted, the same verbs work on the store itself; check compares all of its files")
            demo.run("mountctl umount mnt")
            demo.run("mountctl cat store versions --key bash")
            demo.run("mountctl check store")
            read_a_store_that_rocketmq_wrote(demo)
        except StepFailedError as error:
            show_logs(folder)
            print(f"demo: {error}", file=sys.stderr)
            return 1
    print(f"\nAll of it took {time.monotonic() - began:.0f} s; the folder and its mounts are removed.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
