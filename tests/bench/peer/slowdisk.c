/*
 * A disk whose sync takes its time, for the rows that are about group commit: a file system with one file, `disk`, which is kept
 * in memory. An fsync of it sleeps. A loop device over that file hands each flush of the file system above it down as an fsync
 * of the file; there is no device-mapper on many a virtual machine that would do as much.
 *
 *     slowdisk SYNC_US BYTES MOUNT        (foreground; ends when unmounted)
 *
 * Reads and writes, and several syncs, go on at the same time, as on a disk with a queue of commands.
 */
#define FUSE_USE_VERSION 312
#define _GNU_SOURCE
#include <errno.h>
#include <fuse.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#define THREADS 16

static const char DISK[] = "/disk";
static char *content;
static off_t disk_bytes;
static struct timespec sync_time;

static int disk_getattr(const char *path, struct stat *st, struct fuse_file_info *fi)
{
    (void)fi;
    int is_disk = !strcmp(path, DISK);
    if (!is_disk && strcmp(path, "/"))
        return -ENOENT;
    st->st_mode = is_disk ? S_IFREG | 0600 : S_IFDIR | 0700;
    st->st_nlink = 1;
    st->st_size = is_disk ? disk_bytes : 0;
    st->st_uid = getuid();
    st->st_gid = getgid();
    return 0;
}

static size_t within(size_t size, off_t position)
{
    if (position >= disk_bytes)
        return 0;
    return (off_t)size < disk_bytes - position ? size : (size_t)(disk_bytes - position);
}

static int disk_read(const char *path, char *into, size_t size, off_t position, struct fuse_file_info *fi)
{
    (void)path, (void)fi;
    size = within(size, position);
    memcpy(into, content + position, size);
    return (int)size;
}

static int disk_write(const char *path, const char *bytes, size_t size, off_t position, struct fuse_file_info *fi)
{
    (void)path, (void)fi;
    size = within(size, position);
    memcpy(content + position, bytes, size);
    return size ? (int)size : -ENOSPC;
}

static int disk_fsync(const char *path, int datasync, struct fuse_file_info *fi)
{
    (void)path, (void)datasync, (void)fi;
    nanosleep(&sync_time, NULL);
    return 0;
}

static const struct fuse_operations operations = {
    .getattr = disk_getattr,
    .read = disk_read,
    .write = disk_write,
    .fsync = disk_fsync,
};

int main(int argc, char **argv)
{
    if (argc != 4) {
        fprintf(stderr, "usage: slowdisk SYNC_US BYTES MOUNT\n");
        return 2;
    }
    long sync_us = atol(argv[1]);
    sync_time = (struct timespec){.tv_sec = sync_us / 1000000, .tv_nsec = sync_us % 1000000 * 1000};
    disk_bytes = atoll(argv[2]);
    content = mmap(NULL, (size_t)disk_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (content == MAP_FAILED) {
        perror("mmap");
        return 1;
    }
    char *options[] = {argv[0], "-o", "fsname=fsstore-slowdisk", NULL};
    struct fuse_args args = FUSE_ARGS_INIT(3, options);
    struct fuse *mounted = fuse_new(&args, &operations, sizeof operations, NULL);
    if (!mounted || fuse_set_signal_handlers(fuse_get_session(mounted)) || fuse_mount(mounted, argv[3]))
        return 1;
    struct fuse_loop_config *threads = fuse_loop_cfg_create();
    fuse_loop_cfg_set_max_threads(threads, THREADS);
    int result = fuse_loop_mt(mounted, threads);
    fuse_unmount(mounted);
    fuse_destroy(mounted);
    return result != 0;
}
