/*
 * The peer that the mounted rows of the benchmark are measured against: a single-threaded libfuse low-level filesystem that shows
 * one topic of a store as the same tree over one mapping of its commit log. It is what this kernel allows a C program that
 * does no more than it must: no consistency checks, no retention, no other writer, and `append` takes bytes and forgets them.
 *
 *     peer [--poll US] STORE TOPIC INDEX_SLOTS MOUNT        (foreground; ends when unmounted)
 *
 * It waits for each request in read(2), as libfuse's own loop does. With --poll it waits as fsstore's loop does
 * (fsstore/fuse/session.py): it looks for the next request for US microseconds, then polls for LINGER_MS, then blocks.
 *
 * Pinned so that neither side can be gamed: the timeouts, the flush and getxattr answers and the gather of records for `.log` are
 * those of fsstore; there is no notify_store.
 */
#define FUSE_USE_VERSION 312
#include "store.h"
#include "serve.h"
#include <errno.h>
#include <poll.h>
#include <time.h>

#define IMMUTABLE_SECONDS 300.0
#define PREBLANK_SIZE 0x7fffffff
#define MAX_QUEUES 1024
#define LINGER_MS 10

typedef struct {
    int id;
    mapping entries;
    uint64_t count;      /* messages */
    uint64_t *log_start; /* count + 1 positions in `.log` */
} queue;

static mapping commit_log;
static queue queues[MAX_QUEUES];
static int queue_count;
static const char *topic;
static uint32_t index_slots;
static mapping index_files[256];
static int index_count;

enum { ROOT = 1, TOPIC = 2, KEYS = 3, FIRST_QUEUE = 16 };
enum { KIND_DIR, KIND_LOG, KIND_MESSAGE, KIND_APPEND, KIND_LINK };
/* inode = kind << 60 | queue index << 40 | offset; the fixed directories are small numbers */
#define INODE(kind, q, offset) (((uint64_t)(kind) << 60) | ((uint64_t)(q) << 40) | (offset))
#define INODE_KIND(ino) ((int)((ino) >> 60))
#define INODE_QUEUE(ino) ((int)(((ino) >> 40) & 0xfffff))
#define INODE_OFFSET(ino) ((ino) & 0xffffffffffULL)

static const uint8_t *record_at(const queue *q, uint64_t offset)
{
    return commit_log.bytes + (be64(q->entries.bytes + offset * ENTRY_BYTES) - commit_log.first);
}

static void load_queue(const char *store, int id)
{
    queue *q = &queues[queue_count];
    char path[4096];
    snprintf(path, sizeof path, "%s/consumequeue/%s/%d", store, topic, id);
    q->entries = map_directory(path);
    if (!q->entries.bytes)
        return;
    q->id = id;
    uint64_t slots = q->entries.size / ENTRY_BYTES;
    while (q->count < slots && be32(q->entries.bytes + q->count * ENTRY_BYTES + 8) != 0)
        q->count++;
    q->log_start = calloc(q->count + 1, sizeof *q->log_start);
    for (uint64_t i = 0; i < q->count; i++) {
        uint32_t length;
        body_of(record_at(q, i), &length);
        q->log_start[i + 1] = q->log_start[i] + length + 1;
    }
    queue_count++;
}

static void load_index(const char *store)
{
    char path[4096], file[8192];
    struct dirent **names;
    struct stat st;
    snprintf(path, sizeof path, "%s/index", store);
    int n = scandir(path, &names, is_visible, by_name);
    for (int i = 0; i < n && index_count < 256; i++) {
        snprintf(file, sizeof file, "%s/%s", path, names[i]->d_name);
        int fd = open(file, O_RDONLY);
        if (fd < 0 || fstat(fd, &st))
            die(file);
        mapping *m = &index_files[index_count++];
        m->size = (uint64_t)st.st_size;
        m->bytes = mmap(NULL, m->size, PROT_READ, MAP_SHARED, fd, 0);
        if (m->bytes == MAP_FAILED)
            die(file);
        close(fd);
    }
}

static void load(const char *store)
{
    char path[4096];
    snprintf(path, sizeof path, "%s/commitlog", store);
    commit_log = map_directory(path);
    for (int id = 0; id < MAX_QUEUES; id++)
        load_queue(store, id);
    load_index(store);
}

static queue *find_queue(int id)
{
    for (int i = 0; i < queue_count; i++)
        if (queues[i].id == id)
            return &queues[i];
    return NULL;
}

static void stat_inode(fuse_ino_t ino, struct stat *st)
{
    memset(st, 0, sizeof *st);
    st->st_ino = ino;
    st->st_nlink = 1;
    st->st_uid = getuid();
    st->st_gid = getgid();
    if (ino < (1ULL << 60)) {
        st->st_mode = S_IFDIR | 0755;
        return;
    }
    const queue *q = &queues[INODE_QUEUE(ino)];
    uint32_t length;
    uint64_t ms;
    const uint8_t *record;
    switch (INODE_KIND(ino)) {
    case KIND_MESSAGE:
        record = record_at(q, INODE_OFFSET(ino));
        body_of(record, &length);
        ms = store_time_of(record);
        st->st_mode = S_IFREG | 0444;
        st->st_size = length;
        st->st_mtim.tv_sec = st->st_ctim.tv_sec = st->st_atim.tv_sec = (time_t)(ms / 1000);
        st->st_mtim.tv_nsec = st->st_ctim.tv_nsec = st->st_atim.tv_nsec = (long)(ms % 1000) * 1000000;
        break;
    case KIND_LOG:
        st->st_mode = S_IFREG | 0444;
        st->st_size = (off_t)q->log_start[q->count];
        break;
    case KIND_LINK:
        st->st_mode = S_IFLNK | 0777;
        break;
    default:
        st->st_mode = S_IFREG | 0644;
    }
}

static void reply_entry(fuse_req_t req, fuse_ino_t ino, double timeout)
{
    struct fuse_entry_param e = {.ino = ino, .attr_timeout = timeout, .entry_timeout = timeout};
    stat_inode(ino, &e.attr);
    fuse_reply_entry(req, &e);
}

static int32_t key_hash(const char *key)
{
    uint32_t h = 0;
    for (const char *c = topic; *c; c++)
        h = 31 * h + (uint8_t)*c;
    h = 31 * h + '#';
    for (; *key; key++)
        h = 31 * h + (uint8_t)*key;
    int32_t s = (int32_t)h;
    return s == INT32_MIN ? 0 : (s < 0 ? -s : s);
}

static bool carries(const uint8_t *record, const char *key)
{
    uint32_t length;
    const uint8_t *body = body_of(record, &length);
    const uint8_t *properties = body + length + 1 + body[length];
    size_t bytes = (size_t)properties[0] << 8 | properties[1];
    return memmem(properties + 2, bytes, key, strlen(key)) != NULL;
}

/* Newest message with the key: its physical offset, or -1. */
static int64_t newest(const char *key)
{
    int32_t hash = key_hash(key);
    for (int i = index_count - 1; i >= 0; i--) {
        const uint8_t *file = index_files[i].bytes;
        uint32_t entry = be32(file + 40 + 4 * ((uint32_t)hash % index_slots));
        while (entry) {
            const uint8_t *e = file + 40 + 4 * (uint64_t)index_slots + ENTRY_BYTES * (uint64_t)entry;
            uint64_t at = be64(e + 4);
            if ((int32_t)be32(e) == hash && carries(commit_log.bytes + (at - commit_log.first), key))
                return (int64_t)at;
            entry = be32(e + 16);
        }
    }
    return -1;
}

static void do_lookup(fuse_req_t req, fuse_ino_t parent, const char *name)
{
    queue *q;
    char *end;
    if (parent == ROOT && !strcmp(name, topic)) {
        reply_entry(req, TOPIC, IMMUTABLE_SECONDS);
    } else if (parent == TOPIC && !strcmp(name, "keys")) {
        reply_entry(req, KEYS, IMMUTABLE_SECONDS);
    } else if (parent == TOPIC && (q = find_queue((int)strtol(name, &end, 10))) && end != name) {
        int at = (int)(q - queues);
        if (!*end)
            reply_entry(req, (fuse_ino_t)(FIRST_QUEUE + at), IMMUTABLE_SECONDS);
        else if (!strcmp(end, ".log"))
            reply_entry(req, INODE(KIND_LOG, at, 0), IMMUTABLE_SECONDS);
        else
            fuse_reply_err(req, ENOENT);
    } else if (parent == KEYS) {
        int64_t at = newest(name);
        if (at < 0)
            fuse_reply_err(req, ENOENT);
        else
            reply_entry(req, INODE(KIND_LINK, 0, (uint64_t)at), 0.0);
    } else if (parent >= FIRST_QUEUE && parent < FIRST_QUEUE + (fuse_ino_t)queue_count) {
        int at = (int)(parent - FIRST_QUEUE);
        uint64_t offset = strtoull(name, &end, 10);
        static uint64_t appends; /* a fresh inode a lookup, as fsstore answers */
        if (!strcmp(name, "append"))
            reply_entry(req, INODE(KIND_APPEND, at, ++appends), 0.0);
        else if (end == name || *end || offset >= queues[at].count)
            fuse_reply_err(req, ENOENT);
        else
            reply_entry(req, INODE(KIND_MESSAGE, at, offset), IMMUTABLE_SECONDS);
    } else {
        fuse_reply_err(req, ENOENT);
    }
}

static void do_getattr(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi)
{
    struct stat st;
    (void)fi;
    stat_inode(ino, &st);
    fuse_reply_attr(req, &st, INODE_KIND(ino) == KIND_APPEND ? 0.0 : IMMUTABLE_SECONDS);
}

static void do_readlink(fuse_req_t req, fuse_ino_t ino)
{
    char target[64];
    const uint8_t *record = commit_log.bytes + (INODE_OFFSET(ino) - commit_log.first);
    snprintf(target, sizeof target, "../%u/%020llu", be32(record + 12), (unsigned long long)be64(record + 20));
    fuse_reply_readlink(req, target);
}

static void do_open(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi)
{
    fi->direct_io = INODE_KIND(ino) == KIND_APPEND;
    fi->keep_cache = !fi->direct_io;
    fi->noflush = (fi->flags & O_ACCMODE) == O_RDONLY;
    fuse_reply_open(req, fi);
}

static void read_log(fuse_req_t req, const queue *q, size_t size, uint64_t position)
{
    static char *reply;
    static size_t capacity;
    uint64_t total = q->log_start[q->count];
    if (position >= total) {
        fuse_reply_buf(req, NULL, 0);
        return;
    }
    if (size > total - position)
        size = total - position;
    if (size > capacity)
        reply = realloc(reply, capacity = size);
    uint64_t low = 0, high = q->count;
    while (high - low > 1) {
        uint64_t middle = (low + high) / 2;
        if (q->log_start[middle] <= position)
            low = middle;
        else
            high = middle;
    }
    size_t done = 0;
    for (uint64_t i = low; done < size; i++) {
        uint32_t length;
        const uint8_t *body = body_of(record_at(q, i), &length);
        uint64_t skip = position + done - q->log_start[i];
        size_t n = skip < length ? length - skip : 0;
        if (n > size - done)
            n = size - done;
        memcpy(reply + done, body + skip, n);
        done += n;
        if (done < size && skip + n == length)
            reply[done++] = '\n';
    }
    fuse_reply_buf(req, reply, done);
}

static void do_read(fuse_req_t req, fuse_ino_t ino, size_t size, off_t position, struct fuse_file_info *fi)
{
    (void)fi;
    const queue *q = &queues[INODE_QUEUE(ino)];
    if (INODE_KIND(ino) == KIND_LOG) {
        read_log(req, q, size, (uint64_t)position);
        return;
    }
    uint32_t length;
    const uint8_t *body = body_of(record_at(q, INODE_OFFSET(ino)), &length);
    if ((uint64_t)position >= length)
        fuse_reply_buf(req, NULL, 0);
    else
        fuse_reply_buf(req, (const char *)body + position, size < length - (size_t)position ? size : length - (size_t)position);
}

static void do_write(fuse_req_t req, fuse_ino_t ino, const char *bytes, size_t size, off_t position, struct fuse_file_info *fi)
{
    (void)ino, (void)bytes, (void)position, (void)fi;
    fuse_reply_write(req, size);
}

static void do_setattr(fuse_req_t req, fuse_ino_t ino, struct stat *attr, int to_set, struct fuse_file_info *fi)
{
    (void)attr, (void)to_set;
    do_getattr(req, ino, fi);
}

static void do_nothing(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi)
{
    (void)ino, (void)fi;
    fuse_reply_err(req, 0);
}

static void do_fsync(fuse_req_t req, fuse_ino_t ino, int datasync, struct fuse_file_info *fi)
{
    (void)datasync;
    do_nothing(req, ino, fi);
}

static void do_getxattr(fuse_req_t req, fuse_ino_t ino, const char *name, size_t size)
{
    (void)ino, (void)name, (void)size;
    fuse_reply_err(req, ENOTSUP);
}

/* A queue directory lists its messages alone: what the rows about listings measure. */
static void list(fuse_req_t req, fuse_ino_t ino, size_t size, off_t from, bool plus)
{
    char buffer[size], name[32];
    size_t used = 0;
    const queue *q = ino >= FIRST_QUEUE ? &queues[ino - FIRST_QUEUE] : NULL;
    for (uint64_t i = (uint64_t)from; q && i < q->count; i++) {
        struct fuse_entry_param e = {.attr_timeout = IMMUTABLE_SECONDS, .entry_timeout = IMMUTABLE_SECONDS};
        e.ino = INODE(KIND_MESSAGE, q - queues, i);
        snprintf(name, sizeof name, "%020llu", (unsigned long long)i);
        e.attr.st_ino = e.ino;
        e.attr.st_mode = S_IFREG | 0444;
        if (plus)
            stat_inode(e.ino, &e.attr);
        size_t n = plus ? fuse_add_direntry_plus(req, buffer + used, size - used, name, &e, (off_t)i + 1)
                        : fuse_add_direntry(req, buffer + used, size - used, name, &e.attr, (off_t)i + 1);
        if (n > size - used)
            break;
        used += n;
    }
    fuse_reply_buf(req, buffer, used);
}

static const struct fuse_lowlevel_ops operations = {
    .init = do_init,
    .lookup = do_lookup,
    .getattr = do_getattr,
    .setattr = do_setattr,
    .readlink = do_readlink,
    .open = do_open,
    .read = do_read,
    .write = do_write,
    .flush = do_nothing,
    .release = do_nothing,
    .fsync = do_fsync,
    .getxattr = do_getxattr,
    .readdir = do_readdir,
    .readdirplus = do_readdirplus,
};

static int64_t now_us(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000 + t.tv_nsec / 1000;
}

static void wait_for_request(int fd, int64_t look_us)
{
    struct pollfd request = {.fd = fd, .events = POLLIN};
    int64_t until = now_us() + look_us;
    do {
        if (poll(&request, 1, 0))
            return;
    } while (now_us() < until);
    if (!poll(&request, 1, LINGER_MS))
        poll(&request, 1, -1);
}

static int64_t look_us = -1; /* look for a request so long before waiting for one; -1: as libfuse's own loop does */

static int polling_loop(struct fuse_session *session)
{
    struct fuse_buf request = {.mem = NULL};
    int fd = fuse_session_fd(session), size = 0;
    fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK); /* a request may be taken back between being seen and being read */
    while (!fuse_session_exited(session)) {
        wait_for_request(fd, look_us);
        size = fuse_session_receive_buf(session, &request);
        if (size == -EINTR || size == -EAGAIN)
            continue;
        if (size <= 0)
            break;
        fuse_session_process_buf(session, &request);
    }
    free(request.mem);
    return size < 0;
}

int main(int argc, char **argv)
{
    if (argc > 2 && !strcmp(argv[1], "--poll")) {
        look_us = atol(argv[2]);
        argv[2] = argv[0];
        argc -= 2, argv += 2;
    }
    if (argc != 5) {
        fprintf(stderr, "usage: peer [--poll US] STORE TOPIC INDEX_SLOTS MOUNT\n");
        return 2;
    }
    topic = argv[2];
    index_slots = (uint32_t)strtoul(argv[3], NULL, 10);
    load(argv[1]);
    return serve(argv[0], "fsstore-peer", &operations, argv[4], look_us < 0 ? fuse_session_loop : polling_loop);
}
