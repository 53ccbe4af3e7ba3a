/* SPDX-License-Identifier: Apache-2.0 */
/* The generator of requests: what it repeats, and that its statistics are the stated ones. */
#include "test.h"

#include <math.h>
#include <unistd.h>

#include "traffic/traffic.h"

static struct traffic *make(const char *spec)
{
    char err[400];
    struct traffic_config c = {0};
    struct traffic *t = NULL;
    if (traffic_parse(spec, &c, err, sizeof err) || traffic_create(&c, &t, err, sizeof err)) fail_msg("%s: %s", spec, err);
    return t;
}

static bool same(const struct traffic_request *a, const struct traffic_request *b)
{
    return a->arrival_ns == b->arrival_ns && a->tokens_n == b->tokens_n && a->output == b->output && a->session == b->session &&
           a->turn == b->turn && memcmp(a->tokens, b->tokens, a->tokens_n * sizeof *a->tokens) == 0;
}

static size_t common(const struct traffic_request *a, const struct traffic_request *b)
{
    size_t n = 0;
    while (n < a->tokens_n && n < b->tokens_n && a->tokens[n] == b->tokens[n]) n++;
    return n;
}

static void the_same_seed_gives_the_same_requests_in_order(void **s)
{
    (void)s;
    for (enum traffic_kind k = 0; k < TRAFFIC_KINDS; k++) {
        char spec[80];
        if (k == TRAFFIC_TRACE) continue;
        snprintf(spec, sizeof spec, "%s,requests=60,seed=5", traffic_name(k));
        struct traffic *a = make(spec), *b = make(spec);
        snprintf(spec, sizeof spec, "%s,requests=200,seed=6", traffic_name(k));
        struct traffic *c = make(spec);
        struct traffic_request x, y, z;
        uint64_t before = 0;
        size_t differ = 0, n = 0;
        for (; traffic_next(a, &x) == 1; n++) {
            assert_int_equal(traffic_next(b, &y), 1);
            assert_true(same(&x, &y));
            assert_true(x.arrival_ns >= before);
            before = x.arrival_ns;
            if (traffic_next(c, &z) == 1) {
                differ += !same(&x, &z);
                traffic_request_free(&z);
            }
            traffic_request_free(&x);
            traffic_request_free(&y);
        }
        assert_int_equal(traffic_next(b, &y), 0);
        assert_true(n >= 5 && differ >= n - 1);
        while (traffic_next(c, &z) == 1) traffic_request_free(&z);
        traffic_destroy(a);
        traffic_destroy(b);
        traffic_destroy(c);
    }
}

struct sums {
    double n, turns, length, output, shortest, longest, seconds;
};

static struct sums walk(const char *spec, double turns)
{
    struct traffic *t = make(spec);
    struct traffic_request r;
    struct sums m = {.shortest = 1e9};
    while (traffic_next(t, &r) == 1) {
        m.n++;
        m.turns += turns;
        m.length += (double)r.tokens_n;
        m.output += (double)r.output;
        m.shortest = KVR_MIN(m.shortest, (double)r.tokens_n);
        m.longest = KVR_MAX(m.longest, (double)r.tokens_n);
        m.seconds = (double)r.arrival_ns / 1e9;
        traffic_request_free(&r);
    }
    m.length /= m.n;
    m.output /= m.n;
    traffic_destroy(t);
    return m;
}

static void near(double got, double want, double part)
{
    if (fabs(got - want) > want * part) fail_msg("%g is not near %g", got, want);
}

static void every_kind_has_its_rate_and_its_lengths(void **)
{
    struct sums m = walk("conversations,rate=50,seconds=300,seed=3", 5);
    near(m.turns, 50 * 300, 0.06);
    near(m.length, 2048 + 256, 0.01);
    assert_true(m.shortest >= 2048 + 128 && m.longest <= 2048 + 384);
    m = walk("agents,rate=120,seconds=200,seed=3", 12);
    near(m.turns, 120 * 200, 0.06);
    near(m.output, 125, 0.03);
    assert_true(m.shortest == 2300 && m.longest == 2300);
    m = walk("uniform,rate=20,seconds=100,own-tokens=1500,own-spread=0.6,output=100,output-spread=0.5,seed=3", 1);
    near(m.turns, 2000, 0.07);
    near(m.length, 1500, 0.03);
    near(m.output, 100, 0.03);
    assert_true(m.shortest >= 600 && m.longest <= 2400);
    m = walk("siblings,rate=160,seconds=100,burst=32,seed=3", 1);
    near(m.turns, 16000, 0.12);
    assert_true(m.shortest == 4224 && m.longest == 4224);
    m = walk("tail,rate=40,requests=4000,seconds=0,seed=3", 1);
    assert_int_equal(m.n, 4000);
    near(m.seconds, 100, 0.05);
    near(m.length, 403 * exp(1.2 * 1.2 / 2), 0.1);
    assert_true(m.shortest == 32);
    m = walk("long-tail,requests=4000,seconds=0,seed=3", 1);
    assert_true(m.shortest == 200 && m.longest <= 32000 && m.longest > 20000);
    near(m.length, 200 * 11 - 1260, 0.25); /* the mean of a Pareto cut at 32,000: 200 * (11 - 10 * 160^-0.1) */
}

static void shares_of_prefixes_are_the_stated_ones(void **)
{
    struct traffic *t = make("hot,rate=100,requests=2000,seconds=0,seed=4");
    struct traffic_request first = {0}, r;
    size_t hot = 0;
    while (traffic_next(t, &r) == 1) {
        bool is = r.tokens_n >= 6144;
        hot += is;
        if (is && first.tokens) assert_true(common(&first, &r) >= 6144);
        if (is && !first.tokens) first = r;
        else traffic_request_free(&r);
    }
    near(hot / 2000.0, 0.8, 0.05);
    traffic_request_free(&first);
    traffic_destroy(t);

    t = make("shared,groups=8,system-tokens=32,own-tokens=4,requests=4000,seconds=0,seed=4");
    uint32_t heads[8];
    double counts[8] = {0};
    size_t known = 0;
    while (traffic_next(t, &r) == 1) {
        uint32_t head = r.tokens[0] * 65536 + r.tokens[1] * 256 + r.tokens[2];
        size_t i = 0;
        while (i < known && heads[i] != head) i++;
        assert_true(i < 8);
        if (i == known) heads[known++] = head;
        counts[i]++;
        traffic_request_free(&r);
    }
    double most = 0, least = 1e9;
    for (size_t i = 0; i < known; i++) most = KVR_MAX(most, counts[i]), least = KVR_MIN(least, counts[i]);
    assert_int_equal(known, 8);
    near(most / 4000, log(2) / log(9), 0.1); /* the first of 1 / rank over [1, 9) */
    near(least / 4000, log(9.0 / 8) / log(9), 0.25);
    traffic_destroy(t);
}

static void siblings_come_at_one_moment_with_one_prefix(void **)
{
    struct traffic *t = make("siblings,requests=48,seconds=0");
    struct traffic_request r[48];
    for (size_t i = 0; i < 48; i++) assert_int_equal(traffic_next(t, &r[i]), 1);
    for (size_t i = 0; i < 48; i++) {
        const struct traffic_request *first = &r[i / 16 * 16];
        assert_int_equal(r[i].arrival_ns, first->arrival_ns);
        if (i % 16) assert_in_range(common(first, &r[i]), 4096, 4110);
        if (i >= 16) assert_true(common(&r[i - 16], &r[i]) < 16 && r[i].arrival_ns > r[i - 16].arrival_ns);
    }
    for (size_t i = 0; i < 48; i++) traffic_request_free(&r[i]);
    traffic_destroy(t);
}

static void turns_repeat_what_was_said_and_do_not_depend_on_when(void **)
{
    struct traffic *a = make("conversations,seed=9,think=0.5"), *b = make("conversations,seed=9,think=0.5");
    const uint32_t answer[3] = {65, 66, 67};
    double waited = 0, n = 0;
    for (int i = 0; i < 40; i++) {
        struct traffic_request x, y, other, again;
        assert_int_equal(traffic_next(a, &x), 1);
        assert_int_equal(traffic_next(b, &y), 1);
        if (i % 3 == 0) { /* b's conversations end in another order than a's */
            assert_int_equal(traffic_next(b, &other), 1);
            assert_int_equal(traffic_follow(b, &other, answer, 1, 1, &again), 1);
            traffic_request_free(&other);
            traffic_request_free(&again);
            assert_int_equal(traffic_next(a, &other), 1);
            traffic_request_free(&other);
        }
        for (uint32_t turn = 1; turn < 5; turn++) {
            struct traffic_request p, q;
            uint64_t end = x.arrival_ns + 1000000;
            assert_int_equal(traffic_follow(a, &x, answer, 3, end, &p), 1);
            assert_int_equal(traffic_follow(b, &y, answer, 3, end + 777, &q), 1);
            assert_int_equal(q.arrival_ns, p.arrival_ns + 777);
            q.arrival_ns = p.arrival_ns;
            assert_true(same(&p, &q));
            assert_true(p.turn == turn && p.session == x.session);
            assert_int_equal(common(&x, &p), x.tokens_n);
            assert_memory_equal(p.tokens + x.tokens_n, answer, sizeof answer);
            assert_in_range(p.tokens_n - x.tokens_n - 3, 128, 384);
            waited += (double)(p.arrival_ns - end) / 1e9;
            n++;
            traffic_request_free(&x);
            traffic_request_free(&y);
            x = p, y = q;
        }
        struct traffic_request none;
        assert_int_equal(traffic_follow(a, &x, answer, 3, 1, &none), 0);
        traffic_request_free(&x);
        traffic_request_free(&y);
    }
    near(waited / n, 0.5, 0.2);
    traffic_destroy(a);
    traffic_destroy(b);
}

static void a_mixture_has_its_parts(void **)
{
    struct traffic *t = make("mixed,rate=100,seconds=120,seed=2");
    struct traffic_request r, next;
    double of[4] = {0}, all = 0;
    while (traffic_next(t, &r) == 1) {
        int follows = traffic_follow(t, &r, NULL, 0, r.arrival_ns, &next);
        assert_int_equal(follows, r.part == 0);
        if (follows) {
            assert_true(next.part == 0 && next.turn == 1);
            traffic_request_free(&next);
        }
        of[r.part] += r.part ? 1 : 5;
        traffic_request_free(&r);
    }
    for (int i = 0; i < 4; i++) all += of[i];
    near(all, 12000, 0.07);
    near(of[0] / all, 0.5, 0.1);
    near(of[1] / all, 0.2, 0.1);
    near(of[2] / all, 0.2, 0.25);
    near(of[3] / all, 0.1, 0.15);
    traffic_destroy(t);
}

static void tokens_are_bytes_or_below_the_vocabulary(void **)
{
    for (uint32_t vocab = 0; vocab <= 50000; vocab += 50000) {
        struct traffic_config c;
        struct traffic *t;
        struct traffic_request r;
        char err[200];
        uint32_t most = 0;
        traffic_config_init(&c, TRAFFIC_UNIFORM);
        c.vocab = vocab;
        assert_int_equal(traffic_create(&c, &t, err, sizeof err), 0);
        assert_int_equal(traffic_next(t, &r), 1);
        for (size_t i = 0; i < r.tokens_n; i++) {
            if (!vocab) assert_true(r.tokens[i] >= ' ' && r.tokens[i] <= 'z' && r.tokens[i] != '"' && r.tokens[i] != '\\');
            most = KVR_MAX(most, r.tokens[i]);
        }
        if (vocab) assert_true(most < vocab && most > vocab * 0.9);
        traffic_request_free(&r);
        traffic_destroy(t);
    }
}

/* ---- traces ------------------------------------------------------------------------------------------ */

static const struct traffic_texts *texts; /* of the next trace */

static struct traffic *open_trace(const char *text, double speedup, int *rc, char *err, size_t cap)
{
    char path[] = "/tmp/kvr-trace-XXXXXX";
    struct traffic_config c;
    struct traffic *t = NULL;
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, text, strlen(text)), (long)strlen(text));
    close(fd);
    traffic_config_init(&c, TRAFFIC_TRACE);
    c.file = path;
    c.texts = texts;
    c.param[TRAFFIC_SPEEDUP] = speedup;
    c.param[TRAFFIC_OUTPUT_MAX] = 20;
    *rc = traffic_create(&c, &t, err, cap);
    unlink(path); /* it is open */
    return t;
}

static void rows_of_one_moment_are_spread_until_the_next(void **)
{
    char err[300];
    const char *why;
    int rc;
    struct traffic_request r[6];
    struct traffic *t = open_trace("{\"timestamp\":3000,\"input_length\":600,\"output_length\":7,\"hash_ids\":[1,2]}\n"
                                   "{\"timestamp\":3000,\"input_length\":1024,\"output_length\":70,\"hash_ids\":[1,3]}\n"
                                   "\n{\"timestamp\":3000,\"input_length\":2000,\"output_length\":70,\"hash_ids\":[1,3]}\n"
                                   "{\"timestamp\":3000,\"input_length\":100,\"output_length\":70,\"hash_ids\":[9]}\n"
                                   "{\"timestamp\":9000,\"input_length\":100,\"output_length\":0,\"hash_ids\":[2]}\n",
                                   2, &rc, err, sizeof err);
    assert_int_equal(rc, 0);
    for (int i = 0; i < 4; i++) assert_int_equal(traffic_next(t, &r[i]), 1);
    assert_int_equal(traffic_next(t, &r[4]), 0);
    for (int i = 1; i < 3; i++) assert_true(r[i].arrival_ns > r[i - 1].arrival_ns && r[i].arrival_ns < 3000000000u);
    assert_int_equal(r[3].arrival_ns, 3000000000u);
    assert_true(r[0].tokens_n == 600 && r[0].output == 7 && r[1].output == 20 && r[3].output == 1);
    assert_true(common(&r[0], &r[1]) >= 512 && common(&r[0], &r[1]) < 520);
    assert_memory_equal(r[3].tokens, r[0].tokens + 512, 88 * sizeof(uint32_t));
    assert_int_equal(traffic_skipped(t, &why), 1);
    assert_non_null(strstr(why, "one id per 512"));
    struct traffic_request none;
    assert_int_equal(traffic_follow(t, &r[0], NULL, 0, 1, &none), 0);
    for (int i = 0; i < 4; i++) traffic_request_free(&r[i]);
    traffic_destroy(t);
}

#define TEXTS                                                                                                                              \
    "{\"timestamp\":1000,\"prompt\":\"abc\",\"output_length\":7}\n"                                                                        \
    "{\"timestamp\":2000,\"messages\":[1],\"output_length\":7}\n"                                                                          \
    "{\"timestamp\":3000,\"input_length\":5,\"output_length\":7,\"hash_ids\":[1]}\n"

/* The bytes of the members; of a chat none. */
static int bytes_of(void *ctx, const char *members, size_t len, bool is_chat, uint32_t **out, size_t *n, char *why, size_t cap)
{
    ++*(int *)ctx;
    snprintf(why, cap, "it is a chat");
    if (is_chat) return -1;
    *n = len;
    *out = malloc(len * sizeof **out);
    for (size_t i = 0; i < len; i++) (*out)[i] = (unsigned char)members[i];
    return 0;
}

static void texts_have_the_tokens_that_are_made_of_them(void **)
{
    char err[300];
    const char *why;
    int rc, calls = 0;
    struct traffic_request r;
    const struct traffic_texts made = {bytes_of, &calls};
    texts = &made;
    struct traffic *t = open_trace(TEXTS, 1, &rc, err, sizeof err);
    texts = NULL;
    assert_int_equal(rc, 0);
    assert_int_equal(traffic_next(t, &r), 1);
    assert_true(r.tokens_n == 14 && r.tokens[0] == '"' && r.tokens[10] == 'a' && r.text_len == 14 && !r.is_chat && r.output == 7);
    traffic_request_free(&r);
    assert_int_equal(traffic_next(t, &r), 1);
    assert_true(r.tokens_n == 5 && !r.text && r.arrival_ns == 2000000000u && r.session == 1);
    traffic_request_free(&r);
    assert_int_equal(traffic_next(t, &r), 0);
    assert_true(calls == 2 && traffic_skipped(t, &why) == 1);
    assert_string_equal(why, "it is a chat");
    traffic_destroy(t);
}

static void texts_may_stay_texts(void **)
{
    char err[300];
    int rc;
    struct traffic_request r;
    const struct traffic_texts as_they_are = {0};
    texts = &as_they_are;
    struct traffic *t = open_trace(TEXTS, 1, &rc, err, sizeof err);
    texts = NULL;
    assert_int_equal(rc, 0);
    assert_int_equal(traffic_next(t, &r), 1);
    assert_true(!r.tokens && r.tokens_n == 0 && !memcmp(r.text, "\"prompt\":\"abc\"", 14));
    traffic_request_free(&r);
    assert_int_equal(traffic_next(t, &r), 1);
    assert_true(!r.tokens && r.is_chat && r.text_len == 14 && !memcmp(r.text, "\"messages\":[1]", 14));
    traffic_request_free(&r);
    assert_int_equal(traffic_next(t, &r), 1);
    assert_true(r.tokens && !r.text && !r.is_chat);
    traffic_request_free(&r);
    assert_int_equal(traffic_next(t, &r), 0);
    traffic_destroy(t);
}

static void texts_that_nobody_takes_are_left_out(void **)
{
    char err[300];
    const char *why;
    int rc;
    struct traffic_request r;
    struct traffic *t = open_trace(TEXTS, 1, &rc, err, sizeof err);
    assert_int_equal(traffic_next(t, &r), 1);
    assert_true(r.tokens_n == 5);
    traffic_request_free(&r);
    assert_int_equal(traffic_skipped(t, &why), 2);
    traffic_destroy(t);
}

static void files_that_hold_no_trace_are_errors(void **)
{
    char err[300];
    int rc;
    struct traffic_config c;
    struct traffic *t;
    assert_null(open_trace("nonsense\n", 1, &rc, err, sizeof err));
    assert_int_equal(rc, -KVR_EFORMAT);
    assert_non_null(strstr(err, "holds no trace line: the line is not valid JSON"));
    assert_null(open_trace("", 1, &rc, err, sizeof err));
    assert_int_equal(rc, -KVR_EFORMAT);
    traffic_config_init(&c, TRAFFIC_TRACE);
    assert_int_equal(traffic_create(&c, &t, err, sizeof err), -KVR_EINVAL);
    c.file = "/nowhere/trace.jsonl";
    assert_int_equal(traffic_create(&c, &t, err, sizeof err), -KVR_ENOTFOUND);
    assert_non_null(strstr(err, "cannot read '/nowhere/trace.jsonl'"));
}

/* Figures of the public trace, 12,031 rows in 3,537 seconds, in brackets. */
static void made_up_rows_have_the_statistics_of_the_public_trace(void **)
{
    struct traffic *t = make("mooncake,seconds=3537,seed=1");
    struct traffic_request r;
    enum { SLOTS = 1 << 22 };
    uint64_t *seen = calloc(SLOTS, sizeof *seen), n = 0, blocks = 0, hit = 0, first_only = 0;
    double length = 0, output = 0;
    assert_non_null(seen);
    while (traffic_next(t, &r) == 1) {
        uint64_t known = 0, chain = 1;
        bool leading = true;
        for (size_t i = 0; i < r.tokens_n; i += 512) {
            for (size_t k = i; k < i + 8 && k < r.tokens_n; k++) chain = kvr_mix64(chain * 31 + r.tokens[k]);
            if (i + 512 > r.tokens_n) chain = kvr_mix64(chain + r.session + 1); /* half a block is its own */
            size_t at = chain % SLOTS;
            while (seen[at] && seen[at] != chain) at = (at + 1) % SLOTS;
            leading = leading && seen[at] == chain;
            known += leading;
            seen[at] = chain;
            blocks++;
        }
        n++;
        hit += known;
        first_only += known == 1;
        length += (double)r.tokens_n;
        output += (double)r.output;
        traffic_request_free(&r);
    }
    near((double)n, 12031, 0.1);
    near(length / (double)n, 12035, 0.15);
    near(output / (double)n, 343, 0.1);
    near((double)hit / (double)blocks, 0.366, 0.15);
    near((double)first_only / (double)n, 0.613, 0.1);
    free(seen);
    traffic_destroy(t);
}

/* ---- texts ------------------------------------------------------------------------------------------- */

static void bad_texts_are_refused_by_name(void **s)
{
    (void)s;
    static const struct {
        const char *spec, *says;
    } rows[] = {
        {"convs", "unknown workload 'convs'; allowed: conversations, agents,"},
        {"", "unknown workload ''"},
        {"uniform,turns=3", "workload 'uniform' has no 'turns'; allowed: rate, seconds, requests, seed, own-tokens"},
        {"uniform,rate", "bad pair 'rate'; allowed: key=number"},
        {"uniform,rate=x", "bad pair 'rate=x'"},
        {"uniform,", "bad pair ''"},
        {"uniform,rate=0", "rate: bad value 0; allowed: numbers"},
        {"uniform,rate=nan", "rate: bad value nan"},
        {"hot,hot-share=2", "hot-share: bad value 2; allowed: numbers, 0 to 1"},
        {"siblings,burst=1.5", "burst: bad value 1.5; allowed: whole numbers"},
        {"uniform,seconds=0", "seconds, requests: one of them must be above 0"},
        {"tail,longest=10", "longest: must not be below shortest"},
        {"mixed,part-conversations=0,part-uniform=0,part-siblings=0,part-tail=0", "one of them must be above 0"},
        {"mooncake,rate=3", "workload 'mooncake' has no 'rate'"},
        {"trace", "trace: needs a file"},
    };
    for (size_t i = 0; i < KVR_ARRAY_LEN(rows); i++) {
        char err[400] = "";
        struct traffic_config c = {.seed = 77};
        assert_int_equal(traffic_parse(rows[i].spec, &c, err, sizeof err), -KVR_EINVAL);
        if (!strstr(err, rows[i].says)) fail_msg("%s: %s", rows[i].spec, err);
        assert_int_equal(c.seed, 77);
    }
    struct traffic_config c = {.vocab = 9};
    char err[400];
    assert_int_equal(traffic_parse("conversations,rate=12.5,groups=3,seed=8,requests=10,seconds=0", &c, err, sizeof err), 0);
    assert_true(c.rate == 12.5 && c.param[TRAFFIC_GROUPS] == 3 && c.seed == 8 && c.requests == 10 && c.vocab == 9);
    assert_true(c.param[TRAFFIC_SYSTEM_TOKENS] == 2048);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_same_seed_gives_the_same_requests_in_order),
        cmocka_unit_test(every_kind_has_its_rate_and_its_lengths),
        cmocka_unit_test(shares_of_prefixes_are_the_stated_ones),
        cmocka_unit_test(siblings_come_at_one_moment_with_one_prefix),
        cmocka_unit_test(turns_repeat_what_was_said_and_do_not_depend_on_when),
        cmocka_unit_test(a_mixture_has_its_parts),
        cmocka_unit_test(tokens_are_bytes_or_below_the_vocabulary),
        cmocka_unit_test(rows_of_one_moment_are_spread_until_the_next),
        cmocka_unit_test(texts_have_the_tokens_that_are_made_of_them),
        cmocka_unit_test(texts_may_stay_texts),
        cmocka_unit_test(texts_that_nobody_takes_are_left_out),
        cmocka_unit_test(files_that_hold_no_trace_are_errors),
        cmocka_unit_test(made_up_rows_have_the_statistics_of_the_public_trace),
        cmocka_unit_test(bad_texts_are_refused_by_name),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
