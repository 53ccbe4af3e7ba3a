/* SPDX-License-Identifier: Apache-2.0 */
/* Options of `serve` and `select` that decide about others, and those that do not go together. */
#include <stdio.h>
#include <stdlib.h>
#include <kvroute/disagg.h>

#include "app/serve/data/port/client_routes.h"
#include "app/serve/data/request/cors.h"
#include "app/serve/data/request/hints.h"
#include "base/base.h"
#include "base/log.h"
#include "cli/serve_cli.h"
#include "net/grpc/grpc.h"

enum { WORKERS_MAX = 4096 };

/* ---- what follows from options ----------------------------------------------------------------------- */

/* The weight of older configurations: it is the scale of the prefill term now. */
static void apply_overlap_weight(struct serve_checker *c, struct serve_options *o)
{
    char *end, text[256];
    if (!o->overlap_weight_text) return;
    double v = strtod(o->overlap_weight_text, &end);
    if (end == o->overlap_weight_text || *end || !(v >= 0 && v < 1e300)) {
        snprintf(text, sizeof text, "router-kv-overlap-score-weight: bad value '%.80s'; allowed: a number >= 0", o->overlap_weight_text);
        serve_checker_tell(c, "router-kv-overlap-score-weight", text);
        return;
    }
    kvr_log_warning("kvroute %s: router-kv-overlap-score-weight is deprecated; use router-prefill-load-scale", c->command);
    o->prefill_load_scale = v;
    if (v == 0) o->overlap_credit = 0;
}

static void apply_load_aware(struct serve_options *o)
{
    if (!o->load_aware) return;
    o->mode = 0;
    o->overlap_credit = 0;
    o->kv_events = false;
    o->track_active_blocks = o->track_prefill_tokens = true;
    o->assume_kv_reuse = false;
    o->shared_multiplier = 0;
    o->predicted_ttl_secs = -1;
}

/* ---- what does not go together ----------------------------------------------------------------------- */

struct rule {
    bool broken;
    const char *keys; /* where it is said, for the line: the first one that the file sets */
    const char *text;
};

static void check(struct serve_checker *c, const struct rule *rules, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (rules[i].broken) serve_checker_tell(c, rules[i].keys, rules[i].text);
}

#define CHECK(c, rules) check((c), (rules), KVR_ARRAY_LEN(rules))
#define DURABLE         "router-durable-kv-events|event-plane"

/* KV events that nobody here would follow. */
static void check_events(struct serve_checker *c, const struct serve_options *o)
{
    bool durable = o->plane.plane == KVR_PLANE_JETSTREAM, no_index = o->overlap_credit <= 0;
    const struct rule rules[] = {
        {o->load_aware && durable, "load-aware|" DURABLE,
         "load-aware and router-durable-kv-events (event-plane jetstream) exclude each other: it follows no KV events"},
        {!o->load_aware && !o->kv_events && durable, "router-kv-events|" DURABLE,
         "no-router-kv-events and router-durable-kv-events (event-plane jetstream) exclude each other: no event would be followed"},
        {!o->load_aware && no_index && durable, DURABLE "|router-kv-overlap-score-credit",
         "router-durable-kv-events (event-plane jetstream) needs router-kv-overlap-score-credit above 0: else there is no index"},
        {!o->kv_events && o->record_events, "record-events",
         "no-router-kv-events and record-events exclude each other: no event would be recorded"},
        {o->kv_events && o->record_events && (no_index || o->use_remote_indexer), "record-events",
         "record-events needs router-kv-overlap-score-credit above 0 and an index of its own: else no event is followed"},
        {o->data_dir && (!o->kv_events || no_index || o->use_remote_indexer), "data-dir",
         "data-dir needs router-kv-events, router-kv-overlap-score-credit above 0 and an index of its own: else there are no views to "
         "keep"},
        {o->data_dir && durable, "data-dir",
         "data-dir and router-durable-kv-events (event-plane jetstream) exclude each other: that stream keeps the views"},
        {o->discovery_target && o->discovery != DISCOVERY_FILE && o->discovery != DISCOVERY_DNS, "discovery-target",
         "discovery-target needs discovery file or dns"},
    };
    CHECK(c, rules);
}

/* Where workers are found. */
static void check_kubernetes(struct serve_checker *c, const struct serve_options *o)
{
    bool on = o->discovery == DISCOVERY_KUBERNETES;
    const struct rule rules[] = {
        {!on && (o->kubernetes_pool || o->kubernetes_selector || o->kubernetes_peers),
         "kubernetes-pool|kubernetes-selector|kubernetes-peers",
         "kubernetes-pool, kubernetes-selector and kubernetes-peers need discovery kubernetes"},
        {on && !o->kubernetes_pool == !o->kubernetes_selector, "discovery|kubernetes-pool|kubernetes-selector",
         "discovery kubernetes needs one of kubernetes-pool and kubernetes-selector"},
        {on && !o->kubernetes_selector != !o->kubernetes_ports, "kubernetes-selector|kubernetes-ports",
         "kubernetes-selector and kubernetes-ports: one is missing; allowed: both, or kubernetes-pool"},
        {on && o->kubernetes_peers && !o->replica_sync_port, "kubernetes-peers",
         "kubernetes-peers needs replica-sync-port: the one that the other routers have, too"},
    };
    CHECK(c, rules);
}

/* A certificate and its key, or neither; and whom clients must be signed by where there is one. */
static void check_tls(struct serve_checker *c, const struct serve_options *o)
{
    const char *admin = o->select_only ? "" : "admin-";
    const struct {
        const char *prefix, *cert, *key, *ca;
    } pairs[] = {{"", o->tls_cert, o->tls_key, o->tls_client_ca},
                 {admin, o->admin_tls_cert, o->admin_tls_key, o->admin_tls_client_ca},
                 {"ext-proc-", o->ext_proc_tls_cert, o->ext_proc_tls_key, o->ext_proc_tls_client_ca},
                 {"outgoing-", o->outgoing_tls_cert, o->outgoing_tls_key, NULL}};
    for (size_t i = 0; i < KVR_ARRAY_LEN(pairs); i++) {
        char keys[96], text[256];
        const char *p = pairs[i].prefix;
        if (!pairs[i].cert == !pairs[i].key && (pairs[i].cert || !pairs[i].ca)) continue;
        snprintf(keys, sizeof keys, "%stls-cert|%stls-key|%stls-client-ca", p, p, p);
        snprintf(text, sizeof text, "%stls-cert and %stls-key: one is missing; allowed: both or none%s", p, p,
                 pairs[i].ca ? ", and both with a client-ca" : "");
        serve_checker_tell(c, keys, text);
    }
}

/* Who may use the data port from a browser. */
static void check_cors(struct serve_checker *c, const struct serve_options *o)
{
    const char *list = o->cors_allow_origin ? o->cors_allow_origin : "*";
    struct kvr_text bad = *list ? cors_bad_origin(list) : (struct kvr_text){list, 0};
    char text[320];
    snprintf(
        text, sizeof text,
        "cors-allow-origin: bad value '%.*s'; allowed: *, null, or origins as browsers send them: scheme://host[:port], without a path, "
        "and without the scheme's own port",
        (int)KVR_MIN(bad.len, (size_t)100), bad.ptr ? bad.ptr : "");
    const struct rule rules[] = {
        {bad.ptr, "cors-allow-origin", text},
        {o->cors_allow_credentials && cors_has_any(list), "cors-allow-credentials",
         "cors-allow-credentials needs cors-allow-origin with names, not *: else any page could use what the browser has of its user"},
    };
    CHECK(c, rules);
}

/* What is tracked and predicted, and what waits. */
static void check_scheduling(struct serve_checker *c, const struct serve_options *o)
{
    bool by_load = o->conditional_policy + 1 == KVR_DISAGG_PREFILL_LOAD || o->conditional_policy + 1 == KVR_DISAGG_ISL_OR_LOAD;
    bool predicts = o->predicted_ttl_secs >= 0;
    const struct rule rules[] = {
        {o->conditional_disagg && by_load && o->conditional_prefill_busy < 0 && o->queue_threshold < 0, "router-conditional-disagg-policy",
         "router-conditional-disagg-policy prefill_load and isl_or_load need router-conditional-disagg-prefill-busy-threshold or "
         "router-queue-threshold, a number >= 0"},
        {o->track_output_blocks && !o->track_active_blocks, "router-track-output-blocks",
         "router-track-output-blocks needs router-track-active-blocks"},
        {o->prefill_load_model && !o->track_prefill_tokens, "router-prefill-load-model",
         "router-prefill-load-model fitted needs router-track-prefill-tokens"},
        {predicts && !o->kv_events, "router-predicted-ttl-secs", "router-predicted-ttl-secs needs router-kv-events"},
        {predicts && o->overlap_credit <= 0, "router-predicted-ttl-secs",
         "router-predicted-ttl-secs needs router-kv-overlap-score-credit above 0"},
        {!predicts && o->predicted_ttl_secs > -1, "router-predicted-ttl-secs", "router-predicted-ttl-secs: allowed: -1, or a number >= 0"},
        {o->policy_config && o->queue_requests, "router-queue-requests|router-policy-config",
         "router-policy-config and router-queue-requests exclude each other: thresholds are in the file"},
        {o->policy_config && o->queue_threshold >= 0, "router-queue-threshold|router-policy-config",
         "router-policy-config and router-queue-threshold exclude each other: thresholds are in the file"},
    };
    CHECK(c, rules);
}

/* Indexes and routers elsewhere. */
static void check_fleet(struct serve_checker *c, const struct serve_options *o)
{
    const struct rule rules[] = {
        {o->shared_cache_type, "shared-cache-type",
         "shared-cache-type hicache is not supported; allowed: none (requests may carry shared_cache_ranges)"},
        {o->serve_indexer && o->use_remote_indexer, "serve-indexer|use-remote-indexer",
         "serve-indexer and use-remote-indexer exclude each other"},
        {o->serve_indexer && o->overlap_credit <= 0, "serve-indexer", "serve-indexer needs router-kv-overlap-score-credit above 0"},
        {o->use_remote_indexer && o->overlap_credit <= 0, "use-remote-indexer",
         "use-remote-indexer needs router-kv-overlap-score-credit above 0: else nobody is asked"},
        {o->use_remote_indexer && o->predicted_ttl_secs >= 0, "use-remote-indexer|router-predicted-ttl-secs",
         "use-remote-indexer and router-predicted-ttl-secs exclude each other: there is no index here"},
        {o->replica_sync && !o->replica_sync_port && o->replica_sync_transport == 0, "router-replica-sync",
         "router-replica-sync needs replica-sync-port, or replica-sync-transport nats"},
        {o->health_timeout > 100 * o->health_interval, "health-timeout|health-interval",
         "health-timeout: allowed: at most a hundred times health-interval, since so many checks of a worker may be open at once"},
        {!hints_check_objectives(o->objectives), "objective",
         "objective: allowed: NAME=PRIORITY,..., each priority a whole number of 32 bits (batch=-1,chat=5)"},
        {!client_routes_check(o->pass_routes), "pass-routes",
         "pass-routes: allowed: paths that begin with /, without escapes; * at the end only"},
        {o->replica_sync_port && o->handover, "replica-sync-port|handover",
         "replica-sync-port and handover exclude each other: two processes would need the port; allowed: replicas over NATS"},
        {o->ext_proc_port && !kvr_grpc_available(), "ext-proc-port", "ext-proc-port: this build has none, as nghttp2 was missing"},
        {o->ext_proc_port && o->handover, "ext-proc-port|handover",
         "ext-proc-port and handover exclude each other: that port is not handed over; allowed: a second picker (replica-sync-port)"},
        {o->replica_sync_peers && !o->replica_sync_port, "replica-sync-peers", "replica-sync-peers needs replica-sync-port"},
    };
    CHECK(c, rules);
}

/* Each of them costs a look at all others when it is added. */
static void take_workers(struct serve_cli *cli, struct serve_checker *c)
{
    char text[96];
    cli->o.workers = cli->workers.items;
    cli->o.workers_n = KVR_MIN(cli->workers.n, (size_t)WORKERS_MAX);
    if (cli->workers.n <= WORKERS_MAX) return;
    snprintf(text, sizeof text, "worker: there are %zu; allowed: at most %d", cli->workers.n, WORKERS_MAX);
    serve_checker_tell(c, "worker", text);
}

void serve_cli_rules(struct serve_cli *cli, struct serve_checker *c)
{
    struct serve_options *o = &cli->o;
    apply_overlap_weight(c, o);
    apply_load_aware(o);
    if (o->durable_events) o->plane.plane = KVR_PLANE_JETSTREAM;
    check_tls(c, o);
    check_cors(c, o);
    check_events(c, o);
    check_kubernetes(c, o);
    check_scheduling(c, o);
    check_fleet(c, o);
    take_workers(cli, c);
    o->tokenizer_dirs = cli->tokenizer_dirs.items;
    o->tokenizer_dirs_n = cli->tokenizer_dirs.n;
}
