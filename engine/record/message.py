"""Messages: what a publisher hands in, and what a reader gets (docs/format.md, 2)."""

from collections.abc import Mapping, Sequence

from msgspec import Struct, field

from engine.record.header import Host as Host
from engine.record.header import message_id as message_id
from engine.record.kernel.decode import StoredMessage as StoredMessage


class Message(Struct, frozen=True, gc=False):  # gc: many are made at once, and none is part of a cycle
    """What a publisher hands in; `msgspec.structs.replace` makes another one like it. Immutable.

    `keys` and `tags` are written as the properties KEYS (joined by a space) and TAGS, first of all, unless `properties`
    names them itself; the further properties follow in the mapping's order. `born_time_ms` None means the time of the
    put, a host of None the store's own. `sys_flag` says how the body is compressed, if it is, and a transaction's
    state; the bits for IPv6 are set when the message is encoded.
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
