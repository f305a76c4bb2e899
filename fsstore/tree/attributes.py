"""What stat shows of each kind of file, and how long a kernel may believe it.

Messages never change: cached for a day, and the kernel asks again when retention removed one. What grows is cached for
long only where the adapter is notified of every change (mode WRITE): it then invalidates the attributes. Where another
process writes (FOLLOW), sizes are not cached at all, and names for a second. Names whose meaning moves (`append`,
streams, links to the newest) never are.
"""

from __future__ import annotations

import stat

from engine import FileOwner, OpenMode
from fsstore.interface import Attributes, FilesystemOptions

IMMUTABLE_S = 86_400
NOTIFIED_S = 300
BRIEF_S = 1

_NS_PER_MS = 1_000_000


class AttributeFactory:
    """Makes the Attributes of one mount. Holds what all its files share: owner, modes, timeouts."""

    def __init__(self, options: FilesystemOptions, mode: OpenMode, started_ns: int) -> None:
        self._uid = options.uid
        self._gid = options.gid
        self.started_ns = started_ns
        """The time shown on what has none of its own."""
        self._append_mode = stat.S_IFREG | options.append_mode
        self._directory_mode = stat.S_IFDIR | options.directory_mode
        self._name_timeout = BRIEF_S if mode is OpenMode.FOLLOW else NOTIFIED_S
        self._unchanging_timeout = BRIEF_S if mode is OpenMode.FOLLOW else IMMUTABLE_S
        self._mtime_timeout = NOTIFIED_S if mode is OpenMode.READ_ONLY else BRIEF_S
        self._growing_timeout = 0 if mode is OpenMode.FOLLOW else NOTIFIED_S
        self.message_template = self.message(0, 0, 0, IMMUTABLE_S)

    def message(self, inode: int, size: int, store_time_ms: int, timeout: int) -> Attributes:
        """A message file, its name and attributes to be believed for `timeout` seconds."""
        return Attributes(
            inode,
            stat.S_IFREG | 0o444,
            size,
            store_time_ms * _NS_PER_MS,
            1,
            self._uid,
            self._gid,
            timeout,
            timeout,
        )

    def directory(self, inode: int, *, mtime_ms: int | None = None, computed: bool = False) -> Attributes:
        """A directory; with `mtime_ms`, one that gets younger. `computed`: its name may mean nothing tomorrow."""
        mtime_ns = self.started_ns if mtime_ms is None else mtime_ms * _NS_PER_MS
        return Attributes(
            inode,
            self._directory_mode,
            0,
            mtime_ns,
            2,
            self._uid,
            self._gid,
            0 if computed else self._name_timeout,
            self._name_timeout if mtime_ms is None else self._mtime_timeout,
        )

    def owners_directory(self, inode: int) -> Attributes:
        """A directory that its owner alone may make something in."""
        found = self.directory(inode)
        return found._replace(mode=found.mode & ~0o022)

    def append(self, inode: int, shown_inode: int, size: int, *, writable: bool) -> Attributes:
        """An `append` file. Its name is never cached: each look-up is to give a number of its own. The attributes of
        that number are, for a moment: a kernel asks again after each write to it."""
        mode = self._append_mode if writable else self._append_mode & ~0o222
        found = self._uncached(inode, mode, size, self.started_ns)
        return found._replace(attr_timeout=BRIEF_S, shown_inode=shown_inode)

    def drop_directory(self, inode: int, changed_ns: int | None) -> Attributes:
        """A directory that takes files: from whoever may publish, and each leaves the others' alone."""
        mode = self._directory_mode | self._append_mode & 0o222
        mode |= stat.S_ISVTX if mode & 0o022 else 0
        mtime_ns = self.started_ns if changed_ns is None else changed_ns
        return Attributes(inode, mode, 0, mtime_ns, 2, self._uid, self._gid, self._name_timeout, 0)

    @property
    def owner(self) -> tuple[int, int]:
        """User and group id of the mounting user."""
        return self._uid, self._gid

    def dropped(self, inode: int, size: int, mtime_ns: int, owner: FileOwner) -> Attributes:
        """A file that was dropped."""
        found = self._uncached(inode, stat.S_IFREG | owner.mode, size, mtime_ns)
        return found._replace(uid=owner.uid, gid=owner.gid)

    def unchanging(self, inode: int, size: int, mtime_ms: int) -> Attributes:
        """A file that stays as it is until its name expires."""
        mode, mtime_ns = stat.S_IFREG | 0o444, mtime_ms * _NS_PER_MS
        known = self._unchanging_timeout
        return Attributes(inode, mode, size, mtime_ns, 1, self._uid, self._gid, known, known)

    def stream(
        self, inode: int, shown_inode: int, size: int, mtime_ms: int | None, *, is_idle: bool = False
    ) -> Attributes:
        """A `<queue>.log`; its name means another inode when it becomes idle, grows again, or begins later. The kernel
        is notified when the size of an idle one changes, whoever writes."""
        known = NOTIFIED_S if is_idle else self._growing_timeout
        mtime_ns = self.started_ns if mtime_ms is None else mtime_ms * _NS_PER_MS
        return Attributes(inode, stat.S_IFREG | 0o444, size, mtime_ns, 1, self._uid, self._gid, 0, known, shown_inode)

    def name_of_file(self, shown_inode: int) -> Attributes:
        """A name in a listing, which says no more than that it is a file: a kernel looks it up."""
        return self._uncached(0, stat.S_IFREG | 0o444, 0, self.started_ns)._replace(shown_inode=shown_inode)

    def link(self, inode: int, target: bytes, mtime_ms: int | None = None) -> Attributes:
        """A symbolic link; what it points to may be another message the next moment."""
        mtime_ns = self.started_ns if mtime_ms is None else mtime_ms * _NS_PER_MS
        return self._uncached(inode, stat.S_IFLNK | 0o777, len(target), mtime_ns)

    def report(self, inode: int, size: int, mtime_ns: int, reader: int | None = None) -> Attributes:
        """A file whose text is made when its name is looked up; with `reader`, for that user alone."""
        if reader is None:
            return self._uncached(inode, stat.S_IFREG | 0o444, size, mtime_ns)
        return self._uncached(inode, stat.S_IFREG | 0o400, size, mtime_ns)._replace(uid=reader)

    def offset(self, inode: int, size: int, changed_ns: int | None, *, writable: bool) -> Attributes:
        """Where a consumer group goes on. Its owner's alone where it can be written: who can open it can lock it, and
        would hold the queue."""
        mode = stat.S_IFREG | (0o600 if writable else 0o444)
        return self._uncached(inode, mode, size, self.started_ns if changed_ns is None else changed_ns)

    def control(self, inode: int) -> Attributes:
        """The file that takes commands, from the owner alone; to be read, for who copies all there is, but empty."""
        return self._uncached(inode, stat.S_IFREG | 0o600, 0, self.started_ns)

    def access_log(self, inode: int) -> Attributes:
        """The file that tells who does what, to the owner alone."""
        return self._uncached(inode, stat.S_IFREG | 0o400, 0, self.started_ns)

    def cacheable_absence(self) -> Attributes:
        """The answer for a name that can never exist."""
        return Attributes(0, 0, 0, 0, 0, 0, 0, IMMUTABLE_S, IMMUTABLE_S)

    def _uncached(self, inode: int, mode: int, size: int, mtime_ns: int) -> Attributes:
        return Attributes(inode, mode, size, mtime_ns, 1, self._uid, self._gid, 0, 0)
