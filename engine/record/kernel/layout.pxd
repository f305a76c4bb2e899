# Big-endian loads and stores, and what else several modules of the kernel inline (docs/format.md, 2).
# None of these looks at bounds: the caller has, once for a whole record or range.

from libc.stdint cimport int16_t, int32_t, int64_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memcpy

ctypedef const unsigned char *bytes_at

cdef extern from *:
    """
    #if !__has_include(<isa-l/crc.h>)
    #error "the kernel needs ISA-L's headers: apt install libisal-dev (isa-l-devel, isa-l-dev elsewhere)"
    #endif
    #include <isa-l/crc.h>
    static inline uint32_t crc32_of(uint32_t value, const unsigned char *data, uint64_t size) {
    #ifdef __SANITIZE_ADDRESS__ /* which does not watch what a library reads */
        if (size) { volatile unsigned char first = data[0], last = data[size - 1]; (void) first; (void) last; }
    #endif
        return crc32_gzip_refl(value, data, size);
    }
    """
    uint32_t crc32_of(uint32_t value, const unsigned char *data, uint64_t size) nogil

cdef extern from "<endian.h>" nogil:
    uint16_t be16toh(uint16_t value)
    uint32_t be32toh(uint32_t value)
    uint64_t be64toh(uint64_t value)
    uint16_t htobe16(uint16_t value)
    uint32_t htobe32(uint32_t value)
    uint64_t htobe64(uint64_t value)


cdef inline int16_t get_i16(bytes_at at) noexcept nogil:
    cdef uint16_t value
    memcpy(&value, at, 2)
    return <int16_t> be16toh(value)


cdef inline int32_t get_i32(bytes_at at) noexcept nogil:
    cdef uint32_t value
    memcpy(&value, at, 4)
    return <int32_t> be32toh(value)


cdef inline int64_t get_i64(bytes_at at) noexcept nogil:
    cdef uint64_t value
    memcpy(&value, at, 8)
    return <int64_t> be64toh(value)


cdef inline void put_i16(unsigned char *at, int16_t number) noexcept nogil:
    cdef uint16_t value = htobe16(<uint16_t> number)
    memcpy(at, &value, 2)


cdef inline void put_i32(unsigned char *at, int32_t number) noexcept nogil:
    cdef uint32_t value = htobe32(<uint32_t> number)
    memcpy(at, &value, 4)


cdef inline void put_i64(unsigned char *at, int64_t number) noexcept nogil:
    cdef uint64_t value = htobe64(<uint64_t> number)
    memcpy(at, &value, 8)
