/* SPDX-License-Identifier: Apache-2.0 */
#include "app/doctor/state.h"

#include <stdarg.h>

#include "base/log.h"

static const char *const words[] = {"ok", "problem", "unknown"};

/* What is printed has text of those that were asked. */
static void print_line(const struct doctor *d, const struct finding *f)
{
    char text[sizeof *f + 64], line[4 * sizeof text];
    if (d->o->json || (d->o->quiet && f->verdict == OK)) return;
    int n = snprintf(text, sizeof text, "%-8s %s: %s: %s%s%s", words[f->verdict], f->subject, f->check, f->detail, f->advice[0] ? "; " : "",
                     f->advice);
    (void)kvr_printable(text, n > 0 ? (size_t)n : 0, line, sizeof line);
    printf("%s\n", line);
    fflush(stdout);
}

void found(struct doctor *d, enum verdict v, const char *subject, const char *check, const char *advice, const char *fmt, ...)
{
    if (!kvr_grow(&d->findings, &d->findings_cap, d->findings_n + 1, sizeof *d->findings)) return;
    struct finding *f = &d->findings[d->findings_n++];
    va_list ap;
    f->verdict = v;
    snprintf(f->subject, sizeof f->subject, "%s", subject);
    snprintf(f->check, sizeof f->check, "%s", check);
    snprintf(f->advice, sizeof f->advice, "%s", advice);
    va_start(ap, fmt);
    vsnprintf(f->detail, sizeof f->detail, fmt, ap);
    va_end(ap);
    print_line(d, f);
}

size_t findings_print(struct doctor *d)
{
    size_t n[3] = {0};
    struct kvr_buf b = {0};
    kvr_json_printf(&b, "{'findings':[");
    for (size_t i = 0; i < d->findings_n; i++) {
        const struct finding *f = &d->findings[i];
        n[f->verdict]++;
        kvr_json_printf(&b, "{'subject':%s,'check':%s,'verdict':%s,'detail':%s,'advice':%s}", f->subject, f->check, words[f->verdict],
                        f->detail, f->advice);
    }
    kvr_json_close(&b, ']');
    for (int v = 0; v < 3; v++) kvr_json_put_u64(&b, words[v], n[v]);
    kvr_json_close(&b, '}');
    if (d->o->json && !b.failed) printf("%.*s\n", (int)b.len, b.data);
    else if (!d->o->json) printf("%zu ok, %zu problem(s), %zu unknown\n", n[OK], n[PROBLEM], n[UNKNOWN]);
    kvr_buf_free(&b);
    return n[PROBLEM];
}
