/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Workers from the domain name system: NAME:PORT gives one for each address, _service._proto.name one for each SRV record.
 * Resolved every --discovery-interval seconds by a thread of its own. An answer that does not come, or is empty, changes nothing:
 * health checks tell who is gone, and a name server that fails must not take the fleet away.
 *
 * --discovery-worker holds further keys of each worker, in which {host} and {port} stand for its own.
 */
#include <arpa/nameser.h>
#include <netdb.h>
#include <netinet/in.h>
#include <resolv.h>
#include <string.h>
#include <sys/socket.h>
#include <arpa/inet.h>

#include "app/serve/discovery/discovery.h"
#include "base/log.h"

enum { ANSWER_MAX = 65535, ADDRESSES_MAX = 4096, STEP_MS = 50 };

static struct {
    pthread_t thread;
    _Atomic bool stop;
    bool runs, failed_before;
    struct serve *serve;
    char name[256];
    uint16_t port; /* 0: SRV */
    struct sockaddr_in server;
    bool has_server;
} dns;

/* ---- one worker ----------------------------------------------------------------------------------------------------- */

static void put_template(struct kvr_buf *b, const char *text, const char *host, uint16_t port)
{
    for (const char *p = text; p && *p;) {
        if (strncmp(p, "{host}", 6) == 0) {
            kvr_buf_str(b, host);
            p += 6;
        } else if (strncmp(p, "{port}", 6) == 0) {
            kvr_buf_printf(b, "%u", port);
            p += 6;
        } else {
            kvr_buf_add(b, p++, 1);
        }
    }
}

static void tell(const char *host, uint16_t port)
{
    struct kvr_buf b = {0};
    char key[DISCOVERY_KEY_MAX];
    snprintf(key, sizeof key, "%.140s:%u", host, port);
    kvr_buf_printf(&b, "http://%s:%u", host, port);
    if (dns.serve->o->discovery_worker) {
        kvr_buf_str(&b, ",");
        put_template(&b, dns.serve->o->discovery_worker, host, port);
    }
    if (!b.failed) discovery_post_found(dns.serve, key, b.data, b.len);
    kvr_buf_free(&b);
}

/* ---- asking --------------------------------------------------------------------------------------------------------- */

static int ask(const char *name, int type, unsigned char *answer)
{
    struct __res_state rs = {0};
    if (res_ninit(&rs)) return -1;
    rs.retrans = 2;
    rs.retry = 2;
    if (dns.has_server) {
        rs.nscount = 1;
        rs.nsaddr_list[0] = dns.server;
    }
    int n = res_nquery(&rs, name, ns_c_in, type, answer, ANSWER_MAX);
    res_nclose(&rs);
    return n;
}

typedef void record_fn(const ns_msg *m, const ns_rr *rr, void *ctx);

/* Returns: how many records of that type. */
static int each_record(const char *name, int type, record_fn *fn, void *ctx)
{
    static unsigned char answer[2][ANSWER_MAX]; /* an SRV's targets are asked for while its answer is walked */
    unsigned char *buf = answer[type == ns_t_srv ? 0 : 1];
    ns_msg m;
    int len = ask(name, type, buf), found = 0;
    if (len < 0 || ns_initparse(buf, KVR_MIN(len, (int)ANSWER_MAX), &m)) return 0;
    for (int i = 0; i < ns_msg_count(m, ns_s_an) && found < ADDRESSES_MAX; i++) {
        ns_rr rr;
        if (ns_parserr(&m, ns_s_an, i, &rr) || (int)ns_rr_type(rr) != type) continue;
        fn(&m, &rr, ctx);
        found++;
    }
    return found;
}

static void on_address(const ns_msg *m, const ns_rr *rr, void *ctx)
{
    const uint16_t *port = ctx;
    char text[INET6_ADDRSTRLEN], host[INET6_ADDRSTRLEN + 2];
    bool v6 = ns_rr_type(*rr) == ns_t_aaaa;
    (void)m;
    if (ns_rr_rdlen(*rr) != (v6 ? 16 : 4) || !inet_ntop(v6 ? AF_INET6 : AF_INET, ns_rr_rdata(*rr), text, sizeof text)) return;
    snprintf(host, sizeof host, v6 ? "[%s]" : "%s", text);
    tell(host, *port);
}

static int addresses_of(const char *name, uint16_t port)
{
    return each_record(name, ns_t_a, on_address, &port) + each_record(name, ns_t_aaaa, on_address, &port);
}

static void on_srv(const ns_msg *m, const ns_rr *rr, void *ctx)
{
    const unsigned char *d = ns_rr_rdata(*rr);
    char target[NS_MAXDNAME];
    int *n = ctx;
    if (ns_rr_rdlen(*rr) < 7 || dn_expand(ns_msg_base(*m), ns_msg_end(*m), d + 6, target, sizeof target) < 0) return;
    *n += addresses_of(target, (uint16_t)(d[4] << 8 | d[5]));
}

/* By the system's own means (files, caches) unless a server was named. */
static int system_addresses(const char *name, uint16_t port)
{
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM}, *list = NULL;
    int n = 0;
    if (getaddrinfo(name, NULL, &hints, &list)) return 0;
    for (const struct addrinfo *a = list; a && n < ADDRESSES_MAX; a = a->ai_next, n++) {
        char text[INET6_ADDRSTRLEN], host[INET6_ADDRSTRLEN + 2];
        bool v6 = a->ai_family == AF_INET6;
        const void *addr = v6 ? (const void *)&((const struct sockaddr_in6 *)(const void *)a->ai_addr)->sin6_addr
                              : (const void *)&((const struct sockaddr_in *)(const void *)a->ai_addr)->sin_addr;
        if (!inet_ntop(a->ai_family, addr, text, sizeof text)) continue;
        snprintf(host, sizeof host, v6 ? "[%s]" : "%s", text);
        tell(host, port);
    }
    freeaddrinfo(list);
    return n;
}

static void resolve(void)
{
    int n = 0;
    discovery_post_round(dns.serve, true);
    if (!dns.port) (void)each_record(dns.name, ns_t_srv, on_srv, &n);
    else n = dns.has_server ? addresses_of(dns.name, dns.port) : system_addresses(dns.name, dns.port);
    if (n > 0) discovery_post_round(dns.serve, false);
    if (n == 0 && !dns.failed_before) kvr_log_warning("kvroute: discovery: '%s' gives no address; nothing is changed", dns.name);
    dns.failed_before = n == 0;
}

static void *dns_main(void *arg)
{
    (void)arg;
    while (!atomic_load(&dns.stop)) {
        resolve();
        double left = dns.serve->o->discovery_interval * 1000;
        for (; left > 0 && !atomic_load(&dns.stop); left -= STEP_MS) uv_sleep(STEP_MS);
    }
    return NULL;
}

/* ---- life ----------------------------------------------------------------------------------------------------------- */

static bool parse_target(const char *target)
{
    const char *colon = target ? strrchr(target, ':') : NULL;
    char *end;
    if (!target || !*target || strlen(target) >= sizeof dns.name) return false;
    if (target[0] == '_') {
        snprintf(dns.name, sizeof dns.name, "%s", target);
        return !colon;
    }
    unsigned long port = colon ? strtoul(colon + 1, &end, 10) : 0;
    if (!colon || colon == target || *end || port == 0 || port > 65535) return false;
    snprintf(dns.name, sizeof dns.name, "%.*s", (int)(colon - target), target);
    dns.port = (uint16_t)port;
    return true;
}

static bool parse_server(const char *text)
{
    char host[64], *end;
    const char *colon = strrchr(text, ':');
    unsigned long port = colon ? strtoul(colon + 1, &end, 10) : 0;
    if (!colon || (size_t)(colon - text) >= sizeof host || *end || port == 0 || port > 65535) return false;
    snprintf(host, sizeof host, "%.*s", (int)(colon - text), text);
    dns.server = (struct sockaddr_in){.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    dns.has_server = inet_pton(AF_INET, host, &dns.server.sin_addr) == 1;
    return dns.has_server;
}

int discovery_dns_start(struct serve *s, char *err, size_t cap)
{
    const struct serve_options *o = s->o;
    dns.serve = s;
    if (!parse_target(o->discovery_target)) {
        snprintf(err, cap, "--discovery-target: bad value '%.200s'; allowed with dns: NAME:PORT or _service._proto.name",
                 o->discovery_target ? o->discovery_target : "");
        return -1;
    }
    if (o->discovery_dns_server && !parse_server(o->discovery_dns_server)) {
        snprintf(err, cap, "--discovery-dns-server: bad value '%.100s'; allowed: an IPv4 address and port, e.g. 127.0.0.1:53",
                 o->discovery_dns_server);
        return -1;
    }
    dns.runs = pthread_create(&dns.thread, NULL, dns_main, NULL) == 0;
    if (!dns.runs) snprintf(err, cap, "out of memory");
    return dns.runs ? 0 : -1;
}

void discovery_dns_stop(void)
{
    atomic_store(&dns.stop, true);
    if (dns.runs) pthread_join(dns.thread, NULL);
}
