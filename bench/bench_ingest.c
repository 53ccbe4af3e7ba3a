/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ZMQ batches as vLLM sends them (array form, one stored event of 16 blocks of 16 tokens, then evictions), from a publisher thread over
 * loopback TCP through the ingest thread into the index. The clock stops when the last batch is applied. Also: decode and apply without
 * ZMQ.
 */
#include <msgpuck.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
#include <zmq.h>
#include <kvroute/kvroute.h>

#include "net/ingest/ingest.h"

enum { BATCHES = 20000, BLOCKS = 16, BS = 16, KEPT = 1024 };

static struct payload {
    char *data;
    size_t len;
} batches[BATCHES];

static char *text(char *p, const char *s)
{
    return mp_encode_str(p, s, (uint32_t)strlen(s));
}

static void make_batches(void)
{
    for (uint64_t i = 0; i < BATCHES; i++) {
        char *b = malloc(4096), *p = b;
        bool evict = i >= KEPT;
        p = mp_encode_array(p, 3);
        p = mp_encode_double(p, 1000.0 + (double)i);
        p = mp_encode_array(p, evict ? 2 : 1);
        if (evict) {
            p = mp_encode_array(p, 3);
            p = text(p, "BlockRemoved");
            p = mp_encode_array(p, BLOCKS);
            for (uint64_t k = BLOCKS; k-- > 0;) p = mp_encode_uint(p, kvr_mix64((i - KEPT) * BLOCKS + k + 1));
            p = text(p, "GPU");
        }
        p = mp_encode_array(p, 8);
        p = text(p, "BlockStored");
        p = mp_encode_array(p, BLOCKS);
        for (uint64_t k = 0; k < BLOCKS; k++) p = mp_encode_uint(p, kvr_mix64(i * BLOCKS + k + 1));
        p = mp_encode_nil(p);
        p = mp_encode_array(p, BLOCKS * BS);
        for (uint64_t k = 0; k < BLOCKS * BS; k++) p = mp_encode_uint(p, kvr_mix64(i * 4096 + k) % 150000);
        p = mp_encode_uint(p, BS);
        p = mp_encode_nil(p);
        p = text(p, "GPU");
        p = mp_encode_nil(p);
        p = mp_encode_uint(p, 0);
        batches[i].data = b;
        batches[i].len = (size_t)(p - b);
        KVR_ASSERT(batches[i].len <= 4096);
    }
}

static uint64_t now(void)
{
    return kvr_now_ns(kvr_clock_monotonic());
}

static void apply(void *ctx, const struct kvr_event *ev)
{
    KVR_ASSERT(kvr_index_apply(ctx, ev) == 0);
}

static void direct(void)
{
    struct kvr_index *ix;
    struct kvr_engine_batch b;
    struct kvr_engine_stream s;
    KVR_ASSERT(kvr_index_create(NULL, &ix) == 0);
    kvr_engine_batch_init(&b);
    kvr_engine_stream_init(&s, (struct kvr_worker){1, 0}, BS);
    uint64_t t = now();
    for (size_t i = 0; i < BATCHES; i++) {
        KVR_ASSERT(kvr_engine_decode(&b, batches[i].data, batches[i].len) == 0);
        KVR_ASSERT(kvr_engine_convert(&s, &b, i, apply, ix) >= 0);
    }
    double s_taken = (double)(now() - t) / 1e9, blocks = BATCHES * (double)BLOCKS, removed = (BATCHES - KEPT) * (double)BLOCKS;
    printf("decode, hash and apply, no socket: %.2f M stored blocks/s (and as many removed), %.0f ns per block operation\n",
           blocks / s_taken / 1e6, s_taken * 1e9 / (blocks + removed));
    kvr_engine_batch_free(&b);
    kvr_engine_stream_free(&s);
    kvr_index_destroy(ix);
}

static int on_event(void *, void *user, const struct kvr_event *ev, const struct kvr_ingest_origin *)
{
    return kvr_index_apply(user, ev);
}

static void on_reset(void *, void *user, struct kvr_worker w)
{
    kvr_index_remove_rank(user, w);
}

static void over_zmq(void)
{
    struct kvr_index *ix;
    struct kvr_ingest *in;
    struct kvr_view_status st = {0};
    struct kvr_ingest_handler h = {.on_event = on_event, .on_reset = on_reset};
    char endpoint[64];
    size_t len = sizeof endpoint;
    int hwm = 0;
    void *ctx = zmq_ctx_new(), *pub = zmq_socket(ctx, ZMQ_PUB);
    zmq_setsockopt(pub, ZMQ_SNDHWM, &hwm, sizeof hwm);
    KVR_ASSERT(zmq_bind(pub, "tcp://127.0.0.1:*") == 0 && zmq_getsockopt(pub, ZMQ_LAST_ENDPOINT, endpoint, &len) == 0);
    KVR_ASSERT(kvr_index_create(NULL, &ix) == 0);
    KVR_ASSERT(kvr_ingest_create(&h, 5, &in) == 0);
    struct kvr_ingest_source src = {.worker = {1, 0}, .block_size = BS, .events = endpoint, .user = ix};
    KVR_ASSERT(kvr_ingest_add(in, &src) == 0);
    usleep(500000); /* until the subscription stands; nothing is measured here */
    uint64_t t = now();
    for (uint64_t i = 0; i < BATCHES; i++) {
        unsigned char seq[8];
        kvr_store_be64(seq, i);
        zmq_send(pub, "", 0, ZMQ_SNDMORE);
        zmq_send(pub, seq, 8, ZMQ_SNDMORE);
        zmq_send(pub, batches[i].data, batches[i].len, 0);
    }
    uint64_t sent = now();
    while (st.next_sequence < BATCHES && now() - t < 60000000000ull) {
        usleep(1000);
        kvr_ingest_status(in, &st, 1);
    }
    double s = (double)(now() - t) / 1e9;
    printf("from ZMQ batches: %.2f M stored blocks/s (and as many removed) with the queue drained after %.2f s (sending took %.2f s); gaps "
           "%llu\n",
           BATCHES * (double)BLOCKS / s / 1e6, s, (double)(sent - t) / 1e9, (unsigned long long)st.gaps);
    kvr_ingest_destroy(in);
    kvr_index_destroy(ix);
    zmq_close(pub);
    zmq_ctx_term(ctx);
}

int main(void)
{
    make_batches();
    direct();
    over_zmq();
    for (size_t i = 0; i < BATCHES; i++) free(batches[i].data);
    return 0;
}
