/* A file system over a folder that fails by rule: what a dying, full or slow disk does, when a test says so.

   faultfs FOLDER MOUNTPOINT

   Commands are lines on standard input, each answered by a line on standard output; the end of input ends it.

     rule OP ERRNO FIRST END AFTER TIMES DELAY_US LENGTH PATTERN
         Calls of OP whose path below FOLDER matches PATTERN (fnmatch, `*` crosses folders), and that touch the bytes
         [FIRST, END), fail with ERRNO; with 0 they are done, a read or write only up to LENGTH bytes of it. Either comes
         after DELAY_US. The first AFTER calls are spared; then TIMES fail (-1: all). Of several rules the first counts.
         A rule for reads is about the files that are there now, if any, wherever they are moved: a file that is made in
         their place has other sectors.
     clear
         No rules.
     drop PATTERN
         Pages of these files leave the page cache, mapped or not: they are asked for again.
     count
         How many calls rules have struck so far.

   The page cache works as a local disk's: it is kept from one open to the next, so pages whose write-back failed stay
   there as clean. A page is asked for by a read of its own, so one that is refused costs no other one. */

#define FUSE_USE_VERSION 31
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <fnmatch.h>
#include <fuse.h>
#include <dirent.h>
#include <ftw.h>
#include <limits.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/xattr.h>
#include <unistd.h>

enum { MOST_RULES = 256, OP_LENGTH = 16, MOST_OPEN = 20, MOST_FILES = 64 };

struct rule {
    char op[OP_LENGTH], pattern[PATH_MAX];
    int error;
    long long first, end, after, times, delay_us, length;
    int files[MOST_FILES], file_count; /* descriptors of files that the rule is about: they keep their inodes */
};

static struct rule rules[MOST_RULES];
static int rule_count;
static long long struck;
static pthread_mutex_t rules_lock = PTHREAD_MUTEX_INITIALIZER;
static char root[PATH_MAX];
static struct fuse *session;

/* rules */

static bool is_about(const struct rule *rule, const char *path, int fd)
{
    struct stat asked, known;
    if (!rule->file_count)
        return !fnmatch(rule->pattern, path, 0);
    for (int i = 0; i < rule->file_count; i++)
        if (!fstat(fd, &asked) && !fstat(rule->files[i], &known) && asked.st_ino == known.st_ino)
            return true;
    return false;
}

static bool applies(const struct rule *rule, const char *op, const char *path, int fd, off_t offset, size_t length)
{
    return !strcmp(rule->op, op) && is_about(rule, path, fd) && offset < rule->end &&
           offset + (long long)length > rule->first;
}

/* The rule that strikes this call, copied to `found`. */
static bool strikes(const char *op, const char *path, int fd, off_t offset, size_t length, struct rule *found)
{
    bool hit = false;
    pthread_mutex_lock(&rules_lock);
    for (int i = 0; i < rule_count && !hit; i++) {
        struct rule *rule = &rules[i];
        if (!applies(rule, op, path, fd, offset, length) || !rule->times)
            continue;
        if (rule->after > 0) {
            rule->after--;
            continue;
        }
        if (rule->times > 0)
            rule->times--;
        *found = *rule;
        hit = true;
        struck++;
    }
    pthread_mutex_unlock(&rules_lock);
    return hit;
}

/* 0, or the negative errno of a call on an open file. `length` is that of the bytes it touches, and is shortened where a
   rule says so. */
static int fault(const char *op, const char *path, int fd, off_t offset, size_t *length)
{
    struct rule rule;
    if (!strikes(op, path, fd, offset, *length, &rule))
        return 0;
    if (rule.delay_us)
        usleep(rule.delay_us);
    if (!rule.error && rule.length >= 0 && *length > (size_t)rule.length)
        *length = rule.length;
    return -rule.error;
}

/* For calls that touch no certain bytes. */
static int refusal(const char *op, const char *path)
{
    size_t all = SSIZE_MAX;
    return fault(op, path, -1, 0, &all);
}

/* paths */

static const char *below(const char *path, char *buffer)
{
    snprintf(buffer, PATH_MAX, "%s%s", root, path);
    return buffer;
}

/* The path below the folder of an open file: its name now, or its last one. */
static const char *path_of(int fd, char *buffer)
{
    char link[64];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, buffer, PATH_MAX - 1);
    buffer[length < 0 ? 0 : length] = 0;
    return strncmp(buffer, root, strlen(root)) ? buffer : buffer + strlen(root);
}

static int answer(long long result)
{
    return result < 0 ? -errno : (int)result;
}

/* names */

static int get_attributes(const char *path, struct stat *found, struct fuse_file_info *file)
{
    char real[PATH_MAX];
    return answer(file ? fstat(file->fh, found) : lstat(below(path, real), found));
}

static int read_link(const char *path, char *target, size_t size)
{
    char real[PATH_MAX];
    ssize_t length = readlink(below(path, real), target, size - 1);
    if (length < 0)
        return -errno;
    target[length] = 0;
    return 0;
}

static int make_folder(const char *path, mode_t mode)
{
    char real[PATH_MAX];
    int refused = refusal("mkdir", path);
    return refused ? refused : answer(mkdir(below(path, real), mode));
}

static int remove_name(const char *path)
{
    char real[PATH_MAX];
    int refused = refusal("unlink", path);
    return refused ? refused : answer(unlink(below(path, real)));
}

static int remove_folder(const char *path)
{
    char real[PATH_MAX];
    int refused = refusal("unlink", path);
    return refused ? refused : answer(rmdir(below(path, real)));
}

static int make_symlink(const char *target, const char *path)
{
    char real[PATH_MAX];
    int refused = refusal("create", path);
    return refused ? refused : answer(symlink(target, below(path, real)));
}

static int rename_to(const char *from, const char *to, unsigned int flags)
{
    char real_from[PATH_MAX], real_to[PATH_MAX];
    int refused = refusal("rename", to);
    return refused ? refused : answer(renameat2(AT_FDCWD, below(from, real_from), AT_FDCWD, below(to, real_to), flags));
}

static int link_to(const char *from, const char *to)
{
    char real_from[PATH_MAX], real_to[PATH_MAX];
    int refused = refusal("create", to);
    return refused ? refused : answer(link(below(from, real_from), below(to, real_to)));
}

static int set_mode(const char *path, mode_t mode, struct fuse_file_info *file)
{
    char real[PATH_MAX];
    return answer(file ? fchmod(file->fh, mode) : chmod(below(path, real), mode));
}

static int set_owner(const char *path, uid_t user, gid_t group, struct fuse_file_info *file)
{
    char real[PATH_MAX];
    return answer(file ? fchown(file->fh, user, group) : lchown(below(path, real), user, group));
}

static int set_times(const char *path, const struct timespec times[2], struct fuse_file_info *file)
{
    char real[PATH_MAX];
    if (file)
        return answer(futimens(file->fh, times));
    return answer(utimensat(AT_FDCWD, below(path, real), times, AT_SYMLINK_NOFOLLOW));
}

static int set_attribute(const char *path, const char *name, const char *value, size_t size, int flags)
{
    char real[PATH_MAX];
    return answer(lsetxattr(below(path, real), name, value, size, flags));
}

static int get_attribute(const char *path, const char *name, char *value, size_t size)
{
    char real[PATH_MAX];
    return answer(lgetxattr(below(path, real), name, value, size));
}

static int list_attributes(const char *path, char *names, size_t size)
{
    char real[PATH_MAX];
    return answer(llistxattr(below(path, real), names, size));
}

static int remove_attribute(const char *path, const char *name)
{
    char real[PATH_MAX];
    return answer(lremovexattr(below(path, real), name));
}

static int free_space(const char *path, struct statvfs *found)
{
    char real[PATH_MAX];
    return answer(statvfs(below(path, real), found));
}

/* folders */

static int open_folder(const char *path, struct fuse_file_info *folder)
{
    char real[PATH_MAX];
    int refused = refusal("opendir", path);
    if (refused)
        return refused;
    DIR *opened = opendir(below(path, real));
    folder->fh = (uintptr_t)opened;
    return opened ? 0 : -errno;
}

static int list_folder(const char *path, void *buffer, fuse_fill_dir_t fill, off_t offset, struct fuse_file_info *folder,
                       enum fuse_readdir_flags flags)
{
    DIR *opened = (DIR *)(uintptr_t)folder->fh;
    rewinddir(opened);
    for (struct dirent *entry; (entry = readdir(opened));) {
        struct stat known = {.st_ino = entry->d_ino, .st_mode = DTTOIF(entry->d_type)};
        if (fill(buffer, entry->d_name, &known, 0, 0))
            break;
    }
    return 0;
}

static int sync_folder(const char *path, int data_only, struct fuse_file_info *folder)
{
    char buffer[PATH_MAX];
    int fd = dirfd((DIR *)(uintptr_t)folder->fh);
    int refused = refusal("fsync", path_of(fd, buffer));
    return refused ? refused : answer(fsync(fd));
}

static int close_folder(const char *path, struct fuse_file_info *folder)
{
    return answer(closedir((DIR *)(uintptr_t)folder->fh));
}

/* files */

/* The kernel reads the rest of a page that is written in part, and appends by itself. */
static int open_with(const char *op, const char *path, int flags, mode_t mode, struct fuse_file_info *file)
{
    char real[PATH_MAX];
    int refused = refusal(op, path);
    if (refused)
        return refused;
    if ((flags & O_ACCMODE) == O_WRONLY)
        flags = (flags & ~O_ACCMODE) | O_RDWR;
    int fd = open(below(path, real), flags & ~(O_APPEND | O_DIRECT), mode);
    file->fh = fd;
    return fd < 0 ? -errno : 0;
}

static int open_file(const char *path, struct fuse_file_info *file)
{
    const char *op = (file->flags & O_ACCMODE) == O_RDONLY ? "open" : "open_write";
    return open_with(op, path, file->flags, 0, file);
}

static int create_file(const char *path, mode_t mode, struct fuse_file_info *file)
{
    return open_with("create", path, file->flags | O_CREAT, mode, file);
}

static int read_file(const char *path, char *bytes, size_t length, off_t offset, struct fuse_file_info *file)
{
    char buffer[PATH_MAX];
    int refused = fault("read", path_of(file->fh, buffer), file->fh, offset, &length);
    return refused ? refused : answer(pread(file->fh, bytes, length, offset));
}

static int write_file(const char *path, const char *bytes, size_t length, off_t offset, struct fuse_file_info *file)
{
    char buffer[PATH_MAX];
    int refused = fault("write", path_of(file->fh, buffer), file->fh, offset, &length);
    return refused ? refused : answer(pwrite(file->fh, bytes, length, offset));
}

static int sync_file(const char *path, int data_only, struct fuse_file_info *file)
{
    char buffer[PATH_MAX];
    int refused = refusal("fsync", path_of(file->fh, buffer));
    return refused ? refused : answer(data_only ? fdatasync(file->fh) : fsync(file->fh));
}

static int resize_file(const char *path, off_t length, struct fuse_file_info *file)
{
    char buffer[PATH_MAX];
    int refused = refusal("truncate", file ? path_of(file->fh, buffer) : path);
    if (refused)
        return refused;
    return answer(file ? ftruncate(file->fh, length) : truncate(below(path, buffer), length));
}

static int allocate(const char *path, int mode, off_t offset, off_t length, struct fuse_file_info *file)
{
    char buffer[PATH_MAX];
    size_t touched = length;
    int refused = fault("fallocate", path_of(file->fh, buffer), file->fh, offset, &touched);
    return refused ? refused : answer(fallocate(file->fh, mode, offset, length));
}

static off_t seek(const char *path, off_t offset, int whence, struct fuse_file_info *file)
{
    off_t found = lseek(file->fh, offset, whence);
    return found < 0 ? -errno : found;
}

static int close_file(const char *path, struct fuse_file_info *file)
{
    return answer(close(file->fh));
}

/* commands */

static struct rule *bound;

static int bind(const char *real, const struct stat *found, int kind, struct FTW *where)
{
    if (kind == FTW_F && bound->file_count < MOST_FILES && !fnmatch(bound->pattern, real + strlen(root), 0)) {
        int fd = open(real, O_PATH | O_NOFOLLOW | O_CLOEXEC);
        if (fd >= 0)
            bound->files[bound->file_count++] = fd;
    }
    return 0;
}

static bool add_rule(const char *line)
{
    static struct rule rule;
    rule.file_count = 0;
    int read = sscanf(line, "rule %15s %d %lld %lld %lld %lld %lld %lld %4095[^\n]", rule.op, &rule.error, &rule.first,
                      &rule.end, &rule.after, &rule.times, &rule.delay_us, &rule.length, rule.pattern);
    if (read != 9 || rule_count == MOST_RULES)
        return false;
    bound = &rule;
    if (!strcmp(rule.op, "read") && nftw(root, bind, MOST_OPEN, FTW_PHYS))
        return false;
    pthread_mutex_lock(&rules_lock);
    rules[rule_count++] = rule;
    pthread_mutex_unlock(&rules_lock);
    return true;
}

static void forget_rules(void)
{
    pthread_mutex_lock(&rules_lock);
    for (int i = 0; i < rule_count; i++)
        for (int n = 0; n < rules[i].file_count; n++)
            close(rules[i].files[n]);
    rule_count = 0;
    pthread_mutex_unlock(&rules_lock);
}

static const char *dropped;

static int drop_pages(const char *real, const struct stat *found, int kind, struct FTW *where)
{
    const char *path = real + strlen(root);
    if (kind == FTW_F && !fnmatch(dropped, path, 0))
        fuse_invalidate_path(session, path); /* ENOENT: the kernel does not know it */
    return 0;
}

static bool obey(char *line)
{
    line[strcspn(line, "\n")] = 0;
    if (!strncmp(line, "rule ", 5))
        return add_rule(line);
    if (!strcmp(line, "clear")) {
        forget_rules();
        return true;
    }
    if (!strncmp(line, "drop ", 5)) {
        dropped = line + 5;
        return !nftw(root, drop_pages, MOST_OPEN, FTW_PHYS);
    }
    return !strcmp(line, "count");
}

static void *listen(void *unused)
{
    static char line[2 * PATH_MAX];
    puts("ready");
    while (fgets(line, sizeof line, stdin)) {
        if (obey(line))
            printf("ok %lld\n", struck);
        else
            puts("what?");
    }
    _exit(0); /* who started it has ended, or wants it to */
}

static void *start(struct fuse_conn_info *connection, struct fuse_config *config)
{
    connection->want &= ~FUSE_CAP_AUTO_INVAL_DATA;
    connection->max_readahead = 0;
    config->use_ino = 1;
    config->nullpath_ok = 1;
    config->hard_remove = 1;
    config->kernel_cache = 1;
    config->negative_timeout = 0;
    session = fuse_get_context()->fuse;
    pthread_t listener;
    pthread_create(&listener, NULL, listen, NULL);
    pthread_detach(listener);
    return NULL;
}

static const struct fuse_operations operations = {
    .init = start,
    .getattr = get_attributes,
    .readlink = read_link,
    .mkdir = make_folder,
    .unlink = remove_name,
    .rmdir = remove_folder,
    .symlink = make_symlink,
    .rename = rename_to,
    .link = link_to,
    .chmod = set_mode,
    .chown = set_owner,
    .utimens = set_times,
    .setxattr = set_attribute,
    .getxattr = get_attribute,
    .listxattr = list_attributes,
    .removexattr = remove_attribute,
    .statfs = free_space,
    .opendir = open_folder,
    .readdir = list_folder,
    .fsyncdir = sync_folder,
    .releasedir = close_folder,
    .open = open_file,
    .create = create_file,
    .read = read_file,
    .write = write_file,
    .fsync = sync_file,
    .truncate = resize_file,
    .fallocate = allocate,
    .lseek = seek,
    .release = close_file,
};

int main(int count, char **words)
{
    if (count != 3 || !realpath(words[1], root)) {
        fprintf(stderr, "usage: faultfs FOLDER MOUNTPOINT\n");
        return 2;
    }
    setvbuf(stdout, NULL, _IOLBF, 0);
    umask(0);
    char options[] = "fsname=faultfs,max_idle_threads=8,default_permissions,allow_other";
    if (geteuid())
        *strrchr(options, ',') = 0; /* others are root's to let in */
    char *arguments[] = {words[0], words[2], "-f", "-o", options, NULL};
    return fuse_main(5, arguments, &operations, NULL);
}
