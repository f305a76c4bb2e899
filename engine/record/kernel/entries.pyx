"""Entries: what the files of a consume queue hold, without a map (docs/format.md, 6).

A store may have a hundred thousand queues. Opening one takes ten times as long as the system calls of a look do.
"""

from typing import NamedTuple

from libc.stdint cimport INT64_MAX, int32_t, int64_t, uint64_t
from libc.string cimport strcmp
from posix.unistd cimport close

from engine.record.kernel.directory cimport (
    AT_SYMLINK_NOFOLLOW,
    DIR,
    DT_REG,
    O_CLOEXEC,
    O_DIRECTORY,
    O_NOCTTY,
    O_NOFOLLOW,
    O_NONBLOCK,
    O_RDONLY,
    POSIX_FADV_RANDOM,
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
from engine.record.kernel.layout cimport bytes_at, get_i32, get_i64

cdef enum:
    ENTRY_BYTES = 20
    PRE_BLANK_SIZE = 0x7FFFFFFF
    PAGE_ENTRIES = 204  # most queues have no more: to read more would fill the page cache with zeros
    CHUNK_ENTRIES = 3264
    NAME_DIGITS = 20
    ODD = -1


class Look(NamedTuple):
    """The state of a queue's files. `files` is their number. `min_offset` is the queue offset of the first entry in the
    newest file whose record the log has, `max_offset` that of the next entry to be written. `newest` has the newest
    entries as stored."""

    files: int
    min_offset: int
    max_offset: int
    newest: bytes


cdef struct Files:
    int64_t count
    int64_t first  # their starts
    int64_t last


cdef struct Written:
    int64_t count
    int64_t expired  # of these: the leading ones without a record in the log
    int64_t newest  # physical offset of the newest; -1 without one
    bint is_end_known  # whether the next one is not written


def look(int folder, bytes topic not None, bytes queue not None, int64_t file_bytes, int64_t log_begin, int64_t most):
    """Look at a queue below an open folder, whose files have `file_bytes` each: its `most` newest entries, at least one.
    None: opening it tells more, because it is not there or not readable, a link leads to it, it has other members or
    damaged entries, or its newest file has fewer entries than are asked for."""
    cdef Files files = Files(0, 0, 0)
    cdef int of_topic = openat(folder, topic, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC)
    cdef int descriptor = openat(of_topic, queue, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC)
    cdef DIR *found = fdopendir(descriptor) if descriptor >= 0 else NULL
    if of_topic >= 0:
        close(of_topic)
    if found is NULL:
        return None
    try:
        if not list_files(found, file_bytes, &files):
            return None
        return look_into(dirfd(found), files, file_bytes, log_begin, most) if files.count else Look(0, 0, 0, b"")
    finally:
        closedir(found)


cdef bint list_files(DIR *folder, int64_t file_bytes, Files *files) noexcept:
    """Whether the members of a folder are files that join, and nothing else."""
    cdef Status status
    cdef int64_t start
    cdef dirent *member = readdir(folder)
    while member is not NULL:
        if strcmp(member.d_name, ".") and strcmp(member.d_name, ".."):
            start = start_of(member.d_name)
            if member.d_type != DT_REG or start < 0 or start % file_bytes or start > INT64_MAX - file_bytes:
                return False
            if fstatat(dirfd(folder), member.d_name, &status, AT_SYMLINK_NOFOLLOW) < 0:
                return False
            if status.st_size != file_bytes:
                return False
            files.first = min(files.first, start) if files.count else start
            files.last = max(files.last, start)
            files.count += 1
        member = readdir(folder)
    return files.count == 0 or files.last - files.first == (files.count - 1) * file_bytes


cdef int64_t start_of(const char *name) noexcept:
    """The offset in the name of a file; ODD in any other name."""
    cdef uint64_t value = 0
    cdef int at = 0
    while at < NAME_DIGITS and c"0" <= name[at] <= c"9":
        value = 10 * value + <uint64_t> (name[at] - c"0")
        at += 1
    if at < NAME_DIGITS or name[at] or name[0] != c"0" or value > INT64_MAX:
        return ODD
    return <int64_t> value


cdef look_into(int folder, Files files, int64_t file_bytes, int64_t log_begin, int64_t most):
    cdef bytes name = b"%020d" % files.last
    cdef int descriptor = openat(folder, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC)
    if descriptor < 0:
        return None
    try:
        posix_fadvise(descriptor, 0, 0, POSIX_FADV_RANDOM)  # else zeros behind the entries are read, too
        return newest_of(descriptor, files, file_bytes // ENTRY_BYTES, log_begin, most)
    finally:
        close(descriptor)


cdef newest_of(int descriptor, Files files, int64_t room, int64_t log_begin, int64_t most):
    """As `look`, in the newest file, which has room for so many entries."""
    cdef Written written = Written(0, 0, -1, False)
    cdef unsigned char[CHUNK_ENTRIES * ENTRY_BYTES] data
    cdef int64_t first = files.last // ENTRY_BYTES, count = PAGE_ENTRIES
    while not written.is_end_known and written.count < room:
        count = min(count, room - written.count)
        if pread(descriptor, data, count * ENTRY_BYTES, written.count * ENTRY_BYTES) < count * ENTRY_BYTES:
            return None
        if not add_written(data, count, log_begin, &written):
            return None
        count = CHUNK_ENTRIES
    if files.count > 1 and written.count < most:
        return None
    count = min(most, written.count, <int64_t> CHUNK_ENTRIES)
    if pread(descriptor, data, count * ENTRY_BYTES, (written.count - count) * ENTRY_BYTES) < count * ENTRY_BYTES:
        return None
    return Look(files.count, first + written.expired, first + written.count, data[: count * ENTRY_BYTES])


cdef bint add_written(bytes_at at, int64_t count, int64_t log_begin, Written *written) noexcept:
    """Count the written ones of so many entries; False if their order is not that of the log."""
    cdef int64_t row, physical_offset
    cdef int32_t size
    for row in range(count):
        physical_offset, size = get_i64(at), get_i32(at + 8)
        if size <= 0:
            written.is_end_known = True
            return True
        if size == PRE_BLANK_SIZE:
            physical_offset = -1
        elif physical_offset < 0:
            return False
        if physical_offset < written.newest:
            return False
        written.newest = physical_offset
        written.expired += physical_offset < log_begin
        written.count += 1
        at += ENTRY_BYTES
    return True
