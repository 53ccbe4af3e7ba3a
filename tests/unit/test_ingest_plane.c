/* SPDX-License-Identifier: Apache-2.0 */
/* The shared stream and the commands of other threads: which of them the ingest thread sees first. */
#include "test.h"

#include "net/ingest/ingest.h"
#include "wire/plane_event.h"

enum { WORKERS = 64, ROUNDS = 50 };

static int on_event(void *ctx, void *user, const struct kvr_event *event, const struct kvr_ingest_origin *origin)
{
    (void)ctx, (void)user, (void)event, (void)origin;
    return 0;
}

static void on_reset(void *ctx, void *user, struct kvr_worker worker)
{
    (void)ctx, (void)user, (void)worker;
}

static void send_clear(struct kvr_ingest *in, uint64_t worker)
{
    struct kvr_buf event = {0}, message = {0};
    struct kvr_event ev = {.event_id = 1, .worker = {worker, 0}, .kind = KVR_EVENT_CLEARED};
    kvr_plane_event_write(&event, &ev);
    struct kvr_envelope e = {.publisher = worker,
                             .published_at_ms = 1700000000000,
                             .topic = KVR_PLANE_EVENTS,
                             .topic_len = (uint32_t)strlen(KVR_PLANE_EVENTS),
                             .payload = event.data,
                             .payload_len = (uint32_t)event.len};
    kvr_envelope_write(&message, &e);
    assert_int_equal(kvr_ingest_plane_message(in, message.data, message.len, 0, true), 0);
    kvr_buf_free(&event);
    kvr_buf_free(&message);
}

static struct kvr_ingest_plane_stats wait_for_events(struct kvr_ingest *in, uint64_t n)
{
    struct kvr_ingest_plane_stats st;
    uint64_t deadline = seconds_from_now(60);
    do kvr_ingest_plane_stats(in, &st);
    while (st.events < n && time_is_left(deadline));
    assert_int_equal(st.events, n);
    return st;
}

/* Nobody else will say it again: an event that came after the worker was added is the worker's. */
static void an_event_after_its_worker_was_added_finds_it(void **)
{
    struct kvr_ingest_handler h = {.on_event = on_event, .on_reset = on_reset};
    struct kvr_ingest *in;
    assert_int_equal(kvr_ingest_create(&h, 1, &in), 0);
    kvr_ingest_plane_state(in, true);
    for (uint64_t round = 0; round < ROUNDS; round++) {
        for (uint64_t w = 1; w <= WORKERS; w++) {
            struct kvr_ingest_source src = {.worker = {w, 0}, .block_size = 4};
            assert_int_equal(kvr_ingest_add(in, &src), 0);
            send_clear(in, w);
        }
        assert_int_equal(wait_for_events(in, (round + 1) * WORKERS).unknown_workers, 0);
        struct kvr_view_status all[WORKERS];
        assert_int_equal(kvr_ingest_status(in, all, WORKERS), WORKERS);
        for (size_t i = 0; i < WORKERS; i++) assert_true(all[i].trusted);
        for (uint64_t w = 1; w <= WORKERS; w++) kvr_ingest_remove(in, w, NULL);
    }
    kvr_ingest_destroy(in);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(an_event_after_its_worker_was_added_finds_it)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
