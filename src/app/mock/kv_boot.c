/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The bootstrap port of the side that keeps, where the other side asks for the address of a rank, as with vLLM's MooncakeConnector:
 *
 *     GET /query   {"0":{"engine_id":E,"worker_addr":{"0":{"0":"host:port"}}}, ...}     rank, tensor and pipeline place
 *
 * An SGLang answers other paths there; the mocks use this one for both. The asker believes what it is told, up to ANSWER_MAX bytes.
 */
#include "app/mock/kv.h"

#include <string.h>

#include "app/mock/state.h"
#include "net/http/ask.h"

enum { ANSWER_MAX = 1 << 20, ANSWER_S = 30 };

struct mock_lookup {
    struct mock_kv *kv;
    struct kvr_ask *asking;
    struct mock_lookup_question asked;
};

/* ---- who is asked -------------------------------------------------------------------------------------- */

static void put_rank(struct kvr_buf *b, const struct mock_kv *kv, uint64_t rank)
{
    char at[MOCK_KV_HOST_MAX + 16];
    snprintf(at, sizeof at, "%s:%u", mock_kv_own_host(kv->mock), (unsigned)kv->ports[rank].number);
    kvr_json_printf(b, "'%ju':{'engine_id':%s,'worker_addr':{'0':{'0':%s}}}", rank, kv->ports[rank].engine, at);
}

static void on_boot_request(struct kvr_http_conn *c, void *ctx)
{
    const struct kvr_http_request *rq = kvr_http_conn_request(c);
    struct mock_kv *kv = ctx;
    struct kvr_buf b = {0};
    if (!kvr_text_is(rq->method, "GET") || !kvr_text_is(rq->path, "/query")) {
        mock_reply_detail(c, 404, "Not Found");
        return;
    }
    kvr_json_open(&b, '{');
    for (uint64_t r = 0; r < kv->mock->o->dp_size; r++) put_rank(&b, kv, r);
    kvr_json_close(&b, '}');
    mock_reply_json(c, 200, &b);
}

int mock_kv_open_boot(struct mock_kv *kv)
{
    struct kvr_http_server_config config = {.host = kv->mock->o->host,
                                            .port = (uint16_t)kv->mock->o->bootstrap_port,
                                            .body_max = 65536,
                                            .connections_max = MOCK_KV_PEERS_MAX,
                                            .head_timeout_s = 30,
                                            .body_timeout_s = 60,
                                            .idle_timeout_s = 5,
                                            .write_timeout_s = 60,
                                            .handler = {on_boot_request, NULL, NULL, mock_error_body, kv}};
    return kvr_http_server_start(&kv->mock->loop, &config, &kv->boot);
}

/* ---- who asks ------------------------------------------------------------------------------------------ */

static bool take_text(struct kvr_json v, char *out, size_t cap)
{
    return kvr_json_copy_name(v, out, cap) && out[0];
}

/* By name, or by number; else the room says which. */
static struct kvr_json choose(const struct mock_lookup_question *asked, struct kvr_json all)
{
    static const struct kvr_json none;
    size_t n = kvr_json_count(all);
    char number[24];
    if (kvr_json_type_of(all) != KVR_JSON_OBJECT || n == 0) return none;
    if (asked->engine[0]) {
        for (struct kvr_json_iter i = kvr_json_iter(all); kvr_json_next(&i);)
            if (kvr_json_is_str(kvr_json_get(i.value, "engine_id"), asked->engine)) return i.value;
        return none;
    }
    snprintf(number, sizeof number, "%llu", (unsigned long long)(asked->rank >= 0 ? (uint64_t)asked->rank : asked->room % n));
    return kvr_json_get(all, number);
}

static bool read_answer(const struct mock_lookup *l, const struct kvr_asked *said, struct mock_lookup_answer *out)
{
    struct kvr_json all;
    char at[MOCK_KV_HOST_MAX + 16];
    if (said->status != 200 || said->cut || kvr_json_parse(l->kv->mock->json, said->data, said->len, &all, NULL)) return false;
    struct kvr_json rank = choose(&l->asked, all);
    struct kvr_json place = kvr_json_get(kvr_json_get(kvr_json_get(rank, "worker_addr"), "0"), "0");
    if (!take_text(kvr_json_get(rank, "engine_id"), out->engine, sizeof out->engine) || !take_text(place, at, sizeof at)) return false;
    char *colon = strrchr(at, ':');
    if (!colon || (size_t)(colon - at) >= sizeof out->host) return false;
    *colon = 0;
    memcpy(out->host, at, strlen(at) + 1);
    unsigned long port = strtoul(colon + 1, NULL, 10);
    out->port = (uint16_t)port;
    return port > 0 && port <= 65535;
}

static void on_lookup(void *ctx, const struct kvr_asked *said)
{
    struct mock_lookup *l = ctx;
    struct mock_lookup_answer answer = {0};
    bool ok = read_answer(l, said, &answer);
    l->asked.told(l->asked.ctx, ok ? &answer : NULL);
    free(l);
}

struct mock_lookup *mock_kv_look_up(struct mock_kv *kv, const struct mock_lookup_question *q)
{
    struct kvr_endpoint at;
    if (kvr_endpoint_parse(q->url, strlen(q->url), &at) || (!kv->client && kvr_http_client_create(&kv->mock->loop, 5, &kv->client)))
        return NULL;
    struct mock_lookup *l = calloc(1, sizeof *l);
    if (!l) return NULL;
    l->kv = kv;
    l->asked = *q;
    struct kvr_ask_config c = {.loop = &kv->mock->loop,
                               .client = kv->client,
                               .endpoint = &at,
                               .path = "/query",
                               .max = ANSWER_MAX,
                               .connect_timeout_s = 5,
                               .timeout_s = ANSWER_S,
                               .fn = on_lookup,
                               .ctx = l};
    l->asking = kvr_ask_start(&c);
    if (l->asking) return l;
    free(l);
    return NULL;
}

void mock_kv_look_up_cancel(struct mock_lookup *l)
{
    if (!l) return;
    kvr_ask_cancel(l->asking);
    free(l);
}
