"""The storage engine: Apache RocketMQ's message store, in files, mmap and numpy.

This page is the public API; nothing outside the engine reaches past it.

>>> from engine import Message, MessageStore, OpenMode, StoreConfig
>>> store = MessageStore.open("store", create=True)
>>> put = store.put(Message("orders", b"12 apples", keys=["ORDER-17"], tags="paid"), queue=0)
>>> put.queue, put.queue_offset
(0, 0)
>>> store.put_lines("orders", b"7 pears\\n3 plums\\n", queue=0).count
2
>>> bytes(store.get("orders", 0, 1).body)
b'7 pears'
>>> [bytes(message.body) for message in store.query("orders", "ORDER-17")]
[b'12 apples']
>>> [bytes(message.body) for message in store.read("orders", 0, start=1)]
[b'7 pears', b'3 plums']
>>> store.wait_durable(store.physical_end)  # on disk
>>> store
<MessageStore '.../store', write>

Another process, and this one, may follow it meanwhile:

>>> reader = MessageStore.open("store", StoreConfig(mode=OpenMode.FOLLOW))
>>> news = reader.follow("orders", start=2)
>>> bytes(next(news).body)
b'3 plums'
>>> reader.close()
>>> store.close()
"""

from engine.backup import BackedUp, back_up, restore
from engine.deadline import WouldBlock, check_deadline, nonblocking, uncollected, within
from engine.derived.known_ranges import KnownRange, KnownRanges
from engine.errors import (
    AnotherStoreError,
    BackupError,
    BodyTooLargeError,
    ConfigFileError,
    ConnectionEndedError,
    ConsumerOffsetError,
    DamagedRecordError,
    DuplicateLogFileError,
    ExpiredMessageError,
    FlushFailedError,
    IllegalMessageError,
    IllegalTopicError,
    ListenError,
    MasterRefusedError,
    MessageNotFoundError,
    MessageTooLargeError,
    MissingLogError,
    NoDescriptorError,
    NotAReplicaError,
    NotAStoreError,
    NotReplicatedError,
    ObstructedError,
    OpenError,
    OptionError,
    ProtocolError,
    QueueGapError,
    ReadError,
    ReadOnlyStoreError,
    RefusedReadError,
    RemotingError,
    ReplicaStoreError,
    ReplicationError,
    RetiredFileError,
    StoreBusyError,
    StoreClosedError,
    StoreError,
    StoreFullError,
    StoreLockedError,
    TopicError,
    TopicExistsError,
    TopicNotFoundError,
    TopicPermissionError,
    TopicsRefusedError,
    TruncatedFileError,
    UnreadableRangeError,
    UnsupportedStoreError,
    WriteError,
)
from engine.events import Expired, StoreListener
from engine.figures import Figure, counter, gauge, rows_of
from engine.files.lock import writer_of
from engine.files.news import NewsWatch
from engine.log.delay import SCHEDULE_TOPIC
from engine.open.offline import check_store
from engine.open.online import OnlineCheck, check_online
from engine.queue import Held, Queue
from engine.read.blocks import Block, Bodies, Lists, Outline
from engine.read.stream import QueueStream
from engine.read.stream_rows import STREAM_SEPARATOR
from engine.read.topic_queue import TopicQueue
from engine.record.batch import split_text
from engine.record.byte_columns import ByteColumn, CodedColumn, SliceColumn
from engine.record.columns import Columns
from engine.record.header import MIN_RECORD_BYTES
from engine.record.kernel.files import read_at_once, read_through, write_at_once
from engine.record.message import Host, Message, StoredMessage
from engine.record.properties import UNIQUE_KEY
from engine.record.record import check_message, topic_problem
from engine.repair import repair_store
from engine.replication.access import plain_ends, socket_owner
from engine.replication.address import Address, parse_address
from engine.replication.promotion import begin_again, promote
from engine.replication.replica import ReplicaOptions, replicate
from engine.results import (
    CheckProgress,
    Deletion,
    IndexState,
    MasterFigures,
    Problem,
    ProblemKind,
    PutRange,
    PutResult,
    QueueAtRest,
    QueueBounds,
    QueueState,
    RecoveryReport,
    ReplicaFigures,
    StoreStats,
    TextAtRest,
)
from engine.settings.broker_options import (
    MASTER_NAMES,
    OPTION_NAMES,
    RETENTION_NAMES,
    options_of,
    retention_from,
    with_broker_conf,
    with_options,
)
from engine.settings.config import (
    BROKER_SIZES,
    EMBEDDED_SIZES,
    FileSizes,
    FlushPolicy,
    MasterConfig,
    OpenMode,
    RecoveryProgress,
    Retention,
    StoreConfig,
    StoreIdentity,
)
from engine.settings.consumer_offsets import group_problem
from engine.settings.delay_levels import DelayLevels
from engine.settings.notes import CheckNote, ReplicaNote, ReplicaState
from engine.settings.topics_file import MAX_QUEUES, illegal_topic, refuse_topics
from engine.store import Hold, MessageStore
from engine.write.drop_box import DropBox, DroppedFile, FoundBox, Sending
from engine.write.drop_owner import FileOwner
from engine.write.retention_plan import DiskSpace, RetentionPlan

__all__ = [
    "BROKER_SIZES",
    "EMBEDDED_SIZES",
    "MASTER_NAMES",
    "MAX_QUEUES",
    "MIN_RECORD_BYTES",
    "OPTION_NAMES",
    "RETENTION_NAMES",
    "SCHEDULE_TOPIC",
    "STREAM_SEPARATOR",
    "UNIQUE_KEY",
    "Address",
    "AnotherStoreError",
    "BackedUp",
    "BackupError",
    "Block",
    "Bodies",
    "BodyTooLargeError",
    "ByteColumn",
    "CheckNote",
    "CheckProgress",
    "CodedColumn",
    "Columns",
    "ConfigFileError",
    "ConnectionEndedError",
    "ConsumerOffsetError",
    "DamagedRecordError",
    "DelayLevels",
    "Deletion",
    "DiskSpace",
    "DropBox",
    "DroppedFile",
    "DuplicateLogFileError",
    "Expired",
    "ExpiredMessageError",
    "Figure",
    "FileOwner",
    "FileSizes",
    "FlushFailedError",
    "FlushPolicy",
    "FoundBox",
    "Held",
    "Hold",
    "Host",
    "IllegalMessageError",
    "IllegalTopicError",
    "IndexState",
    "KnownRange",
    "KnownRanges",
    "ListenError",
    "Lists",
    "MasterConfig",
    "MasterFigures",
    "MasterRefusedError",
    "Message",
    "MessageNotFoundError",
    "MessageStore",
    "MessageTooLargeError",
    "MissingLogError",
    "NewsWatch",
    "NoDescriptorError",
    "NotAReplicaError",
    "NotAStoreError",
    "NotReplicatedError",
    "ObstructedError",
    "OnlineCheck",
    "OpenError",
    "OpenMode",
    "OptionError",
    "Outline",
    "Problem",
    "ProblemKind",
    "ProtocolError",
    "PutRange",
    "PutResult",
    "Queue",
    "QueueAtRest",
    "QueueBounds",
    "QueueGapError",
    "QueueState",
    "QueueStream",
    "ReadError",
    "ReadOnlyStoreError",
    "RecoveryProgress",
    "RecoveryReport",
    "RefusedReadError",
    "RemotingError",
    "ReplicaFigures",
    "ReplicaNote",
    "ReplicaOptions",
    "ReplicaState",
    "ReplicaStoreError",
    "ReplicationError",
    "Retention",
    "RetentionPlan",
    "RetiredFileError",
    "Sending",
    "SliceColumn",
    "StoreBusyError",
    "StoreClosedError",
    "StoreConfig",
    "StoreError",
    "StoreFullError",
    "StoreIdentity",
    "StoreListener",
    "StoreLockedError",
    "StoreStats",
    "StoredMessage",
    "TextAtRest",
    "TopicError",
    "TopicExistsError",
    "TopicNotFoundError",
    "TopicPermissionError",
    "TopicQueue",
    "TopicsRefusedError",
    "TruncatedFileError",
    "UnreadableRangeError",
    "UnsupportedStoreError",
    "WouldBlock",
    "WriteError",
    "back_up",
    "begin_again",
    "check_deadline",
    "check_message",
    "check_online",
    "check_store",
    "counter",
    "gauge",
    "group_problem",
    "illegal_topic",
    "nonblocking",
    "options_of",
    "parse_address",
    "plain_ends",
    "promote",
    "read_at_once",
    "read_through",
    "refuse_topics",
    "repair_store",
    "replicate",
    "restore",
    "retention_from",
    "rows_of",
    "socket_owner",
    "split_text",
    "topic_problem",
    "uncollected",
    "with_broker_conf",
    "with_options",
    "within",
    "write_at_once",
    "writer_of",
]
