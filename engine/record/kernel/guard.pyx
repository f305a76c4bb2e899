"""Guard: an unreadable page of a mapped file makes its own bytes unreadable, and kills no process.

A disk that refuses a page, or a file that was cut, is SIGBUS for the thread that touches it, in whichever library that
happens. The handler maps a page of zeros over the one that can't be read and notes it; the thread goes on. Who read
there asks afterwards whether zeros were all that there was (`is_refused`); while no page of a map that is alive was
refused, that is one comparison. A file with such a page is mapped anew before its next use, so a disk that recovers is
believed again.

A signal for any other address goes to the handler that was there before.
"""

from cpython.exc cimport PyErr_SetFromErrno
from libc.errno cimport ENOMEM, errno
from libc.stdint cimport int64_t

cdef extern from *:
    """
    #include <errno.h>
    #include <signal.h>
    #include <stdint.h>
    #include <sys/mman.h>
    #include <unistd.h>

    #define MOST_MAPS (1 << 16) /* as many as the kernel allows a process, unless it is told otherwise */

    typedef struct {
        uintptr_t start;  /* 0: free; written last, and cleared first */
        size_t size;      /* of whole pages; of a free one the number of the next free one, and 1 */
        int64_t refused;  /* pages, counted again when two threads met one */
        uint64_t *pages;  /* a bit each, NULL while there are none */
        void *owner;
        int protection;
    } watched;

    /* Changed while the GIL is held; read by any thread, and by the handler. */
    static watched maps[MOST_MAPS];
    static int maps_end, free_map = -1;
    static int64_t *maps_refused, all_refused;
    static uintptr_t page_bytes;
    static struct sigaction before;
    static volatile sig_atomic_t is_passed;
    static void *volatile passed_at;
    static __thread int64_t refused_reads __attribute__((tls_model("initial-exec"))); /* never allocated in a handler */

    static watched *map_of(uintptr_t at) {
        const int end = __atomic_load_n(&maps_end, __ATOMIC_ACQUIRE);
        for (int number = 0; number < end; number++) {
            const uintptr_t start = __atomic_load_n(&maps[number].start, __ATOMIC_ACQUIRE);
            if (start && at - start < maps[number].size && start == __atomic_load_n(&maps[number].start, __ATOMIC_ACQUIRE))
                return &maps[number];
        }
        return NULL;
    }

    static size_t bits_bytes(const watched *map) { return (map->size / page_bytes / 64 + 1) * 8; }

    static uint64_t *bits_of(watched *map) {
        uint64_t *bits = __atomic_load_n(&map->pages, __ATOMIC_ACQUIRE);
        if (bits) return bits;
        bits = mmap(NULL, bits_bytes(map), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (bits == MAP_FAILED) return NULL;
        uint64_t *there = NULL;
        if (__atomic_compare_exchange_n(&map->pages, &there, bits, 0, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE)) return bits;
        munmap(bits, bits_bytes(map)); /* another thread was faster */
        return there;
    }

    /* Noted first: whoever sees the zeros finds the note. */
    static int replace_page(uintptr_t at) {
        watched *map = map_of(at);
        uint64_t *bits = map ? bits_of(map) : NULL;
        if (!bits) return 0;
        const uintptr_t page = (at - map->start) / page_bytes;
        __atomic_fetch_or(&bits[page / 64], (uint64_t) 1 << page % 64, __ATOMIC_ACQ_REL);
        __atomic_fetch_add(&all_refused, 1, __ATOMIC_RELAXED);
        if (__atomic_fetch_add(&map->refused, 1, __ATOMIC_ACQ_REL) == 0)
            __atomic_fetch_add(maps_refused, 1, __ATOMIC_ACQ_REL);
        refused_reads++;
        const int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_NORESERVE;
        return mmap((void *) (map->start + page * page_bytes), page_bytes, map->protection, flags, -1, 0) != MAP_FAILED;
    }

    /* To the handler that was there; the end where it sends the signal on, which comes to us again, or mended nothing. */
    static void pass_on(int number, siginfo_t *info, void *context) {
        const int is_again = is_passed && (info->si_code <= 0 || info->si_addr == passed_at);
        if (before.sa_handler == SIG_IGN && info->si_code <= 0) return;
        if (!is_again && before.sa_handler != SIG_DFL && before.sa_handler != SIG_IGN) {
            is_passed = 1, passed_at = info->si_addr;
            if (before.sa_flags & SA_SIGINFO) before.sa_sigaction(number, info, context);
            else before.sa_handler(number);
            return;
        }
        signal(number, SIG_DFL);
        raise(number);
    }

    static void on_bus_error(int number, siginfo_t *info, void *context) {
        const int was = errno;
        const int is_fault = info->si_code > 0 && info->si_code != BUS_MCEERR_AO;
        if (!is_fault || !replace_page((uintptr_t) info->si_addr)) pass_on(number, info, context);
        errno = was;
    }

    /* Be the first handler: another one may have come since. */
    static int stand_in_front(void) {
        struct sigaction now, ours = {.sa_sigaction = on_bus_error, .sa_flags = SA_SIGINFO | SA_ONSTACK | SA_RESTART};
        if (sigaction(SIGBUS, NULL, &now)) return -1;
        if (now.sa_flags & SA_SIGINFO && now.sa_sigaction == on_bus_error) return 0;
        before = now;
        sigemptyset(&ours.sa_mask);
        return sigaction(SIGBUS, &ours, NULL);
    }

    static int watch_map(void *memory, size_t size, int protection, void *owner) {
        int number = free_map;
        if (number >= 0) free_map = (int) maps[number].size - 1;
        else if (maps_end < MOST_MAPS) number = maps_end;
        else return -1;
        maps[number].size = (size + page_bytes - 1) / page_bytes * page_bytes;
        maps[number].owner = owner;
        maps[number].protection = protection;
        __atomic_store_n(&maps[number].start, (uintptr_t) memory, __ATOMIC_RELEASE);
        if (number == maps_end) __atomic_store_n(&maps_end, number + 1, __ATOMIC_RELEASE);
        return number;
    }

    static void unwatch_map(int number) {
        watched *map = &maps[number];
        __atomic_store_n(&map->start, 0, __ATOMIC_RELEASE);
        if (map->refused) __atomic_fetch_sub(maps_refused, 1, __ATOMIC_ACQ_REL);
        if (map->pages) munmap(map->pages, bits_bytes(map));
        map->refused = 0, map->pages = NULL, map->owner = NULL;
        map->size = (size_t) (free_map + 1), free_map = number;
    }

    static const void *find_refused(const void *from, int64_t size) {
        if (size <= 0) return NULL;
        const uintptr_t first = (uintptr_t) from, last = first + (uintptr_t) size - 1;
        const int end = __atomic_load_n(&maps_end, __ATOMIC_ACQUIRE);
        for (int number = 0; number < end; number++) {
            watched *map = &maps[number];
            if (!__atomic_load_n(&map->refused, __ATOMIC_ACQUIRE)) continue;
            const uintptr_t start = __atomic_load_n(&map->start, __ATOMIC_ACQUIRE);
            if (!start || first - start >= map->size) continue;
            const uintptr_t stop = last - start < map->size ? (last - start) / page_bytes : map->size / page_bytes - 1;
            const uint64_t *bits = __atomic_load_n(&map->pages, __ATOMIC_ACQUIRE);
            for (uintptr_t page = (first - start) / page_bytes; page <= stop; page++)
                if (__atomic_load_n(&bits[page / 64], __ATOMIC_ACQUIRE) >> page % 64 & 1)
                    return (const void *) (page == (first - start) / page_bytes ? first : start + page * page_bytes);
        }
        return NULL;
    }

    static int64_t pages_refused(int number) { return __atomic_load_n(&maps[number].refused, __ATOMIC_ACQUIRE); }
    static int64_t refused_by_all(void) { return __atomic_load_n(&all_refused, __ATOMIC_RELAXED); }
    static void *map_owner(const void *at) { watched *map = map_of((uintptr_t) at); return map ? map->owner : NULL; }
    static void begin(int64_t *count) { maps_refused = count; page_bytes = (uintptr_t) sysconf(_SC_PAGESIZE); }
    """
    int PROT_READ, PROT_WRITE
    int64_t refused_reads
    void begin(int64_t *count) nogil
    int stand_in_front() nogil
    int watch_map(void *memory, size_t size, int protection, void *owner) nogil
    void unwatch_map(int number) nogil
    int64_t pages_refused(int number) nogil
    int64_t refused_by_all() nogil
    const void *find_refused(const void *at, int64_t size) nogil
    void *map_owner(const void *at) nogil

refused_maps = 0
begin(&refused_maps)


cdef int watch(object owner, void *memory, Py_ssize_t size, bint writable) except -1:
    """Guard a map of a file, until `unwatch` of the number that this returns. `owner` is not kept. OSError."""
    cdef int number = -1
    if stand_in_front() == 0:
        number = watch_map(memory, size, PROT_READ | (PROT_WRITE if writable else 0), <void *> owner)
        if number < 0:
            errno = ENOMEM  # as the kernel reports that a process has too many maps
    if number < 0:
        PyErr_SetFromErrno(OSError)
    return number


cdef void unwatch(int number) noexcept:
    """The map goes now."""
    unwatch_map(number)


cdef int64_t refused_pages(int number) noexcept nogil:
    """Number of times that the disk refused a page of that map."""
    return pages_refused(number)


cdef const void *first_refused(const void *at, int64_t size) noexcept nogil:
    """The first of these bytes, all of one map, that the disk refused; NULL when it refused none."""
    return find_refused(at, size)


cdef object owner_of(const void *at):
    """The owner of the map that a byte is in; None when it is in none."""
    cdef void *owner = map_owner(at)
    return <object> owner if owner is not NULL else None


def reads_refused():
    """How many pages this thread met, ever, that could not be read: what it read since the number last grew may be
    zeros."""
    return refused_reads


def all_pages_refused():
    """Number of refused pages of all maps of this process since its start. Each access to one counts."""
    return refused_by_all()
