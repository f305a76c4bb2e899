# cython: boundscheck=False, wraparound=False, cdivision=True
"""Search: which ranges of a buffer hold a text.

Two of the text's bytes are looked for at their distance, 64 places at a time; only where both stand is the rest
compared. Other threads run meanwhile. What stands in the buffer may be anything, and may change meanwhile.
"""

from libc.stdint cimport int64_t

import numpy as np

cdef extern from *:
    """
    typedef unsigned char lanes __attribute__((vector_size(16), aligned(1), may_alias));
    typedef unsigned long long halves __attribute__((vector_size(16)));

    typedef struct {
        const unsigned char *bytes, *folds;  /* each byte of the text, and what is laid over a byte before they compare */
        int64_t size, rare, rarer;           /* positions in it of the two that are looked for */
    } wanted;

    static inline int stands_at(const unsigned char *at, const wanted *text) {
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
                    if (stands_at(at + here, text)) return here;
        }
        for (; place < places; place++)
            if (stands_at(at + place, text)) return place;
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


def ranges_with(const unsigned char[::1] data not None, starts not None, sizes not None, bytes text not None,
                bint any_case=False):
    """Which ranges data[start:start + size] hold `text`: bool (n,). With `any_case` ASCII letters of either case are the
    same. IndexError: a range is not inside, and not empty. ValueError: no text, or arrays of different lengths."""
    cdef const int64_t[::1] at = np.ascontiguousarray(starts, np.int64), lengths = np.ascontiguousarray(sizes, np.int64)
    cdef int64_t row, start, places, count = at.shape[0], end = data.shape[0]
    if not text or lengths.shape[0] != count:
        raise ValueError("no text, or arrays of different lengths")
    cdef bytes folds = bytes(CASE if any_case and (65 <= byte <= 90 or 97 <= byte <= 122) else 0 for byte in text)
    cdef bytes folded = bytes(byte | fold for byte, fold in zip(text, folds))
    cdef wanted what
    what.bytes, what.folds, what.size = folded, folds, len(folded)
    what.rare, what.rarer = _rarest(np.asarray(data), at[0] if count else 0, folded, folds)
    found = np.zeros(count, bool)
    cdef unsigned char[::1] held = found.view(np.uint8)
    with nogil:
        for row in range(count):
            start, places = at[row], lengths[row] - what.size + 1
            if lengths[row] and (not 0 < lengths[row] <= end or not 0 <= start <= end - lengths[row]):
                with gil:
                    raise IndexError(f"range {row} is not inside")
            if places > 0:
                held[row] = first_place(&data[start], places, end - start, &what) < places
    return found


def _rarest(data, int64_t start, bytes text, bytes folds):
    """Positions of the two bytes of the text that are rarest in the data from `start` on."""
    counts = np.bincount(data[start : start + SAMPLE_BYTES], minlength=256)
    often = [int(counts[byte]) + (int(counts[byte ^ CASE]) if fold else 0) for byte, fold in zip(text, folds)]
    ranked = sorted(range(len(text)), key=often.__getitem__)
    return ranked[0], ranked[min(1, len(ranked) - 1)]
