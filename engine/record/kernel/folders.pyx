"""Folders: the files below a folder in one pass, where a short file's data ends, and one sync of a whole filesystem.

A store may have a hundred thousand folders. Looking at each from Python takes several times as long as the system calls
do.
"""

import os

from libc.errno cimport ENOENT, ENXIO, errno
from libc.stdint cimport INT64_MAX, int32_t, int64_t
from libc.stdio cimport snprintf
from libc.stdlib cimport qsort
from libc.string cimport memcmp, memcpy, strcmp
from posix.unistd cimport close, lseek

from engine.record.kernel.directory cimport (
    DIR,
    DT_DIR,
    O_CLOEXEC,
    O_DIRECTORY,
    O_NOCTTY,
    O_NOFOLLOW,
    O_NONBLOCK,
    O_RDONLY,
    POSIX_FADV_RANDOM,
    S_ISDIR,
    Status,
    closedir,
    dirent,
    dirfd,
    fdopendir,
    fstatat,
    openat,
    posix_fadvise,
    pread,
    readdir,
)
from engine.record.kernel.layout cimport get_i32, get_i64

cdef extern from *:
    """
    #define forget_errno() (errno = 0)
    """
    void forget_errno()

cdef extern from "<fcntl.h>" nogil:
    int sync_file_range(int descriptor, long long position, long long size, unsigned int flags)
    unsigned int SYNC_FILE_RANGE_WRITE

cdef extern from "<unistd.h>" nogil:
    int syncfs(int descriptor)
    int SEEK_DATA

cdef extern from "<sys/vfs.h>" nogil:
    struct Filesystem "statfs":
        unsigned long f_type
    int fstatfs(int descriptor, Filesystem *found)

cdef enum:
    MOST_DEPTH = 4  # of folders; what is deeper is not listed: links may lead around in circles
    MOST_SIZE = 64
    MOST_PATH = 512
    ROW_BYTES = 20  # of an entry of a queue, and of a TOPIC_ROW
    PRE_BLANK_BYTES = 0x7FFFFFFF  # of an entry that leads to no record
    MOST_ROWS = 256
    CHUNK_BYTES = 16 << 10
    MOST_BYTES = 1 << 20
    NOT_ZERO = -1
    UNREAD = -2

_SYNCED_WHOLE = frozenset({0xEF53, 0x58465342, 0x9123683E, 0x01021994})
"""ext4, XFS, btrfs and tmpfs. A sync of others may leave data with a server, or in another filesystem below."""


def files_below(int folder, bytes name not None):
    """The members of the folder `name` in an open one, by name: (size in bytes, modification time in ns) of a file, a
    dict of the same kind of a folder. Links are followed; what disappears meanwhile is left out. OSError."""
    return members_of(folder, name, MOST_DEPTH)


cdef dict members_of(int parent, const char *name, int depth):
    cdef int descriptor = openat(parent, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC)
    if descriptor < 0:
        raise failure(errno, name)
    cdef DIR *folder = fdopendir(descriptor)
    if folder is NULL:
        error = failure(errno, name)
        close(descriptor)
        raise error
    try:
        return listed(folder, name, depth)
    finally:
        closedir(folder)


cdef dict listed(DIR *folder, const char *name, int depth):
    cdef dict found = {}
    cdef dirent *member
    while True:
        forget_errno()
        member = readdir(folder)
        if member is NULL:
            if errno:
                raise failure(errno, name)
            return found
        if strcmp(member.d_name, ".") and strcmp(member.d_name, ".."):
            try:
                found[os.fsdecode(<bytes> member.d_name)] = looked_at(folder, member, depth)
            except FileNotFoundError:
                continue


cdef looked_at(DIR *folder, dirent *member, int depth):
    cdef Status status
    if depth and member.d_type == DT_DIR:
        return members_of(dirfd(folder), member.d_name, depth - 1)
    if fstatat(dirfd(folder), member.d_name, &status, 0) < 0:
        raise failure(errno, member.d_name)
    if depth and S_ISDIR(status.st_mode):
        return members_of(dirfd(folder), member.d_name, depth - 1)
    return status.st_size, written_ns(&status)


cdef int64_t written_ns(Status *status) noexcept:
    return status.st_mtim.tv_sec * 1_000_000_000 + status.st_mtim.tv_nsec


def queue_stamps(int folder, bytes topic not None, dict extents not None, int64_t entry_bytes, int64_t file_bytes):
    """Sizes and times of the files and folders of a topic, which is below the open folder: they differ after any change
    of its queues. `extents` has each queue's first entry and its end. The call lists no folder: a folder's time changes
    when a name in it comes or goes. FileNotFoundError: a queue's file is missing. OSError."""
    cdef bytearray found = bytearray()
    cdef char[MOST_PATH] path
    cdef int64_t queue, start, end
    if len(topic) > MOST_PATH // 2:
        raise failure(ENOENT, topic)
    add_stamp(folder, topic, found)
    for queue in sorted(extents):
        snprintf(path, MOST_PATH, "%s/%lld", <const char *> topic, <long long> queue)
        add_stamp(folder, path, found)
        start, end = extents[queue]
        start, end = start * entry_bytes, end * entry_bytes
        while start < end:
            snprintf(path, MOST_PATH, "%s/%lld/%020lld", <const char *> topic, <long long> queue, <long long> start)
            if not add_stamp(folder, path, found):
                raise failure(ENOENT, path)
            start += file_bytes
    return bytes(found)


cdef bint add_stamp(int folder, const char *path, bytearray found) except -1:
    """Add the time of a file or folder, and a file's size, or the number of a folder's links; zeros, and return False, if
    it is missing."""
    cdef Status status
    cdef int64_t[2] numbers
    numbers[0] = numbers[1] = 0
    cdef bint is_there = fstatat(folder, path, &status, 0) == 0
    if is_there:
        numbers[0] = written_ns(&status)
        numbers[1] = <int64_t> status.st_nlink if S_ISDIR(status.st_mode) else status.st_size
    elif errno != ENOENT:
        raise failure(errno, path)
    found += (<char *> numbers)[:sizeof(numbers)]
    return is_there


def data_ends_at(int folder, bytes path not None, int64_t end, int size):
    """Whether the last data of a file below an open folder are the `size` bytes before `end`: one of them is not zero,
    and all behind them are. False, too, if the file can't be read, or has much space of which that is not known."""
    cdef int descriptor
    if end < size:
        return False
    descriptor = opened(folder, path)
    if descriptor < 0:
        return False
    try:
        return count_zeros(descriptor, end - size, size) == NOT_ZERO and is_blank(descriptor, end)
    finally:
        close(descriptor)


def read_ends(int folder, bytes path not None, int64_t end, int size):
    """The first `size` bytes of a file below an open folder, and those before `end`; fewer if it can't be read."""
    cdef char[2 * MOST_SIZE] data
    cdef Py_ssize_t count = 0
    cdef int descriptor
    if not 0 < size <= MOST_SIZE or end < size:
        return b""
    descriptor = opened(folder, path)
    if descriptor >= 0:
        count = max(pread(descriptor, data, size, 0), 0)
        if count == size:
            count += max(pread(descriptor, data + size, size, end - size), 0)
        close(descriptor)
    return data[:count]


def has_entry(
    int folder, bytes topic not None, int64_t queue_id, int64_t queue_offset, int64_t physical_offset, int64_t file_bytes
):
    """Whether a queue below an open folder of topics, whose files have `file_bytes` each, has an entry for the record at
    a physical offset under that number. False, too, if it can't be read."""
    cdef char[MOST_PATH] path
    cdef unsigned char[ROW_BYTES] row
    cdef int64_t position = queue_offset * ROW_BYTES
    cdef int descriptor
    if not 0 <= queue_offset <= INT64_MAX // ROW_BYTES or file_bytes < ROW_BYTES:
        return False
    size = snprintf(
        path, MOST_PATH, "%s/%lld/%020lld", <char *> topic, <long long> queue_id,
        <long long> (position - position % file_bytes),
    )
    descriptor = opened(folder, path) if size < MOST_PATH else -1
    if descriptor < 0:
        return False
    found = pread(descriptor, row, ROW_BYTES, position % file_bytes)
    close(descriptor)
    return found == ROW_BYTES and get_i32(row + 8) > 0 and get_i64(row) == physical_offset


def read_queues(int folder, bytes topic not None, dict extents not None, int64_t most):
    """The rows (TOPIC_ROW) of queues of one file each, below an open folder of topics, in the order of the log. `extents`
    has each queue's first entry and its end. None: there are none, or more than `most` or MOST_ROWS; or a file can't be
    read, or its entries do not end there, or one of them leads to no record."""
    cdef unsigned char[(MOST_ROWS + 1) * ROW_BYTES] rows
    cdef char[MOST_PATH] path
    cdef int64_t queue_id, first, end, count = 0, left = min(most, <int64_t> MOST_ROWS)
    for queue_id, (first, end) in extents.items():
        if not 0 <= first < end <= INT64_MAX // ROW_BYTES or end - first > left:
            return None
        size = snprintf(
            path, MOST_PATH, "%s/%lld/%020lld", <const char *> topic, <long long> queue_id, <long long> (first * ROW_BYTES)
        )
        if size >= MOST_PATH or not read_entries(folder, path, &rows[count * ROW_BYTES], <int32_t> queue_id, first, end - first):
            return None
        left, count = left - (end - first), count + (end - first)
    qsort(rows, count, ROW_BYTES, by_physical_offset)
    return rows[:count * ROW_BYTES] if count else None


cdef int by_physical_offset(const void *one, const void *other) noexcept nogil:
    cdef int64_t left, right
    memcpy(&left, one, sizeof(left))
    memcpy(&right, other, sizeof(right))
    return (left > right) - (left < right)


cdef bint read_entries(
    int folder, const char *path, unsigned char *rows, int32_t queue_id, int64_t first, int64_t count
) noexcept:
    """Fill in `count` rows from the beginning of a queue's file. What follows them is read, too: it must be zeros."""
    cdef int64_t number, physical_offset, size = count * ROW_BYTES
    cdef int descriptor = opened(folder, path)
    if descriptor < 0:
        return False
    found = pread(descriptor, rows, size + ROW_BYTES, 0)
    close(descriptor)
    if found < size or any_set(rows + size, found - size):
        return False
    for number in range(count):
        if get_i32(rows + 8) <= 0 or get_i32(rows + 8) == PRE_BLANK_BYTES:
            return False
        physical_offset, first = get_i64(rows), first + (number > 0)
        memcpy(rows, &physical_offset, 8)
        memcpy(rows + 8, &first, 8)
        memcpy(rows + 16, &queue_id, 4)
        rows += ROW_BYTES
    return True


cdef inline bint any_set(const unsigned char *data, Py_ssize_t size) noexcept:
    """Whether a byte is not zero."""
    return size > 0 and (data[0] or memcmp(data, data + 1, size - 1))


cdef int opened(int folder, const char *path) noexcept:
    """A descriptor of a file, whose pages behind what is asked for are not read: mostly they have zeros alone."""
    cdef int descriptor = openat(folder, path, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC)
    if descriptor >= 0:
        posix_fadvise(descriptor, 0, 0, POSIX_FADV_RANDOM)
    return descriptor


cdef bint is_blank(int descriptor, int64_t position) noexcept:
    """Whether all bytes from `position` on are zeros. Holes are not read."""
    cdef int64_t until = position + MOST_BYTES, found
    while position < until:
        forget_errno()
        position = lseek(descriptor, position, SEEK_DATA)
        if position < 0:
            return errno == ENXIO
        found = count_zeros(descriptor, position, CHUNK_BYTES)
        if found <= 0:
            return found == 0
        position += found
    return False


cdef int64_t count_zeros(int descriptor, int64_t position, Py_ssize_t most) noexcept:
    """Number of bytes there, up to `most`, if all are zeros; else NOT_ZERO, or UNREAD."""
    cdef unsigned char[CHUNK_BYTES] data
    cdef Py_ssize_t count = pread(descriptor, data, min(most, <Py_ssize_t> CHUNK_BYTES), position)
    if count < 0:
        return UNREAD
    return NOT_ZERO if any_set(data, count) else count


def sync_filesystem(int descriptor):
    """Return True when all that was written to the filesystem of an open folder, names too, is on disk. False: it is not
    known of this filesystem that it can do that, and nothing was done. OSError: a write failed since the folder was
    opened."""
    cdef Filesystem found
    cdef int result
    if fstatfs(descriptor, &found) < 0 or found.f_type not in _SYNCED_WHOLE:
        return False
    with nogil:
        result = syncfs(descriptor)
    if result < 0:
        raise failure(errno, "")
    return True


def begin_writing(int descriptor, long long position, long long size):
    """Have the disk begin to write the changed pages among bytes [position, position + size) of the open file. It is no
    sync: what fails is reported by the next one."""
    with nogil:
        sync_file_range(descriptor, position, size, SYNC_FILE_RANGE_WRITE)


cdef failure(int number, const char *name):
    return OSError(number, os.strerror(number), os.fsdecode(<bytes> name))
