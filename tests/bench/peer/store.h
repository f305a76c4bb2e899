/*
 * The files of a store, for the peers of the benchmark: mapped, and taken to be as their writer left them.
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <endian.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define ENTRY_BYTES 20

/* Files of one kind, mapped one after another, so that an offset is an address. */
typedef struct {
    const uint8_t *bytes;
    uint64_t first; /* what the first file's name says */
    uint64_t size;  /* bytes mapped */
    uint64_t file_size;
} mapping;

static inline uint64_t be64(const uint8_t *p) { uint64_t v; memcpy(&v, p, 8); return be64toh(v); }
static inline uint32_t be32(const uint8_t *p) { uint32_t v; memcpy(&v, p, 4); return be32toh(v); }

static inline void die(const char *what) { perror(what); exit(1); }

static inline int by_name(const struct dirent **a, const struct dirent **b) { return strcmp((*a)->d_name, (*b)->d_name); }
static inline int is_visible(const struct dirent *e) { return e->d_name[0] != '.'; }

static inline mapping map_file(const char *path, mapping into, uint64_t at, uint64_t size)
{
    int fd = open(path, O_RDONLY);
    if (fd < 0 || mmap((void *)(into.bytes + at), size, PROT_READ, MAP_SHARED | MAP_FIXED, fd, 0) == MAP_FAILED)
        die(path);
    close(fd);
    return into;
}

static inline mapping map_directory(const char *path)
{
    struct dirent **names;
    mapping m = {0};
    char file[4096];
    struct stat st;
    int n = scandir(path, &names, is_visible, by_name);
    if (n <= 0)
        return m;
    snprintf(file, sizeof file, "%s/%s", path, names[0]->d_name);
    if (stat(file, &st))
        die(file);
    m.first = strtoull(names[0]->d_name, NULL, 10);
    m.file_size = (uint64_t)st.st_size;
    /* page-aligned slots would break `offset is an address` for consume queues, whose files are not whole pages: read those. */
    m.size = m.file_size * (uint64_t)n;
    m.bytes = mmap(NULL, m.size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (m.bytes == MAP_FAILED)
        die("mmap");
    for (int i = 0; i < n; i++) {
        snprintf(file, sizeof file, "%s/%s", path, names[i]->d_name);
        if (m.file_size % 4096 == 0) {
            map_file(file, m, m.file_size * (uint64_t)i, m.file_size);
        } else {
            int fd = open(file, O_RDONLY);
            if (fd < 0 || pread(fd, (void *)(m.bytes + m.file_size * (uint64_t)i), m.file_size, 0) != (ssize_t)m.file_size)
                die(file);
            close(fd);
        }
        free(names[i]);
    }
    free(names);
    return m;
}

/* Body position and length: the hosts' lengths depend on two flags (docs/format.md, 2). */
static inline const uint8_t *body_of(const uint8_t *record, uint32_t *length)
{
    uint32_t flags = be32(record + 36);
    size_t hosts = (flags & 0x10 ? 20u : 8u) + (flags & 0x20 ? 20u : 8u);
    *length = be32(record + 68 + hosts);
    return record + 72 + hosts;
}

static inline uint64_t store_time_of(const uint8_t *record)
{
    return be64(record + (be32(record + 36) & 0x10 ? 68 : 56));
}
