/* A disk that fails on command, for LD_PRELOAD: it stands between a process and the C library's
 * file calls. It looks only at files below one directory, and does what the environment says:
 *
 *   KVSTREAM_FAULT_ROOT      the directory; without it nothing happens
 *   KVSTREAM_FAULT_SYNCED    a file that gets a line for each change of what power loss would leave:
 *                              "sync INODE SIZE"    after an fsync that succeeded
 *                              "forget INODE"       when a file is made or emptied: its number may
 *                                                   be that of a removed one
 *   KVSTREAM_FAULT_CONTROL   a file that may come and go; while it says "CALL ERRNO SUFFIX", every
 *                              CALL (sync, write or open) on a path ending in SUFFIX fails
 *   KVSTREAM_FAULT_DIE_AT    a number N: the process is killed in place of its N-th changing call
 *   KVSTREAM_FAULT_DELAY_US  how long each fsync takes more than it would
 *
 * A simulated power cut is then: kill the process, and cut every file to its last synced size.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define PATH_SIZE 4096

static char root[PATH_SIZE];
static const char *control;
static int synced = -1;
static long die_at;
static useconds_t delay;
static atomic_long changes;

static int (*real_open)(const char *, int, ...);
static FILE *(*real_fopen)(const char *, const char *);
static ssize_t (*real_write)(int, const void *, size_t);
static ssize_t (*real_pwrite)(int, const void *, size_t, off_t);
static int (*real_fsync)(int);
static int (*real_fdatasync)(int);
static int (*real_rename)(const char *, const char *);
static int (*real_unlink)(const char *);

static long number_of(const char *name) {
    const char *text = getenv(name);
    return text ? atol(text) : 0;
}

/* A fork of a process that has imported much is told its disk later: it calls this again. */
__attribute__((constructor)) void faultshim_start(void) {
    real_open = dlsym(RTLD_NEXT, "open64");
    real_fopen = dlsym(RTLD_NEXT, "fopen64");
    real_write = dlsym(RTLD_NEXT, "write");
    real_pwrite = dlsym(RTLD_NEXT, "pwrite64");
    real_fsync = dlsym(RTLD_NEXT, "fsync");
    real_fdatasync = dlsym(RTLD_NEXT, "fdatasync");
    real_rename = dlsym(RTLD_NEXT, "rename");
    real_unlink = dlsym(RTLD_NEXT, "unlink");
    const char *directory = getenv("KVSTREAM_FAULT_ROOT");
    if (!directory || !realpath(directory, root)) return;
    control = getenv("KVSTREAM_FAULT_CONTROL");
    die_at = number_of("KVSTREAM_FAULT_DIE_AT");
    delay = (useconds_t)number_of("KVSTREAM_FAULT_DELAY_US");
    const char *log = getenv("KVSTREAM_FAULT_SYNCED");
    if (log) synced = real_open(log, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
}

/* Which file */

static int below_root(const char *real_path) {
    size_t length = strlen(root);
    return length && !strncmp(real_path, root, length) &&
           (real_path[length] == '/' || !real_path[length]);
}

/* A path may lead there in many ways: the store's own begin with /proc/self/fd/NUMBER/. */
static int inside(const char *path) {
    char folder[PATH_SIZE], real_folder[PATH_SIZE];
    const char *slash = strrchr(path, '/');
    int length = slash ? (int)(slash - path) + 1 : 0;
    if (!root[0] || length >= PATH_SIZE) return 0;
    snprintf(folder, sizeof folder, "%.*s.", length, path);
    return realpath(folder, real_folder) && below_root(real_folder);
}

static int path_of(int descriptor, char *path) {
    char link[64];
    snprintf(link, sizeof link, "/proc/self/fd/%d", descriptor);
    ssize_t length = readlink(link, path, PATH_SIZE - 1);
    path[length > 0 ? length : 0] = 0;
    return length > 0 && below_root(path);
}

static int ends_with(const char *path, const char *suffix) {
    size_t length = strlen(path), tail = strlen(suffix);
    return length >= tail && !strcmp(path + length - tail, suffix);
}

/* What happens to it */

static void note(const char *format, ...) {
    if (synced < 0) return;
    char line[128];
    va_list arguments;
    va_start(arguments, format);
    int length = vsnprintf(line, sizeof line, format, arguments);
    va_end(arguments);
    if (real_write(synced, line, (size_t)length) != length) abort();
}

static void forget_empty(int descriptor) {
    struct stat status;
    if (!fstat(descriptor, &status) && !status.st_size)
        note("forget %llu\n", (unsigned long long)status.st_ino);
}

static void count_change(void) {
    if (die_at && atomic_fetch_add(&changes, 1) + 1 == die_at) kill(getpid(), SIGKILL);
}

/* Return the error number that the control file orders for this call, or 0. */
static int ordered(const char *call, const char *path) {
    if (!control) return 0;
    int descriptor = real_open(control, O_RDONLY | O_CLOEXEC);
    if (descriptor < 0) return 0;
    char text[256], name[16], suffix[128] = "";
    ssize_t length = read(descriptor, text, sizeof text - 1);
    close(descriptor);
    if (length <= 0) return 0;
    text[length] = 0;
    int number;
    if (sscanf(text, "%15s %d %127s", name, &number, suffix) < 2) return 0;
    return !strcmp(name, call) && ends_with(path, suffix) ? number : 0;
}

static int fails(const char *call, const char *path) {
    int number = ordered(call, path);
    if (number) errno = number;
    return number;
}

/* The calls */

static int sync_with(int descriptor, int (*call)(int)) {
    char path[PATH_SIZE];
    if (!path_of(descriptor, path)) return call(descriptor);
    count_change();
    if (fails("sync", path)) return -1;
    struct stat status;
    fstat(descriptor, &status); /* before the fsync: what is written meanwhile may not be in it */
    if (delay) usleep(delay);
    int result = call(descriptor);
    if (!result && S_ISREG(status.st_mode))
        note("sync %llu %lld\n", (unsigned long long)status.st_ino, (long long)status.st_size);
    return result;
}

int fsync(int descriptor) { return sync_with(descriptor, real_fsync); }

int fdatasync(int descriptor) { return sync_with(descriptor, real_fdatasync); }

ssize_t write(int descriptor, const void *bytes, size_t size) {
    char path[PATH_SIZE];
    if (root[0] && path_of(descriptor, path)) {
        count_change();
        if (fails("write", path)) return -1;
    }
    return real_write(descriptor, bytes, size);
}

ssize_t pwrite64(int descriptor, const void *bytes, size_t size, off_t offset) {
    char path[PATH_SIZE];
    if (root[0] && path_of(descriptor, path)) {
        count_change();
        if (fails("write", path)) return -1;
    }
    return real_pwrite(descriptor, bytes, size, offset);
}

ssize_t pwrite(int descriptor, const void *bytes, size_t size, off_t offset) {
    return pwrite64(descriptor, bytes, size, offset);
}

int open64(const char *path, int flags, ...) {
    va_list arguments;
    va_start(arguments, flags);
    mode_t mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(arguments, mode_t) : 0;
    va_end(arguments);
    if (!inside(path)) return real_open(path, flags, mode);
    if (flags & O_CREAT) count_change();
    if (fails("open", path)) return -1;
    int descriptor = real_open(path, flags, mode);
    if (descriptor >= 0 && flags & (O_CREAT | O_TRUNC)) forget_empty(descriptor);
    return descriptor;
}

int open(const char *path, int flags, ...) {
    va_list arguments;
    va_start(arguments, flags);
    mode_t mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(arguments, mode_t) : 0;
    va_end(arguments);
    return open64(path, flags, mode);
}

FILE *fopen(const char *path, const char *mode) {
    FILE *file = real_fopen(path, mode);
    if (file && inside(path)) forget_empty(fileno(file));
    return file;
}

int rename(const char *source, const char *target) {
    if (inside(target)) count_change();
    return real_rename(source, target);
}

int unlink(const char *path) {
    if (inside(path)) count_change();
    return real_unlink(path);
}
