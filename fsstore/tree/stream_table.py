"""Which file a look-up of `<queue>.log` gives, and which of those files a kernel knows too little of.

    look up ──► nothing came for REST_S, and the kernel knows its whole size ──► RestingStream, else StreamFile
    grown   ──► StreamFile: its attributes are to be dropped
            ──► RestingStream: falls behind; the kernel is told in steps (growth.py)

Both show one inode number, so programs that compare what they opened with what they find under the name see one file.
The name is looked up each time: whoever comes by path sees the exact size. Only a handle that was opened at rest, and
that is kept, learns of what came a step later.
"""

from __future__ import annotations

from collections.abc import Callable

from engine import OpenMode, QueueStream
from fsstore.interface import Attributes
from fsstore.tree.inodes import shown_stream_inode
from fsstore.tree.nodes import Context
from fsstore.tree.streams import RestingName, RestingStream, StreamFile, StreamName, newest_store_time_ms, quick_size

REST_S = 10
"""A stream whose newest message is older than this has come to rest."""

_NS_PER_MS = 1_000_000
_REST_NS = REST_S * 1_000 * _NS_PER_MS


class StreamTable:
    """The streams of one mount. Thread safety: one thread."""

    def __init__(self, context: Context) -> None:
        self.fell_behind: Callable[[], None] = lambda: None
        """Called when there is something to take with `behind`."""
        self._context = context
        self._answered: dict[tuple[str, int], set[StreamFile]] = {}
        self._behind: set[RestingStream] = set()
        self._under_way: set[RestingStream] = set()

    def look_up(self, topic: str, queue: int) -> Attributes:
        """Attributes of the stream of a queue as it begins now. SlowWork where its size takes long to find out."""
        file, newest_ms = self._file(topic, queue)
        return file.described(newest_ms)

    def listed(self, topic: str, queue: int) -> Attributes:
        """The same for a listing, and never slow: a size that would take long is left for the stat that follows."""
        file, newest_ms = self._file(topic, queue)
        return file.described(newest_ms) if file.is_summed else file.undescribed()

    def shown_inode(self, topic: str, queue: int) -> int:
        """The number that stat says of the stream of a queue as it begins now."""
        return shown_stream_inode(topic, queue, self._context.store.bounds(topic, queue).min_offset)

    def _file(self, topic: str, queue: int) -> tuple[StreamFile, int | None]:
        """The file to show, and when its newest message was stored."""
        stream = self._context.store.stream(topic, queue)
        newest_ms = newest_store_time_ms(self._context, topic, queue)
        size = quick_size(stream) if self._has_come_to_rest(newest_ms) else None
        if size is not None:
            resting = self._resting(RestingName(topic, queue, stream.first_offset), stream, size)
            if resting.is_exact:
                return resting, newest_ms
            self._falls_behind(resting)
        name = StreamName(topic, queue, stream.first_offset)
        node = self._context.inodes.named(name, lambda: StreamFile(self._context, name, stream, self._was_answered))
        assert isinstance(node, StreamFile)
        return node, newest_ms

    def _has_come_to_rest(self, newest_ms: int | None) -> bool:
        if self._context.store.mode is OpenMode.READ_ONLY:
            return True
        return newest_ms is not None and self._context.clock_ns() - newest_ms * _NS_PER_MS >= _REST_NS

    def _resting(self, name: RestingName, stream: QueueStream, size: int) -> RestingStream:
        """The file at rest. If the kernel does not know the one there is, a new one, which needs no telling."""
        node = self._named_resting(name, stream, size)
        if not node.is_exact and self._context.inodes.drop_unknown(node.inode):
            node = self._named_resting(name, stream, size)
        return node

    def _named_resting(self, name: RestingName, stream: QueueStream, size: int) -> RestingStream:
        node = self._context.inodes.named(
            name, lambda: RestingStream(self._context, name, stream, self._was_answered, size)
        )
        assert isinstance(node, RestingStream)
        return node

    def grown(self, topic: str, queue: int) -> list[int]:
        """The inodes whose exact size was answered since the last call, to be asked for again."""
        files = self._answered.pop((topic, queue), set())
        resting = {file for file in files if isinstance(file, RestingStream)}
        for file in resting:
            self._falls_behind(file)
        return sorted(file.inode for file in files - resting)

    def behind(self) -> list[RestingStream]:
        """Those that fell behind since the last call; say of each when it has `caught_up`."""
        taken, self._behind = self._behind, set()
        self._under_way |= taken
        return list(taken)

    def caught_up(self, stream: RestingStream) -> None:
        """The kernel knows what there was when the step began; what came since is for the next one."""
        self._under_way.discard(stream)

    def _was_answered(self, file: StreamFile) -> None:
        self._answered.setdefault((file.name.topic, file.name.queue), set()).add(file)
        if isinstance(file, RestingStream) and not file.is_exact:
            self._falls_behind(file)

    def _falls_behind(self, stream: RestingStream) -> None:
        if stream not in self._under_way:
            self._behind.add(stream)
            self.fell_behind()
