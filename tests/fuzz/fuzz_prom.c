/* SPDX-License-Identifier: Apache-2.0 */
/* A body in one piece and in two is the same; a label's value and a number that were written are read back. */
#include <math.h>
#include <string.h>

#include "wire/prom_text.h"

struct seen {
    uint64_t n, sum; /* of what was seen */
};

static void on_sample(void *ctx, const struct kvr_prom_sample *s)
{
    struct seen *k = ctx;
    uint64_t bits;
    memcpy(&bits, &s->value, sizeof bits);
    k->n++;
    k->sum = k->sum * 31 + bits + s->name.len + s->labels_n;
    KVR_ASSERT(s->name.len > 0 && s->labels_n <= KVR_PROM_LABELS_MAX);
}

static void in_pieces(const char *text, size_t size, size_t cut)
{
    static struct kvr_prom_reader whole, split;
    struct seen a = {0}, b = {0};
    whole = (struct kvr_prom_reader){.fn = on_sample, .ctx = &a};
    split = (struct kvr_prom_reader){.fn = on_sample, .ctx = &b};
    kvr_prom_feed(&whole, text, size);
    kvr_prom_feed(&split, text, cut);
    kvr_prom_feed(&split, text + cut, size - cut);
    kvr_prom_end(&whole);
    kvr_prom_end(&split);
    KVR_ASSERT(a.n == b.n && a.sum == b.sum && whole.malformed == split.malformed && whole.samples == split.samples);
}

static void there_and_back(const char *value, size_t len, double number)
{
    struct kvr_buf b = {0};
    struct kvr_prom_sample s;
    char back[256];
    len = KVR_MIN(len, sizeof back);
    kvr_buf_str(&b, "name:x{one=\"\",two=\"");
    kvr_prom_put_value(&b, value, len);
    kvr_buf_printf(&b, "\"} %.17g", number);
    KVR_ASSERT(!b.failed && kvr_prom_line(b.data, b.len, &s) == 1);
    KVR_ASSERT(s.labels_n == 2 && kvr_prom_is(s.name, "name:x") && s.value == number);
    long n = kvr_prom_unescape(kvr_prom_label(&s, "two"), back, sizeof back);
    KVR_ASSERT(n == (long)len && memcmp(back, value, len) == 0);
    kvr_buf_free(&b);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    double number;
    if (size < sizeof number) return 0;
    memcpy(&number, data, sizeof number);
    const char *text = (const char *)data + sizeof number;
    size -= sizeof number;
    in_pieces(text, size, data[0] * size / 256);
    if (isfinite(number)) there_and_back(text, size, number);
    return 0;
}
