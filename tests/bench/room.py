"""Where rows work: a folder, stores that several rows share, the JVM, and the mounts of both sides."""

import contextlib
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from engine import EMBEDDED_SIZES
from fsstore.fuse.mount import device_of, raise_read_ahead
from fsstore.options import ServeOptions
from tests.bench.client import Client
from tests.bench.measure import LeftOutError
from tests.bench.rocketmq import RocketMQ
from tests.bench.scale import Scale
from tests.bench.workload import TOPIC
from tests.interop.mounts import mounted, status

SOURCES = Path(__file__).parent / "peer"
MOUNT_LIMIT_SECONDS = 120
POLL_SECONDS = 0.01


class Room:
    """One run's folder, below which everything is made and removed. Thread safety: one thread."""

    def __init__(self, folder: Path, scale: Scale, resources: contextlib.ExitStack) -> None:
        """`resources` is closed by whoever made it, when the run ends: the JVM with it."""
        self.folder = folder
        self.scale = scale
        self._resources = resources
        self._stores: set[Path] = set()
        self._rocketmq: RocketMQ | None = None
        self._no_rocketmq: LeftOutError | None = None
        self._binaries: dict[str, Path] = {}
        self._folders = 0
        self._peers: dict[Path, int] = {}

    def new_folder(self) -> Path:
        """An empty folder of its own."""
        self._folders += 1
        folder = self.folder / str(self._folders)
        folder.mkdir()
        return folder

    def store(self, name: str, make: Callable[[Path], None]) -> Path:
        """The store of that name, made by the first row that asks. Rows leave it closed, with what it held."""
        path = self.folder / name
        if path not in self._stores:
            make(path)
            self._stores.add(path)
        return path

    def rocketmq(self) -> RocketMQ:
        """The JVM, started by the first row that asks. LeftOutError."""
        if self._no_rocketmq is not None:
            raise self._no_rocketmq
        if self._rocketmq is None:
            try:
                self._rocketmq = self._resources.enter_context(RocketMQ(self.folder))
            except LeftOutError as error:
                self._no_rocketmq = error  # Maven is not asked once more for each row
                raise
        return self._rocketmq

    def server(self, queue: Path) -> int:
        """The process that serves a mount of either side, by its folder of queue 0."""
        root = queue.parents[1]
        return self._peers.get(root) or int(status(root)["pid"])

    @contextlib.contextmanager
    def mounted(self, store: Path, *options: str) -> Iterator[Path]:
        """Our mount of a store; the folder of queue 0 (`mountctl mount`, as people run it)."""
        with mounted(store, self.new_folder() / "ours", *options) as root:
            yield root / TOPIC / "0"

    @contextlib.contextmanager
    def peer_mounted(self, store: Path, *options: str) -> Iterator[Path]:
        """The C peer's mount of a store, with our read-ahead; the folder of queue 0. LeftOutError."""
        command: list[str | Path] = [self.fuse_binary("peer"), *options, store, TOPIC, str(EMBEDDED_SIZES.index_slots)]
        with self._serving(command) as root:
            raise_read_ahead(root, ServeOptions().read_ahead_kb)
            yield root / TOPIC / "0"

    def wide_peer_mounted(self, store: Path) -> contextlib.AbstractContextManager[Path]:
        """The C peer's mount of the root of a store with many topics. LeftOutError."""
        return self._serving([self.fuse_binary("wide"), store])

    @contextlib.contextmanager
    def _serving(self, command: Sequence[str | Path]) -> Iterator[Path]:
        """The mount point of a peer, which is the command's last argument."""
        root = self.new_folder() / "peer"
        root.mkdir()
        with subprocess.Popen([*command, root], process_group=0) as process:
            self._peers[root] = process.pid
            try:
                wait_for_mount(process, root)
                yield root
            finally:
                subprocess.run(["fusermount3", "-u", root], check=True)
                process.wait(MOUNT_LIMIT_SECONDS)

    def client(self) -> Client:
        """The workload in C. LeftOutError."""
        return Client(self._binary("client", "-pthread"))

    def fuse_binary(self, name: str) -> Path:
        """A compiled file system of ours in C. LeftOutError."""
        try:
            command = ["pkg-config", "--cflags", "--libs", "fuse3"]
            flags = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()
        except (OSError, subprocess.CalledProcessError) as error:
            raise LeftOutError(f"libfuse can't be had here: {error}") from error
        return self._binary(name, *flags)

    def _binary(self, name: str, *flags: str) -> Path:
        """A compiled program of the folder `peer`, built for the first row that asks. LeftOutError."""
        if name not in self._binaries:
            binary = self.folder / name
            try:
                subprocess.run(["cc", "-O2", "-o", binary, SOURCES / f"{name}.c", *flags], check=True)
            except (OSError, subprocess.CalledProcessError) as error:
                raise LeftOutError(f"{name}.c can't be built here: {error}") from error
            self._binaries[name] = binary
        return self._binaries[name]


def wait_for_mount(process: subprocess.Popen[bytes], root: Path) -> None:
    """Return when something is mounted at `root`."""
    limit = time.monotonic() + MOUNT_LIMIT_SECONDS
    while device_of(root) is None:
        if process.poll() is not None or time.monotonic() > limit:
            raise LeftOutError(f"{root.name} does not mount (exit code {process.poll()})")
        time.sleep(POLL_SECONDS)


@contextlib.contextmanager
def new_room(folder: Path, scale: Scale) -> Iterator[Room]:
    """A room in an empty folder, removed at the end."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    try:
        with contextlib.ExitStack() as resources:
            yield Room(folder, scale, resources)
    finally:
        unmount_below(folder)
        shutil.rmtree(folder, ignore_errors=True)


def unmount_below(folder: Path) -> None:
    """Clean up after an interrupt during mounting."""
    for line in reversed(Path("/proc/self/mounts").read_text().splitlines()):
        _, escaped, kind, *_ = line.split()
        mountpoint = escaped.encode().decode("unicode_escape")  # a space is \040
        if mountpoint.startswith(f"{folder}/"):
            unmount = ("fusermount3", "-uz") if kind.startswith("fuse") else ("umount", "--lazy")
            subprocess.run([*unmount, mountpoint], check=True)
