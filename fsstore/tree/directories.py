"""The directories of the tree: the root with its topics, a topic with its queues, a queue with its messages."""

from __future__ import annotations

import errno
from collections.abc import Sequence
from functools import lru_cache, partial
from itertools import chain
from typing import NamedTuple, cast

import numpy as np

from engine import MAX_QUEUES, Queue, TopicNotFoundError
from fsstore.interface import Attributes, FilesystemError, ListedNames, OpenedDirectory, WorkKind
from fsstore.tree.append import AppendFile
from fsstore.tree.computed_links import KeysDirectory, look_up_queue_link, register_links
from fsstore.tree.deferred import deferred, in_thread
from fsstore.tree.drop import DROP, DropBoxes
from fsstore.tree.inodes import (
    Maker,
    NodeKey,
    shown_append_inode,
    shown_inodes,
    shown_stream_inode,
    shown_topic_inode,
)
from fsstore.tree.listing import Batch, Listing, NamesListing, QueueListing
from fsstore.tree.messages import MessageFiles
from fsstore.tree.names import (
    APPEND,
    MAX_QUEUE_OFFSET,
    NAME_MAX_BYTES,
    PLAIN_APPEND,
    Frame,
    can_all_be_names,
    can_be_name,
    from_name,
    never_exists,
    parse_append,
    parse_queue,
    parse_topic,
    to_names,
)
from fsstore.tree.nodes import NOT_CACHED, Context, Directory, Node, not_found
from fsstore.tree.streams import StreamTable, newest_store_time_ms

KEYS = b"keys"
STREAM_SUFFIX = b".log"
LONGEST_STREAMED = NAME_MAX_BYTES - len(STREAM_SUFFIX)
"""Bytes of the longest topic of which the stream can have a name."""

_parse_append = lru_cache(maxsize=256)(parse_append)


class Tree:
    """Makes the nodes below the root. Each has a key in the inode table."""

    def __init__(self, context: Context, messages: MessageFiles) -> None:
        self.context = context
        self.messages = messages
        self.streams = StreamTable(context)
        self.drops = DropBoxes(context)
        context.inodes.makers += [
            Maker(TopicDirectory, lambda key: TopicDirectory(self, self._there(key)[0])),
            Maker(QueueDirectory, self._queue_again),
            Maker(KeysDirectory, lambda key: KeysDirectory(self.context, self.messages, self._there(key)[0])),
            Maker(AppendFile, self._append_again),
        ]
        register_links(context, messages)

    def topic(self, topic: str) -> Node:
        return self.context.inodes.named(NodeKey(TopicDirectory, topic), lambda: TopicDirectory(self, topic))

    def queue(self, queue: Queue) -> Node:
        return self.context.inodes.named(
            NodeKey(QueueDirectory, queue.topic, queue.queue), lambda: QueueDirectory(self, queue)
        )

    def keys(self, topic: str) -> Node:
        return self.context.inodes.named(
            NodeKey(KeysDirectory, topic), lambda: KeysDirectory(self.context, self.messages, topic)
        )

    def append(self, directory: Node, topic: str, queue: Queue | None, name: bytes) -> Attributes:
        """A new `append` with the options in `name`. Each look-up has an inode of its own, so that the kernel does not
        serialize writers.

        stat shows the same number as for the stream of the queue or topic. So a program that compares its input with
        its output, as cat and cp do, refuses to read the bytes that it writes, which would never end."""
        options = _parse_append(name)
        if options is None:
            raise not_found()
        self._must_exist(topic, queue)
        node = AppendFile(self.context, topic, queue, options)
        node.name = name
        if options.frame is Frame.FILE:  # nothing is published before it is closed
            node.shown_inode = shown_append_inode(directory.inode, name)
        else:
            node.shown_inode = self.streams.shown_inode(topic, queue)
        detail = (name.decode("latin-1"), node.shown_inode)
        queue_id = None if queue is None else queue.queue
        self.context.inodes.add(node, NodeKey(AppendFile, topic, queue_id, detail), is_made_up=True)
        return node.attributes()

    def _append_again(self, key: NodeKey) -> Node:
        topic, queue = self._there(key)
        if key.detail is None:  # an earlier version listed it with a number
            return AppendFile(self.context, topic, queue, PLAIN_APPEND)
        name, shown_inode = cast("tuple[str, int]", key.detail)
        options = _parse_append(name.encode("latin-1"))
        if options is None:  # another version knew them
            raise FilesystemError(errno.ESTALE)
        node = AppendFile(self.context, topic, queue, options)
        node.name, node.shown_inode = name.encode("latin-1"), shown_inode
        return node

    def _there(self, key: NodeKey) -> tuple[str, Queue | None]:
        """Topic and queue of a node that is made again. ESTALE: they were deleted."""
        assert key.topic is not None
        try:
            self._must_exist(key.topic, None)
            return key.topic, None if key.queue is None else self.context.store.queue(key.topic, key.queue)
        except TopicNotFoundError:
            raise FilesystemError(errno.ESTALE) from None

    def _queue_again(self, key: NodeKey) -> Node:
        _, queue = self._there(key)
        assert queue is not None
        return QueueDirectory(self, queue)

    def _must_exist(self, topic: str, queue: Queue | None) -> None:
        """ENOENT for a topic or queue that was deleted while the kernel knew it: publishing would make it again."""
        store = self.context.store
        if not (store.has_topic(topic) if queue is None else store.has_queue(topic, queue.queue)):
            raise not_found()

    def listed_append(self, topic: str, queue: Queue | None) -> Attributes:
        """`append` in a listing, by its name only: the kernel looks it up in any case."""
        return self.context.attribute_factory.name_of_file(self.streams.shown_inode(topic, queue))


def refused_creation(context: Context, name: bytes) -> FilesystemError:
    """The error for making a file in a topic or queue: an `append@…` with invalid options does not exist."""
    is_append = name.startswith(APPEND + b"@") and not context.read_only
    return not_found() if is_append else context.refusal("no file is made here: drop it in drop/, or write to append")


class Members(NamedTuple):
    """Names in the root. `pairs` has those of each topic and its stream, also those that can't be listed."""

    names: Sequence[bytes]
    topics: Sequence[bytes]
    pairs: Sequence[bytes]


class RootDirectory(Directory):
    """Topics, and `@…` directories for everything else."""

    def __init__(self, tree: Tree) -> None:
        super().__init__(tree.context)
        self._tree = tree
        self._special: dict[bytes, Node] = {}

    def add(self, name: bytes, directory: Node) -> None:
        """Show `directory` as `name`, which can't be a topic's name."""
        self._special[name] = directory
        self._context.inodes.pin(directory, name.decode())

    def lookup(self, name: bytes) -> Attributes:
        special = self._special.get(name)
        if special is not None:
            return special.attributes()
        topic, has_topic = from_name(name), self._context.store.has_topic
        if has_topic(topic):
            return self._tree.topic(topic).attributes()
        if name.endswith(STREAM_SUFFIX) and has_topic(streamed := topic[: -len(STREAM_SUFFIX)]):
            return self._tree.streams.look_up(streamed, None)
        return self._context.absence(name)

    def describe(self, name: bytes) -> Attributes:
        if name in self._special:
            return self._special[name].attributes()
        topic = from_name(name)
        if self._context.store.has_topic(topic):
            return self._tree.topic(topic).attributes()
        return self._listed_stream(topic.removesuffix(".log"))

    def _listed_stream(self, topic: str) -> Attributes:
        """A topic's stream; by its name only, if its size is not quickly known: the kernel looks it up. ENOENT."""
        if not self._context.store.has_topic(topic):
            raise not_found()
        known = self._tree.streams.listed_topic(topic)
        if known is not None:
            return known
        return self._context.attribute_factory.name_of_file(shown_stream_inode(topic, None, 0))

    def names(self) -> Sequence[bytes]:
        return self.members().names

    def members(self) -> Members:
        """The names to list, in order."""
        topics = to_names(self._context.store.topics())
        if not self._special.keys().isdisjoint(topics):
            topics = [name for name in topics if name not in self._special]
        can_all, streams = can_all_be_names(topics, LONGEST_STREAMED), [topic + STREAM_SUFFIX for topic in topics]
        if STREAM_SUFFIX + b"/" in b"/".join([*topics, b""]):  # a topic has the name of another's stream, perhaps
            taken = {topic for topic in topics if topic.endswith(STREAM_SUFFIX)}
            can_all, streams = False, [b"" if stream in taken else stream for stream in streams]
        pairs = list(chain.from_iterable(zip(topics, streams, strict=True)))
        return Members([*self._special, *(pairs if can_all else filter(can_be_name, pairs))], topics, pairs)

    def opendir(self) -> tuple[Listing, OpenedDirectory]:
        return RootListing(self, self._context), NOT_CACHED

    def listed(self, members: Members) -> ListedNames:
        """The members, as a listing of names alone shows them."""
        names, topics, pairs = members
        factory, special = self._context.attribute_factory, [node.attributes() for node in self._special.values()]
        inodes = shown_inodes(topics).ravel()
        modes = np.tile([factory.name_of_directory(0).mode, factory.name_of_file(0).mode], len(topics))
        if len(names) < len(special) + len(pairs):
            listed = np.array(list(map(can_be_name, pairs)))
            inodes, modes = inodes[listed], modes[listed]
        return ListedNames(
            names,
            np.concatenate(([one.st_ino for one in special], inodes)),
            np.concatenate(([one.mode for one in special], modes)),
            np.arange(1, len(names) + 1),
        )

    def mkdir(self, name: bytes) -> None:
        self._context.must_be_writable()
        store, parsed = self._context.store, parse_topic(name)
        if parsed.problem:
            raise FilesystemError(errno.EINVAL, parsed.problem)
        queues = store.config.default_queues if parsed.queues is None else parsed.queues
        create = partial(store.create_topic, from_name(parsed.name), queues)
        in_thread(create, (self, name), WorkKind.WAITING)

    def made(self, name: bytes) -> Attributes:
        """The topic's name is the one without options, so the kernel must not cache the name with them."""
        topic = parse_topic(name).name
        found = self.lookup(topic)
        return found if topic == name else found._replace(entry_timeout=0)


class RootListing(NamesListing):
    """The root. A listing of names alone makes no object for a name: there may be thousands of topics."""

    def __init__(self, root: RootDirectory, context: Context) -> None:
        super().__init__(root, context.memory)
        self._root = root
        self._store = context.store
        self._members = Members((), (), ())
        self._listed: ListedNames | None = None
        self._as_of = 0
        """When `_listed` was right, as `MessageStore.topics_removed` counts."""

    def read(self, position: int, limit: int, *, with_attributes: bool = True) -> Batch:
        if with_attributes:
            return super().read(position, limit)
        self._begin(position)
        listed = self._present()
        first = int(listed.next_positions.searchsorted(position, side="right"))
        return listed.rows(first, first + limit) if first < len(listed.names) else []

    def _collected(self) -> Sequence[bytes]:
        self._as_of, self._listed = self._store.topics_removed, None
        self._members = deferred(self._root.members, self)
        return self._members.names

    def _present(self) -> ListedNames:
        """The names that were not removed since."""
        listed = self._listed or self._root.listed(self._members)
        if self._as_of != self._store.topics_removed:
            self._as_of, present = self._store.topics_removed, set(self._root.names())
            listed = listed.where([name in present for name in listed.names])
        self._listed = listed
        return listed


class TopicDirectory(Directory):
    """`append`, then each queue as a directory and as a stream, and `keys`."""

    def __init__(self, tree: Tree, topic: str) -> None:
        super().__init__(tree.context)
        self._tree = tree
        self._streams = tree.streams
        self._topic = topic
        self._attributes: Attributes | None = None

    @property
    def path(self) -> str:
        return self._topic

    def attributes(self) -> Attributes:
        found = self._attributes
        if found is None:  # they never change
            found = self._attributes = super().attributes()._replace(shown_inode=shown_topic_inode(self._topic))
        return found

    def lookup(self, name: bytes) -> Attributes:
        if name.startswith(APPEND):
            return self._tree.append(self, self._topic, None, name)
        if never_exists(name):
            return self._context.attribute_factory.cacheable_absence()
        if name == DROP:
            return self._tree.drops.look_up(self._topic, None)
        if name.endswith(STREAM_SUFFIX):
            return self._streams.look_up(self._topic, self._queue(name[: -len(STREAM_SUFFIX)]))
        node = self._tree.keys(self._topic) if name == KEYS else self._tree.queue(self._queue(name))
        return node.attributes()

    def describe(self, name: bytes) -> Attributes:
        if name == APPEND:
            return self._tree.listed_append(self._topic, None)
        if name.endswith(STREAM_SUFFIX):
            return self._streams.listed(self._topic, self._queue(name[: -len(STREAM_SUFFIX)]))
        return self.lookup(name)

    def names(self) -> Sequence[bytes]:
        names = [APPEND] if self._context.read_only else [APPEND, DROP]
        for queue in self._context.store.queues(self._topic):
            names += [b"%d" % queue, b"%d%s" % (queue, STREAM_SUFFIX)]
        return [*names, KEYS]

    def create(self, name: bytes) -> FilesystemError:
        return refused_creation(self._context, name)

    def mkdir(self, name: bytes) -> None:
        self._context.must_be_writable()
        queue = parse_queue(name)
        if queue is None or queue >= MAX_QUEUES:
            raise FilesystemError(
                errno.EINVAL, f"a folder of a topic is a queue: its name is a number below {MAX_QUEUES}"
            )
        in_thread(partial(self._grow, queue), (self, name), WorkKind.WAITING)

    def _grow(self, queue: int) -> None:
        """Add queues to the topic up to that one. EEXIST."""
        store = self._context.store
        if store.has_queue(self._topic, queue):
            raise FilesystemError(errno.EEXIST)
        store.grow_topic(self._topic, queue + 1)

    def _queue(self, name: bytes) -> Queue:
        """The queue of that name; ENOENT."""
        queue_id = parse_queue(name)
        if queue_id is None:
            raise not_found()
        try:
            return self._context.store.queue(self._topic, queue_id)
        except TopicNotFoundError:
            raise not_found() from None


class QueueDirectory(Directory):
    """`append`, and a file for each message, by its queue offset."""

    def __init__(self, tree: Tree, queue: Queue) -> None:
        super().__init__(tree.context)
        self._tree = tree
        self._queue = queue
        self._messages = tree.messages

    @property
    def path(self) -> str:
        return f"{self._queue.topic}/{self._queue.queue}"

    def attributes(self) -> Attributes:
        newest_ms = newest_store_time_ms(self._queue)
        return self._context.attribute_factory.directory(self.inode, mtime_ms=newest_ms)

    def lookup(self, name: bytes) -> Attributes:
        if name.isdigit():
            queue_offset = int(name)
            if queue_offset > MAX_QUEUE_OFFSET:
                raise not_found()
            return self._messages.found(self._queue.get(queue_offset))
        if name.startswith(APPEND):
            return self._tree.append(self, self._queue.topic, self._queue, name)
        if name[:1] == b"@":
            return look_up_queue_link(self._context, self._queue, name)
        if name == DROP:
            return self._tree.drops.look_up(self._queue.topic, self._queue.queue)
        return self._context.absence(name)

    def opendir(self) -> tuple[Listing, OpenedDirectory]:
        listing = QueueListing(
            self._context.store,
            self._queue,
            self._context.computed,
            self._context.attribute_factory.message_template,
            lambda: self._tree.listed_append(self._queue.topic, self._queue),
        )
        # Not cached: there may be a million names, and this side does not know which of them the kernel has dropped.
        # Looking each of those up takes five times as long as listing them again with their attributes.
        return listing, NOT_CACHED

    def create(self, name: bytes) -> FilesystemError:
        return refused_creation(self._context, name)
