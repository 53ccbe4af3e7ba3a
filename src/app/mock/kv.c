/* SPDX-License-Identifier: Apache-2.0 */
/* KV transfers: start and end, and what is told of them. app/mock/kv.h has the parts. */
#include "app/mock/kv.h"

#include "app/mock/generate.h"
#include "wire/prom_page.h"

static const char *const protocols[] = {"vllm-nixl", "vllm-nixl-push", "vllm-mooncake", "sglang", "trtllm", "none"},
                         *const roles[] = {"both", "prefill", "decode"},
                         *const hows[MOCK_KV_HOWS] = {"pulled", "notified", "aborted", "expired"};

/* ---- start and end ------------------------------------------------------------------------------------- */

/* New with each start of the process; ranks tell themselves apart as vLLM's do. */
static void name_engine(const struct mock *m, uint64_t rank, char *out, size_t cap)
{
    uint64_t id[2] = {0};
    uv_random(NULL, NULL, id, sizeof id, 0, NULL);
    int n = snprintf(out, cap, "%016llx%016llx", (unsigned long long)id[0], (unsigned long long)id[1]);
    if (m->o->dp_size > 1) snprintf(out + n, cap - (size_t)n, "_dp%llu", (unsigned long long)rank);
}

static int open_port(struct mock_kv *kv, uint64_t rank)
{
    const struct mock_options *o = kv->mock->o;
    uint64_t number = o->kv_side_port ? o->kv_side_port + rank : 0;
    name_engine(kv->mock, rank, kv->ports[rank].engine, sizeof kv->ports[rank].engine);
    int rc = number > 65535 ? UV_EINVAL : mock_kv_open_port(kv, &kv->mock->ranks[rank], (uint16_t)number);
    if (rc == 0) return 0;
    kvr_log_error("kvroute mock: --kv-side-port: cannot listen on %s:%llu: %s", o->host, (unsigned long long)number, uv_strerror(rc));
    return 1;
}

static int open_boot(struct mock_kv *kv)
{
    const struct mock_options *o = kv->mock->o;
    int rc = mock_kv_open_boot(kv);
    if (rc)
        kvr_log_error("kvroute mock: --bootstrap-port: cannot listen on %s:%u: %s", o->host, (unsigned)o->bootstrap_port, uv_strerror(rc));
    return rc ? 1 : 0;
}

int mock_kv_start(struct mock *m, const struct mock_kv_hooks *hooks)
{
    struct mock_kv *kv = m->kv = calloc(1, sizeof *kv);
    if (!kv) return 1;
    kv->mock = m;
    kv->tell = *hooks;
    if (mock_kv_start_keeping(kv)) return 1;
    if (m->o->kv_protocol == MOCK_KV_NONE) return 0;
    for (uint64_t r = 0; r < m->o->dp_size; r++)
        if (open_port(kv, r)) return 1;
    return m->o->role != MOCK_DECODE && (m->o->kv_protocol == MOCK_KV_MOONCAKE || m->o->kv_protocol == MOCK_KV_SGLANG) ? open_boot(kv) : 0;
}

void mock_kv_stop(struct mock_kv *kv)
{
    if (!kv || !kv->mock) return;
    kv->stopping = true;
    mock_kv_stop_fetching(kv);
    mock_kv_stop_keeping(kv);
    if (kv->client) kvr_http_client_close(kv->client);
    kvr_http_server_close(kv->boot);
}

void mock_kv_free(struct mock_kv *kv)
{
    if (!kv) return;
    if (kv->kept.list.buckets) kvr_lru_free(&kv->kept.list);
    if (kv->rooms.list.buckets) kvr_lru_free(&kv->rooms.list);
    free(kv);
}

/* ---- what is told -------------------------------------------------------------------------------------- */

static uint64_t waiting_rooms(const struct mock_kv *kv)
{
    return kv->rooms.list.n + mock_kv_waiting_fetches(kv);
}

void mock_kv_tell(struct mock *m, struct kvr_http_conn *c)
{
    struct kvr_buf b = {0};
    kvr_json_printf(&b, "{'role':%s,'protocol':%s,'engine_ids':[", roles[m->o->role], protocols[m->o->kv_protocol]);
    for (uint64_t r = 0; r < m->o->dp_size; r++) kvr_json_printf(&b, "%s", m->kv->ports[r].engine);
    kvr_json_printf(&b, "],'held':[");
    mock_kv_put_kept(m->kv, &b);
    kvr_json_printf(&b, "],'released':{");
    for (size_t i = 0; i < MOCK_KV_HOWS; i++) kvr_json_put_u64(&b, hows[i], m->kv->released[i]);
    kvr_json_printf(&b, "},'waiting_rooms':%ju,'bad_pulls':%ju}", waiting_rooms(m->kv), m->kv->bad_pulls);
    mock_reply_json(c, 200, &b);
}

void mock_kv_metrics(struct mock *m, struct kvr_prom_page *page)
{
    const char *model = m->o->model;
    kvr_prom_family(page, "mock_kv_", "held_blocks", "gauge", "Blocks that are kept for another engine");
    for (uint32_t r = 0; r < m->o->dp_size; r++)
        kvr_prom_put_u64(page, KVR_PROM_PAIRS(KVR_PROM_TEXT("model_name", model), KVR_PROM_NUMBER("engine", r)),
                         mock_kv_kept_blocks(m->kv, &m->ranks[r]));
    kvr_prom_family(page, "mock_kv_", "released_total", "counter", "Requests whose blocks were let go");
    for (size_t i = 0; i < MOCK_KV_HOWS; i++)
        kvr_prom_put_u64(page, KVR_PROM_PAIRS(KVR_PROM_TEXT("model_name", model), KVR_PROM_TEXT("how", hows[i])), m->kv->released[i]);
    kvr_prom_family(page, "mock_kv_", "waiting_rooms", "gauge", "Sides of a transfer that wait for the other one");
    kvr_prom_put_u64(page, KVR_PROM_PAIRS(KVR_PROM_TEXT("model_name", model)), waiting_rooms(m->kv));
    kvr_prom_family(page, "mock_kv_", "bad_pulls_total", "counter", "Requests that read blocks which were not theirs any more");
    kvr_prom_put_u64(page, KVR_PROM_PAIRS(KVR_PROM_TEXT("model_name", model)), m->kv->bad_pulls);
}
