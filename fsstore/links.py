"""Names that are computed: `@first`, `@last` and `@<time>` in a queue, and `keys/` with what is below it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from engine import StoredMessage
from fsstore.interface import Attributes
from fsstore.messages import MessageFiles
from fsstore.names import MATCHES_SUFFIX, decode_key, encode_key, offset_name, parse_match, parse_time_ms
from fsstore.nodes import Context, Directory, Node, not_found

LISTED_KEYS = 10_000
"""`ls keys/` lists the keys of about so many of the topic's newest messages: the index itself holds hashes alone."""

_ALL_MATCHES = 1 << 31


class QueueLink(Node):
    """A link in a queue directory to a message beside it."""

    def __init__(self, context: Context, queue_offset: int) -> None:
        self._context = context
        self._target = offset_name(queue_offset)

    def attributes(self) -> Attributes:
        return self._context.appearance.link(self.inode, self._target)

    def target(self) -> bytes:
        return self._target


@dataclass(frozen=True, slots=True)
class QueueLinkName:
    """What a QueueLink is known by in the inode table."""

    topic: str
    queue: int
    queue_offset: int


def look_up_queue_link(context: Context, topic: str, queue: int, name: bytes) -> Attributes:
    """Attributes of `@first`, `@last`, `@<time>`; ENOENT for other names and where no message is."""
    queue_offset = _queue_offset(context, topic, queue, name)
    link = context.inodes.named(QueueLinkName(topic, queue, queue_offset), lambda: QueueLink(context, queue_offset))
    return link.attributes()


def _queue_offset(context: Context, topic: str, queue: int, name: bytes) -> int:
    bounds = context.store.bounds(topic, queue)
    if name == b"@first":
        queue_offset = bounds.min_offset
    elif name == b"@last":
        queue_offset = bounds.max_offset - 1
    else:
        when_ms = parse_time_ms(name[1:]) if name[:1] == b"@" else None
        if when_ms is None:
            raise not_found()
        queue_offset = context.store.offset_at(topic, queue, when_ms)
    if not bounds.min_offset <= queue_offset < bounds.max_offset:
        raise not_found()
    return queue_offset


@dataclass(frozen=True, slots=True)
class MatchesName:
    """What a MatchesDirectory is known by in the inode table."""

    topic: str
    key: str


class KeysDirectory(Directory):
    """`keys/`: each key is a link to the newest message that carries it; `<key>@all` is a directory of all of them."""

    def __init__(self, context: Context, messages: MessageFiles, topic: str) -> None:
        super().__init__(context)
        self._messages = messages
        self._topic = topic

    def lookup(self, name: bytes) -> Attributes:
        if name.endswith(MATCHES_SUFFIX):
            key, _ = self._newest(name[: -len(MATCHES_SUFFIX)])
            return self._matches(key).attributes()
        return self._messages.key_link(self._newest(name)[1])

    @property
    def lists_slowly(self) -> bool:
        return True

    def names(self) -> Sequence[bytes]:
        keys = self._context.store.newest_keys(self._topic, LISTED_KEYS)
        return [name for name in map(encode_key, keys) if name is not None]

    def _newest(self, name: bytes) -> tuple[str, StoredMessage]:
        key = decode_key(name)
        message = self._context.store.newest_with_key(self._topic, key) if key else None
        if key is None or message is None:
            raise not_found()
        return key, message

    def _matches(self, key: str) -> Node:
        return self._context.inodes.named(
            MatchesName(self._topic, key), lambda: MatchesDirectory(self._context, self._messages, self._topic, key)
        )


class MatchesDirectory(Directory):
    """`keys/<key>@all/`: a link `<queue>-<offset>` for each message that carries the key, by queue and offset."""

    def __init__(self, context: Context, messages: MessageFiles, topic: str, key: str) -> None:
        super().__init__(context)
        self._messages = messages
        self._topic = topic
        self._key = key

    def attributes(self) -> Attributes:
        return self._context.appearance.directory(self.inode, computed=True)

    def lookup(self, name: bytes) -> Attributes:
        place = parse_match(name)
        if place is None:
            raise not_found()
        message = self._context.store.get(self._topic, *place)
        if self._key not in message.keys and self._key != message.unique_key:
            raise not_found()
        return self._messages.match_link(message)

    @property
    def lists_slowly(self) -> bool:
        return True

    def names(self) -> Sequence[bytes]:
        matches = self._context.store.query(self._topic, self._key, _ALL_MATCHES)
        return [b"%d-%s" % (queue, offset_name(offset)) for queue, offset in sorted(set(map(_place, matches)))]


def _place(message: StoredMessage) -> tuple[int, int]:
    return message.queue_id, message.queue_offset
