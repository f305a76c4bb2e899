# cython: boundscheck=False, wraparound=False, cdivision=True
"""Search: which ranges of a buffer, or which records of a file of the log, hold a text.

Two of the text's bytes are looked for at their distance, 64 places at a time; only where both stand is the rest
compared. Other threads run meanwhile. What stands in the buffer may be anything, and may change meanwhile.
"""

from libc.stdint cimport int64_t, uint32_t
from libc.stdlib cimport calloc, free
from libc.string cimport memcmp

import numpy as np

from engine.record.kernel.guard cimport is_refused
from engine.record.kernel.layout cimport (
    BYTES_AHEAD, COMPRESSED_FLAG, CRC_MASK, INNER_BATCH_FLAGS, ROWS_AHEAD, crc32_of, get_i64, plus, prefetch,
)
from engine.record.kernel.records cimport Header, Place, find_record

cdef extern from *:
    """
    typedef unsigned char lanes __attribute__((vector_size(16), aligned(1), may_alias));
    typedef unsigned long long halves __attribute__((vector_size(16)));

    typedef struct {
        const unsigned char *bytes, *folds;  /* each byte of the text, and what is laid over a byte before they compare */
        int64_t size, rare, rarer;           /* positions in it of the two that are looked for */
    } wanted;

    static inline int matches_slot(const unsigned char *at, const wanted *text) {
        for (int64_t i = 0; i < text->size; i++)
            if ((at[i] | text->folds[i]) != text->bytes[i]) return 0;
        return 1;
    }

    static inline lanes splat(unsigned char byte) { return (lanes) {} + byte; }

    /* The first of `places` bytes from `at` on where the text begins, else `places`; `readable` bytes are there. */
    static int64_t first_place(const unsigned char *at, int64_t places, int64_t readable, const wanted *text) {
        const lanes rare = splat(text->bytes[text->rare]), rare_fold = splat(text->folds[text->rare]);
        const lanes rarer = splat(text->bytes[text->rarer]), rarer_fold = splat(text->folds[text->rarer]);
        int64_t place = 0;
        for (; place < places && place + 64 + text->size <= readable; place += 64) {
            lanes found = {};
            for (int64_t lane = place; lane < place + 64; lane += 16) {
                const lanes one = *(const lanes *) (at + lane + text->rare) | rare_fold;
                const lanes other = *(const lanes *) (at + lane + text->rarer) | rarer_fold;
                found |= (lanes) (one == rare) & (lanes) (other == rarer);
            }
            const halves any = (halves) found;
            if (any[0] | any[1])
                for (int64_t here = place; here < place + 64 && here < places; here++)
                    if (matches_slot(at + here, text)) return here;
        }
        for (; place < places; place++)
            if (matches_slot(at + place, text)) return place;
        return places;
    }
    """
    ctypedef struct wanted:
        const unsigned char *bytes
        const unsigned char *folds
        int64_t size, rare, rarer
    int64_t first_place(const unsigned char *at, int64_t places, int64_t readable, const wanted *text) nogil

cdef enum:
    SAMPLE_BYTES = 1 << 16
    CASE = 0x20
    QUEUE_ENTRY_BYTES = 20


cdef class Texts:
    """Texts to look for. With `any_case` ASCII letters of either case are the same."""

    cdef wanted *texts
    cdef int64_t count
    cdef list kept

    def __cinit__(self, texts not None, bint any_case, const unsigned char[::1] sample not None):
        """`sample` is a part of the data to search; it shows which bytes are rare. ValueError: an empty text."""
        counts = np.bincount(sample[:SAMPLE_BYTES], minlength=256).tolist()
        self.kept = []
        self.count = len(texts)
        self.texts = <wanted *> calloc(max(self.count, 1), sizeof(wanted))
        if self.texts == NULL:
            raise MemoryError
        for number, text in enumerate(texts):
            self._set(&self.texts[number], text, any_case, counts)

    def __dealloc__(self):
        free(self.texts)

    cdef int _set(self, wanted *what, bytes text, bint any_case, list counts) except -1:
        if not text:
            raise ValueError("no text")
        cdef bytes folds = bytes(CASE if any_case and (65 <= byte <= 90 or 97 <= byte <= 122) else 0 for byte in text)
        cdef bytes folded = bytes(byte | fold for byte, fold in zip(text, folds))
        self.kept += [folds, folded]
        often = [counts[byte] + (counts[byte ^ CASE] if fold else 0) for byte, fold in zip(folded, folds)]
        ranked = sorted(range(len(text)), key=often.__getitem__)
        what.bytes, what.folds, what.size = folded, folds, len(folded)
        what.rare, what.rarer = ranked[0], ranked[min(1, len(ranked) - 1)]
        return 0

    cdef inline int64_t first_in(self, const unsigned char *at, int64_t size, int64_t readable) noexcept nogil:
        """The number of the first text that stands within `size` bytes from `at` on, of which `readable` can be read;
        -1 when none does, 0 when there are no texts."""
        cdef int64_t number, places
        for number in range(self.count):
            places = size - self.texts[number].size + 1
            if places > 0 and first_place(at, places, readable, &self.texts[number]) < places:
                return number
        return -1 if self.count else 0


def find_texts(Texts texts not None, const unsigned char[::1] data not None, starts not None, sizes not None):
    """Of each range data[start:start + size] the number of the first text that it holds, -1 where it holds none (int64
    (n,)); 0 when there are no texts. IndexError: a range is not inside, and not empty. ValueError: arrays of different
    lengths."""
    cdef const int64_t[::1] at = np.ascontiguousarray(starts, np.int64), lengths = np.ascontiguousarray(sizes, np.int64)
    cdef int64_t row, count = at.shape[0], end = data.shape[0], start
    if lengths.shape[0] != count:
        raise ValueError("arrays of different lengths")
    found = np.empty(count, np.int64)
    cdef int64_t[::1] numbers = found
    with nogil:
        for row in range(count):
            start = at[row] if lengths[row] else 0
            if not 0 <= lengths[row] <= end or not 0 <= start <= end - lengths[row]:
                break
            numbers[row] = texts.first_in(&data[0] + start, lengths[row], end - start)
        else:
            row = count
    if row < count:
        raise IndexError(f"range {row} is not inside")
    return found


def find_bodies(
    Texts texts not None, const unsigned char[::1] log not None, int64_t base, entries not None, bytes topic not None,
    int64_t queue_id, int64_t first, bint is_ledger, int64_t most_bytes,
):
    """Which messages hold one of `texts` in their bodies: of those at queue offsets `first`, `first` + 1 …, to which
    `entries` lead, in the file `log`, which is at `base` of the log; about `most_bytes` of it at most.

    (rows that were looked at; of those found rows, numbers of the first of the texts, and where the bodies start and
    their sizes, all int64 (4, n)). None was looked at when the first must be read alone: its record does not stand
    there, is no message by itself, was refused by the disk, is compressed, or has a body that holds a text and that its CRC denies.
    """
    cdef const unsigned char[::1] raw = entries.view(np.uint8)
    cdef int64_t row, count = raw.shape[0] // QUEUE_ENTRY_BYTES, end = log.shape[0], at, physical_offset, number
    cdef int64_t topic_size = len(topic), hits = 0, looked = 0
    cdef const char *name = topic
    cdef Header header
    cdef Place place
    found = np.empty((4, count), np.int64)
    cdef int64_t[:, ::1] columns = found
    with nogil:
        for row in range(count):
            if row + ROWS_AHEAD < count:
                prefetch(&log[0] + plus(get_i64(&raw[(row + ROWS_AHEAD) * QUEUE_ENTRY_BYTES]), -base), BYTES_AHEAD)
            physical_offset = get_i64(&raw[row * QUEUE_ENTRY_BYTES])
            at = plus(physical_offset, -base)
            if (
                looked >= most_bytes
                or not find_record(&log[0], end, at, physical_offset, False, is_ledger, True, &header, &place)
                or header.sys_flag & COMPRESSED_FLAG
                or header.sys_flag & INNER_BATCH_FLAGS == INNER_BATCH_FLAGS
                or header.queue_offset != plus(first, row)
                or place.queue_id != queue_id
                or place.topic_size != topic_size
                or memcmp(&log[place.topic_start], name, topic_size) != 0
            ):
                break
            looked += header.store_size
            number = texts.first_in(&log[place.body_start], place.body_size, end - place.body_start)
            if is_refused(&log[at], header.store_size):
                break
            if number < 0:
                continue
            if place.body_size and (
                crc32_of(0, &log[place.body_start], place.body_size) & CRC_MASK != <uint32_t> place.body_crc
            ):
                break
            columns[0, hits], columns[1, hits] = row, number
            columns[2, hits], columns[3, hits] = place.body_start, place.body_size
            hits += 1
        else:
            row = count
    return row, found[:, :hits]
