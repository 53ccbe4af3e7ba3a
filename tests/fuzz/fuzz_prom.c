/* SPDX-License-Identifier: Apache-2.0 */
/* A body in one piece and in two is the same; a label's value and a number that were written are read back, and so is a load. */
#include <math.h>
#include <string.h>

#include "wire/engine_load.h"
#include "wire/prom_page.h"

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
    struct kvr_prom_page page = {.out = &b};
    struct kvr_prom_sample s;
    char back[256], text[257];
    snprintf(text, sizeof text, "%.*s", (int)KVR_MIN(len, sizeof back), value);
    len = strlen(text);
    kvr_prom_family(&page, "name:", "x", "gauge", text);
    KVR_ASSERT(!b.failed && kvr_prom_line(b.data, (size_t)(strchr(b.data, '\n') - b.data), &s) == 0); /* one line of help */
    b.len = 0;
    kvr_prom_put_double(&page, KVR_PROM_PAIRS(KVR_PROM_TEXT("one", ""), KVR_PROM_TEXT("two", text)), number);
    KVR_ASSERT(!b.failed && kvr_prom_line(b.data, b.len - 1, &s) == 1);
    KVR_ASSERT(s.labels_n == 2 && kvr_prom_is(s.name, "name:x") && (s.value == number || (isnan(number) && isnan(s.value))));
    long n = kvr_prom_unescape(kvr_prom_label(&s, "two"), back, sizeof back);
    KVR_ASSERT(n == (long)len && memcmp(back, text, len) == 0);
    kvr_buf_free(&b);
}

/* A load that could be read is, written again, the same. */
static void loads(const char *data, size_t size)
{
    struct kvr_worker w, again_w;
    struct kvr_engine_load l, again;
    struct kvr_buf b = {0};
    if (kvr_active_load_read(data, size, &w, &l)) return;
    kvr_active_load_write(&b, w, &l);
    KVR_ASSERT(!b.failed && kvr_active_load_read(b.data, b.len, &again_w, &again) == 0);
    KVR_ASSERT(w.worker_id == again_w.worker_id && w.dp_rank == again_w.dp_rank && l.total_blocks == again.total_blocks);
    KVR_ASSERT(l.has_used == again.has_used && (!l.has_used || l.used_blocks == again.used_blocks));
    KVR_ASSERT(l.has_running == again.has_running && (!l.has_running || l.running == again.running));
    KVR_ASSERT(l.has_waiting == again.has_waiting && (!l.has_waiting || l.waiting == again.waiting));
    KVR_ASSERT(l.has_usage == again.has_usage && (!l.has_usage || l.usage == again.usage));
    kvr_buf_free(&b);
}

/* Whatever an engine says, a rank's figures are within their bounds. */
static void ranks(uint8_t which, const char *text, size_t size)
{
    static const char *const names[] = {"vllm:num_requests_running",
                                        "vllm:kv_cache_usage_perc",
                                        "vllm:cache_config_info",
                                        "sglang:num_queue_reqs",
                                        "sglang:max_total_num_tokens",
                                        "kvroute_publish_engine_load_age_seconds",
                                        ""};
    const char *name = names[which % KVR_ARRAY_LEN(names)];
    static struct kvr_prom_reader r;
    static struct kvr_engine_loads all;
    struct kvr_engine_load l;
    all = (struct kvr_engine_loads){.n = 0};
    r = (struct kvr_prom_reader){.fn = kvr_engine_loads_sample, .ctx = &all};
    kvr_prom_feed(&r, name, strlen(name)); /* the first line's, to get somewhere */
    kvr_prom_feed(&r, text, size);
    kvr_prom_end(&r);
    KVR_ASSERT(all.n <= KVR_ENGINE_RANKS_MAX);
    for (uint32_t rank = 0; rank < 3; rank++) {
        if (!kvr_engine_loads_of(&all, 0, 3, rank, 16, 0, &l)) continue;
        KVR_ASSERT(l.usage >= 0 && l.usage <= 1 && l.used_blocks <= l.total_blocks && l.running <= 1000000000000000);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    double number;
    if (size < sizeof number) return 0;
    memcpy(&number, data, sizeof number);
    const char *text = (const char *)data + sizeof number;
    size -= sizeof number;
    in_pieces(text, size, data[0] * size / 256);
    loads(text, size);
    ranks(data[1], text, size);
    if (isfinite(number)) there_and_back(text, size, number);
    return 0;
}
