"""Attributes that stat shows for each kind of file, and the times for which the kernel may cache them.

Messages never change: they are cached for a day, and invalidated by retention. Attributes of growing files are cached
for long only if the adapter is notified of every change (mode WRITE) and invalidates them. If another process writes
(FOLLOW), sizes are not cached at all, and names for a second. Names whose meaning changes (`append`, streams, links to
the newest) are never cached.
"""

from __future__ import annotations

import stat

from engine import FileOwner, OpenMode
from fsstore.interface import NS_PER_MS, Attributes, FilesystemOptions

IMMUTABLE_S = 86_400
NOTIFIED_S = 300
BRIEF_S = 1


class AttributeFactory:
    """Makes the Attributes of one mount from the owner, modes and timeouts that its files share."""

    def __init__(self, options: FilesystemOptions, mode: OpenMode, started_ns: int) -> None:
        self._uid = options.uid
        self._gid = options.gid
        self.started_ns = started_ns
        """The time of files that have none of their own."""
        self._append_mode = stat.S_IFREG | options.append_mode
        self._directory_mode = stat.S_IFDIR | options.directory_mode
        self._name_timeout = BRIEF_S if mode is OpenMode.FOLLOW else NOTIFIED_S
        self._unchanging_timeout = BRIEF_S if mode is OpenMode.FOLLOW else IMMUTABLE_S
        self._mtime_timeout = NOTIFIED_S if mode is OpenMode.READ_ONLY else BRIEF_S
        self._growing_timeout = 0 if mode is OpenMode.FOLLOW else NOTIFIED_S
        self._name_of_file = (0, stat.S_IFREG | 0o444, 0, started_ns, 1, self._uid, self._gid, 0, 0)
        self._name_of_directory = (0, self._directory_mode, 0, started_ns, 2, self._uid, self._gid, 0, 0)
        self.message_template = self.message(0, 0, 0, IMMUTABLE_S)

    def message(self, inode: int, size: int, store_time_ms: int, timeout: int) -> Attributes:
        """A message file whose name and attributes are cached for `timeout` seconds."""
        return Attributes(
            inode,
            stat.S_IFREG | 0o444,
            size,
            store_time_ms * NS_PER_MS,
            1,
            self._uid,
            self._gid,
            timeout,
            timeout,
        )

    def directory(self, inode: int, *, mtime_ms: int | None = None, computed: bool = False) -> Attributes:
        """A directory; with `mtime_ms`, one that changes. `computed`: its name may be invalid tomorrow."""
        mtime_ns = self.started_ns if mtime_ms is None else mtime_ms * NS_PER_MS
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
        """A directory in which only its owner may make files."""
        found = self.directory(inode)
        return found._replace(mode=found.mode & ~0o022)

    def append(self, inode: int, shown_inode: int, size: int, *, writable: bool) -> Attributes:
        """An `append` file. Its name is never cached, because each look-up returns an inode of its own. The attributes
        of that inode are cached briefly: the kernel asks for them after each write."""
        mode = self._append_mode if writable else self._append_mode & ~0o222
        found = self._uncached(inode, mode, size, self.started_ns)
        return found._replace(attr_timeout=BRIEF_S, shown_inode=shown_inode)

    def drop_directory(self, inode: int, changed_ns: int | None) -> Attributes:
        """A directory for dropped files: each user who may publish may make files, and change only their own."""
        mode = self._directory_mode | self._append_mode & 0o222
        mode |= stat.S_ISVTX if mode & 0o022 else 0
        mtime_ns = self.started_ns if changed_ns is None else changed_ns
        return Attributes(inode, mode, 0, mtime_ns, 2, self._uid, self._gid, self._name_timeout, 0)

    @property
    def owner(self) -> tuple[int, int]:
        """User and group id of the mounting user."""
        return self._uid, self._gid

    def dropped(self, inode: int, size: int, mtime_ns: int, owner: FileOwner) -> Attributes:
        """A dropped file."""
        found = self._uncached(inode, stat.S_IFREG | owner.mode, size, mtime_ns)
        return found._replace(uid=owner.uid, gid=owner.gid)

    def unchanging(self, inode: int, size: int, mtime_ms: int) -> Attributes:
        """A file that does not change until it expires."""
        mode, mtime_ns = stat.S_IFREG | 0o444, mtime_ms * NS_PER_MS
        known = self._unchanging_timeout
        return Attributes(inode, mode, size, mtime_ns, 1, self._uid, self._gid, known, known)

    def stream(
        self, inode: int, shown_inode: int, size: int, mtime_ms: int | None, *, is_idle: bool = False
    ) -> Attributes:
        """A `<queue>.log`. Its name gets another inode when it becomes idle, grows again, or begins later. The kernel
        is notified when the size of an idle one changes, in all modes."""
        known = NOTIFIED_S if is_idle else self._growing_timeout
        mtime_ns = self.started_ns if mtime_ms is None else mtime_ms * NS_PER_MS
        return Attributes(inode, stat.S_IFREG | 0o444, size, mtime_ns, 1, self._uid, self._gid, 0, known, shown_inode)

    def name_of_file(self, shown_inode: int) -> Attributes:
        """A name of a regular file in a listing, without attributes: the kernel looks it up."""
        return Attributes(*self._name_of_file, shown_inode)

    def name_of_directory(self, shown_inode: int) -> Attributes:
        """As `name_of_file`, of a directory."""
        return Attributes(*self._name_of_directory, shown_inode)

    def link(self, inode: int, target: bytes, mtime_ms: int | None = None) -> Attributes:
        """A symbolic link, whose target may change at any moment."""
        mtime_ns = self.started_ns if mtime_ms is None else mtime_ms * NS_PER_MS
        return self._uncached(inode, stat.S_IFLNK | 0o777, len(target), mtime_ns)

    def report(self, inode: int, size: int, mtime_ns: int, reader: int | None = None) -> Attributes:
        """A file whose text is made at each look-up; with `reader`, for that user alone."""
        if reader is None:
            return self._uncached(inode, stat.S_IFREG | 0o444, size, mtime_ns)
        return self._uncached(inode, stat.S_IFREG | 0o400, size, mtime_ns)._replace(uid=reader)

    def offset(self, inode: int, size: int, changed_ns: int | None, *, writable: bool) -> Attributes:
        """The offset of a consumer group. If it can be written, only its owner may open it: a user who can open it
        could lock it, and would hold the queue."""
        mode = stat.S_IFREG | (0o600 if writable else 0o444)
        return self._uncached(inode, mode, size, self.started_ns if changed_ns is None else changed_ns)

    def control(self, inode: int) -> Attributes:
        """The file that takes commands, from the owner alone. It reads as empty, so that copies of the tree succeed."""
        return self._uncached(inode, stat.S_IFREG | 0o600, 0, self.started_ns)

    def access_log(self, inode: int) -> Attributes:
        """The log of all requests, for the owner alone."""
        return self._uncached(inode, stat.S_IFREG | 0o400, 0, self.started_ns)

    def cacheable_absence(self) -> Attributes:
        """The answer for a name that can never exist."""
        return Attributes(0, 0, 0, 0, 0, 0, 0, IMMUTABLE_S, IMMUTABLE_S)

    def _uncached(self, inode: int, mode: int, size: int, mtime_ns: int) -> Attributes:
        return Attributes(inode, mode, size, mtime_ns, 1, self._uid, self._gid, 0, 0)
