/* SPDX-License-Identifier: Apache-2.0 */
/* app/serve/config/port_tls.h says what this is. */
#include "app/serve/config/port_tls.h"

#include <string.h>
#include <time.h>

#include "app/serve/config/room.h"
#include "base/log.h"
#include "wire/prom_page.h"

enum { WARN_DAYS = 14, DAY_S = 86400, LOOK_EVERY_MS = 3600 * 1000 };

struct port_tls {
    const char *port, *prefix; /* what its options begin with */
    struct kvr_tls_ctx **tls;
    struct kvr_tls_files files;
};

enum { PORTS = 3 };

static size_t ports_of(struct config *config, struct port_tls out[PORTS])
{
    const struct serve_options *o = config->o;
    const char *admin = o->select_only ? "--" : "--admin-";
    size_t n = 0;
    if (o->tls_cert && o->tls_key)
        out[n++] = (struct port_tls){"data", "--", &config->tls, {o->tls_cert, o->tls_key, o->tls_client_ca, false}};
    if (o->admin_tls_cert && o->admin_tls_key)
        out[n++] =
            (struct port_tls){"admin", admin, &config->admin_tls, {o->admin_tls_cert, o->admin_tls_key, o->admin_tls_client_ca, false}};
    if (o->ext_proc_port && o->ext_proc_tls) /* without files it has a certificate that is made here */
        out[n++] = (struct port_tls){
            "ext_proc", "--ext-proc-", &config->picker_tls, {o->ext_proc_tls_cert, o->ext_proc_tls_key, o->ext_proc_tls_client_ca, true}};
    return n;
}

static bool wants_trust(const struct serve_options *o)
{
    return o->tls_ca || (o->outgoing_tls_cert && o->outgoing_tls_key);
}

static int read_trust(struct config *config, char *err, size_t cap)
{
    const struct serve_options *o = config->o;
    bool pair = o->outgoing_tls_cert && o->outgoing_tls_key; /* else a check has said so */
    struct kvr_tls_peer_config c = {.ca = o->tls_ca, .cert = pair ? o->outgoing_tls_cert : NULL, .key = pair ? o->outgoing_tls_key : NULL};
    return kvr_tls_trust(&c, err, cap);
}

static void warn_of_end(const struct config *config, const struct port_tls *d)
{
    if (!d->files.cert) return;
    int64_t left = kvr_tls_ctx_expires(*d->tls) - (int64_t)time(NULL);
    const char *name = serve_command(config->o);
    if (left <= 0) kvr_log_warning("kvroute %s: the certificate of the %s port (%s) has ended", name, d->port, d->files.cert);
    else if (left < (int64_t)WARN_DAYS * DAY_S)
        kvr_log_warning("kvroute %s: the certificate of the %s port (%s) ends in %lld day(s)", name, d->port, d->files.cert,
                        (long long)(left / DAY_S));
}

static int open_trust(struct config *config, char *err, size_t cap)
{
    char why[400];
    if (!wants_trust(config->o) || read_trust(config, why, sizeof why) == 0) return 0;
    return kvr_refuse(err, cap, "--tls-ca, --outgoing-tls-cert, --outgoing-tls-key: %s; allowed: PEM files", why);
}

static int open_port_tls(struct config *config, const struct port_tls *d, char *err, size_t cap)
{
    char why[400];
    *d->tls = kvr_tls_ctx_new(&d->files, why, sizeof why);
    if (*d->tls) {
        warn_of_end(config, d);
        return 0;
    }
    return kvr_refuse(err, cap, "%stls-cert, %stls-key, %stls-client-ca: %s; allowed: PEM files that belong together", d->prefix, d->prefix,
                      d->prefix, why);
}

int port_tls_open(struct config *config, char *err, size_t cap)
{
    struct port_tls doors[PORTS];
    size_t n = ports_of(config, doors);
    if (open_trust(config, err, cap)) return -1;
    for (size_t i = 0; i < n; i++)
        if (open_port_tls(config, &doors[i], err, cap)) return -1;
    return 0;
}

void port_tls_check(struct config *config, void (*wrong)(void *arg, const char *key, const char *text), void *arg)
{
    struct port_tls doors[PORTS];
    char err[1024], key[32];
    size_t n = ports_of(config, doors);
    if (open_trust(config, err, sizeof err)) wrong(arg, config->o->tls_ca ? "tls-ca" : "outgoing-tls-cert", err);
    for (size_t i = 0; i < n; i++) {
        snprintf(key, sizeof key, "%stls-cert", doors[i].prefix + 2);
        if (open_port_tls(config, &doors[i], err, sizeof err)) wrong(arg, key, err);
    }
}

/* Adds a reason to those in err. */
static void add_reason(char *err, size_t cap, const char *option, const char *why)
{
    size_t n = strlen(err);
    snprintf(err + n, cap - n, "%s%s: %s", n ? "; " : "", option, why);
}

int port_tls_reload(struct config *config, char *err, size_t cap)
{
    struct port_tls doors[PORTS];
    char why[400], option[40];
    size_t n = ports_of(config, doors);
    err[0] = 0;
    if (wants_trust(config->o) && read_trust(config, why, sizeof why)) add_reason(err, cap, "--tls-ca, --outgoing-tls-cert", why);
    if (kvr_tls_peers_reload(why, sizeof why)) add_reason(err, cap, "TLS files of a worker", why);
    for (size_t i = 0; i < n; i++) {
        if (!doors[i].files.cert || kvr_tls_ctx_reload(*doors[i].tls, why, sizeof why) == 0) {
            warn_of_end(config, &doors[i]);
            continue;
        }
        snprintf(option, sizeof option, "%stls-cert", doors[i].prefix);
        add_reason(err, cap, option, why);
    }
    if (n || wants_trust(config->o)) reloads_note(&config->reloads, RELOAD_CERTIFICATES, !err[0]);
    return err[0] ? -1 : 0;
}

void port_tls_tick(struct config *config)
{
    struct port_tls doors[PORTS];
    if (kvr_now_ms() < config->port_tls_due_ms) return;
    bool first = config->port_tls_due_ms == 0;
    config->port_tls_due_ms = kvr_now_ms() + LOOK_EVERY_MS;
    if (first) return; /* it was looked at when it was read */
    for (size_t i = 0, n = ports_of(config, doors); i < n; i++) warn_of_end(config, &doors[i]);
}

void port_tls_metrics(struct config *config, struct kvr_prom_page *out)
{
    struct port_tls doors[PORTS];
    size_t n = ports_of(config, doors);
    kvr_prom_family(out, "kvroute_", "tls_certificate_expiry_timestamp_seconds", "gauge", "When the certificate of a port ends");
    for (size_t i = 0; i < n; i++)
        kvr_prom_put_u64(out, KVR_PROM_PAIRS(KVR_PROM_TEXT("port", doors[i].port)),
                         (uint64_t)KVR_MAX(kvr_tls_ctx_expires(*doors[i].tls), (int64_t)0));
}

void port_tls_write(struct config *config, struct kvr_buf *b)
{
    struct port_tls doors[PORTS];
    size_t n = ports_of(config, doors);
    kvr_json_open(b, '[');
    for (size_t i = 0; i < n; i++) {
        kvr_json_printf(b, "{'port':%s,'ends_at_ms':%ju}", doors[i].port,
                        1000 * (uint64_t)KVR_MAX(kvr_tls_ctx_expires(*doors[i].tls), (int64_t)0));
    }
    kvr_json_close(b, ']');
}
