"""Messages as published and as read (docs/format.md, 2)."""

from collections.abc import Mapping, Sequence

from msgspec import Struct, field

from engine.record.header import Host as Host
from engine.record.header import message_id as message_id
from engine.record.kernel.decode import StoredMessage as StoredMessage


class Message(Struct, frozen=True, gc=False):  # gc: many are made at once, and none is part of a cycle
    """A message to publish. Immutable; `msgspec.structs.replace` makes a changed copy.

    `keys` and `tags` are written first, as properties KEYS (joined by a space) and TAGS, unless `properties` has them;
    the other properties follow in the mapping's order. `born_time_ms` None is the time of the put, a host of None is
    the store's own. `sys_flag` has the compression type and a transaction's state; the encoder sets the bits for IPv6.
    """

    topic: str
    body: bytes | bytearray | memoryview
    keys: Sequence[str] = ()
    tags: str = ""
    properties: Mapping[str, str] = field(default_factory=dict)
    flag: int = 0
    sys_flag: int = 0
    born_time_ms: int | None = None
    born_host: Host | None = None
    store_host: Host | None = None
    reconsume_times: int = 0
    prepared_transaction_offset: int = 0
