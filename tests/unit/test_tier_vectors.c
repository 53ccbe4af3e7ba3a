/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Streams that engines' own classes have made (tests/vectors/tiers), followed as every program follows them, and what these classes serve
 * of prompts: what the index says of each tier is the same, never more. With the argument "-" the lines come from standard input, one
 * answer for each prompt: so the classes themselves ask (tests/engines/tiers).
 *
 *     B 4                 the block size, first
 *     E 93cb3ff0...       a batch of events, msgpack in hex
 *     Q 1,2,3             a prompt; answered by "Q device host disk external": blocks, cumulative
 *     = 3 5 [less]        of the prompt before: what the engine's own classes serve, from the device and in all; with "less", at most so
 *
 * Exit with "-": 0; 1 when an expectation fails, which is said; 2 for a line that is none.
 */
#include <glob.h>
#include <stdio.h>
#include <kvroute/hash.h>
#include <kvroute/index.h>

#include "test.h"
#include "wire/engine_events.h"

struct replay {
    struct kvr_index *index;
    struct kvr_index_reader *reader;
    struct kvr_engine_stream stream;
    struct kvr_engine_batch batch;
    uint32_t tokens[1 << 16], depth[KVR_TIER_COUNT];
    uint64_t locals[1 << 16], seq;
    size_t line;
    bool talks;
};

static const struct kvr_worker WORKER = {1, 0};

static int wrong(const struct replay *r, const char *what)
{
    fprintf(stderr, "line %zu: %s\n", r->line, what);
    return 2;
}

static bool holds(void *ctx, enum kvr_tier tier, uint64_t name)
{
    const struct replay *r = ctx;
    return kvr_index_holds(r->index, WORKER, tier, name);
}

static void apply(void *ctx, const struct kvr_event *ev)
{
    const struct replay *r = ctx;
    (void)kvr_index_apply(r->index, ev);
}

static void on_window(void *ctx, const struct kvr_window_event *ev)
{
    const struct replay *r = ctx;
    (void)kvr_index_window(r->index, ev);
}

static int take_batch(struct replay *r, char *hex)
{
    size_t n = strlen(hex) / 2;
    for (size_t i = 0; i < n; i++) {
        unsigned byte;
        if (sscanf(hex + 2 * i, "%2x", &byte) != 1) return wrong(r, "not hex");
        hex[i] = (char)byte;
    }
    if (kvr_engine_decode(&r->batch, hex, n)) return wrong(r, "not a batch of events");
    return kvr_engine_convert(&r->stream, &r->batch, r->seq++, apply, r) < 0 ? wrong(r, "out of memory") : 0;
}

static int ask(struct replay *r, char *text)
{
    struct kvr_overlap found[4];
    struct kvr_reach reach[4] = {{{0}, {0}}};
    size_t n = 0;
    for (char *end, *at = text; *at; at = *end ? end + 1 : end) {
        if (n == KVR_ARRAY_LEN(r->tokens)) return wrong(r, "the prompt is too long");
        r->tokens[n++] = (uint32_t)strtoul(at, &end, 10);
        if (end == at) return wrong(r, "not a prompt");
    }
    long blocks = kvr_hash_locals(r->tokens, n, r->stream.block_size, false, KVR_HASH_SEED, NULL, 0, r->locals);
    long k = kvr_index_match(r->reader, r->locals, (size_t)blocks, found, KVR_ARRAY_LEN(found));
    kvr_hash_sequence(r->locals, (size_t)blocks, r->locals);
    k = kvr_index_match_tiers(r->reader, found, (size_t)k, r->locals, (size_t)blocks, reach, KVR_ARRAY_LEN(reach));
    if (k < 0 || k > 1) return wrong(r, "more than one rank");
    memcpy(r->depth, reach[0].depth, sizeof r->depth);
    if (r->talks) printf("Q %u %u %u %u\n", r->depth[0], r->depth[1], r->depth[2], r->depth[3]);
    return 0;
}

static int expect(const struct replay *r, const char *text)
{
    unsigned device, all;
    char less[8] = "";
    if (sscanf(text, "%u %u %4s", &device, &all, less) < 2) return wrong(r, "not an expectation");
    unsigned reached = r->depth[KVR_TIER_EXTERNAL];
    if ((r->depth[0] == device && reached == all) || (*less && r->depth[0] <= device && reached <= all)) return 0;
    fprintf(stderr, "line %zu: %u blocks on the device and %u in all; the engine has %u and %u\n", r->line, r->depth[0], reached, device,
            all);
    return 1;
}

static int begin(struct replay *r, const char *text)
{
    kvr_engine_stream_init(&r->stream, WORKER, (uint32_t)strtoul(text, NULL, 10));
    r->stream.tiers = true;
    r->stream.holds = holds;
    r->stream.window = on_window;
    r->stream.holds_ctx = r->stream.window_ctx = r;
    return r->stream.block_size ? 0 : wrong(r, "not a block size");
}

static int take_line(struct replay *r, char *line)
{
    r->line++;
    line[strcspn(line, "\r\n")] = 0;
    if (!line[0] || line[1] != ' ') return line[0] && line[0] != '#' ? wrong(r, "what is this?") : 0;
    if (line[0] == '#') return 0;
    if (line[0] == 'B') return begin(r, line + 2);
    if (!r->stream.block_size) return wrong(r, "the block size comes first");
    switch (line[0]) {
    case 'E': return take_batch(r, line + 2);
    case 'Q': return ask(r, line + 2);
    case '=': return expect(r, line + 2);
    default: return wrong(r, "what is this?");
    }
}

/* Returns: 0, 1, 2 as above. */
static int follow(FILE *in, bool talks)
{
    static struct replay r;
    char *line = NULL;
    const char *why = "";
    size_t cap = 0;
    int rc = 0;
    r = (struct replay){.talks = talks};
    if (kvr_index_create(NULL, &r.index) || kvr_index_reader_create(r.index, &r.reader)) return 2;
    kvr_engine_batch_init(&r.batch);
    while (rc == 0 && getline(&line, &cap, in) >= 0) rc = take_line(&r, line);
    if (rc == 0 && !kvr_index_validate(r.index, &why)) rc = wrong(&r, why);
    free(line);
    kvr_engine_batch_free(&r.batch);
    kvr_engine_stream_free(&r.stream);
    kvr_index_destroy(r.index);
    return rc;
}

static void tiers_are_what_engines_serve(void **)
{
    glob_t files;
    assert_int_equal(glob(KVR_VECTORS_DIR "/tiers/*.txt", 0, NULL, &files), 0);
    for (size_t i = 0; i < files.gl_pathc; i++) {
        FILE *in = fopen(files.gl_pathv[i], "r");
        assert_non_null(in);
        int rc = follow(in, false);
        fclose(in);
        if (rc) fail_msg("%s", files.gl_pathv[i]);
    }
    globfree(&files);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(tiers_are_what_engines_serve)};
    setvbuf(stdout, NULL, _IOLBF, 0);
    return argc > 1 && strcmp(argv[1], "-") == 0 ? follow(stdin, true) : cmocka_run_group_tests(tests, NULL, NULL);
}
