/*
 * The workload of the mounted rows of the benchmark, the same program on both sides of a row: what is measured is the file system,
 * not an interpreter. It does one thing, times it by CLOCK_MONOTONIC, and prints the seconds; and, with --server PID before the
 * verb, the seconds of processor time that this process had meanwhile. Anything unexpected ends it with exit code 1.
 *
 *     client write FILE COUNT WRITERS     write(2) the line of standard input COUNT times, by each of so many threads at once
 *     client sync FILE COUNT              pwrite + fdatasync the line of standard input COUNT times, from the beginning on
 *     client open FOLDER COUNT BYTES      open + read + close of messages 0 to COUNT - 1, which have BYTES bytes each
 *     client reopen FOLDER COUNT BYTES    the same a second time: only this one is timed
 *     client readlink FOLDER              of each "NAME END" of standard input; the target must end with END
 *     client names FOLDER LEAST           every name of a directory, which must be LEAST at least
 *     client stream FILE BYTES            read a file of so many bytes to its end, 1 MiB at a time
 *     client burn                         keep a core busy until killed, or until whoever started it has ended
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

#define LONGEST_LINE 65536
#define READ_BYTES 4096
#define STREAM_READ_BYTES (1 << 20)
#define PAGE_BYTES 4096

static void fail(const char *what)
{
    perror(what);
    exit(1);
}

static clockid_t server; /* its processor time */
static int has_server;
static double began, began_cpu, took, took_cpu;

static double now(clockid_t clock)
{
    struct timespec t;
    if (clock_gettime(clock, &t))
        fail("clock_gettime");
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void start_clocks(void)
{
    began_cpu = has_server ? now(server) : 0;
    began = now(CLOCK_MONOTONIC);
}

static void stop_clocks(void)
{
    took = now(CLOCK_MONOTONIC) - began;
    took_cpu = has_server ? now(server) - began_cpu : 0;
}

static int opened(const char *path, int flags)
{
    int fd = open(path, flags);
    if (fd < 0)
        fail(path);
    return fd;
}

/* write and sync: a line, again and again */

typedef struct {
    const char *path;
    long count;
    char line[LONGEST_LINE];
    size_t length;
    pthread_barrier_t start;
} lines;

static void read_line(lines *work)
{
    work->length = fread(work->line, 1, sizeof work->line, stdin);
    if (!work->length)
        fail("standard input");
}

static void *write_lines(void *shared)
{
    lines *work = shared;
    int fd = opened(work->path, O_WRONLY);
    pthread_barrier_wait(&work->start);
    for (long i = 0; i < work->count; i++)
        if (write(fd, work->line, work->length) != (ssize_t)work->length)
            fail("write");
    close(fd);
    return NULL;
}

static void write_at_once(lines *work, int writers)
{
    pthread_t threads[writers];
    pthread_barrier_init(&work->start, NULL, (unsigned)writers + 1);
    for (int i = 0; i < writers; i++)
        if (pthread_create(&threads[i], NULL, write_lines, work))
            fail("pthread_create");
    pthread_barrier_wait(&work->start);
    start_clocks();
    for (int i = 0; i < writers; i++)
        pthread_join(threads[i], NULL);
    stop_clocks();
}

static void sync_lines(const lines *work)
{
    int fd = opened(work->path, O_WRONLY);
    start_clocks();
    for (long i = 0; i < work->count; i++)
        if (pwrite(fd, work->line, work->length, i * (off_t)work->length) != (ssize_t)work->length || fdatasync(fd))
            fail("pwrite and fdatasync");
    stop_clocks();
}

/* open: message after message */

static void read_files(const char *folder, long count, ssize_t bytes)
{
    char path[4096], body[READ_BYTES];
    start_clocks();
    for (long i = 0; i < count; i++) {
        snprintf(path, sizeof path, "%s/%020ld", folder, i);
        int fd = opened(path, O_RDONLY);
        if (read(fd, body, sizeof body) != bytes)
            fail("read");
        close(fd);
    }
    stop_clocks();
}

/* readlink: keys */

typedef struct {
    char path[512];
    char end[64];
} wanted_link;

static bool ends_with(const char *text, const char *end)
{
    size_t length = strlen(text), tail = strlen(end);
    return length >= tail && !strcmp(text + length - tail, end);
}

static void read_links(const char *folder)
{
    char name[256], end[64], target[4096];
    size_t count = 0, capacity = 1024;
    wanted_link *links = malloc(capacity * sizeof *links);
    while (scanf("%255s %63s", name, end) == 2) {
        if (count == capacity)
            links = realloc(links, (capacity *= 2) * sizeof *links);
        if (!links || snprintf(links[count].path, sizeof links->path, "%s/%s", folder, name) >= (int)sizeof links->path)
            fail("links");
        strcpy(links[count++].end, end);
    }
    start_clocks();
    for (size_t i = 0; i < count; i++) {
        ssize_t length = readlink(links[i].path, target, sizeof target - 1);
        if (length < 0)
            fail(links[i].path);
        target[length] = 0;
        if (!ends_with(target, links[i].end))
            fail(target);
    }
    stop_clocks();
}

/* names and stream */

static void list_names(const char *folder, long least)
{
    start_clocks();
    DIR *directory = opendir(folder);
    if (!directory)
        fail(folder);
    long found = 0;
    for (struct dirent *entry; (entry = readdir(directory));)
        found += entry->d_name[0] != '.';
    closedir(directory);
    stop_clocks();
    if (found < least)
        fail("too few names");
}

static void read_stream(const char *path, long bytes)
{
    char *buffer = aligned_alloc(PAGE_BYTES, STREAM_READ_BYTES); /* as cat's is: else a read is two requests */
    memset(buffer, 0, STREAM_READ_BYTES);
    long total = 0;
    start_clocks();
    int fd = opened(path, O_RDONLY);
    for (ssize_t got; (got = read(fd, buffer, STREAM_READ_BYTES));) {
        if (got < 0)
            fail(path);
        total += got;
    }
    close(fd);
    stop_clocks();
    if (total != bytes)
        fail("not the file's size");
}

static void burn(void)
{
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    for (volatile unsigned long turns = 0;; turns++)
        ;
}

static void run(int argc, char **argv)
{
    const char *verb = argc > 1 ? argv[1] : "", *path = argc > 2 ? argv[2] : "";
    long count = argc > 3 ? atol(argv[3]) : 0, bytes = argc > 4 ? atol(argv[4]) : 0;
    static lines work;
    work.path = path;
    work.count = count;
    if (!strcmp(verb, "burn") && argc == 2) {
        burn();
    } else if (!strcmp(verb, "write") && argc == 5) {
        read_line(&work);
        write_at_once(&work, (int)bytes);
    } else if (!strcmp(verb, "sync") && argc == 4) {
        read_line(&work);
        sync_lines(&work);
    } else if (!strcmp(verb, "open") && argc == 5) {
        read_files(path, count, bytes);
    } else if (!strcmp(verb, "reopen") && argc == 5) {
        read_files(path, count, bytes);
        read_files(path, count, bytes);
    } else if (!strcmp(verb, "readlink") && argc == 3) {
        read_links(path);
    } else if (!strcmp(verb, "names") && argc == 4) {
        list_names(path, count);
    } else if (!strcmp(verb, "stream") && argc == 4) {
        read_stream(path, count);
    } else {
        fprintf(stderr, "usage: see the beginning of client.c\n");
        exit(2);
    }
}

int main(int argc, char **argv)
{
    if (argc > 2 && !strcmp(argv[1], "--server")) {
        if (clock_getcpuclockid(atoi(argv[2]), &server)) {
            fprintf(stderr, "no process %s\n", argv[2]);
            return 1;
        }
        has_server = 1;
        argv += 2;
        argc -= 2;
    }
    run(argc, argv);
    printf(has_server ? "%.9f %.9f\n" : "%.9f\n", took, took_cpu);
    return 0;
}
