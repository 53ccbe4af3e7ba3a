/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Workers from the domain name system: NAME:PORT gives one for each address, _service._proto.name one for each SRV record and address
 * of its target.
 *
 * Idea: every --discovery-interval seconds a round of questions. A round opens a channel of c-ares of its own, so that what resolv.conf
 * and hosts say then is what counts, collects the addresses of all answers, and tells them when no question is open.
 *
 *     timer --> begin_round --> questions (16 at once) --> answers --> end_questions --> tell_some (64 at once) --> timer
 *                                   sockets: uv_poll, time-outs: the timer
 *
 * Invariants:
 * - Nobody is removed by an answer that did not come: a round ends with removals only when it has addresses and every question was
 *   answered, if only with "there is none". A health check tells who is gone, and a name server that fails must not take the fleet away.
 *   A family of addresses that has never had an answer does not count: some servers never answer questions for AAAA.
 * - Beyond ADDRESSES_MAX addresses nothing is removed either: which of them an answer names may change from round to round.
 * - Callbacks of c-ares start no questions and end no round: whoever called c-ares does, when it has returned (`go_on`).
 *
 * --discovery-worker holds further keys of each worker, in which {host} and {port} stand for its own.
 * It does not: keep answers for their time to live, or look at what NSS has beside hosts and DNS.
 */
#define CARES_NO_DEPRECATED
#include <ares.h>
#include <arpa/inet.h>
#include <arpa/nameser.h>
#include <netdb.h>
#include <netinet/in.h>
#include <string.h>
#include <sys/socket.h>
#include <uv.h>

#include "app/serve/discovery/found_workers.h"
#include "app/serve/workers/table/worker.h"
#include "base/log.h"
#include "wire/prom_page.h"

enum {
    ADDRESSES_MAX = 4096,
    TARGETS_MAX = 4096,
    AT_ONCE = 16,
    TOLD_AT_ONCE = 64,
    ANSWER_MS = 2000,
    TRIES = 2,
    HOST_MAX = INET6_ADDRSTRLEN + 2
};

enum family { V4, V6, FAMILIES };

struct address {
    char host[HOST_MAX]; /* an IPv6 one in brackets */
    uint16_t port;
};

/* A name whose addresses are asked for. */
struct target {
    char name[256];
    uint16_t port;
};

/* A socket of c-ares, while that wants to hear of it. */
struct watch {
    uv_poll_t poll;
    struct watch *next;
    struct discovery_dns *dns;
    ares_socket_t socket;
};

struct discovery_dns {
    struct discovery *discovery;
    char name[256];
    uint16_t port; /* 0: SRV */
    uv_timer_t timer;
    bool stopping;
    /* the round */
    ares_channel channel; /* NULL: between two of them */
    struct watch *watches;
    struct target *targets;
    size_t targets_n, asked; /* asked: of both families each */
    unsigned open;           /* questions without an answer */
    bool unanswered;
    struct address *found;
    size_t found_n, told, left_out;
    /* all rounds */
    bool gave[FAMILIES]; /* there was an answer with such addresses */
    bool failed_before;
    uint64_t left_out_total, rounds_failed;
};

/* ---- what was found ------------------------------------------------------------------------------------------------- */

static void tell(struct discovery *room, const struct address *a)
{
    struct kvr_buf b = {0};
    char key[DISCOVERY_KEY_MAX];
    const struct found_place at = {.host = a->host, .port = a->port};
    snprintf(key, sizeof key, "%s:%u", a->host, a->port);
    found_place_put(room, &at, &b);
    if (!b.failed) {
        kvr_buf_add(&b, "", 1);
        if (!b.failed) found_workers_tell(room, key, b.data, b.len - 1);
    }
    kvr_buf_free(&b);
}

static void keep(struct discovery_dns *d, enum family family, const void *address, uint16_t port)
{
    char text[INET6_ADDRSTRLEN];
    if (d->found_n == ADDRESSES_MAX) {
        d->left_out++;
        return;
    }
    struct address *a = &d->found[d->found_n];
    if (!inet_ntop(family == V6 ? AF_INET6 : AF_INET, address, text, sizeof text)) return;
    snprintf(a->host, sizeof a->host, family == V6 ? "[%s]" : "%s", text);
    a->port = port;
    d->found_n++;
    d->gave[family] = true;
}

/* ---- questions ------------------------------------------------------------------------------------------------------ */

struct question {
    struct discovery_dns *dns;
    uint16_t port;
    enum family family;
};

/* Whether an answer says that there is none, where others did not come or could not be used. */
static bool says_none(int status)
{
    return status == ARES_ENODATA || status == ARES_ENOTFOUND;
}

static void on_addresses(void *ctx, int status, int, struct ares_addrinfo *ai)
{
    struct question *q = ctx;
    struct discovery_dns *d = q->dns;
    d->open--;
    if (status != ARES_SUCCESS && !says_none(status) && d->gave[q->family]) d->unanswered = true;
    for (const struct ares_addrinfo_node *n = status == ARES_SUCCESS ? ai->nodes : NULL; n; n = n->ai_next) {
        const void *at = n->ai_addr;
        if (n->ai_family == AF_INET6 && q->family == V6) keep(d, V6, &((const struct sockaddr_in6 *)at)->sin6_addr, q->port);
        if (n->ai_family == AF_INET && q->family == V4) keep(d, V4, &((const struct sockaddr_in *)at)->sin_addr, q->port);
    }
    if (ai) ares_freeaddrinfo(ai);
    free(q);
}

static void ask_addresses(struct discovery_dns *d, const struct target *t, enum family family)
{
    struct ares_addrinfo_hints hints = {
        .ai_family = family == V6 ? AF_INET6 : AF_INET, .ai_socktype = SOCK_STREAM, .ai_flags = ARES_AI_NOSORT};
    struct question *q = malloc(sizeof *q);
    if (!q) {
        d->unanswered = true;
        return;
    }
    *q = (struct question){d, t->port, family};
    d->open++;
    ares_getaddrinfo(d->channel, t->name, NULL, &hints, on_addresses, q);
}

static bool add_target(struct discovery_dns *d, const char *name, uint16_t port)
{
    if (d->targets_n == TARGETS_MAX || strlen(name) >= sizeof d->targets->name) return false;
    struct target *t = &d->targets[d->targets_n++];
    snprintf(t->name, sizeof t->name, "%s", name);
    t->port = port;
    return true;
}

static void on_services(void *ctx, int status, int, unsigned char *answer, int len)
{
    struct discovery_dns *d = ctx;
    struct ares_srv_reply *list = NULL;
    d->open--;
    if (status == ARES_SUCCESS) status = ares_parse_srv_reply(answer, len, &list);
    if (status != ARES_SUCCESS && !says_none(status)) d->unanswered = true;
    for (const struct ares_srv_reply *r = list; r; r = r->next)
        if (!add_target(d, r->host, r->port)) d->left_out++;
    if (list) ares_free_data(list);
}

/* Addresses of targets are asked for, but not of all targets at once. */
static void ask_more(struct discovery_dns *d)
{
    while (d->channel && d->asked < d->targets_n && d->open < AT_ONCE) {
        const struct target *t = &d->targets[d->asked++];
        ask_addresses(d, t, V4);
        ask_addresses(d, t, V6);
    }
}

/* ---- a round -------------------------------------------------------------------------------------------------------- */

static void on_time(uv_timer_t *timer);

static void free_questions(struct discovery_dns *d)
{
    if (d->channel) ares_destroy(d->channel);
    d->channel = NULL;
    free(d->targets);
    d->targets = NULL;
}

static void say_how_it_went(struct discovery_dns *d)
{
    bool failed = d->found_n == 0 || d->unanswered;
    if (d->found_n == 0 && !d->failed_before) kvr_log_warning("kvroute: discovery: '%s' gives no address; nothing is changed", d->name);
    else if (failed && !d->failed_before)
        kvr_log_warning("kvroute: discovery: '%s': some questions have no answer; no worker is removed", d->name);
    if (d->left_out)
        kvr_log_warning("kvroute: discovery: '%s' gives more than %d addresses: %zu are left out, and no worker is removed", d->name,
                        ADDRESSES_MAX, d->left_out);
    kvr_log_debug("kvroute: discovery: '%s' gives %zu addresses", d->name, d->found_n);
    d->failed_before = failed;
    d->rounds_failed += failed;
    d->left_out_total += d->left_out;
}

/* What was found becomes workers, a few in each turn of the main loop. */
static void tell_some(struct discovery_dns *d)
{
    struct discovery *room = d->discovery;
    for (int i = 0; i < TOLD_AT_ONCE && d->told < d->found_n; i++) tell(room, &d->found[d->told++]);
    if (d->told < d->found_n) {
        uv_timer_start(&d->timer, on_time, 1, 0);
        return;
    }
    if (d->found_n) found_workers_round_ends(room, !d->unanswered && !d->left_out);
    free(d->found);
    d->found = NULL;
    uv_timer_start(&d->timer, on_time, (uint64_t)(room->o->discovery_interval * 1000), 0);
}

static void end_questions(struct discovery_dns *d)
{
    free_questions(d);
    say_how_it_went(d);
    if (d->found_n) found_workers_round_begins(d->discovery);
    tell_some(d);
}

/* After each call of c-ares. */
static void go_on(struct discovery_dns *d)
{
    struct timeval tv;
    if (d->stopping || !d->channel) return;
    ask_more(d);
    if (d->open == 0) {
        end_questions(d);
        return;
    }
    const struct timeval *left = ares_timeout(d->channel, NULL, &tv);
    uint64_t ms = left ? (uint64_t)left->tv_sec * 1000 + (uint64_t)left->tv_usec / 1000 + 1 : ANSWER_MS;
    uv_timer_start(&d->timer, on_time, ms, 0);
}

static void on_ready(uv_poll_t *poll, int status, int events)
{
    const struct watch *w = poll->data;
    struct discovery_dns *d = w->dns;
    ares_socket_t in = status < 0 || events & UV_READABLE ? w->socket : ARES_SOCKET_BAD;
    ares_socket_t out = status < 0 || events & UV_WRITABLE ? w->socket : ARES_SOCKET_BAD;
    ares_process_fd(d->channel, in, out);
    go_on(d);
}

static void unwatch(struct discovery_dns *d, ares_socket_t socket)
{
    struct watch **at = &d->watches, *w;
    while ((w = *at) && w->socket != socket) at = &w->next;
    if (!w) return;
    *at = w->next;
    uv_poll_stop(&w->poll);
    uv_close((uv_handle_t *)&w->poll, kvr_free_closed);
}

static struct watch *watch_of(struct discovery_dns *d, ares_socket_t socket)
{
    struct watch *w = d->watches;
    while (w && w->socket != socket) w = w->next;
    if (w || !(w = calloc(1, sizeof *w))) return w;
    if (uv_poll_init(&d->discovery->process->main_loop, &w->poll, socket)) {
        free(w);
        return NULL;
    }
    *w = (struct watch){.poll = w->poll, .next = d->watches, .dns = d, .socket = socket};
    w->poll.data = w;
    d->watches = w;
    return w;
}

/* What c-ares wants to hear of a socket; neither: it is about to be closed. */
static void on_socket(void *ctx, ares_socket_t socket, int readable, int writable)
{
    struct discovery_dns *d = ctx;
    if (!readable && !writable) {
        unwatch(d, socket);
        return;
    }
    struct watch *w = watch_of(d, socket);
    if (w) uv_poll_start(&w->poll, (readable ? UV_READABLE : 0) | (writable ? UV_WRITABLE : 0), on_ready);
}

/* Returns: a channel, or NULL. */
static ares_channel open_channel(struct discovery_dns *d)
{
    const char *servers = d->discovery->o->discovery_dns_server;
    struct ares_options o = {.timeout = ANSWER_MS, .tries = TRIES, .sock_state_cb = on_socket, .sock_state_cb_data = d};
    int mask = ARES_OPT_TIMEOUTMS | ARES_OPT_TRIES | ARES_OPT_SOCK_STATE_CB;
    ares_channel channel = NULL;
    char dns_only[] = "b";
    if (servers) { /* what is asked of a named server is asked as it stands, and of nobody else */
        mask |= ARES_OPT_DOMAINS | ARES_OPT_LOOKUPS;
        o.lookups = dns_only;
    }
    if (ares_init_options(&channel, &o, mask)) return NULL;
    if (!servers || ares_set_servers_ports_csv(channel, servers) == ARES_SUCCESS) return channel;
    ares_destroy(channel);
    return NULL;
}

static void begin_round(struct discovery_dns *d)
{
    d->targets_n = d->asked = d->found_n = d->told = d->left_out = 0;
    d->unanswered = false;
    d->targets = calloc(d->port ? 1 : TARGETS_MAX, sizeof *d->targets);
    d->found = calloc(ADDRESSES_MAX, sizeof *d->found);
    d->channel = d->targets && d->found ? open_channel(d) : NULL;
    if (!d->channel) {
        end_questions(d);
        return;
    }
    if (d->port) {
        add_target(d, d->name, d->port);
    } else {
        d->open++;
        ares_query(d->channel, d->name, ns_c_in, ns_t_srv, on_services, d);
    }
    go_on(d);
}

static void on_time(uv_timer_t *timer)
{
    struct discovery_dns *d = timer->data;
    if (!d->channel) {
        if (d->found) tell_some(d);
        else begin_round(d);
        return;
    }
    ares_process_fd(d->channel, ARES_SOCKET_BAD, ARES_SOCKET_BAD);
    go_on(d);
}

/* ---- life ----------------------------------------------------------------------------------------------------------- */

static bool parse_target(struct discovery_dns *d, const char *target)
{
    const char *colon = target ? strrchr(target, ':') : NULL;
    char *end;
    if (!target || !*target || strlen(target) >= sizeof d->name) return false;
    if (target[0] == '_') {
        snprintf(d->name, sizeof d->name, "%s", target);
        return !colon;
    }
    unsigned long port = colon ? strtoul(colon + 1, &end, 10) : 0;
    if (!colon || colon == target || *end || port == 0 || port > 65535) return false;
    snprintf(d->name, sizeof d->name, "%.*s", (int)(colon - target), target);
    d->port = (uint16_t)port;
    return true;
}

/* ADDRESS:PORT, the address of an IPv6 one in brackets. */
static bool is_server(const char *text, size_t len)
{
    char host[64];
    unsigned char address[16];
    uint64_t port;
    const char *colon = memrchr(text, ':', len);
    if (!colon || !kvr_parse_u64(colon + 1, len - (size_t)(colon + 1 - text), 65535, &port) || port == 0) return false;
    size_t n = (size_t)(colon - text);
    bool v6 = n > 2 && text[0] == '[' && text[n - 1] == ']';
    if (n - (v6 ? 2 : 0) >= sizeof host) return false;
    snprintf(host, sizeof host, "%.*s", (int)(n - (v6 ? 2 : 0)), text + v6);
    return inet_pton(v6 ? AF_INET6 : AF_INET, host, address) == 1;
}

static bool are_servers(const char *list)
{
    for (;;) {
        size_t n = strcspn(list, ",");
        if (!is_server(list, n)) return false;
        if (!list[n]) return true;
        list += n + 1;
    }
}

static int check_options(struct discovery_dns *d, char *err, size_t cap)
{
    const struct serve_options *o = d->discovery->o;
    if (!parse_target(d, o->discovery_target))
        return kvr_refuse(err, cap, "--discovery-target: bad value '%.200s'; allowed with dns: NAME:PORT or _service._proto.name",
                          o->discovery_target ? o->discovery_target : "");
    if (o->discovery_dns_server && !are_servers(o->discovery_dns_server))
        return kvr_refuse(err, cap, "--discovery-dns-server: bad value '%.100s'; allowed: addresses with ports, e.g. 127.0.0.1:53,[::1]:53",
                          o->discovery_dns_server);
    return found_place_check(d->discovery, err, cap);
}

int discovery_dns_check(struct discovery *room, char *err, size_t cap)
{
    struct discovery_dns *d = calloc(1, sizeof *d);
    if (!d) return kvr_refuse(err, cap, "out of memory");
    d->discovery = room;
    int rc = check_options(d, err, cap);
    free(d);
    return rc;
}

int discovery_dns_start(struct discovery *room, char *err, size_t cap)
{
    struct discovery_dns *d = calloc(1, sizeof *d);
    if (!d || ares_library_init(ARES_LIB_INIT_ALL)) {
        snprintf(err, cap, "out of memory");
        free(d);
        return -1;
    }
    d->discovery = room;
    if (check_options(d, err, cap)) {
        discovery_dns_free(d);
        return -1;
    }
    uv_timer_init(&room->process->main_loop, &d->timer);
    d->timer.data = d;
    uv_timer_start(&d->timer, on_time, 0, 0);
    room->dns = d;
    return 0;
}

void discovery_dns_stop(struct discovery_dns *d)
{
    if (!d) return;
    d->stopping = true;
    free_questions(d);
    free(d->found);
    d->found = NULL;
    uv_close((uv_handle_t *)&d->timer, NULL);
}

void discovery_dns_free(struct discovery_dns *d)
{
    if (!d) return;
    ares_library_cleanup();
    free(d);
}

void discovery_dns_metrics(const struct discovery_dns *d, struct kvr_prom_page *b)
{
    kvr_prom_one_if(b, d != NULL, "kvroute_", "discovery_left_out_total", "counter", "Addresses beyond 4,096, left out",
                    d ? d->left_out_total : 0);
    kvr_prom_one_if(b, d != NULL, "kvroute_", "discovery_failed_looks_total", "counter", "Looks at DNS without an answer, or an address",
                    d ? d->rounds_failed : 0);
}
