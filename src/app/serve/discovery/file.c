/* SPDX-License-Identifier: Apache-2.0 */
/* A file with one --worker value a line; empty lines and those that begin with # are left out. Looked at every second; a file that
 * cannot be read, or has a line that is wrong, changes nothing. */
#include <errno.h>
#include <string.h>
#include <sys/stat.h>

#include "app/serve/discovery/discovery.h"
#include "base/log.h"

enum { LOOK_MS = 1000, LINE_MAX_LEN = 2048 };

static struct {
    uint64_t looked_ms;
    struct stat last;
} file;

static bool same(const struct stat *a, const struct stat *b)
{
    return a->st_size == b->st_size && a->st_ino == b->st_ino && a->st_mtim.tv_sec == b->st_mtim.tv_sec &&
           a->st_mtim.tv_nsec == b->st_mtim.tv_nsec;
}

/* fn for each line that says something. Returns: 0, or -1 with the reason in err. */
static int each_line(struct serve *s, void (*fn)(struct serve *s, const struct worker_spec *w, const char *line), char *err, size_t cap)
{
    char line[LINE_MAX_LEN], why[400];
    static struct worker_spec w;
    unsigned at = 0;
    FILE *f = fopen(s->o->discovery_target, "re");
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
        rc = worker_parse(s, line, &w, why, sizeof why);
        if (rc) snprintf(err, cap, "'%.200s', line %u: %s", s->o->discovery_target, at, why);
        else if (fn) fn(s, &w, line);
    }
    fclose(f);
    return rc;
}

static void tell(struct serve *s, const struct worker_spec *w, const char *line)
{
    discovery_found(s, w->w.url, line, strlen(line));
}

/* First the whole file is read for mistakes, then it counts. */
static int load(struct serve *s, char *err, size_t cap)
{
    if (each_line(s, NULL, err, cap)) return -1;
    discovery_round(s, true);
    if (each_line(s, tell, err, cap)) return -1; /* changed in between: it is read again */
    discovery_round(s, false);
    return 0;
}

int discovery_file_start(struct serve *s, char *err, size_t cap)
{
    char why[700];
    if (!s->o->discovery_target) {
        snprintf(err, cap, "--discovery file needs --discovery-target FILE");
        return -1;
    }
    file.looked_ms = now_ms();
    (void)stat(s->o->discovery_target, &file.last);
    if (load(s, why, sizeof why) == 0) return 0;
    snprintf(err, cap, "--discovery-target: %.400s", why);
    return -1;
}

void discovery_file_tick(struct serve *s)
{
    struct stat now;
    if (now_ms() - file.looked_ms < LOOK_MS) return;
    file.looked_ms = now_ms();
    if (stat(s->o->discovery_target, &now)) memset(&now, 0, sizeof now);
    if (same(&now, &file.last)) return;
    file.last = now;
    discovery_file_reload(s);
}

void discovery_file_reload(struct serve *s)
{
    char why[700];
    if (load(s, why, sizeof why)) kvr_log_warning("kvroute: discovery: %s; nothing is changed", why);
}
