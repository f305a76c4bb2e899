/*
 * The peer of the benchmark's rows about a store of many topics: the root of the same tree, and nothing below it, by a
 * single-threaded libfuse low-level filesystem. Each topic is a directory and a `.log`, whose size it computes when it starts.
 *
 *     wide STORE MOUNT        (foreground; ends when unmounted)
 *
 * The timeouts are those of fsstore: the name of a `.log` is looked up each time.
 */
#define FUSE_USE_VERSION 312
#include "store.h"
#include "serve.h"
#include <errno.h>

#define NAME_SECONDS 300.0
#define MOST_ENTRIES 1024 /* of a queue that are read */

typedef struct {
    char *name;
    uint64_t log_bytes, newest_ms;
} topic;

static mapping commit_log;
static topic *topics;
static int topic_count;

enum { ROOT = 1, FIRST_TOPIC = 16 };
/* inode = FIRST_TOPIC + 2 * number of the topic, and 1 more for its `.log` */

static void load_queue(topic *t, const char *folder)
{
    uint8_t entries[MOST_ENTRIES * ENTRY_BYTES];
    char path[4096];
    snprintf(path, sizeof path, "%s/%020d", folder, 0);
    int fd = open(path, O_RDONLY);
    if (fd < 0)
        return;
    ssize_t size = pread(fd, entries, sizeof entries, 0);
    close(fd);
    for (const uint8_t *e = entries; e < entries + size && be32(e + 8); e += ENTRY_BYTES) {
        const uint8_t *record = commit_log.bytes + (be64(e) - commit_log.first);
        uint32_t length;
        body_of(record, &length);
        t->log_bytes += length + 1;
        if (store_time_of(record) > t->newest_ms)
            t->newest_ms = store_time_of(record);
    }
}

static void load(const char *store)
{
    struct dirent **names, **queues;
    char path[2048], folder[4096];
    snprintf(path, sizeof path, "%s/commitlog", store);
    commit_log = map_directory(path);
    snprintf(path, sizeof path, "%s/consumequeue", store);
    topic_count = scandir(path, &names, is_visible, by_name);
    if (topic_count < 0)
        die(path);
    topics = calloc((size_t)topic_count, sizeof *topics);
    for (int i = 0; i < topic_count; i++) {
        topics[i].name = strdup(names[i]->d_name);
        snprintf(path, sizeof path, "%s/consumequeue/%s", store, topics[i].name);
        int count = scandir(path, &queues, is_visible, by_name);
        for (int q = 0; q < count; q++) {
            snprintf(folder, sizeof folder, "%s/%s", path, queues[q]->d_name);
            load_queue(&topics[i], folder);
        }
    }
}

static void describe(fuse_ino_t ino, struct fuse_entry_param *e)
{
    const topic *t = ino >= FIRST_TOPIC ? &topics[(ino - FIRST_TOPIC) / 2] : NULL;
    bool is_log = t && (ino - FIRST_TOPIC) % 2;
    memset(e, 0, sizeof *e);
    e->ino = e->attr.st_ino = ino;
    e->attr_timeout = NAME_SECONDS;
    e->entry_timeout = is_log ? 0 : NAME_SECONDS;
    e->attr.st_mode = is_log ? S_IFREG | 0444 : S_IFDIR | 0755;
    e->attr.st_nlink = is_log ? 1 : 2;
    e->attr.st_uid = getuid();
    e->attr.st_gid = getgid();
    if (is_log) {
        e->attr.st_size = (off_t)t->log_bytes;
        e->attr.st_mtim.tv_sec = e->attr.st_ctim.tv_sec = e->attr.st_atim.tv_sec = (time_t)(t->newest_ms / 1000);
    }
}

static int compare(const void *name, const void *t) { return strcmp(name, ((const topic *)t)->name); }

static void do_lookup(fuse_req_t req, fuse_ino_t parent, const char *name)
{
    char topic_name[256];
    size_t length = strlen(name);
    bool is_log = length > 4 && !strcmp(name + length - 4, ".log");
    snprintf(topic_name, sizeof topic_name, "%.*s", (int)(length - (is_log ? 4 : 0)), name);
    topic *t = parent == ROOT ? bsearch(topic_name, topics, (size_t)topic_count, sizeof *topics, compare) : NULL;
    struct fuse_entry_param e;
    if (!t) {
        fuse_reply_err(req, ENOENT);
        return;
    }
    describe((fuse_ino_t)(FIRST_TOPIC + 2 * (t - topics) + is_log), &e);
    fuse_reply_entry(req, &e);
}

static void do_getattr(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi)
{
    struct fuse_entry_param e;
    (void)fi;
    describe(ino, &e);
    fuse_reply_attr(req, &e.attr, NAME_SECONDS);
}

static void do_getxattr(fuse_req_t req, fuse_ino_t ino, const char *name, size_t size)
{
    (void)ino, (void)name, (void)size;
    fuse_reply_err(req, ENOTSUP);
}

static void list(fuse_req_t req, fuse_ino_t ino, size_t size, off_t from, bool plus)
{
    char buffer[size], name[300];
    size_t used = 0;
    for (off_t i = from; ino == ROOT && i < 2 * (off_t)topic_count; i++) {
        struct fuse_entry_param e;
        describe((fuse_ino_t)(FIRST_TOPIC + i), &e);
        snprintf(name, sizeof name, "%s%s", topics[i / 2].name, i % 2 ? ".log" : "");
        size_t n = plus ? fuse_add_direntry_plus(req, buffer + used, size - used, name, &e, i + 1)
                        : fuse_add_direntry(req, buffer + used, size - used, name, &e.attr, i + 1);
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
    .getxattr = do_getxattr,
    .readdir = do_readdir,
    .readdirplus = do_readdirplus,
};

int main(int argc, char **argv)
{
    if (argc != 3) {
        fprintf(stderr, "usage: wide STORE MOUNT\n");
        return 2;
    }
    load(argv[1]);
    return serve(argv[0], "fsstore-wide", &operations, argv[2], fuse_session_loop);
}
