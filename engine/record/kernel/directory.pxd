"""C's calls on directories and on the files in them, for modules that look at many of both."""

from libc.stdint cimport int64_t

cdef extern from "<fcntl.h>" nogil:
    int O_RDONLY, O_CLOEXEC, O_DIRECTORY, O_NOFOLLOW, O_NONBLOCK, O_NOCTTY
    int openat(int folder, const char *name, int flags)
    int POSIX_FADV_RANDOM
    int posix_fadvise(int descriptor, int64_t position, int64_t size, int advice)

cdef extern from "<dirent.h>" nogil:
    ctypedef struct DIR:
        pass
    struct dirent:
        unsigned char d_type
        char *d_name
    int DT_DIR, DT_REG
    DIR *fdopendir(int descriptor)
    dirent *readdir(DIR *folder)
    int closedir(DIR *folder)
    int dirfd(DIR *folder)

cdef extern from "<sys/stat.h>" nogil:
    struct timespec:
        int64_t tv_sec
        int64_t tv_nsec
    struct Status "stat":
        unsigned int st_mode
        unsigned long st_nlink
        int64_t st_size
        timespec st_mtim
    bint S_ISDIR(unsigned int mode)
    int fstatat(int folder, const char *name, Status *found, int flags)
    int AT_SYMLINK_NOFOLLOW

cdef extern from "<unistd.h>" nogil:
    Py_ssize_t pread(int descriptor, void *into, size_t size, int64_t position)
