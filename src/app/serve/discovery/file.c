/* SPDX-License-Identifier: Apache-2.0 */
/* A file with one --worker value a line; empty lines and those that begin with # are left out. Looked at every second, and read when it has
 * looked the same twice, as it may be on its way, or at the latest after LOOKS_MAX; a file that cannot be read, or has a line that is
 * wrong, changes nothing. */
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "app/serve/config/config.h"
#include "app/serve/config/reloads.h"
#include "app/serve/discovery/found_workers.h"
#include "app/serve/workers/table/worker.h"
#include "base/log.h"
#include "wire/entry.h"

enum { LOOK_MS = 1000, LOOKS_MAX = 8 /* somebody writes it again and again */, LINE_MAX_LEN = 16 << 10 };

struct discovery_file {
    uint64_t looked_ms;
    struct stat last, seen;     /* as it was when it was read; at the last look */
    unsigned moved;             /* looks in a row at which it was another one */
    struct worker_spec scratch; /* the line that is read: */
    char line[LINE_MAX_LEN];
};

static bool same(const struct stat *a, const struct stat *b)
{
    return a->st_size == b->st_size && a->st_ino == b->st_ino && a->st_mtim.tv_sec == b->st_mtim.tv_sec &&
           a->st_mtim.tv_nsec == b->st_mtim.tv_nsec;
}

/* A directory has no lines and would be a file without workers, and a pipe without a writer would hold the loop up. Returns: NULL, with
 * errno. */
static FILE *open_regular(const char *path)
{
    struct stat st;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0) return NULL;
    bool regular = fstat(fd, &st) == 0 && S_ISREG(st.st_mode);
    FILE *f = regular ? fdopen(fd, "r") : NULL;
    if (f) return f;
    if (!regular) errno = S_ISDIR(st.st_mode) ? EISDIR : EINVAL;
    close(fd);
    return NULL;
}

static int read_line(struct discovery *d, const char *line, size_t at, struct worker_spec *out, char *err, size_t cap)
{
    struct kvr_entry e;
    if (kvr_entry_parse(line, d->o->discovery_target, at, &e)) return kvr_refuse(err, cap, "out of memory");
    int rc = worker_read(d->workers, &e, out, err, cap);
    kvr_entry_free(&e);
    return rc;
}

/* fn for each line that says something. Returns: 0, or -1 with the reason in err. */
static int each_line(struct discovery *d, struct discovery_file *file,
                     void (*fn)(struct discovery *d, const struct worker_spec *w, const char *line), char *err, size_t cap)
{
    char *line = file->line;
    size_t at = 0;
    FILE *f = open_regular(d->o->discovery_target);
    if (!f) return kvr_refuse(err, cap, "'%.200s': %s", d->o->discovery_target, strerror(errno));
    int rc = 0;
    while (rc == 0 && fgets(line, LINE_MAX_LEN, f)) {
        size_t n = strcspn(line, "\r\n");
        at++;
        if (!line[n] && !feof(f)) {
            rc = kvr_refuse(err, cap, "%.200s:%zu: the line is longer than %d bytes, or has a zero byte", d->o->discovery_target, at,
                            LINE_MAX_LEN - 2);
            break;
        }
        line[n] = 0;
        while (n && line[n - 1] == ' ') line[--n] = 0;
        if (!n || line[0] == '#') continue;
        rc = read_line(d, line, at, &file->scratch, err, cap);
        if (rc == 0 && fn) fn(d, &file->scratch, line);
    }
    if (rc == 0 && ferror(f)) {
        snprintf(err, cap, "'%.200s': %s", d->o->discovery_target, strerror(errno));
        rc = -1;
    }
    fclose(f);
    return rc;
}

/* Returns: whether no other line has it. */
static bool put_key(struct discovery *d, const char *url, size_t n, char key[DISCOVERY_KEY_MAX])
{
    snprintf(key, DISCOVERY_KEY_MAX, n ? "%.135s#%zu" : "%.135s", url, n);
    return !found_workers_is_told(d, key);
}

/* Ranks that are registered each for itself have one address; so may workers by mistake, and then many. */
static void tell(struct discovery *d, const struct worker_spec *w, const char *line)
{
    char key[DISCOVERY_KEY_MAX];
    if (!put_key(d, w->w.url, w->w.dp_start, key)) {
        (void)put_key(d, w->w.url, 0, key);
        for (size_t n = found_workers_told_of(d, key); !put_key(d, w->w.url, n, key);) n++;
    }
    found_workers_tell(d, key, line, strlen(line));
}

/* First the whole file is read for mistakes, then it counts. */
static int load(struct discovery *d, struct discovery_file *f, char *err, size_t cap)
{
    if (each_line(d, f, NULL, err, cap)) return -1;
    found_workers_round_begins(d);
    int rc = each_line(d, f, tell, err, cap);
    found_workers_round_ends(d, rc == 0); /* else it has changed in between, and is read again */
    return rc;
}

static int needs_target(char *err, size_t cap)
{
    return kvr_refuse(err, cap, "--discovery file needs --discovery-target FILE");
}

int discovery_file_check(struct discovery *d, char *err, size_t cap)
{
    char why[1200];
    struct discovery_file *f = calloc(1, sizeof *f);
    int rc = f && d->o->discovery_target ? each_line(d, f, NULL, why, sizeof why) : -1;
    if (!d->o->discovery_target) needs_target(err, cap);
    else if (rc) snprintf(err, cap, "--discovery-target: %.1100s", f ? why : "out of memory");
    free(f);
    return rc;
}

int discovery_file_start(struct discovery *d, char *err, size_t cap)
{
    char why[1200];
    if (!d->o->discovery_target) return needs_target(err, cap);
    struct discovery_file *f = calloc(1, sizeof *f);
    if (!f) return kvr_refuse(err, cap, "out of memory");
    f->looked_ms = kvr_now_ms();
    (void)stat(d->o->discovery_target, &f->last);
    if (discovery_file_reload(d, f, why, sizeof why) == 0) {
        d->file = f;
        return 0;
    }
    snprintf(err, cap, "--discovery-target: %.1100s", why);
    free(f);
    return -1;
}

void discovery_file_tick(struct discovery *d, struct discovery_file *f)
{
    struct stat now;
    char why[1200];
    if (kvr_now_ms() - f->looked_ms < LOOK_MS) return;
    f->looked_ms = kvr_now_ms();
    if (stat(d->o->discovery_target, &now)) memset(&now, 0, sizeof now);
    f->moved = same(&now, &f->seen) ? 0 : f->moved + 1;
    f->seen = now;
    if ((f->moved && f->moved < LOOKS_MAX) || same(&now, &f->last)) return;
    f->moved = 0;
    f->last = now;
    if (discovery_file_reload(d, f, why, sizeof why)) kvr_log_warning("kvroute: discovery: %s; nothing is changed", why);
}

int discovery_file_reload(struct discovery *d, struct discovery_file *f, char *err, size_t cap)
{
    int rc = load(d, f, err, cap);
    reloads_note(config_reloads(d->config), RELOAD_WORKERS, rc == 0);
    return rc;
}

void discovery_file_stop(struct discovery_file *f)
{
    free(f);
}
