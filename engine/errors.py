"""Every error that the engine raises. Each holds its facts as fields; its text says what happened and what to do.

StoreError
├── OpenError                     the store cannot be opened
│   ├── NotAStoreError            no store there, or a file there that no store has
│   ├── UnsupportedStoreError     a store, but written in a way this engine does not read
│   ├── MissingLogError           files of the commit log are not where they were looked for
│   ├── DuplicateLogFileError     two folders hold the same file of the commit log
│   ├── OptionError               an option that is none, or with a value it cannot have
│   ├── ConfigFileError           a configuration file that cannot be understood
│   ├── StoreLockedError          another process has it open
│   ├── ListenError               a port for replicas can't be had
│   ├── ReplicaStoreError         a replica, which only its replication writes
│   ├── NotAReplicaError          no replica, where one is needed
│   ├── AnotherStoreError         another store, or nothing, is where one was expected
│   └── StoreBusyError            what was read went, again and again
├── WriteError                    nothing was stored
│   ├── ReadOnlyStoreError        opened read-only, following, or stopped after a failed flush
│   ├── StoreFullError            no space for the next file
│   ├── IllegalMessageError       the message cannot be written in this format
│   ├── MessageTooLargeError      body, properties or topic over their limit
│   └── TopicPermissionError      `perm` of the topic in topics.json has no write bit
├── BackupError                   a directory can't become, or go on being, a backup of the store
├── ReplicationError              another process does not replicate as it must
│   ├── ProtocolError             it sent bytes that the protocol does not have
│   ├── RemotingError             it refused a request, or did not answer it
│   ├── NotReplicatedError        too few replicas acknowledged messages in time
│   ├── ConnectionEndedError      it closed the connection, or was silent
│   └── MasterRefusedError        its log does not continue the replica's
├── QueueGapError                 an entry would leave a hole in its consume queue
├── FlushFailedError              bytes may not be on disk; final for this open store
├── NoDescriptorError             the process has no file descriptor left; trying again later may work
├── StoreClosedError              used after close()
├── ObstructedError               a folder, link or FIFO where the store needs a file, or a file where it needs a folder
├── TopicError
│   ├── TopicNotFoundError
│   ├── TopicExistsError
│   ├── TopicsRefusedError        several of the topics that were to be made at once
│   ├── ConsumerOffsetError       a consumer group that can't have that offset, or name
│   └── IllegalTopicError
└── ReadError
    ├── MessageNotFoundError      no such queue offset or physical offset
    ├── ExpiredMessageError       retention removed it
    ├── TruncatedFileError        a file is shorter than it must be
    ├── RetiredFileError          a file was deleted, and its readers' time is over
    ├── UnreadableRangeError      bytes of a file that nothing was written to yet
    ├── DamagedRecordError        the bytes there are not the record that was stored
    │   └── RefusedReadError      the disk does not give the bytes there
    └── BodyTooLargeError         decompresses to more than the cap
"""

from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any


class StoreError(Exception):
    """Root of the tree. Subclasses are dataclasses, so that an error crosses a process border with its facts."""

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), tuple(getattr(self, field.name) for field in fields(self))  # type: ignore[arg-type]


class OpenError(StoreError):
    """The store cannot be opened."""


@dataclass(eq=False)
class NotAStoreError(OpenError):
    """`path` is not a store, or holds a file that no store has."""

    path: Path
    reason: str

    def __str__(self) -> str:
        return f"{self.path} is not a message store: {self.reason}"


@dataclass(eq=False)
class UnsupportedStoreError(OpenError):
    """A store written with a feature that this engine does not read; `what` names it, `instead` says what to do."""

    path: Path
    what: str
    instead: str = ""

    def __str__(self) -> str:
        return f"{self.path}: {self.what} is not supported" + (f": {self.instead}" if self.instead else "")


@dataclass(eq=False)
class MissingLogError(OpenError):
    """Files of the commit log of the store at `path` are missing, as its member `evidence` shows; usually they are
    in another folder. `what` is missing; `otherwise` is the remedy if they are nowhere."""

    path: Path
    evidence: str
    what: str
    otherwise: str
    options: str = "-o storePathCommitLog=PATH[,PATH...]"
    """The options that name the log's folders."""

    def __str__(self) -> str:
        return (
            f"{self.path}: {self.what}: name all folders of the log by {self.options}, as the broker's broker.conf does"
            f" (or --broker-conf); {self.otherwise}"
        )


@dataclass(eq=False)
class DuplicateLogFileError(OpenError):
    """Two folders of a commit log hold a file of one name, and both have records."""

    first: Path
    second: Path

    def __str__(self) -> str:
        return f"{self.first} and {self.second} are one file of the log, and both hold records: move one of them away"


@dataclass(eq=False)
class StoreLockedError(OpenError):
    """Another process holds the store's lock; `pid` when it could be found."""

    path: Path
    pid: int | None = None

    def __str__(self) -> str:
        holder = f"process {self.pid}" if self.pid else "another process"
        return f"{self.path} is open in {holder}: stop it, or follow it (--follow; OpenMode.FOLLOW)"


@dataclass(eq=False)
class ReplicaStoreError(OpenError):
    """The store at `path` is a replica of the broker at `master`: only `mountctl replicate` writes it."""

    path: Path
    master: str

    def __str__(self) -> str:
        return f"{self.path} is a replica of {self.master}: follow it (--follow), or `mountctl promote` it to write"


@dataclass(eq=False)
class NotAReplicaError(OpenError):
    """The store at `path` is not a replica: `reason` says why, `remedy` what to do."""

    path: Path
    reason: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.path} is not a replica: {self.reason}; {self.remedy}"


@dataclass(eq=False)
class AnotherStoreError(OpenError):
    """At `path` is not the store that was expected there, as `found` says: it was moved, or its disk is not mounted."""

    path: Path
    found: str

    def __str__(self) -> str:
        return f"{self.path} is not the store that was there: {self.found}; move it back, or mount its disk"


@dataclass(eq=False)
class StoreBusyError(OpenError):
    """The store at `path` was not left alone for as long as it takes to read it beside its writer."""

    path: Path

    def __str__(self) -> str:
        return f"{self.path}: its writer was replaced, or retention deleted the data being read, each time: try again"


@dataclass(eq=False)
class BackupError(StoreError):
    """The directory `path` can't be, or go on being, a backup of the store: `what` says why, `remedy` what to do."""

    path: Path
    what: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.path} can't be a backup of the store: {self.what}: {self.remedy}"


@dataclass(eq=False)
class OptionError(OpenError):
    """The store option `name` is not one, or its value is none that it can have."""

    name: str
    reason: str

    def __str__(self) -> str:
        return f"option {self.name}: {self.reason}"


@dataclass(eq=False)
class ConfigFileError(OpenError):
    """The file at `path`, and its backup where there is one, cannot be understood; `reason` says where it fails."""

    path: Path
    reason: str

    def __str__(self) -> str:
        return f"{self.path}: {self.reason}; correct the file or move it away"


@dataclass(eq=False)
class ListenError(OpenError):
    """Replicas can't be served at `address`; `reason` is the system's."""

    address: str
    reason: str

    def __str__(self) -> str:
        return f"{self.address}: {self.reason}; choose other ports by haListenPort and listenPort"


class ReplicationError(StoreError):
    """Another process, a master or a replica, does not replicate as it must."""


@dataclass(eq=False)
class ProtocolError(ReplicationError):
    """`peer` sent bytes that its protocol does not have, as `what` says. The connection ends."""

    peer: str
    what: str

    def __str__(self) -> str:
        return f"{self.peer} does not speak RocketMQ's protocol: {self.what}"


@dataclass(eq=False)
class RemotingError(ReplicationError):
    """`peer` refused `request`, or did not answer it; `reason` says how."""

    peer: str
    request: str
    reason: str

    def __str__(self) -> str:
        return f"{self.peer} did not answer {self.request}: {self.reason}"


@dataclass(eq=False)
class NotReplicatedError(ReplicationError):
    """In `seconds` only `acknowledged` replicas of `needed` acknowledged the log up to `physical_end`. Its messages are
    stored and stay so; waiting again may succeed."""

    physical_end: int
    acknowledged: int
    needed: int
    seconds: float

    def __str__(self) -> str:
        return (
            f"{self.acknowledged} of {self.needed} replicas acknowledged the log up to {self.physical_end} in"
            f" {self.seconds:g} s: its messages are stored, and the next fsync waits again"
        )


@dataclass(eq=False)
class ConnectionEndedError(ReplicationError):
    """The connection to `peer` ended; `reason` says why."""

    peer: str
    reason: str

    def __str__(self) -> str:
        return f"the connection to {self.peer} ended: {self.reason}"


@dataclass(eq=False)
class MasterRefusedError(ReplicationError):
    """The replica at `path` can't go on from `master`, as `what` says. Nothing of it was changed."""

    path: Path
    master: str
    what: str

    def __str__(self) -> str:
        return (
            f"{self.path} can't continue as a replica of {self.master}: {self.what}; the copy is as it was: promote it,"
            " or `mountctl replicate --begin-again`"
        )


class WriteError(StoreError):
    """Nothing was stored."""


@dataclass(eq=False)
class ReadOnlyStoreError(WriteError):
    """The store takes no messages; `reason` says why."""

    reason: str

    def __str__(self) -> str:
        return f"the store is read-only: {self.reason}"


@dataclass(eq=False)
class StoreFullError(WriteError):
    """No space for a file of `needed_bytes` at `path`. The next put tries again."""

    path: Path
    needed_bytes: int

    def __str__(self) -> str:
        return f"no space for {self.path} ({self.needed_bytes:,} bytes): free some, then try again"


@dataclass(eq=False)
class IllegalMessageError(WriteError):
    """The message cannot be written in this format."""

    reason: str

    def __str__(self) -> str:
        return f"illegal message: {self.reason}"


@dataclass(eq=False)
class MessageTooLargeError(WriteError):
    """`what` ("body", "properties", "topic", "record") has `size_bytes`, over `limit_bytes`."""

    what: str
    size_bytes: int
    limit_bytes: int

    def __str__(self) -> str:
        return f"{self.what} of {self.size_bytes:,} bytes is over the limit of {self.limit_bytes:,}"


@dataclass(eq=False)
class TopicPermissionError(WriteError):
    """`permission`, which is `perm` of `topic` in config/topics.json, has no write bit (2)."""

    topic: str
    permission: int

    def __str__(self) -> str:
        return f"topic {self.topic!r} takes no messages: its perm in config/topics.json is {self.permission}, without 2"


@dataclass(eq=False)
class QueueGapError(StoreError):
    """An entry for queue offset `found`, of the record with that place and size, came when that consume queue goes on
    at `expected`: entries are missing."""

    topic: str
    queue: int
    expected: int
    found: int
    physical_offset: int
    size: int

    def __str__(self) -> str:
        return f"consume queue {self.topic}/{self.queue} goes on at offset {self.expected}, not {self.found}"


@dataclass(eq=False)
class FlushFailedError(StoreError):
    """The disk refused a flush of `path`: data written since the last good flush may be lost. Final for this open
    store."""

    path: Path
    reason: str

    def __str__(self) -> str:
        return f"flush of {self.path} failed: {self.reason}; unflushed messages may be lost, check the disk and reopen"


@dataclass(eq=False)
class NoDescriptorError(StoreError):
    """The process, or the system, has no descriptor or no memory left to open `path`. Nothing was lost; a later try may
    work."""

    path: Path
    lacking: str = "file descriptor"

    def __str__(self) -> str:
        return f"no {self.lacking} is left to open {self.path}: allow the process more (ulimit -n -v), then try again"


@dataclass(eq=False)
class StoreClosedError(StoreError):
    """The store, or a part of it, was used after close()."""

    def __str__(self) -> str:
        return "the store is closed"


@dataclass(eq=False)
class ObstructedError(StoreError):
    """The store needs a `needed` ("file", "folder") at `path`, and something else is there; `found` describes it.
    Nothing was done."""

    path: Path
    needed: str
    found: str = ""

    def __str__(self) -> str:
        found = self.found or "in the way"
        return f"{self.path} is {found}: the store needs a {self.needed} of that name, so move away what is there"


class TopicError(StoreError):
    """A topic or queue is not as the call needs it."""


@dataclass(eq=False)
class TopicNotFoundError(TopicError):
    """No such topic, or no such queue in it when `queue` is given."""

    topic: str
    queue: int | None = None

    def __str__(self) -> str:
        return f"no topic {self.topic!r}" if self.queue is None else f"topic {self.topic!r} has no queue {self.queue}"


@dataclass(eq=False)
class TopicExistsError(TopicError):
    """The topic is there already."""

    topic: str

    def __str__(self) -> str:
        return f"topic {self.topic!r} exists"


@dataclass(eq=False)
class TopicsRefusedError(TopicError):
    """Several topics were to be made at once, and none was made. `reasons` has a reason for each topic that can't be
    made."""

    reasons: tuple[str, ...]

    def __str__(self) -> str:
        return f"no topic was made: {'; '.join(self.reasons)}"


@dataclass(eq=False)
class ConsumerOffsetError(TopicError):
    """A consumer group cannot have that offset, or cannot be named so."""

    group: str
    reason: str

    def __str__(self) -> str:
        return f"consumer group {self.group!r}: {self.reason}"


@dataclass(eq=False)
class IllegalTopicError(TopicError):
    """`topic` cannot be a topic's name, or `reason` names what else is wrong with it."""

    topic: str
    reason: str

    def __str__(self) -> str:
        return f"illegal topic {self.topic!r}: {self.reason}"


class ReadError(StoreError):
    """A message cannot be read."""


@dataclass(eq=False)
class MessageNotFoundError(ReadError):
    """No message at `queue_offset` of that queue; for a look-up by physical offset, only that is set."""

    topic: str = ""
    queue: int = -1
    queue_offset: int = -1
    physical_offset: int = -1

    def __str__(self) -> str:
        if self.topic:
            return f"no message at offset {self.queue_offset} of {self.topic}/{self.queue}"
        return f"no message at physical offset {self.physical_offset}"


@dataclass(eq=False)
class ExpiredMessageError(ReadError):
    """Retention removed it: the queue (or the log, when `topic` is empty) now begins at `min_offset`."""

    topic: str
    queue: int
    offset: int
    min_offset: int

    def __str__(self) -> str:
        within = f"{self.topic}/{self.queue}" if self.topic else "the commit log"
        return f"offset {self.offset} of {within} has expired: it begins at {self.min_offset} now"


@dataclass(eq=False)
class DamagedRecordError(ReadError):
    """The bytes at `physical_offset` are not the record that was stored there."""

    physical_offset: int
    reason: str

    def __str__(self) -> str:
        return f"damaged record at physical offset {self.physical_offset}: {self.reason}"


REFUSED_PAGE = "the disk refuses a page of it"
"""The reason of a RefusedReadError."""
REFUSED_FILE = "the disk refuses to open it"
"""The reason of one that is about all of a file."""


@dataclass(eq=False)
class RefusedReadError(DamagedRecordError):
    """The disk refused to read the byte at `position` of the file at `path`, and those near it. It was needed for the
    record at `physical_offset`; -1 when it is not known for which, or was needed for none. A later try may work."""

    path: Path
    position: int

    def __str__(self) -> str:
        record = f" (record at physical offset {self.physical_offset})" if self.physical_offset >= 0 else ""
        return f"{self.path} can't be read at byte {self.position}: {self.reason}{record}"


@dataclass(eq=False)
class BodyTooLargeError(ReadError):
    """The body decompresses to more than `limit_bytes`."""

    physical_offset: int
    limit_bytes: int

    def __str__(self) -> str:
        return f"body at physical offset {self.physical_offset} decompresses to over {self.limit_bytes:,} bytes"


@dataclass(eq=False)
class TruncatedFileError(ReadError):
    """The file at `path` has `found_bytes`, where `expected_bytes` are needed: something cut it."""

    path: Path
    expected_bytes: int
    found_bytes: int

    def __str__(self) -> str:
        return f"{self.path} has {self.found_bytes:,} bytes instead of {self.expected_bytes:,}: something cut it"


@dataclass(eq=False)
class RetiredFileError(ReadError):
    """The file at `path` was deleted and can't be read any more."""

    path: Path

    def __str__(self) -> str:
        return f"{self.path} was deleted"


@dataclass(eq=False)
class UnreadableRangeError(ReadError):
    """Bytes [position, position + length) of the file at `path`, of which only `readable_bytes` may be read."""

    path: Path
    position: int
    length: int
    readable_bytes: int

    def __str__(self) -> str:
        return f"{self.path} has {self.readable_bytes:,} readable bytes, not {self.length:,} at {self.position:,}"
