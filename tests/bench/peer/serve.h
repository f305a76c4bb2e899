/*
 * What the peers of the benchmark share as file systems: listings, and a session from the mount to its end. The program defines
 * `list`, and FUSE_USE_VERSION before it includes this.
 */
#include <fuse_lowlevel.h>
#include <stdbool.h>

static void list(fuse_req_t req, fuse_ino_t ino, size_t size, off_t from, bool plus);

static void do_readdir(fuse_req_t req, fuse_ino_t ino, size_t size, off_t from, struct fuse_file_info *fi)
{
    (void)fi;
    list(req, ino, size, from, false);
}

static void do_readdirplus(fuse_req_t req, fuse_ino_t ino, size_t size, off_t from, struct fuse_file_info *fi)
{
    (void)fi;
    list(req, ino, size, from, true);
}

static void do_init(void *data, struct fuse_conn_info *connection)
{
    (void)data;
    connection->want |= connection->capable & (FUSE_CAP_READDIRPLUS | FUSE_CAP_READDIRPLUS_AUTO);
}

/* Mount, answer requests by `loop` until the end, and unmount; the exit code. `source` is what the mount table shows. */
static int serve(char *program, char *source, const struct fuse_lowlevel_ops *operations, const char *mountpoint,
                 int (*loop)(struct fuse_session *))
{
    char options[256];
    snprintf(options, sizeof options, "fsname=%s,default_permissions", source);
    char *arguments[] = {program, "-o", options, NULL};
    struct fuse_args args = FUSE_ARGS_INIT(3, arguments);
    struct fuse_session *session = fuse_session_new(&args, operations, sizeof *operations, NULL);
    if (!session || fuse_set_signal_handlers(session) || fuse_session_mount(session, mountpoint))
        return 1;
    int result = loop(session);
    fuse_session_unmount(session);
    fuse_session_destroy(session);
    return result != 0;
}
