"""Following: reading a store while another process writes it.

Each refresh reads the log from its last end and shows the whole records. The writer's own consume queues lead to them,
or queues derived from the log if the writer's are unreadable. No file below the store is locked or written. A refresh
without changes costs a few calls, independent of the store's size. New records name the queues that get entries:
`ConsumeQueues.refresh` looks at these, until their writer has dispatched the records, and finds other changes in turn.
"""

from __future__ import annotations

import time
from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from engine.derived.consume_queues import ConsumeQueues, Key
from engine.derived.coverage import queues_complete
from engine.errors import RefusedReadError, StoreError, UnsupportedStoreError
from engine.files.file_scan import folders_in
from engine.files.mapped_file import Access, MappedFile
from engine.files.watch import Watch
from engine.log.entries import is_pre_blank
from engine.log.sequence import last_rows, queued_rows, secondary_slots_of
from engine.open.features import BATCH_QUEUES, StoreFeatures, features_of
from engine.open.geometry import ChosenSizes, choose_at, find_sizes, index_paths, remembered_sizes
from engine.open.missing_keys import MissingKeys
from engine.open.preflight import refuse_unreadable
from engine.open.scratch_index import Derivation, DerivedIndex
from engine.record.log_framing import EntryNumber
from engine.record.multi_dispatch import Slot
from engine.record.scan import ScannedRecords, ScanStop, scan_records
from engine.results import IndexState

if TYPE_CHECKING:
    from collections.abc import Iterable

    from engine.derived.store_files import StoreFiles
    from engine.derived.topic_view import TopicView
    from engine.events import StoreListener
    from engine.settings.config import StoreConfig

REFRESH_BYTES = 32 << 20
"""Limit of the bytes of log that one refresh reads, so that it ends soon. The next one continues."""

STUCK_SECONDS = 1.0
"""Time after which bytes that are no record count as damage, which is skipped once a queue leads past it."""

STUCK_SHARE = 0.1
"""Share of the time in which all queues are searched for one that leads past damage: with thousands it takes long."""

MAX_LOOKS = 200
"""Limit of the refreshes that look for the newest record's entry. A deleted topic never gets one."""

MAX_LOOKS_BESIDE = 10
"""MAX_LOOKS for a writer that also has queues in RocksDB: the queue files may be old, and get no more entries."""

TELLING_FOLDERS = ("consumequeue_rocksdb", "batchconsumequeue")
"""Folders whose contents, like those of the store's root, show its features."""

NEWEST_BYTES = 4096
"""Number of bytes of the newest record that each refresh compares. They differ if the log was rewritten."""

INDEX_SECONDS = 1.0
"""Time for which a store may lack index files before an index is derived. Brokers make one with the first message."""

PROOF_SECONDS = 1.0
"""Time after which the proof of an index's sizes is tried again if the log has grown. It doubles with each try."""

NEWEST_ENTRIES = 64
"""Number of a queue's newest entries that are searched for one that leads to a whole record."""

QUEUES_SECONDS = 1.0
"""Time for which a record may lack a queue, in a store without queues, before they are derived."""

NO_QUEUES = "no consume queue as a file"


class Entry(NamedTuple):
    """An entry of a consume queue, and the physical offset of its record."""

    physical_offset: int
    queue_offset: int


class Follower:
    """Takes over the writer's changes. Thread safety: one refresh at a time, beside any readers."""

    def __init__(
        self, parts: StoreFiles, topics: TopicView, choice: ChosenSizes, config: StoreConfig, listener: StoreListener
    ) -> None:
        """Call `begin` next. `choice` has the sizes with which the files were opened."""
        self._parts = parts
        self._layout = layout = parts.layout
        self._log = parts.log
        self._queues = parts.queues
        self._index = parts.index
        self._topics = topics
        self._deleted = parts.deleted
        self._choice = choice
        self._config = config
        self._listener = listener
        self._derived_index: DerivedIndex | None = None
        self._no_index_since: float | None = None
        self._index_watch = Watch(layout.index)
        self._lacking: str | None = None
        self._missing_keys = MissingKeys(parts.log, parts.index)
        self._no_queues_since: float | None = None
        self._are_queues_missing = False
        self._leaving: set[str] = set()
        self._derivation: Derivation | None = None
        self._are_files_behind = False
        self._kind = StoreFeatures()
        self._is_withdrawn = False
        self._log_begin = 0
        self._newest: tuple[int, bytes] | None = None
        self._number: EntryNumber | None = None
        self._next_proof, self._proof_seconds, self._proof_end = 0.0, PROOF_SECONDS, -1
        self._end = 0
        self._published = 0
        self._told_generation = 0
        self._told_begin = -1
        self._awaited: dict[Key, Entry] = {}
        """Queues with new records, in the order of the log, and the newest entry of each. Each refresh looks at them
        until an earlier one has shown that the writer had dispatched that record."""
        self._dispatched = -1
        """Physical offset of the newest record for which an awaited queue had an entry. All older records have theirs,
        because the writer dispatches in the order of the log."""
        self._looks_at_all = False
        """Whether the end moved past records that were not read: any queue may have got their entries."""
        self._looks = 0
        self._next_search: float | None = None
        self._refused: RefusedReadError | None = None
        self._log_watch, self._queues_watch = Watch(*layout.commit_log.folders), Watch(layout.consume_queues)
        self._topics_watch = Watch(layout.topics)
        folders = (layout.root, layout.config, layout.consume_queues, *(layout.root / name for name in TELLING_FOLDERS))
        self._kind_watches = [Watch(folder) for folder in folders]

    def begin(self) -> None:
        """Find the ends of the writer's queues and of the log after them, or derive queues from the whole log."""
        self._kind = features_of(self._layout, self._topics.table)
        self._begin_at(self._newest_by_files())
        if self._must_derive():
            self._begin_deriving()
        self.refresh()

    @property
    def derived_reason(self) -> str | None:
        """The reason why queues and index are derived from the log; None if the writer's own are used."""
        return self._kind.queues if self._derivation is not None else None

    @property
    def not_shown(self) -> tuple[str, ...]:
        """Sentences about data that no reader gets: data of features that are not read, and the log behind its end if
        the disk refuses it."""
        if self._refused is None:
            return self._kind.not_shown
        return *self._kind.not_shown, f"the log from physical offset {self._end:,} on: {self._refused}"

    def close(self) -> None:
        """Remove derived queues and index."""
        for derived in (self._derivation, self._derived_index):
            if derived is not None:
                derived.close()
        self._derivation = self._derived_index = self._lacking = None

    def _begin_at(self, newest: tuple[int, int] | None) -> None:
        """Show the log up to the end of `newest`, the record at [physical offset, end); None: up to its begin."""
        self._newest = self._number = None
        self._forget_awaited()
        self._log_begin = self._end = self._log.min_offset
        if newest is not None:
            physical_offset, self._end = newest
            self._remember_newest(physical_offset, self._end)
        self._publish()
        self._queues.expire(self._log.min_offset)
        self._queues.refresh(self._end)
        self._told_generation = self._queues.generation

    @property
    def index_state(self) -> IndexState:
        """The index in use, or the reason why there is none."""
        index = self._index
        if self._derivation is not None:
            return IndexState("derived", f"made from the commit log: the store has {self._kind.queues}")
        if self._derived_index is not None:
            folder, end = self._layout.index, self._derived_index.end
            so_far = "" if end >= self._end else f"; of its first {end - self._log.min_offset:,} bytes so far"
            what = self._lacking or "no index file, as where a broker keeps keys in RocksDB"
            return IndexState("derived", f"made from the commit log: {folder} has {what}{so_far}")
        if self._choice.rebuild_index:
            reason = (
                f"the slots and entries of {index.directory} can't be proved from its files; name them by"
                " -o maxHashSlotNum and maxIndexNum as in the broker's broker.conf"
            )
            return IndexState("not proved", reason)
        if not index.files and self._end > self._log.min_offset:
            reason = (
                f"{index.directory} has no index file: a broker makes one with its first message, or keeps keys in"
                " RocksDB; then one is made from the commit log in a moment"
            )
            return IndexState("none", reason)
        return IndexState("in use")

    def refresh(self) -> bool:
        """Find new records, queues and topics, and added or removed files; return whether anything changed. After an
        error (StoreError, OSError) the next call lists all folders again."""
        try:
            return self._refresh()
        except BaseException:
            for watch in self._watches():
                watch.forget()
            raise

    def _watches(self) -> tuple[Watch, ...]:
        return self._log_watch, self._queues_watch, self._topics_watch, *self._kind_watches

    def _refresh(self) -> bool:
        known = self._log.files.files
        if not known and not self._is_withdrawn:
            self._require_same_log()
        listed = self._list_log()
        if not self._is_withdrawn and (
            self._is_rewritten(known) or self._has_other_sizes(listed) or self._is_of_other_kind()
        ):
            self._withdraw()
        if self._is_withdrawn:
            self._begin_again()
            return True
        if listed:
            self._publish()
        if self._derivation is not None:
            return self._refresh_derived(self._derivation) or listed
        self._advance()
        grown = self._end != self._published
        if grown:
            self._publish()
        changed = listed or grown
        topics: Iterable[str] = self._still_there()
        if self._topics_watch.changed():
            changed |= self._reload_topics()
            topics = self._queues.topics()  # one may have been deleted and made anew
        if self._queues_watch.changed() or changed or self._is_behind() or topics:
            changed |= self._follow_queues(topics)
        if self._lacks_queues():
            self._are_queues_missing, self._kind = True, replace(self._kind, queues=NO_QUEUES)
            self._begin_deriving()
            self._listener.topics_changed()
            return True
        # The index each time: the writer indexes its last records after they are in their queues.
        return self._refresh_index() or changed

    def _reload_topics(self) -> bool:
        """Read topics.json; return whether it changed. A broker removes a deleted topic from it, and later the files of
        its queues, in a folder that stays."""
        before = self._topics.table.names()
        changed = self._topics.reload()
        if changed:
            self._leaving = self._leaving.union(before).difference(self._topics.table.names())
        return changed

    def _still_there(self) -> set[str]:
        """Topics that are no longer in topics.json, and still have queues: these may go without any news."""
        self._leaving = {topic for topic in self._leaving if self._queues.queue_ids(topic)}
        return self._leaving

    def _lacks_queues(self) -> bool:
        """Whether a record has lacked a queue for QUEUES_SECONDS, in a store without queues."""
        if not self._awaited or self._queues.has_any:
            self._no_queues_since = None
        elif self._no_queues_since is None:
            self._no_queues_since = time.monotonic()
        return self._no_queues_since is not None and time.monotonic() - self._no_queues_since >= QUEUES_SECONDS

    def _kind_now(self) -> StoreFeatures:
        """The store's features now. If its queues were missing, `queues` is NO_QUEUES until some exist."""
        kind = features_of(self._layout, self._topics.table)
        if self._are_queues_missing and kind.queues is None:
            with closing(self._listed_queues()) as queues:
                return kind if queues.has_any else replace(kind, queues=NO_QUEUES)
        return kind

    def _listed_queues(self) -> ConsumeQueues:
        """The writer's own queues, as listed now."""
        queues = ConsumeQueues(self._layout.consume_queues, self._queues.file_bytes, Access.READ)
        queues.load()
        return queues

    def _refresh_index(self) -> bool:
        """Refresh the index, or derive one if its files are missing or lack keys; return whether it changed."""
        index, derived = self._index, self._derived_index
        is_waited_for = derived is not None and self._lacking is None
        if is_waited_for and self._index_watch.changed() and index_paths(self._layout.index):
            self._drop_derived()
            derived = None
        if derived is not None:
            return derived.advance(self._end, REFRESH_BYTES)
        changed = index.refresh()
        is_usable = bool(index.files) and not index.foreign and not self._choice.rebuild_index
        if is_usable and (lacking := self._missing_keys.look(self._end, self._newest[0] if self._newest else -1)):
            self._lacking, self._derived_index = lacking, DerivedIndex(self._parts, self._config.cache)
            changed = True
        elif index.files or index.foreign or self._choice.rebuild_index or self._end <= self._log.min_offset:
            self._no_index_since = None
        elif self._no_index_since is None:
            self._no_index_since = time.monotonic()
        elif time.monotonic() - self._no_index_since >= INDEX_SECONDS:
            self._derived_index, self._no_index_since = DerivedIndex(self._parts, self._config.cache), None
            changed = True
        return changed

    def _drop_derived(self) -> None:
        """Go back to the writer's own queues and index."""
        layout, sizes = self._layout, self._choice.sizes
        if self._derivation is not None:
            self._queues.move(layout.consume_queues, sizes.consume_queue_bytes, Access.READ, is_made_here=False)
        self._index.move(layout.index, sizes.index_slots, sizes.index_entries, Access.READ)
        self.close()

    def _list_log(self) -> bool:
        """List the log's files if they may have changed; return whether they had."""
        files = self._log.files
        last = files.last
        is_growing = last is not None and _length(last) != files.file_bytes  # it is being copied here
        return (self._log_watch.changed() or is_growing) and files.refresh()

    # derived queues

    def _is_of_other_kind(self) -> bool:
        """Whether the writer's queues have changed their kind, or their files do not follow the log any more."""
        looks = [watch.changed() for watch in self._kind_watches]
        if any(looks):
            self._reload_topics()
            before, self._kind = self._kind, self._kind_now()
            if (before.queues, before.has_both) != (self._kind.queues, self._kind.has_both):
                return True
        return self._derivation is None and self._are_files_behind

    def _must_derive(self) -> bool:
        """Whether the writer's queues can't be used: they are no files, or do not lead to every record."""
        kind = self._kind
        if kind.queues is None:
            return False
        if not kind.has_both or self._are_files_behind or not self._queues.has_any:
            return True
        return not queues_complete(self._log, self._queues, self._deleted, self._end)

    def _begin_deriving(self) -> None:
        if self._derived_index is not None:
            self._drop_derived()
        self._derivation = derivation = Derivation(self._parts, self._config)
        self._newest = None
        self._forget_awaited()
        self._log_begin = self._end = self._log.min_offset
        self._publish()
        self._queues.expire(self._log.min_offset)
        self._take_derived(derivation, None)
        derivation.take_appended()
        self._topics.reload()
        self._forget_deleted(derivation)
        self._told_generation = self._queues.generation

    def _take_derived(self, derivation: Derivation, most_bytes: int | None) -> bool:
        """Dispatch new records of the log, and show them; return whether there were any."""
        try:
            derivation.advance(most_bytes)
        finally:
            grown, self._end = derivation.end != self._end, derivation.end
            newest = derivation.newest
            if grown and newest is not None:
                self._remember_newest(newest.physical_offset, newest.end)
            self._publish()
        return grown

    def _refresh_derived(self, derivation: Derivation) -> bool:
        changed = self._take_derived(derivation, REFRESH_BYTES)
        self._refused = self._refusal(self._end, 8)
        if self._topics_watch.changed() or self._queues_watch.changed():
            self._topics.reload()
            changed |= self._forget_deleted(derivation)
        for expired in self._queues.expire(self._log.min_offset):
            self._listener.expired(expired)
        if self._log.min_offset != self._told_begin:
            self._told_begin = self._log.min_offset
            derivation.delete_expired(self._config.clock())
        for topic, queue_id in derivation.take_appended():
            self._listener.appended(topic, queue_id)
        if self._queues.generation != self._told_generation:
            self._told_generation = self._queues.generation
            self._listener.topics_changed()
            changed = True
        return changed

    def _forget_deleted(self, derivation: Derivation) -> bool:
        """Drop the topics that their broker deleted, if topics.json has all topics; return whether there were any."""
        table = self._topics.table
        if not self._kind.topics_known or table.problem is not None or not table.names():
            return False
        root = self._layout.root
        known = {*table.names(), *folders_in(self._layout.consume_queues), *folders_in(root / BATCH_QUEUES)}
        gone = derivation.forget_topics(known)
        for topic, queue_id in gone:
            self._listener.queue_gone(topic, queue_id)
        return bool(gone)

    # a rewritten log

    def _is_rewritten(self, known: tuple[MappedFile, ...]) -> bool:
        """Whether the log begins earlier, or one of its `known` files was replaced, or its newest record differs."""
        files = self._log.files
        begin = files.min_offset
        shown = (one for one in known if begin <= one.start < self._end)
        if begin < self._log_begin or any(files.find(one.start) is not one for one in shown):
            return True
        self._log_begin = begin
        if self._newest is None or self._newest[0] < begin:
            return False
        physical_offset, head = self._newest
        try:
            return self._log.files.peek(physical_offset, len(head)) != head
        except RefusedReadError:  # an unreadable log stays shown as it was
            return False

    def _remember_newest(self, physical_offset: int, end: int) -> None:
        size = min(end - physical_offset, NEWEST_BYTES)
        try:
            self._newest = physical_offset, self._log.files.peek(physical_offset, size)
        except RefusedReadError:
            self._newest = None

    def _withdraw(self) -> None:
        """Hide the log and the queues, and notify listeners: their offsets will have other messages."""
        self._is_withdrawn = True
        self._newest = self._next_search = None
        self._forget_awaited()
        self._missing_keys.forget()
        self._no_queues_since = None
        self._log.files.forget(self._log.files.file_bytes)
        self._queues.forget(self._queues.file_bytes)
        if self._derivation is not None or self._derived_index is not None:
            self._drop_derived()
        self._listener.log_rewritten(self._end)
        for topic, queue_id in self._queues.gone():
            self._listener.queue_gone(topic, queue_id)

    def _begin_again(self) -> None:
        """Show the store as it is now. OpenError, OSError: it stays hidden, and the next refresh tries again."""
        layout = self._layout
        self._reload_topics()
        if layout.root.is_dir():
            refuse_unreadable(layout)
        self._require_same_log()
        self._kind = features_of(layout, self._topics.table)
        self._deleted.reload()
        self._choice = choose_at(self._layout, self._config)
        sizes = self._choice.sizes
        self._log.files.forget(sizes.commit_log_bytes)
        self._log.files.refresh()
        self._queues.forget(sizes.consume_queue_bytes)
        self._index.reopen(sizes.index_slots, sizes.index_entries)
        newest = self._newest_by_files()
        self._queues.load()
        self._begin_at(newest)
        if self._must_derive():
            self._begin_deriving()
        self._is_withdrawn = self._are_files_behind = self._are_queues_missing = False
        for watch in self._watches():
            watch.forget()
        self._listener.topics_changed()

    def _require_same_log(self) -> None:
        """UnsupportedStoreError if the store's log is in another folder now: its kind has changed."""
        layout = self._layout
        if layout.commit_log != self._log.files.paths:
            folder = layout.shown(layout.commit_log.folders[0])
            what = f"following a log that is another by now ({layout.commit_log.framing.kind}, {folder})"
            raise UnsupportedStoreError(layout.root, what, "mount the store again")

    # sizes, which may not be known yet

    def _has_other_sizes(self, listed: bool) -> bool:
        """Whether files now show that log or queues have other sizes than the ones in use. The index is reopened if its
        sizes differ."""
        if not self._may_tell_sizes(listed):
            return False
        before, sizes = self._choice, self._parts.sizes
        layout = self._layout
        if self._derivation is not None:
            self._choice = choose_at(self._layout, self._config)
            return self._choice.sizes.commit_log_bytes != sizes.commit_log_bytes
        if not before.rebuild_index and find_sizes(layout, remembered_sizes(layout)) == before.found:
            return False
        self._choice = choose_at(self._layout, self._config)
        chosen = self._choice.sizes
        is_theirs = self._derived_index is None
        if is_theirs and (chosen.index_slots, chosen.index_entries) != (sizes.index_slots, sizes.index_entries):
            self._index.reopen(chosen.index_slots, chosen.index_entries)
        return (chosen.commit_log_bytes, chosen.consume_queue_entries) != (
            sizes.commit_log_bytes,
            sizes.consume_queue_entries,
        )

    def _may_tell_sizes(self, listed: bool) -> bool:
        """Whether sizes may be found now: by the first file of a kind, by one that does not fit, or by a new proof."""
        found, log, index = self._choice.found, self._log.files, self._index
        if found.commit_log_bytes is None:
            return bool(log.files or log.problems)
        if self._derivation is not None:
            return listed and bool(log.problems)
        if found.consume_queue_bytes is None and self._end > log.min_offset:
            return True
        has_index = self._derived_index is None and bool(index.files or index.foreign)
        if found.index_file_bytes is None and has_index:
            return True
        return (listed and bool(log.problems)) or (self._choice.rebuild_index and self._may_be_proved())

    def _may_be_proved(self) -> bool:
        now = time.monotonic()
        if now < self._next_proof or self._end == self._proof_end:
            return False
        self._next_proof, self._proof_end = now + self._proof_seconds, self._end
        self._proof_seconds *= 2
        return True

    def _publish(self) -> None:
        """Make the log readable up to its whole end."""
        self._log.resume(self._end, 0)
        self._published = self._end

    def _is_behind(self) -> bool:
        """Whether the queues must be refreshed again, even without a change of their folders."""
        return bool(self._awaited) or self._looks_at_all or self._queues.is_behind

    def _follow_queues(self, topics: Iterable[str]) -> bool:
        """Look at the awaited queues, the folders of `topics`, and others in turn; return whether anything changed."""
        min_offset = self._log.min_offset
        for expired in self._queues.expire(min_offset):
            self._listener.expired(expired)
        appended = self._queues.refresh(self._end, None if self._looks_at_all else self._awaited, topics)
        self._looks_at_all = False
        for topic, queue_id in self._queues.gone():
            self._listener.queue_gone(topic, queue_id)
        for topic, queue_id in appended:
            self._listener.appended(topic, queue_id)
        self._note_dispatched()
        generation = self._queues.generation
        came_or_went = generation != self._told_generation
        if came_or_went:
            self._told_generation = generation
            self._listener.topics_changed()
        return bool(appended) or came_or_went

    def _note_dispatched(self) -> None:
        """After a look: forget the queues that had their entries before it, and find out which have them by now."""
        done = self._dispatched
        self._awaited = {key: entry for key, entry in self._awaited.items() if entry.physical_offset > done}
        if not self._awaited:
            return
        self._looks += 1
        key, newest = next(reversed(self._awaited.items()))
        self._dispatched = max(done, self._newest_dispatched(key, newest))
        most_looks = MAX_LOOKS_BESIDE if self._kind.has_both else MAX_LOOKS
        if self._dispatched < newest.physical_offset and self._looks >= most_looks:
            self._awaited = {}
            self._are_files_behind = self._kind.has_both

    def _newest_dispatched(self, key: Key, newest: Entry) -> int:
        """Physical offset of the newest record that an awaited queue leads to, -1 without one. `newest` is the newest
        awaited entry, of queue `key`. A queue that the disk refuses counts as complete."""
        try:
            if key not in self._queues.by_key and self._queues.leads_to(key, *newest):
                return newest.physical_offset
        except RefusedReadError:
            return newest.physical_offset
        opened = (self._queues.by_key.get(one) for one in self._awaited)
        return max((queue.newest_physical_offset for queue in opened if queue is not None), default=-1)

    def _forget_awaited(self) -> None:
        self._awaited, self._dispatched, self._looks_at_all = {}, -1, False

    # the log

    def _advance(self) -> None:
        """Move the end past the whole records after it."""
        began = self._end
        limit = began + REFRESH_BYTES
        self._refused = None
        while self._end < limit and self._advance_in_file(limit):
            self._refused = None
        if self._end != began:
            self._next_search = None

    def _advance_in_file(self, limit: int) -> bool:
        """Move the end within one file, or to the next one; return whether more may follow."""
        file = self._log.files.find(self._end)
        if file is None:
            return self._skip_expired()
        self._refused = self._refusal(self._end, 8)
        if self._refused is not None:
            return self._pass_damage()
        try:
            view = file.whole()
        except StoreError:
            return False
        position = self._end - file.start
        if not any(view[position : position + 8]):
            return False
        stop = ScanStop.END
        end, framing = min(len(view), limit - file.start), self._log.framing
        for found in scan_records(view, position, file.start, end, framing=framing, before=self._number):
            self._note_news(found)
            self._number = found.number
            stop = found.stop or stop
            self._end = file.start + found.end
            if len(found):
                self._remember_newest(int(found.records.headers["physical_offset"][-1]), self._end)
        following = file.start + file.size
        if stop is ScanStop.BLANK and self._log.files.find(following) is not None:
            self._end = following
            return True
        if self._end == file.start + position and stop is ScanStop.DAMAGED:
            return self._pass_damage()
        return False

    def _skip_expired(self) -> bool:
        """Continue at the log's begin if retention has deleted the log at the end; return whether it has."""
        if self._end >= self._log.min_offset:
            return False
        self._end, self._number = self._log.min_offset, None
        self._looks_at_all = True
        return True

    def _note_news(self, found: ScannedRecords) -> None:
        """Await the queues that get entries of these records."""
        rows, headers = queued_rows(found), found.records.headers
        for row, slots in secondary_slots_of(found, rows).items():
            for slot in slots:
                self._await(slot, int(headers["physical_offset"][row]))
        for row in last_rows(found, rows):
            topic, queue_id = found.topics[int(found.topic_rows[row])], int(found.records.queue_ids[row])
            slot = Slot(topic, queue_id, int(headers["queue_offset"][row]))
            self._await(slot, int(headers["physical_offset"][row]))

    def _await(self, slot: Slot, physical_offset: int) -> None:
        key, entry = slot[:2], Entry(physical_offset, slot.queue_offset)
        self._awaited[key] = max(entry, self._awaited.pop(key, entry))  # the newest is the last
        self._looks = 0

    def _pass_damage(self) -> bool:
        """Skip bytes that are no record once a queue leads past them; return whether the end moved."""
        now = time.monotonic()
        if self._next_search is None:
            self._next_search = now + STUCK_SECONDS
        if now < self._next_search:
            return False
        newest = self._newest_by_files()
        done = time.monotonic()
        self._next_search = done + max(STUCK_SECONDS, (done - now) / STUCK_SHARE)
        if newest is None or newest[1] <= self._end:
            return False
        physical_offset, self._end = newest
        self._number, self._looks_at_all = None, True
        self._remember_newest(physical_offset, self._end)
        return True

    def _newest_by_files(self) -> tuple[int, int] | None:
        """Physical offset and end of the newest record that a queue leads to, whole or refused by the disk; None
        without one. The queues' files are read as they are now, not as they are shown."""
        with closing(self._listed_queues()) as queues:
            found = queues.newest_entries(NEWEST_ENTRIES)
        found = found[~is_pre_blank(found)]
        starts = found["physical_offset"].astype(np.int64)
        ends = starts + found["size"]
        for row in np.lexsort((starts, ends))[::-1].tolist():
            physical_offset, end = int(starts[row]), int(ends[row])
            if self._refusal(physical_offset, end - physical_offset) or self._log.is_whole(physical_offset):
                return physical_offset, end
        return None

    def _refusal(self, physical_offset: int, size_bytes: int) -> RefusedReadError | None:
        """The error if the disk refuses one of these bytes of the log, else None."""
        try:
            self._log.files.peek(physical_offset, size_bytes)
        except RefusedReadError as error:
            return error
        return None


def _length(file: MappedFile) -> int:
    """Current size in bytes of the file of that name; 0 if it is gone."""
    try:
        return file.path.stat().st_size
    except FileNotFoundError:
        return 0
