/* SPDX-License-Identifier: Apache-2.0 */
/* Options of `serve` and `select` that others switch off: who gives one is told so, once, and what to say in its place. One that cannot go
 * with another is an error instead (serve_rules.c). */
#include <stdio.h>

#include <kvroute/disagg.h>

#include "base/base.h"
#include "base/log.h"
#include "cli/serve_cli.h"

enum { MODE_KV = 0, COST_LINEAR = 1, TRANSFER_PREFERRED = 1 }; /* places in their rows */

struct effect {
    bool off;
    const char *names; /* separated by | */
    const char *why;   /* and what has one */
};

static bool is_given(const struct serve_checker *c, const char *name)
{
    return c->from && options_given(c->from, c->options, name);
}

static void tell_one(const struct serve_checker *c, const char *name, const char *why)
{
    size_t line = c->from->file ? options_line(c->from, c->options, name) : 0;
    char at[512] = "";
    if (line) snprintf(at, sizeof at, "%.480s:%zu: ", c->from->file, line);
    if (c->plain) printf("%swarning: %s has no effect %s\n", at, name, why);
    else kvr_log_warning("kvroute %s: %s%s has no effect %s", c->command, at, name, why);
}

static void tell(const struct serve_checker *c, const struct effect *e)
{
    char name[96];
    for (const char *k = e->names; k && e->off;) {
        size_t n = strcspn(k, "|");
        snprintf(name, sizeof name, "%.*s", (int)n, k);
        if (is_given(c, name)) tell_one(c, name, e->why);
        k = k[n] ? k + n + 1 : NULL;
    }
}

#define TELL(c, effects)                                                                                                                   \
    for (size_t i = 0; i < KVR_ARRAY_LEN(effects); i++) tell((c), &(effects)[i])

/* How a worker is chosen. */
static void choice_effects(const struct serve_options *o, const struct serve_checker *c)
{
    bool kv = o->mode == MODE_KV, linear = o->cost == COST_LINEAR;
    const struct effect effects[] = {
        {!kv && !o->load_aware,
         "cost|router-kv-overlap-score-credit-decay|router-prefill-load-scale|"
         "router-kv-overlap-score-weight|router-decode-active-request-weight|router-host-cache-hit-weight|router-disk-cache-hit-weight|"
         "shared-cache-multiplier|router-temperature|router-track-output-blocks",
         "with this router-mode; use router-mode kv"},
        {kv && !linear,
         "router-kv-overlap-score-credit-decay|router-decode-active-request-weight|router-host-cache-hit-weight|router-disk-cache-hit-"
         "weight",
         "with cost auto, which learns what such weights are for; use cost linear"},
        {kv && linear && !o->track_prefill_tokens, "router-kv-overlap-score-credit-decay", "without router-track-prefill-tokens"},
        {o->load_aware,
         "router-mode|router-kv-overlap-score-credit|router-kv-events|router-track-active-blocks|router-track-prefill-tokens|"
         "router-assume-kv-reuse|shared-cache-multiplier|router-predicted-ttl-secs",
         "with load-aware, which sets it"},
        {o->kv_events && !o->load_aware, "router-ttl-secs", "with KV events; use router-predicted-ttl-secs, or no-router-kv-events"},
        {o->kv_events && o->predicted_ttl_secs < 0 && !o->load_aware, "router-max-tree-size|router-prune-target-ratio",
         "with KV events; use router-predicted-ttl-secs, or no-router-kv-events"},
        {!o->policy_config && o->queue_threshold < 0 && !o->queue_requests, "router-queue-policy|router-queue-ageing-secs",
         "while nothing waits; use router-queue-threshold or router-queue-requests"},
        {o->policy_config, "router-queue-policy|router-queue-ageing-secs", "with router-policy-config: queues are described in that file"},
        {o->use_remote_indexer, "index-max-bytes|indexer-shards|router-max-tree-size|router-ttl-secs|router-clear-worker-wide",
         "with use-remote-indexer: there is no index here"},
        {o->overlap_credit <= 0 && !o->use_remote_indexer && !o->load_aware,
         "index-max-bytes|indexer-shards|router-ttl-secs|router-clear-worker-wide",
         "with router-kv-overlap-score-credit 0: there is no index"},
        {!o->track_prefill_tokens,
         "router-queue-threshold|active-prefill-tokens-threshold|active-prefill-tokens-threshold-frac|"
         "router-conditional-disagg-prefill-busy-threshold",
         "without router-track-prefill-tokens: nobody knows how many wait"},
    };
    TELL(c, effects);
}

/* Prompts and answers on two workers. */
static void leg_effects(const struct serve_options *o, const struct serve_checker *c)
{
    enum kvr_disagg_policy rule = (enum kvr_disagg_policy)(o->conditional_policy + 1);
    bool on = o->conditional_disagg;
    const struct effect effects[] = {
        {on && rule != KVR_DISAGG_ISL_BOUNDING && rule != KVR_DISAGG_ISL_OR_LOAD,
         "router-conditional-disagg-eff-isl-threshold|router-conditional-disagg-eff-isl-ratio-threshold",
         "with this router-conditional-disagg-policy; use isl_bounding or isl_or_load"},
        {on && rule != KVR_DISAGG_PREFILL_LOAD && rule != KVR_DISAGG_ISL_OR_LOAD, "router-conditional-disagg-prefill-busy-threshold",
         "with this router-conditional-disagg-policy; use prefill_load or isl_or_load"},
        {on && rule != KVR_DISAGG_LEAST_DELAY, "router-conditional-disagg-stall-weight",
         "with this router-conditional-disagg-policy; use least_delay"},
        {!o->conditional_disagg,
         "router-conditional-disagg-policy|router-conditional-disagg-eff-isl-threshold|router-conditional-disagg-eff-isl-ratio-threshold|"
         "router-conditional-disagg-prefill-busy-threshold|router-conditional-disagg-stall-weight|"
         "router-conditional-disagg-decode-busy-threshold",
         "without router-conditional-disagg"},
        {o->kv_transfer_domain != TRANSFER_PREFERRED, "kv-transfer-weight", "with this kv-transfer-domain; use preferred"},
        {!o->disagg_release, "disagg-release-timeout", "without disagg-release"},
    };
    TELL(c, effects);
}

/* Views and events. */
static void view_effects(const struct serve_options *o, const struct serve_checker *c)
{
    bool replicas = o->replica_sync && o->replica_sync_transport == 1, follows = o->kv_events && !o->use_remote_indexer;
    bool nats = o->plane.plane != KVR_PLANE_ZMQ || o->discovery == DISCOVERY_NATS || replicas ||
                (o->use_remote_indexer && o->use_remote_indexer[0] == 'n');
    const struct effect effects[] = {
        {!o->data_dir, "snapshot-interval", "without data-dir"},
        {!o->record_events, "record-max-lines|record-max-count|record-max-secs", "without record-events"},
        {!o->use_remote_indexer, "remote-indexer-timeout|remote-indexer-key-file", "without use-remote-indexer"},
        {o->plane.plane != KVR_PLANE_JETSTREAM, "router-snapshot-threshold|router-reset-states", "without event-plane jetstream"},
        {!nats, "nats-url|nats-creds|nats-tls-ca|nats-tls-cert|nats-tls-key|namespace|component",
         "without event-plane nats or jetstream, discovery nats, replicas or a remote indexer over NATS"},
        {o->discovery != DISCOVERY_DNS, "discovery-dns-server|discovery-interval", "without discovery dns"},
        {o->discovery != DISCOVERY_DNS && o->discovery != DISCOVERY_KUBERNETES, "discovery-scheme|discovery-worker",
         "without discovery dns or kubernetes"},
        {o->discovery != DISCOVERY_KUBERNETES, "kubernetes-ports|kubernetes-namespace|kubernetes-api|kubernetes-token-file|kubernetes-ca",
         "without discovery kubernetes"},
        {!o->replica_sync_port, "replica-sync-host|replica-sync-peers", "without replica-sync-port"},
        {!o->replica_sync, "replica-sync-transport", "without router-replica-sync"},
        {replicas, "replica-sync-port", "with replica-sync-transport nats"},
        {!nats, "advertise-host", "without NATS"},
        {!follows || o->overlap_credit <= 0, "event-plane", "as no KV events are followed here"},
        {!o->kv_events, "restore-timeout|router-clear-worker-wide", "without router-kv-events"},
        {true, "router-event-threads", "here: one thread follows all events"},
        {o->select_only, "threads", "here: one thread serves"},
    };
    TELL(c, effects);
}

/* What is served, watched and written down. */
static void port_effects(const struct serve_options *o, const struct serve_checker *c)
{
    bool local = o->tokenizer == TOKENIZER_LOCAL || (o->tokenizer == TOKENIZER_AUTO && o->kv_events);
    const struct effect effects[] = {
        {!o->otlp_endpoint, "otlp-service-name|trace-sample", "without otlp-endpoint"},
        {o->picks_only,
         "port|tls-cert|tls-key|tls-client-ca|cors-allow-origin|cors-allow-credentials|cors-max-age|max-connections|"
         "max-connections-per-address|max-retries|connect-timeout|first-token-timeout|stall-timeout|queue-keepalive|forward-token-ids|"
         "forward-client-key",
         "here: a gateway carries the requests"},
        {!o->ext_proc_port && !o->select_only,
         "ext-proc-health-port|ext-proc-tls|ext-proc-fallbacks|ext-proc-full-status|pool|ext-proc-watch|ext-proc-memory|ext-proc-"
         "connection-age|"
         "ext-proc-unseen-secs",
         "without ext-proc-port"},
        {!o->ext_proc_port || !o->ext_proc_tls, "ext-proc-tls-cert|ext-proc-tls-key|ext-proc-tls-client-ca",
         "without ext-proc-port and ext-proc-tls auto"},
        {!o->access_log, "access-log-format|access-log-sample", "without access-log"},
        {!o->cors_allow_origin, "cors-max-age", "without cors-allow-origin"},
        {!o->api_key_file && !o->select_only, "forward-client-key", "without api-key-file"},
        {!local && !o->select_only,
         "tokenizer-dir|tokenizer-lib|tokenizer-profile|tokenizer-probes|tokenizer-check|tokenizer-cache|tokenizer-threads",
         "with this tokenizer; use local, or auto with KV events"},
    };
    TELL(c, effects);
}

void serve_cli_effects(const struct serve_cli *cli, const struct serve_checker *c)
{
    const struct serve_options *o = &cli->o;
    if (c->wrong) return;
    choice_effects(o, c);
    leg_effects(o, c);
    view_effects(o, c);
    port_effects(o, c);
}
