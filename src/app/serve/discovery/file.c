/* SPDX-License-Identifier: Apache-2.0 */
/* A file with one --worker value a line; empty lines and those that begin with # are left out. Looked at every second; a file that
 * cannot be read, or has a line that is wrong, changes nothing. */
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "app/serve/discovery/found.h"
#include "base/log.h"
#include "wire/entry.h"

enum { LOOK_MS = 1000, LINE_MAX_LEN = 2048 };

struct discovery_file {
    uint64_t looked_ms;
    struct stat last;
    struct worker_spec scratch; /* the line that is read */
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

static int read_line(struct serve *s, const char *line, size_t at, struct worker_spec *out, char *err, size_t cap)
{
    struct kvr_entry e;
    if (kvr_entry_parse(line, s->o->discovery_target, at, &e)) {
        snprintf(err, cap, "out of memory");
        return -1;
    }
    int rc = worker_read(s, &e, out, err, cap);
    kvr_entry_free(&e);
    return rc;
}

/* fn for each line that says something. Returns: 0, or -1 with the reason in err. */
static int each_line(struct serve *s, struct discovery_file *file,
                     void (*fn)(struct serve *s, const struct worker_spec *w, const char *line), char *err, size_t cap)
{
    char line[LINE_MAX_LEN];
    size_t at = 0;
    FILE *f = open_regular(s->o->discovery_target);
    if (!f) {
        snprintf(err, cap, "'%.200s': %s", s->o->discovery_target, strerror(errno));
        return -1;
    }
    int rc = 0;
    while (rc == 0 && fgets(line, sizeof line, f)) {
        size_t n = strcspn(line, "\r\n");
        at++;
        line[n] = 0;
        while (n && line[n - 1] == ' ') line[--n] = 0;
        if (!n || line[0] == '#') continue;
        rc = read_line(s, line, at, &file->scratch, err, cap);
        if (rc == 0 && fn) fn(s, &file->scratch, line);
    }
    if (rc == 0 && ferror(f)) {
        snprintf(err, cap, "'%.200s': %s", s->o->discovery_target, strerror(errno));
        rc = -1;
    }
    fclose(f);
    return rc;
}

static void tell(struct serve *s, const struct worker_spec *w, const char *line)
{
    found_tell(s, w->w.url, line, strlen(line));
}

/* First the whole file is read for mistakes, then it counts. */
static int load(struct serve *s, struct discovery_file *f, char *err, size_t cap)
{
    if (each_line(s, f, NULL, err, cap)) return -1;
    found_round_begins(s);
    if (each_line(s, f, tell, err, cap)) return -1; /* changed in between: it is read again */
    found_round_ends(s, true);
    return 0;
}

static int needs_target(char *err, size_t cap)
{
    snprintf(err, cap, "--discovery file needs --discovery-target FILE");
    return -1;
}

int discovery_file_check(struct serve *s, char *err, size_t cap)
{
    char why[1200];
    struct discovery_file *f = calloc(1, sizeof *f);
    int rc = f && s->o->discovery_target ? each_line(s, f, NULL, why, sizeof why) : -1;
    if (!s->o->discovery_target) needs_target(err, cap);
    else if (rc) snprintf(err, cap, "--discovery-target: %.1100s", f ? why : "out of memory");
    free(f);
    return rc;
}

struct discovery_file *discovery_file_start(struct serve *s, char *err, size_t cap)
{
    char why[1200];
    if (!s->o->discovery_target && needs_target(err, cap)) return NULL;
    struct discovery_file *f = calloc(1, sizeof *f);
    if (!f) {
        snprintf(err, cap, "out of memory");
        return NULL;
    }
    f->looked_ms = now_ms();
    (void)stat(s->o->discovery_target, &f->last);
    if (discovery_file_reload(s, f, why, sizeof why) == 0) return f;
    snprintf(err, cap, "--discovery-target: %.1100s", why);
    free(f);
    return NULL;
}

void discovery_file_tick(struct serve *s, struct discovery_file *f)
{
    struct stat now;
    char why[1200];
    if (now_ms() - f->looked_ms < LOOK_MS) return;
    f->looked_ms = now_ms();
    if (stat(s->o->discovery_target, &now)) memset(&now, 0, sizeof now);
    if (same(&now, &f->last)) return;
    f->last = now;
    if (discovery_file_reload(s, f, why, sizeof why)) kvr_log_warning("kvroute: discovery: %s; nothing is changed", why);
}

int discovery_file_reload(struct serve *s, struct discovery_file *f, char *err, size_t cap)
{
    int rc = load(s, f, err, cap);
    reloads_note(&s->reloads, RELOAD_WORKERS, rc == 0);
    return rc;
}

void discovery_file_stop(struct discovery_file *f)
{
    free(f);
}
