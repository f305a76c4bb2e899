"""The mutants: where each stands, what it changes, and the suite that has to notice it.

Old and new text are lines of the file as they stand, so a change of the code moves one line here. A mutant whose text
is gone is not dropped: another one of its kind takes its place.
"""

from __future__ import annotations

from dataclasses import dataclass

POWER_CUTS = ("tests/durability/test_powerloss.py",)
KERNEL = "engine/record/kernel"


@dataclass(frozen=True, slots=True)
class Mutant:
    """A deliberate bug: `old` stands once in the file at `path` and becomes `new`; `suite` is what pytest is to run."""

    name: str
    path: str
    old: str
    new: str
    suite: tuple[str, ...]

    def applied_to(self, text: str) -> str:
        """The file with the bug. ValueError: the old text does not stand there once."""
        if text.count(self.old) != 1:
            raise ValueError(f"{self.name}: its text stands {text.count(self.old)} times in {self.path}")
        return text.replace(self.old, self.new)


MUTANTS = (
    # durability of bytes and names
    Mutant(
        "log-is-not-synced",
        "engine/files/mapped_file.py",
        "            self._disk.sync(number, self._path)\n",
        "            number = number\n",
        POWER_CUTS,
    ),
    Mutant(
        "names-of-new-files-are-not-synced",
        "engine/files/file_queue.py",
        "            for path in dict.fromkeys(names):\n                self._disk.sync_directory(path)\n",
        "            for path in dict.fromkeys(names):\n                path = path\n",
        POWER_CUTS,
    ),
    Mutant(
        "replaced-file-is-not-synced",
        "engine/files/disk.py",
        "content)\n        disk.sync(descriptor, path)\n",
        "content)\n",
        ("tests/engine/files/test_disk.py", *POWER_CUTS),
    ),
    Mutant(
        "name-of-a-replaced-file-is-not-synced",
        "engine/files/disk.py",
        "        rename(temporary, path)\n    except OSError:\n        unlink(temporary)\n        raise\n"
        "    disk.sync_directory(path.parent)\n",
        "        rename(temporary, path)\n    except OSError:\n        unlink(temporary)\n        raise\n",
        ("tests/engine/files/test_disk.py", "tests/engine/settings"),
    ),
    Mutant(
        "offset-of-a-group-is-not-durable",
        "engine/settings/consumer_offsets.py",
        "            write_config(path, content, disk)\n",
        "            threading.Thread(target=write_config, args=(path, content, disk)).start()\n",
        ("tests/engine/settings",),
    ),
    Mutant(
        "quarantine-moves-nothing",
        "engine/open/quarantine.py",
        "    rename(source, target)\n",
        "",
        ("tests/engine/open/test_quarantine.py",),
    ),
    Mutant(
        "quarantine-is-not-durable",
        "engine/open/quarantine.py",
        "    disk.sync_directory(target.parent)\n    disk.sync_directory(source.parent)\n",
        "",
        ("tests/engine/open/test_quarantine.py",),
    ),
    Mutant(
        "copy-before-a-frame-is-not-kept",
        "engine/log/tombstone.py",
        "    replace_file(path, content, disk)\n    return path\n",
        "    return path\n",
        ("tests/engine/open/test_quarantine.py",),
    ),
    Mutant(
        "cut-records-are-not-kept",
        "engine/open/quarantine.py",
        "        if holds_record(pages, first, last, file.start):\n",
        "        if not holds_record(pages, first, last, file.start):\n",
        ("tests/engine/open/test_quarantine.py",),
    ),
    Mutant(
        "full-disk-is-not-told-to-who-drops-a-file",
        "fsstore/tree/drop.py",
        "            raise self._spoil(error.errno or errno.EIO, str(error)) from error\n",
        "            self._spoil(error.errno or errno.EIO, str(error))\n",
        ("tests/fsstore/test_drop.py",),
    ),
    Mutant(
        "record-on-a-refused-page-counts-as-stored",
        f"{KERNEL}/append.pyx",
        "    if is_refused(at, record.size):\n",
        "    if False:\n",
        ("tests/engine/record/test_guard.py", "tests/engine/test_cut_files.py"),
    ),
    # the order of things
    Mutant(
        "marks-run-ahead-of-the-log",
        "engine/write/flush.py",
        "            self._log.wait_durable(snapshot.physical_end)\n",
        "",
        ("tests/engine/write", *POWER_CUTS),
    ),
    Mutant(
        "marks-run-ahead-of-the-queues",
        "engine/write/flush.py",
        "            self._flush_queues(0)\n            self._flush_index()\n",
        "            self._flush_index()\n",
        ("tests/engine/write", *POWER_CUTS),
    ),
    Mutant(
        "failed-sync-of-a-filesystem-counts-as-done",
        "engine/derived/consume_queues.py",
        "            return is_common and self._disk.sync_filesystem(self._folder, self.directory)\n"
        "        except OSError:\n            return False\n",
        "            return is_common and self._disk.sync_filesystem(self._folder, self.directory)\n"
        "        except OSError:\n            return True\n",
        ("tests/engine/test_wide_stores.py", *POWER_CUTS),
    ),
    Mutant(
        "queues-that-changed-are-not-all-flushed",
        "engine/write/durability.py",
        "        self._unflushed |= touched\n",
        "        self._unflushed = touched\n",
        ("tests/engine/test_wide_stores.py",),
    ),
    Mutant(
        "line-follows-a-recovery-point-that-was-not-stored",
        "engine/derived/marks.py",
        "        self._room_bytes = 0  # until it is there\n",
        "",
        ("tests/engine/test_wide_stores.py",),
    ),
    Mutant(
        "queue-that-changed-is-left-at-rest",
        "engine/derived/queues_at_rest.py",
        "        if size != file_bytes or written_ns >= before_ns:\n",
        "        if size != file_bytes:\n",
        ("tests/engine/test_wide_stores.py",),
    ),
    Mutant(
        "entries-behind-a-queue-at-rest-are-not-seen",
        f"{KERNEL}/folders.pyx",
        "return count_zeros(descriptor, end - size, size) == NOT_ZERO and is_blank(descriptor, end)\n",
        "return count_zeros(descriptor, end - size, size) == NOT_ZERO\n",
        ("tests/engine/test_wide_stores.py", *POWER_CUTS),
    ),
    Mutant(
        "opening-leaves-no-sign",
        "engine/open/open.py",
        '        write_durably(layout.abort, b"", disk)\n        disk.sync_directory(layout.root)\n',
        "        pass\n",
        ("tests/engine/open", "tests/engine/test_between_writers.py"),
    ),
    Mutant(
        "heads-of-a-batch-are-written-first",
        "engine/log/commit_log.py",
        "                    files[number].write(position + HEAD_BYTES, memoryview(part.buffer)[HEAD_BYTES:])\n",
        "                    files[number].write(position, part.buffer)\n",
        ("tests/engine/log/test_commit_log.py", "tests/engine/log/test_placing.py"),
    ),
    Mutant(
        "failed-batch-is-not-erased",
        "engine/log/commit_log.py",
        "                _erase(files, current.wrote, ends)\n                raise\n",
        "                raise\n",
        ("tests/engine/log/test_commit_log.py", "tests/engine/test_unpublished.py"),
    ),
    Mutant(
        "failed-flush-is-forgotten",
        "engine/files/mapped_file.py",
        "        except OSError as error:\n            self._failure = error\n            raise\n",
        "        except OSError:\n            raise\n",
        ("tests/engine/files/test_mapped_file.py", "tests/engine/write"),
    ),
    Mutant(
        "waiters-are-told-before-the-flush",
        "engine/write/flush.py",
        "            if answer is None and physical_end > self.durable_end:\n",
        "            if answer is None and physical_end > self._log.wrote_end:\n",
        ("tests/engine/write",),
    ),
    # evidence
    Mutant(
        "recovery-point-of-another-writer-is-believed",
        "engine/derived/marks.py",
        "        if lock_mtime_ns != self.lock_mtime_ns or self.physical_end < log.min_offset:\n",
        "        if self.physical_end < log.min_offset:\n",
        ("tests/engine/open", "tests/engine/test_between_writers.py"),
    ),
    Mutant(
        "damage-of-the-newest-record-is-not-seen",
        "engine/derived/marks.py",
        "        if record_crc(log, start, size) == crc:\n            return []\n",
        "        return []\n",
        ("tests/engine/open", "tests/engine/test_newest_damage.py"),
    ),
    Mutant(
        "lock-of-a-store-is-not-taken",
        "engine/files/lock.py",
        "            fcntl.lockf(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 0)\n",
        "            pass\n",
        ("tests/engine/files", "tests/engine/test_store_life.py"),
    ),
    Mutant(
        "another-store-is-taken-for-this-one",
        "engine/settings/identity.py",
        "    if found.inode != expected.inode or (expected.name and found.name and found.name != expected.name):\n",
        "    if found.inode != expected.inode:\n",
        ("tests/engine/test_identity.py",),
    ),
    # resources that users share
    Mutant(
        "share-is-not-counted",
        "fsstore/accounts.py",
        "            if fits:\n                self._add(pool, user, amount)\n            return fits\n",
        "            return fits\n",
        ("tests/fsstore/test_accounts.py",),
    ),
    Mutant(
        "reserve-is-for-all",
        "fsstore/accounts.py",
        "limit - limit // SHARES - others)",
        "limit - others)",
        ("tests/fsstore/test_accounts.py",),
    ),
    Mutant(
        "users-are-not-served-in-turn",
        "fsstore/fuse/turns.py",
        "            self._of.move_to_end(user)\n",
        "            pass\n",
        ("tests/mount/test_session.py",),
    ),
    Mutant(
        "held-memory-is-not-counted",
        "fsstore/tree/memory_budget.py",
        "            self._held += more\n",
        "            self._held += 0\n",
        ("tests/fsstore/test_memory_budget.py",),
    ),
    Mutant(
        "descriptor-of-a-drop-box-is-not-counted",
        "fsstore/tree/drop.py",
        "    take(user, Resource.DESCRIPTORS)\n",
        "",
        ("tests/fsstore/test_drop.py",),
    ),
    Mutant(
        "descriptor-of-a-drop-box-is-not-given-back",
        "fsstore/tree/drop.py",
        "        self._node.accounts.give(self._user, Resource.DESCRIPTORS)\n",
        "",
        ("tests/fsstore/test_drop.py",),
    ),
    # the next server's take-over
    Mutant(
        "full-memory-means-nothing-begun",
        "fsstore/handover/handles.py",
        "            self._set_lost(handle, max(state.size, 1))\n            self._drop_state(handle)\n",
        "            self._drop_state(handle)\n",
        ("tests/fsstore/test_handover.py",),
    ),
    Mutant(
        "put-in-the-log-is-not-known",
        "fsstore/handover/requests.py",
        "        return slot != 0 and self._words[slot + 1] == _STORED\n",
        "        return False\n",
        ("tests/fsstore/test_handover.py", "tests/mount/test_outlives.py"),
    ),
    Mutant(
        "put-that-died-counts-as-stored",
        "fsstore/handover/requests.py",
        "_STORED if words[slot + 2] < log_end else _BEGUN",
        "_STORED",
        ("tests/fsstore/test_handover.py", "tests/mount/test_outlives.py"),
    ),
    Mutant(
        "request-that-was-done-is-done-again",
        "fsstore/fuse/handlers.py",
        "            if self._was_done(unique, slot, handle, request):\n                return\n",
        "",
        ("tests/mount/test_outlives.py", "tests/mount/test_requests.py"),
    ),
    Mutant(
        "fsync-is-answered-before-the-flush-after-a-takeover",
        "fsstore/fuse/handlers.py",
        "        super()._finish(unique, min(until, self._store.physical_end), reply)\n        return True\n",
        "        super()._finish(unique, 0, reply)\n        return True\n",
        ("tests/mount/test_requests.py",),
    ),
    Mutant(
        "request-that-kills-is-served-for-ever",
        "fsstore/handover/memory.py",
        "            if count >= (KILLS_TO_REFUSE if last == signal.SIGKILL else CRASHES_TO_REFUSE)\n",
        "            if count > 1000\n",
        ("tests/fsstore/test_handover.py",),
    ),
    Mutant(
        "request-that-kills-is-not-refused",
        "fsstore/fuse/session.py",
        "            handler = self.poisoned.get(unique & ~RESENT, handler)\n",
        "            handler = handler\n",
        ("tests/mount/test_poisoned.py",),
    ),
    # newer promises, one each
    Mutant(
        "turn-lasts-as-long-as-a-program-asks",
        "fsstore/fuse/session.py",
        "                if taken and time.monotonic() - began_s > LONGEST_TURN_S:\n                    return False\n",
        "",
        ("tests/mount/test_session.py",),
    ),
    Mutant(
        "followers-hear-nothing-of-the-writer",
        "fsstore/fuse/following.py",
        "                    waiting.register(news.descriptor, select.POLLIN)\n",
        "                    pass\n",
        ("tests/mountctl/test_replication_promises_copy.py::test_woken",),
    ),
    Mutant(
        "stored-sums-are-believed-of-another-queue",
        "engine/read/offset_index.py",
        '        if last != rows[-1]["last_physical"] or first not in (rows[-1]["first_physical"], -1):\n',
        "        if False:\n",
        ("tests/engine/read",),
    ),
    Mutant(
        "replica-acknowledges-before-its-disk-has-it",
        "engine/replication/replica.py",
        "            self._receiver.sync()\n",
        "            pass\n",
        ("tests/engine/replication/test_replica.py", "tests/durability/test_powerpair.py"),
    ),
    Mutant(
        "server-answers-without-a-token",
        "fsstore/serve/access.py",
        '        raise AccessError(401, "a token is needed" if self.tokens else "a client\'s certificate is needed")\n',
        "        return peer.client\n",
        ("tests/fsstore/test_serve.py",),
    ),
    Mutant(
        "value-of-another-kind-is-unequal",
        "fsstore/query/where.py",
        "    elif kinds not in ((str, str), (bool, bool)):\n        return NULL\n",
        "    elif kinds not in ((str, str), (bool, bool)):\n        return FALSE\n",
        ("tests/mountctl/test_where.py",),
    ),
    # the page
    Mutant(
        "names-of-publishers-are-markup",
        "fsstore/serve/page/rendering.py",
        "        autoescape=True,\n",
        "        autoescape=False,\n",
        ("tests/mountctl/test_page_promises.py",),
    ),
    Mutant(
        "session-outlives-its-token",
        "fsstore/serve/page/sessions.py",
        "        return tokens.holder_of(session.token)\n",
        '        return tokens.holder_of(session.token) or "gone"\n',
        ("tests/fsstore/test_page.py", "tests/mountctl/test_page_promises.py"),
    ),
    Mutant(
        "search-leaves-out-what-it-did-not-come-to",
        "fsstore/serve/page/search.py",
        'Matches(found[found["physical_offset"] > oldest], ',
        "Matches(found, ",
        ("tests/fsstore/test_page.py",),
    ),
    # retention
    Mutant(
        "retention-takes-one-file-too-many",
        "engine/write/retention_plan.py",
        "log.end - file.start > retention.max_bytes:",
        "log.end - file.start > retention.max_bytes - file.size:",
        ("tests/engine/write",),
    ),
    Mutant(
        "retention-takes-the-newest-file",
        "engine/write/retention_plan.py",
        "    for file in islice(log.files, max(len(log.files) - 1, 0)):\n        doomed",
        "    for file in log.files:\n        doomed",
        ("tests/engine/write",),
    ),
    Mutant(
        "retention-looks-at-the-disk-once",
        "engine/write/retention.py",
        "            deleted += 1\n            found = self._look(retention)\n",
        "            deleted += 1\n",
        ("tests/engine/write",),
    ),
    # messages shown to readers
    Mutant(
        "body-is-shown-whatever-its-crc",
        f"{KERNEL}/decode.pyx",
        "    if verify and message._body_bytes > 0 and",
        "    if False and message._body_bytes > 0 and",
        ("tests/engine/record/test_record.py", "tests/engine/test_damaged_store.py"),
    ),
    Mutant(
        "a-copied-body-is-not-looked-at-again",
        f"{KERNEL}/decode.pyx",
        "        if not is_whole:\n",
        "        if False:\n",
        ("tests/engine/test_cut_files.py",),
    ),
    Mutant(
        "keys-of-one-hash-are-mixed",
        "engine/read/reader.py",
        "    records = records.take(rows_naming(records, key))\n"
        "    topics, topic_rows = topics_of(records)\n"
        "    keys, unique_keys = property_texts(records, [KEYS, UNIQUE_KEY])\n"
        "    carry = [key == unique or key in split_keys(own) for own, unique "
        "in zip(keys, unique_keys, strict=True)]\n",
        "    topics, topic_rows = topics_of(records)\n    carry = [True] * len(records)\n",
        ("tests/engine/test_alike_hashes.py",),
    ),
    # drawn by cosmic-ray 8.7 from its 19,734 mutations of DRAWN_FROM, in the order of file, line, column and operator,
    # shuffled by `random.Random(27)`: the first fifteen that change more than an annotation. One of them can't be
    # noticed: `is` became `==` between members of an enum, in `ConsumeQueues.recover`
    Mutant(
        "index-size-is-found-by-the-wrong-entries",
        "engine/open/geometry.py",
        "(part[hits + 1] == high) & (part[hits + 4] == 0)",
        "(part[hits + 1] == high) % (part[hits + 4] == 0)",
        ("tests/engine/open/test_geometry.py",),
    ),
    Mutant(
        "queue-that-was-seen-is-taken-for-a-new-one",
        "engine/log/sequence.py",
        "        if begin is None:\n            self._next[queue] = None\n",
        "        if not begin is None:\n            self._next[queue] = None\n",
        ("tests/engine/open/test_recover.py",),
    ),
    Mutant(
        "pending-entries-shift-the-reserved-files",
        "engine/derived/consume_queue.py",
        "        queue_offset = self._max + self.pending\n        size",
        "        queue_offset = self._max ^ self.pending\n        size",
        ("tests/engine/derived/test_consume_queue.py",),
    ),
    Mutant(
        "reserved-files-have-no-space-for-their-entries",
        "engine/derived/consume_queue.py",
        "            file.writable(0, min(size, file.size))\n",
        "            file.writable(0, 0)\n",
        ("tests/engine/derived/test_consume_queue.py", "tests/engine/test_space.py"),
    ),
    Mutant(
        "bytes-are-written-where-no-space-is-allocated",
        "engine/files/mapped_file.py",
        "self._allocated_from <= start and end <= self.allocated\n",
        "self._allocated_from <= start\n",
        ("tests/engine/files/test_mapped_file.py",),
    ),
    Mutant(
        "space-elsewhere-counts-for-what-is-appended",
        "engine/files/mapped_file.py",
        "        if follows or first <= self.wrote <= until:",
        "        if follows or first <= until:",
        ("tests/engine/files/test_mapped_file.py",),
    ),
    Mutant(
        "newest-file-is-not-written-again",
        "engine/open/recover.py",
        "end - end % files.file_bytes + files.file_bytes",
        "end - end % files.file_bytes % files.file_bytes",
        ("tests/engine/open/test_written_again.py",),
    ),
    Mutant(
        "missing-descriptor-ends-the-flush-at-once",
        "engine/write/flush.py",
        "            if closing:\n                self._fail(",
        "            if not closing:\n                self._fail(",
        ("tests/engine/write/test_flush.py",),
    ),
    Mutant(
        "frame-over-a-lost-sector-has-another-size",
        "engine/log/tombstone.py",
        "    size = end - start\n    topic",
        "    size = end >> start\n    topic",
        ("tests/engine/open/test_quarantine.py",),
    ),
    Mutant(
        "forged-record-in-a-body-is-let-through",
        "engine/log/commit_log.py",
        "len(buffer), physical_offset)) > record.records",
        "len(buffer), physical_offset)) is record.records",
        ("tests/engine/test_refused_messages.py",),
    ),
    Mutant(
        "each-flush-is-a-thorough-one",
        "engine/write/flush.py",
        "now + self._policy.thorough_interval_ms / 1000",
        "now % self._policy.thorough_interval_ms / 1000",
        ("tests/engine/write/test_flush.py",),
    ),
    Mutant(
        "gap-of-the-log-is-told-at-another-place",
        "engine/open/preflight.py",
        "            return layout.shown(following), int(file.name) + length\n",
        "            return layout.shown(following), int(file.name) >> length\n",
        ("tests/engine/test_log_paths.py",),
    ),
    Mutant(
        "number-beyond-a-queue-is-not-superseded",
        "engine/derived/coverage.py",
        "first[0] > physical_offset and queue_offset >= queue.max_offset",
        "first[0] > physical_offset and queue_offset <= queue.max_offset",
        ("tests/engine/open/test_recover.py",),
    ),
    Mutant(
        "queues-are-not-expired",
        "engine/derived/consume_queues.py",
        "        while self._to_expire:\n",
        "        while not self._to_expire:\n",
        ("tests/engine/derived/test_consume_queues.py",),
    ),
    Mutant(
        "index-file-begins-where-the-one-before-ends",
        "engine/derived/index_file.py",
        "        if first > 1:\n            begin, begin_ms",
        "        if first > 0:\n            begin, begin_ms",
        ("tests/engine/derived/test_index_file.py",),
    ),
    Mutant(
        "what-was-known-is-believed-of-a-changed-file",
        "engine/derived/known_ranges.py",
        "    if raw[: _HEADER.size] != _HEADER.pack(MAGIC, *stamp):\n",
        "    if raw[: len(MAGIC)] != MAGIC:\n",
        ("tests/engine/derived/test_known_ranges.py",),
    ),
)
