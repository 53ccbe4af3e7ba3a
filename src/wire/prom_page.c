/* SPDX-License-Identifier: Apache-2.0 */
#include "wire/prom_page.h"

#include <math.h>
#include <string.h>

/* Text in which a backslash and the end of a line are escaped, and a quote where it would end the text. */
static void put_escaped(struct kvr_buf *b, const char *s, bool quoted)
{
    for (;;) {
        size_t n = strcspn(s, quoted ? "\\\n\"" : "\\\n");
        kvr_buf_add(b, s, n);
        s += n;
        if (!*s) return;
        kvr_buf_str(b, *s == '\n' ? "\\n" : *s == '"' ? "\\\"" : "\\\\");
        s++;
    }
}

void kvr_prom_family(struct kvr_prom_page *p, const char *prefix, const char *name, const char *type, const char *help)
{
    int n = snprintf(p->family, sizeof p->family, "%s%s", prefix, name);
    KVR_ASSERT(n > 0 && (size_t)n < sizeof p->family);
    kvr_buf_printf(p->out, "# HELP %s ", p->family);
    put_escaped(p->out, help, false);
    kvr_buf_printf(p->out, "\n# TYPE %s %s\n", p->family, type);
}

static void put_decimal(struct kvr_buf *b, uint64_t v)
{
    char text[20];
    size_t at = sizeof text;
    do text[--at] = (char)('0' + v % 10);
    while (v /= 10);
    kvr_buf_add(b, text + at, sizeof text - at);
}

/* The name of a sample and its labels, the last of which may be `le`. */
static void put_series(struct kvr_prom_page *p, const char *suffix, struct kvr_prom_pairs labels, const char *le)
{
    struct kvr_buf *b = p->out;
    KVR_ASSERT(p->family[0]);
    kvr_buf_str(b, p->family);
    kvr_buf_str(b, suffix);
    for (size_t i = 0; i < labels.n; i++) {
        const struct kvr_prom_pair *l = &labels.list[i];
        kvr_buf_str(b, i ? "," : "{");
        kvr_buf_str(b, l->name);
        kvr_buf_str(b, "=\"");
        if (l->text) put_escaped(b, l->text, true);
        else put_decimal(b, l->number);
        kvr_buf_str(b, "\"");
    }
    if (le) kvr_buf_printf(b, "%cle=\"%s\"", labels.n ? ',' : '{', le);
    kvr_buf_str(b, labels.n || le ? "} " : " ");
}

/* The shortest of the usual forms that is read as the same number. */
static void put_number(struct kvr_buf *b, double v)
{
    char text[40];
    if (isnan(v)) kvr_buf_str(b, "NaN\n");
    else if (isinf(v)) kvr_buf_str(b, v > 0 ? "+Inf\n" : "-Inf\n");
    else {
        snprintf(text, sizeof text, "%.15g", v);
        if (strtod(text, NULL) != v) snprintf(text, sizeof text, "%.17g", v);
        kvr_buf_printf(b, "%s\n", text);
    }
}

void kvr_prom_put_u64(struct kvr_prom_page *p, struct kvr_prom_pairs labels, uint64_t v)
{
    put_series(p, "", labels, NULL);
    put_decimal(p->out, v);
    kvr_buf_str(p->out, "\n");
}

void kvr_prom_put_double(struct kvr_prom_page *p, struct kvr_prom_pairs labels, double v)
{
    put_series(p, "", labels, NULL);
    put_number(p->out, v);
}

void kvr_prom_put_histogram(struct kvr_prom_page *p, struct kvr_prom_pairs labels, const struct kvr_histogram *h)
{
    uint64_t cumulative = 0;
    for (int i = 0; i <= h->buckets; i++) {
        char le[32] = "+Inf";
        if (i < h->buckets) snprintf(le, sizeof le, "%.6g", h->ends[i]);
        cumulative += atomic_load_explicit(&h->counts[i], memory_order_relaxed);
        put_series(p, "_bucket", labels, le);
        put_decimal(p->out, cumulative);
        kvr_buf_str(p->out, "\n");
    }
    put_series(p, "_sum", labels, NULL);
    put_number(p->out, atomic_load_explicit(&h->sum, memory_order_relaxed));
    put_series(p, "_count", labels, NULL);
    put_decimal(p->out, cumulative);
    kvr_buf_str(p->out, "\n");
}

void kvr_prom_one_u64(struct kvr_prom_page *p, const char *prefix, const char *name, const char *type, const char *help, uint64_t v)
{
    kvr_prom_family(p, prefix, name, type, help);
    kvr_prom_put_u64(p, KVR_PROM_NONE, v);
}

void kvr_prom_one_double(struct kvr_prom_page *p, const char *prefix, const char *name, const char *type, const char *help, double v)
{
    kvr_prom_family(p, prefix, name, type, help);
    kvr_prom_put_double(p, KVR_PROM_NONE, v);
}

void kvr_prom_one_if(struct kvr_prom_page *p, bool any, const char *prefix, const char *name, const char *type, const char *help,
                     uint64_t v)
{
    kvr_prom_family(p, prefix, name, type, help);
    if (any) kvr_prom_put_u64(p, KVR_PROM_NONE, v);
}

void kvr_prom_rows(struct kvr_prom_page *p, bool any, const char *prefix, const struct kvr_prom_row *rows, size_t n)
{
    for (size_t i = 0; i < n; i++) kvr_prom_one_if(p, any, prefix, rows[i].name, rows[i].type, rows[i].help, rows[i].v);
}
