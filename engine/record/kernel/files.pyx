"""Files: the mapped memory of a file, checks that the file still has all of it, and the end of its data.

A page that a file has lost, or that the disk refuses, reads as zeros and is noted (`guard`). Of a file that was cut, the
rest of its last page is zeros, too, and nothing notes that: whoever reads asks before for the file's length, by a seek to
its end, which costs a system call and no more.
"""

from posix.mman cimport (
    MAP_ANONYMOUS, MAP_FAILED, MAP_PRIVATE, MAP_SHARED, PROT_READ, PROT_WRITE, madvise, mmap, munmap,
)
from posix.unistd cimport SEEK_END, close, lseek, read, write

from cpython.buffer cimport PyBuffer_FillInfo
from cpython.exc cimport PyErr_SetFromErrno
from libc.errno cimport errno
from libc.stdint cimport int64_t

import mmap as mapping

from engine.errors import REFUSED_PAGE, RefusedReadError, TruncatedFileError, UnreadableRangeError
from engine.record.kernel.guard cimport (
    first_refused, is_any, is_refused, owner_of, refused_maps, refused_pages, touch, unwatch, watch,
)
from engine.record.kernel.layout cimport BYTES_AHEAD, prefetch
from engine.record.kernel.pages cimport Pages

cdef extern from "<fcntl.h>" nogil:
    int fcntl(int descriptor, int command, ...)
    int F_DUPFD_CLOEXEC

cdef extern from "<sys/mman.h>" nogil:
    int mincore(void *memory, size_t size, unsigned char *held)
    int MADV_WILLNEED, MADV_HUGEPAGE

cdef enum:
    MADV_POPULATE_READ = 22  # Linux 5.14


cdef enum:
    READ_ALONE_BYTES = 64 << 10  # during longer reads other threads run

cdef Py_ssize_t PAGE_BYTES = mapping.PAGESIZE


cdef class FileMap:
    """Memory that holds the first bytes of a file, or zeros of its own where `descriptor` is -1: a buffer, unmapped when
    its last view goes. It keeps a descriptor of the file."""

    def __cinit__(self, int descriptor, Py_ssize_t size, *, bint writable, bint private, path=None):
        """`private`: what is written stays in this process. `path` is what errors name. OSError."""
        cdef int protection = PROT_READ | (PROT_WRITE if writable else 0)
        cdef int flags = MAP_PRIVATE if private else MAP_SHARED
        self.descriptor, self.size, self.is_writable, self.guarded_as, self.path = -1, size, writable, -1, path
        if size < 1:
            raise ValueError(f"a map of {size} bytes")
        if descriptor < 0:
            flags |= MAP_ANONYMOUS
        else:
            self.descriptor = fcntl(descriptor, F_DUPFD_CLOEXEC, 0)
            if self.descriptor < 0:
                PyErr_SetFromErrno(OSError)
        self.memory = mmap(NULL, size, protection, flags, self.descriptor, 0)
        if self.memory == MAP_FAILED:
            self.memory = NULL
            PyErr_SetFromErrno(OSError)
        if descriptor >= 0:
            self.guarded_as = watch(self, self.memory, size, writable)

    def __dealloc__(self):
        if self.guarded_as >= 0:
            unwatch(self.guarded_as)
        if self.memory is not NULL:
            munmap(self.memory, self.size)
        if self.descriptor >= 0:
            close(self.descriptor)

    def __getbuffer__(self, Py_buffer *view, int flags):
        PyBuffer_FillInfo(view, self, self.memory, self.size, not self.is_writable, flags)

    def advise(self, int advice):
        """As madvise(2), of all of it. OSError."""
        if madvise(self.memory, self.size, advice) != 0:
            PyErr_SetFromErrno(OSError)

    cdef void *page_of(self, Py_ssize_t start, Py_ssize_t size, Py_ssize_t *pages_size) except NULL:
        """Where the page of byte `start` is, and how long are that one and those of `size` bytes. IndexError."""
        if start < 0 or size < 1 or start > self.size - size:
            raise IndexError(f"[{start}, + {size}) of {self.size} bytes")
        pages_size[0] = size + start % PAGE_BYTES
        return <char *> self.memory + (start - start % PAGE_BYTES)

    def is_read(self, Py_ssize_t start, Py_ssize_t size):
        """Whether the first and the last page of these bytes are in memory, as far as is known. IndexError."""
        cdef Py_ssize_t pages_size
        cdef char *page = <char *> self.page_of(start, size, &pages_size)
        cdef unsigned char first = 1, last = 1
        mincore(page, 1, &first)
        mincore(page + (pages_size - 1) // PAGE_BYTES * PAGE_BYTES, 1, &last)
        return self.descriptor < 0 or bool(first & last & 1)

    def cached(self, Py_ssize_t start, Py_ssize_t size):
        """Which pages of these bytes are in memory: one byte for each page, whose lowest bit is 1 for those that are,
        and for all where nobody can say. IndexError."""
        cdef Py_ssize_t pages_size
        cdef void *page = self.page_of(start, size, &pages_size)
        cdef bytearray held = bytearray(b"\x01") * (-(-pages_size // PAGE_BYTES))
        cdef unsigned char *flags = held
        mincore(page, pages_size, flags)  # a failure changes nothing
        return held

    def read_soon(self, Py_ssize_t start, Py_ssize_t size):
        """Have the kernel begin to read these bytes from disk. IndexError."""
        cdef Py_ssize_t pages_size
        cdef void *page = self.page_of(start, size, &pages_size)
        madvise(page, pages_size, MADV_WILLNEED)  # after a failure the pages are read on access

    def read_large(self, Py_ssize_t start, Py_ssize_t size):
        """Read these bytes from disk, into pages as large as the file system has: to look at these costs few faults.
        Other threads run meanwhile. IndexError."""
        cdef Py_ssize_t pages_size
        cdef void *page = self.page_of(start, size, &pages_size)
        with nogil:
            madvise(page, pages_size, MADV_HUGEPAGE)
            madvise(page, pages_size, MADV_POPULATE_READ)

    cdef bint has_refused(self) noexcept:
        return is_any(&refused_maps) and self.guarded_as >= 0 and refused_pages(self.guarded_as) > 0

    def is_refused(self):
        """Whether a page could not be read. It stays zeros in this map."""
        return self.has_refused()

    def file_bytes(self):
        """Present size of the file in bytes, -1 if unknown; of private memory its own size."""
        return self.size if self.descriptor < 0 else lseek(self.descriptor, 0, SEEK_END)


cdef object refusal_of(const void *at, int64_t size, int64_t physical_offset=-1):
    """The error for an access to these bytes, of which the disk refused some; it names the record, if that is known."""
    cdef const void *found = first_refused(at, size)
    cdef FileMap owner = owner_of(found)
    cdef int64_t position = <const char *> found - <const char *> owner.memory, there = owner.file_bytes()
    if 0 <= there <= position:
        return TruncatedFileError(owner.path, owner.size, there)
    return RefusedReadError(physical_offset, REFUSED_PAGE, owner.path, position)


def require_read(data not None, int64_t position=0, length=None):
    """RefusedReadError, TruncatedFileError: the disk refused one of these accessed bytes of a map."""
    cdef Pages pages = Pages.__new__(Pages, data)
    cdef int64_t size = pages.size - position if length is None else length
    cdef const void *at = pages.at(position, size)
    if is_refused(at, size):
        raise refusal_of(at, size)


def read_through(data not None):
    """Touch these bytes of a map, then as `require_read`. Other threads run meanwhile."""
    cdef Pages pages = Pages.__new__(Pages, data)
    if pages.size > READ_ALONE_BYTES:
        with nogil:
            touch(pages.data, pages.size)
    else:
        touch(pages.data, pages.size)
    if is_refused(pages.data, pages.size):
        raise refusal_of(pages.data, pages.size)


def refused_parts(data not None):
    """Which of these bytes of a map, that were touched, are in pages that the disk refused: a first position and the one
    after the last of each page. TruncatedFileError: the file has lost one."""
    cdef Pages pages = Pages.__new__(Pages, data)
    cdef const char *at
    cdef int64_t begin, end = 0
    cdef list parts = []
    while is_refused(pages.data + end, pages.size - end):
        at = <const char *> first_refused(pages.data + end, pages.size - end)
        error = refusal_of(at, 1)
        if isinstance(error, TruncatedFileError):
            raise error
        begin = at - <const char *> pages.data
        end = min(begin + PAGE_BYTES - <int64_t> (<size_t> at % <size_t> PAGE_BYTES), pages.size)
        parts.append((begin, end))
    return parts


def refused_end(data not None):
    """Access these bytes of a map; returns the position after the last one that the disk refuses, 0 without one."""
    cdef Pages pages = Pages.__new__(Pages, data)
    cdef int64_t end = pages.size, position
    with nogil:
        touch(pages.data, end)
    while is_refused(pages.data, end):
        position = (end - 1) - (<size_t> pages.data + end - 1) % PAGE_BYTES
        if is_refused(pages.data + max(position, 0), end - max(position, 0)):
            return end
        end = position
    return 0


def read_at_once(int descriptor, bytearray into not None):
    """Read from a descriptor that never blocks: how many bytes there were, or the negative errno. Other threads of this
    interpreter do not run meanwhile, which `os.readv` lets them: it would have to wait for its turn again."""
    cdef Py_ssize_t size = read(descriptor, <char *> into, len(into))
    return size if size >= 0 else -errno


def write_at_once(int descriptor, bytes data not None):
    """As `read_at_once`, for a write."""
    cdef Py_ssize_t size = write(descriptor, <const char *> data, len(data))
    return size if size >= 0 else -errno


cdef class Mapped:
    """A map, and the view of it for readers."""

    def __init__(self, FileMap map not None):
        self.map = map
        self.view = memoryview(map).toreadonly()
        self.pages = Pages(self.view)

    cdef bint is_whole(self) noexcept:
        """Whether the file still has all mapped bytes."""
        return self.map.descriptor < 0 or lseek(self.map.descriptor, 0, SEEK_END) >= self.map.size


cdef class FilePositions:
    """Where the data of a mapped file ends, and before which position it has disk space for more; the memory that is
    read, None until it was looked at, and the memory that its writer writes to. One thread at a time writes."""

    @property
    def _target(self):
        """The whole file for writing, None until that was made ready."""
        return self._memory

    @_target.setter
    def _target(self, memory):
        self._memory = memory
        self.pages = None if memory is None else Pages(memory, writable=True)

    cdef bint takes(self, Py_ssize_t size):
        """Whether so many bytes may be written at `wrote`, and are readable then. `allocated` is at most `size`."""
        return (
            self.pages is not None
            and self._buffer is None
            and 0 <= self.wrote <= min(self.allocated, self.pages.size) - size
            and not is_refused(self.pages.data + self.wrote, size)
        )

    cdef Mapped whole_map(self):
        """The map, if the file still has all of it. TruncatedFileError, RetiredFileError."""
        return self.require_whole(self.any_map())

    cdef Mapped any_map(self):
        cdef Mapped mapped = self._mapped
        return self._map() if mapped is None or mapped.map.has_refused() else mapped

    cdef Mapped require_whole(self, Mapped mapped):
        if not mapped.is_whole():
            raise TruncatedFileError(self.path, self.size, mapped.map.file_bytes())
        return mapped

    def view(self, position, length):
        """Read-only view of readable bytes. UnreadableRangeError, TruncatedFileError, RetiredFileError."""
        return self.map_with(position, length).view[position:position + length]

    cdef Mapped map_with(self, int64_t position, int64_t length):
        """The map, when these bytes are readable: errors as `view`."""
        if position < 0 or length < 0 or position > self.readable - length:
            raise UnreadableRangeError(self.path, position, length, self.readable)
        cdef Mapped mapped = self.any_map()
        if position > mapped.map.size - length:
            raise TruncatedFileError(self.path, self.size, mapped.map.size)
        prefetch(mapped.pages.data + position, min(length, BYTES_AHEAD))  # while the file is asked how long it is
        return self.require_whole(mapped)

    def rest(self, position):
        """Read-only view of the readable bytes from `position` on, of a file that was cut those it has left. Errors as
        `view`."""
        cdef int64_t readable = self.readable
        if not 0 <= position <= readable:
            raise UnreadableRangeError(self.path, position, 0, readable)
        cdef Mapped mapped = self.whole_map()
        if mapped.map.size < readable:
            if position >= mapped.map.size:
                raise TruncatedFileError(self.path, self.size, mapped.map.size)
            readable = mapped.map.size
        return mapped.view[position:readable]

    def whole(self):
        """Read-only view of every byte that the file has, readable or not: for finding out where data ends.

        TruncatedFileError when the file is shorter now than its map.
        """
        return self.whole_map().view


cdef class FilesByStart:
    """Files of one size, by the offsets where they begin."""

    @property
    def min_offset(self):
        """Offset of the oldest byte; 0 when there are no files."""
        cdef tuple files = self._files
        return files[0].start if files else 0

    def find(self, offset):
        """The file that contains `offset`; None if it is expired, missing or not made yet."""
        return self._by_start.get(offset - offset % self.file_bytes)

    cdef FilePositions file_of(self, int64_t offset):
        return self._by_start.get(offset - offset % self.file_bytes) if offset >= 0 else None
