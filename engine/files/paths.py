"""Paths below a store: opens, makes, renames and removes files without following planted links.

A store may belong to another user: root serves or repairs a store of a broker's user. That user can plant links in the
store's folders, and root would change files of other users through them. So only this module opens, makes and removes
files below a store, by these rules:

- A symbolic link anywhere in a path is followed only if it belongs to root or to us: an administrator may put
  `commitlog` on another disk. Other links are refused by name. Callers resolve the root of a store once, so the path to
  the store may contain any links.
- A new file gets a name that did not exist (O_EXCL), or none, so a planted file is never written.
- Only regular files are opened. A FIFO, socket or device is refused without waiting.
- A file with several names is not written if its owner is not its folder's: it may be a planted hard link.
- Files and folders made by root get the owner of their folder, so that this user can change them later.
- The folders of a store open for writing are held: once their path leads to another folder or to none (the store was
  moved, its disk unmounted), no file there is opened for writing, made or removed.

Paths are absolute. Thread safety: any thread.
"""

from __future__ import annotations

import errno
import os
import shutil
import stat
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import ClassVar

from engine.errors import ObstructedError

FILE_MODE = 0o644
MOST_LINKS = 40

_FOLDER = os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC
_FILE = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC

_KINDS = {
    stat.S_IFIFO: "a FIFO",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


class _HeldFolder:
    held: ClassVar[tuple[_HeldFolder, ...]] = ()
    """All held folders of the process. The tuple is replaced, never changed, so readers need no lock."""
    _changing: ClassVar[threading.Lock] = threading.Lock()

    def __init__(self, path: Path) -> None:
        self.path = str(path)
        self._found = os.stat(path)

    def begin(self) -> None:
        with self._changing:
            others = tuple(one for one in self.held if one.path != self.path)  # an older one was left open
            _HeldFolder.held = (*others, self)

    def end(self) -> None:
        with self._changing:
            _HeldFolder.held = tuple(one for one in self.held if one is not self)

    def holds(self, path: str) -> bool:
        return path.startswith(self.path) and path[len(self.path) : len(self.path) + 1] in ("", "/")

    def require(self) -> None:
        try:
            is_same = os.path.samestat(os.stat(self.path), self._found)
        except (FileNotFoundError, NotADirectoryError):
            is_same = False
        if not is_same:
            raise OSError(errno.ESTALE, "the folder of an open store was moved away or unmounted", self.path)


def hold_folder(path: Path) -> Callable[[], None]:
    """Refuse changes below `path` with ESTALE once the path leads to another folder than now. The returned function
    ends this. OSError."""
    folder = _HeldFolder(path)
    folder.begin()
    return folder.end


def require_held(path: Path | str) -> None:
    """OSError (ESTALE): `path` is below a held folder that was moved or unmounted."""
    text = str(path)
    for folder in _HeldFolder.held:
        if folder.holds(text):
            folder.require()


def store_root(path: Path | str) -> Path:
    """Resolve all links in the path to a store; links below the returned path are checked at each use."""
    return Path(os.path.realpath(path))


# opening


def open_file(path: Path, flags: int = os.O_RDONLY) -> int:
    """A descriptor of the existing regular file at `path`; `flags`: O_RDONLY or O_RDWR. ObstructedError, OSError."""
    if flags & os.O_ACCMODE != os.O_RDONLY:
        require_held(path)
    folder = _enter(os.path.dirname(path))
    try:
        try:
            descriptor = os.open(path.name, flags | _FILE, dir_fd=folder)
        except OSError as error:
            if error.errno == errno.ENXIO:
                raise ObstructedError(path, "file", "a socket") from error
            if error.errno != errno.ELOOP:
                raise _with_path(error, path) from None
            descriptor = _open_through_link(path, flags)
        try:
            _require_file(path, os.fstat(descriptor), os.fstat(folder), writing=flags & os.O_ACCMODE != os.O_RDONLY)
        except BaseException:
            os.close(descriptor)
            raise
        return descriptor
    finally:
        os.close(folder)


REFUSED = frozenset({errno.EIO, errno.EBADMSG, errno.EUCLEAN})
"""Error numbers of a disk that can't read its data."""


def is_refused_read(error: OSError) -> bool:
    """Whether the disk could not read existing data."""
    return error.errno in REFUSED


def read_file(path: Path, most_bytes: int) -> bytes:
    """All bytes of a regular file. ValueError when it has more than `most_bytes`; ObstructedError, OSError."""
    with open(open_file(path), "rb") as file:
        try:
            content = file.read(most_bytes + 1) if os.fstat(file.fileno()).st_size <= most_bytes else None
        except OSError as error:
            error.filename = str(path)
            raise
    if content is None or len(content) > most_bytes:
        raise ValueError(f"it has more than {most_bytes:,} bytes")
    return content


def require_file(path: Path) -> None:
    """ObstructedError: `path` exists and can't be opened as a file and written. OSError.

    The file is not opened, because closing a descriptor of the store's lock would drop the lock.
    """
    with suppress(FileNotFoundError, NotADirectoryError), _ParentFolder(path) as (folder, _):
        last_folder, name = _resolve(path)
        try:
            found = os.stat(name, dir_fd=last_folder, follow_symlinks=False)
        finally:
            os.close(last_folder)
        if stat.S_ISDIR(found.st_mode):
            raise ObstructedError(path, "file", "a folder")
        _require_file(path, found, os.fstat(folder), writing=True)


def open_folder(path: Path) -> int:
    """A descriptor of the folder at `path`, for syncing it. ObstructedError, OSError."""
    require_held(path)
    folder = _enter(str(path))
    try:
        return os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=folder)
    finally:
        os.close(folder)


# making


def create_file(path: Path) -> int:
    """A descriptor, for reading and writing, of a new, empty file. FileExistsError: the name exists; OSError."""
    with _ParentFolder(path) as (folder, name):
        descriptor = os.open(name, os.O_RDWR | os.O_CREAT | os.O_EXCL | _FILE, FILE_MODE, dir_fd=folder)
        _give_to_owner(descriptor, folder)
        return descriptor


def open_or_create(path: Path) -> int:
    """As `open_file` for writing; if the file is missing, as `create_file`."""
    try:
        return open_file(path, os.O_RDWR)
    except FileNotFoundError:
        return create_file(path)


def create_unnamed(path: Path, prepare: Callable[[int], None]) -> int:
    """A descriptor, for reading and writing, of a new file that gets its name after `prepare` was called with the
    descriptor. FileExistsError: the name exists; OSError: also if the filesystem does not support unnamed files."""
    with _ParentFolder(path) as (folder, name):
        descriptor = os.open(".", os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, FILE_MODE, dir_fd=folder)
        try:
            _give_to_owner(descriptor, folder)
            prepare(descriptor)
            # with a directory descriptor Python calls linkat(AT_SYMLINK_FOLLOW), which can name an unnamed file
            os.link(f"/proc/self/fd/{descriptor}", name, src_dir_fd=descriptor, dst_dir_fd=folder)
        except BaseException:
            os.close(descriptor)
            raise
        return descriptor


def make_folder(path: Path, *, keep_owner: bool = True, mode: int = 0o777) -> None:
    """Make a folder with `mode` minus the umask in an existing one; `keep_owner`: with that one's owner.
    FileExistsError, OSError."""
    with _ParentFolder(path) as (folder, name):
        os.mkdir(name, mode, dir_fd=folder)
        if not keep_owner or _owner_to_give(folder) is None:
            return
        made = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
        try:
            _give_to_owner(made, folder)
        finally:
            os.close(made)


# moving and removing


def rename(source: Path, target: Path) -> None:
    """Rename `source` to `target`; an existing file there is replaced. OSError."""
    with _ParentFolder(source) as (here, name), _ParentFolder(target) as (there, new_name):
        os.replace(name, new_name, src_dir_fd=here, dst_dir_fd=there)


def link(source: Path, target: Path) -> None:
    """Give the file at `source` a second name, in its folder. FileExistsError, OSError."""
    with _ParentFolder(source) as (folder, name):
        os.link(name, target.name, src_dir_fd=folder, dst_dir_fd=folder, follow_symlinks=False)


def unlink(path: Path) -> None:
    """Remove a name that is not a folder's; a missing name is no error. OSError."""
    with suppress(FileNotFoundError), _ParentFolder(path) as (folder, name):
        os.unlink(name, dir_fd=folder)


def remove_folder(path: Path) -> None:
    """Remove an empty folder. OSError."""
    with _ParentFolder(path) as (folder, name):
        os.rmdir(name, dir_fd=folder)


def remove_tree(path: Path) -> None:
    """Remove a folder and its contents; a missing folder is no error. OSError."""
    with suppress(FileNotFoundError), _ParentFolder(path) as (folder, name):
        shutil.rmtree(name, dir_fd=folder)


# the way to a path


class _ParentFolder:
    """`with` gives a descriptor of the parent folder of a path, and the name in it. An OSError in the block gets the
    path. (A generator would take twice as many calls.)"""

    __slots__ = ("_folder", "_name", "_path")

    def __init__(self, path: Path) -> None:
        self._path = str(path)

    def __enter__(self) -> tuple[int, str]:
        require_held(self._path)
        parent, self._name = os.path.split(self._path)
        self._folder = _enter(parent)
        return self._folder, self._name

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.close(self._folder)
        if isinstance(error, OSError) and error.filename in (self._name, None):
            error.filename = self._path


def _enter(folder: str) -> int:
    """A descriptor (O_PATH) of a folder. One readlink shows in most cases that the path has no links."""
    descriptor = os.open(folder, _FOLDER)
    try:
        if os.readlink(f"/proc/self/fd/{descriptor}") == folder:
            return descriptor
    except OSError:  # no /proc, or a very long path
        pass
    os.close(descriptor)
    parent, name = _resolve(Path(folder))
    try:
        return os.open(name, _FOLDER | os.O_NOFOLLOW, dir_fd=parent)
    finally:
        os.close(parent)


def _resolve(path: Path) -> tuple[int, str]:
    """Follow `path` with a check of each link; returns the last folder (O_PATH) and name. ObstructedError, OSError."""
    waiting = _names(str(path.absolute()))
    here, links = os.open("/", _FOLDER), 0
    try:
        while True:
            name = waiting.pop() if waiting else "."
            try:
                found = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=here)
            except FileNotFoundError:
                if waiting:
                    raise
                return here, name
            if target := _target(path, name, found):
                os.close(found)
                links += 1
                if links > MOST_LINKS:
                    raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(path))
                waiting += _names(target)
                if target.startswith("/"):
                    here = _instead(here, os.open("/", _FOLDER))
            elif waiting:
                here = _instead(here, found)
            else:
                os.close(found)
                return here, name
    except BaseException:
        os.close(here)
        raise


def _names(path: str) -> list[str]:
    """Names in a path, the first one last."""
    return [name for name in reversed(path.split("/")) if name not in ("", ".")]


def _instead(old: int, new: int) -> int:
    os.close(old)
    return new


def _target(path: Path, name: str, found: int) -> str | None:
    """Target of a link; None when it is no link. ObstructedError: the link must not be followed."""
    status = os.fstat(found)
    if not stat.S_ISLNK(status.st_mode):
        return None
    if status.st_uid not in (0, os.geteuid()):
        os.close(found)
        link = next((part for part in (path, *path.parents) if part.name == name), path)
        what = f"a symbolic link of user {status.st_uid}, and only root's and our own are followed"
        raise ObstructedError(link, "file" if link == path else "folder", what)
    return os.readlink("", dir_fd=found)


def _open_through_link(path: Path, flags: int) -> int:
    folder, name = _resolve(path)
    try:
        return os.open(name, flags | _FILE, dir_fd=folder)
    finally:
        os.close(folder)


def _require_file(path: Path, found: os.stat_result, folder: os.stat_result, *, writing: bool) -> None:
    if stat.S_ISDIR(found.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if not stat.S_ISREG(found.st_mode):
        raise ObstructedError(path, "file", _KINDS.get(stat.S_IFMT(found.st_mode), "no regular file"))
    if writing and found.st_nlink > 1 and found.st_uid != folder.st_uid:
        what = f"a hard link to a file of user {found.st_uid}, in a folder of user {folder.st_uid}"
        raise ObstructedError(path, "file", what)


def _with_path(error: OSError, path: Path) -> OSError:
    return OSError(error.errno, error.strerror, str(path))


def _give_to_owner(descriptor: int, folder: int) -> None:
    """Give a new file or folder of root to the owner of its folder, if the filesystem supports owners."""
    owner = _owner_to_give(folder)
    if owner is None:
        return
    try:
        os.fchown(descriptor, *owner)
    except OSError as error:
        if error.errno not in (errno.EPERM, errno.EINVAL, errno.EOPNOTSUPP):
            raise


def _owner_to_give(folder: int) -> tuple[int, int] | None:
    """User and group of a folder, if what root makes there would belong to others; else None."""
    if os.geteuid() != 0:
        return None
    found = os.fstat(folder)
    owner = found.st_uid, found.st_gid
    return None if owner == (0, os.getegid()) else owner
