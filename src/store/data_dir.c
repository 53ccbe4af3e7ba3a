/* SPDX-License-Identifier: Apache-2.0 */
/* A file is written beside its place and renamed over it, so that a reader finds the old or the new one, whole (store/data_dir.h). */
#include "store/data_dir.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/base.h"
#include "base/log.h"

enum { SET_ASIDE_MAX = 1000, LOCK_LOOK_MS = 50 };

static bool lock_soon(int fd, unsigned patience_ms)
{
    for (unsigned waited = 0; flock(fd, LOCK_EX | LOCK_NB); waited += LOCK_LOOK_MS) {
        if (errno != EWOULDBLOCK || waited >= patience_ms) return false;
        (void)poll(NULL, 0, LOCK_LOOK_MS);
    }
    return true;
}

int kvr_data_dir_open(const char *dir, unsigned patience_ms, char *err, size_t cap)
{
    char lock[KVR_PATH_MAX];
    if (snprintf(lock, sizeof lock, "%s/lock", dir) >= (int)sizeof lock - 300)
        return kvr_refuse(err, cap, "the path is longer than %d characters", KVR_PATH_MAX - 320);
    if (mkdir(dir, 0700) && errno != EEXIST) return kvr_refuse(err, cap, "cannot make '%s': %s", dir, strerror(errno));
    int fd = open(lock, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    if (fd >= 0 && lock_soon(fd, patience_ms)) return fd;
    bool taken = fd >= 0 && errno == EWOULDBLOCK;
    if (taken) snprintf(err, cap, "another process writes to '%s'", dir);
    else snprintf(err, cap, "cannot write to '%s': %s", dir, strerror(errno));
    if (fd >= 0) close(fd);
    return taken ? KVR_DATA_DIR_TAKEN : -1;
}

/* ---- writing --------------------------------------------------------------------------------------------------------- */

FILE *kvr_owners_file(const char *path)
{
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    FILE *f = fd < 0 ? NULL : fdopen(fd, "w");
    if (fd >= 0 && !f) close(fd);
    return f;
}

int kvr_new_file_open(struct kvr_new_file *n, const char *path, char *err, size_t cap)
{
    snprintf(n->path, sizeof n->path, "%s", path);
    snprintf(n->tmp, sizeof n->tmp, "%s.tmp", path);
    (void)unlink(n->tmp); /* with the rights that it had */
    n->f = kvr_owners_file(n->tmp);
    if (!n->f) snprintf(err, cap, "cannot write '%s': %s", n->tmp, strerror(errno));
    errno = 0;
    return n->f ? 0 : -1;
}

bool kvr_new_file_put(void *n, const void *data, size_t len)
{
    return fwrite(data, 1, len, ((struct kvr_new_file *)n)->f) == len;
}

static int sync_directory(const char *path)
{
    char dir[KVR_PATH_MAX];
    snprintf(dir, sizeof dir, "%s", path);
    char *slash = strrchr(dir, '/');
    if (slash) *slash = 0;
    int fd = open(slash ? dir : ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    int rc = fd < 0 ? -1 : fsync(fd);
    if (fd >= 0) close(fd);
    return rc;
}

int kvr_new_file_close(struct kvr_new_file *n, bool ok, char *err, size_t cap)
{
    ok = ok && fflush(n->f) == 0 && fsync(fileno(n->f)) == 0;
    int why = errno;
    ok &= fclose(n->f) == 0;
    if (ok && rename(n->tmp, n->path) == 0 && sync_directory(n->path) == 0) return 0;
    snprintf(err, cap, "cannot write '%s': %s", n->tmp, why ? strerror(why) : errno ? strerror(errno) : "out of memory");
    (void)unlink(n->tmp);
    return -1;
}

/* ---- reading --------------------------------------------------------------------------------------------------------- */

int kvr_map_descriptor(int fd, struct kvr_mapped *out)
{
    struct stat st;
    *out = (struct kvr_mapped){"", 0};
    if (fstat(fd, &st)) return -1;
    if (st.st_size == 0) return 0;
    void *p = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_PRIVATE | MAP_POPULATE, fd, 0);
    if (p == MAP_FAILED) return -1;
    *out = (struct kvr_mapped){p, (size_t)st.st_size};
    return 0;
}

int kvr_map_file(const char *path, struct kvr_mapped *out, char *err, size_t cap)
{
    *out = (struct kvr_mapped){"", 0};
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0 && errno == ENOENT) return 1;
    bool ok = fd >= 0 && kvr_map_descriptor(fd, out) == 0;
    if (!ok) snprintf(err, cap, "cannot read '%s': %s", path, strerror(errno));
    if (fd >= 0) close(fd);
    return ok ? 0 : -1;
}

void kvr_unmap_file(struct kvr_mapped *m)
{
    if (m->len) munmap((void *)(uintptr_t)m->data, m->len);
    *m = (struct kvr_mapped){"", 0};
}

void kvr_set_aside(const char *path, const char *who)
{
    char to[KVR_PATH_MAX + 16];
    for (int i = 1; i < SET_ASIDE_MAX; i++) {
        snprintf(to, sizeof to, "%s.bad-%d", path, i);
        if (access(to, F_OK) == 0) continue;
        if (rename(path, to) == 0) kvr_log_warning("%s: '%s' is kept as '%s'", who, path, to);
        return;
    }
}
