/* SPDX-License-Identifier: Apache-2.0 */
/* Host, Origin, key and content type are checked before a route sees a request; net/http/access.h says against what. */
#include "net/http/access.h"
#include "wire/prom_page.h"

#include <arpa/inet.h>
#include <errno.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

#include "base/lock.h"

enum reason { BAD_HOST, BAD_ORIGIN, BAD_KEY, BAD_TYPE, REASONS };

struct kvr_access {
    char *bind, *key_file, *advertised;
    char **hosts; /* ends with NULL */
    size_t hosts_n;
    struct kvr_rwlock lock; /* keys */
    char **keys;
    _Atomic uint64_t refused[REASONS];
};

/* ---- keys -------------------------------------------------------------------------------------------- */

void kvr_keys_free(char **keys)
{
    for (char **k = keys; k && *k; k++) free(*k);
    free(keys);
}

char **kvr_keys_read(const char *path, char *err, size_t cap)
{
    char line[KVR_KEY_MAX], **keys = NULL;
    size_t n = 0, room = 0;
    FILE *f = fopen(path, "re");
    if (!f) {
        snprintf(err, cap, "no key in '%.200s': %s; allowed: a readable file with one key a line", path, strerror(errno));
        return NULL;
    }
    snprintf(err, cap, "no key in '%.200s'; allowed: a readable file with one key a line", path);
    while (fgets(line, sizeof line, f)) {
        size_t len = strcspn(line, "\r\n");
        bool whole = line[len] || feof(f);
        line[len] = 0;
        if (!whole) snprintf(err, cap, "a line of '%.200s' is too long; allowed: keys of at most %d bytes", path, KVR_KEY_MAX - 2);
        if (whole && (!len || line[0] == '#')) continue;
        if (!whole || !kvr_grow(&keys, &room, n + 2, sizeof *keys) || !(keys[n] = strdup(line))) {
            kvr_keys_free(keys);
            keys = NULL;
            break;
        }
        keys[++n] = NULL;
    }
    fclose(f);
    return keys;
}

/* Compares in time that does not depend on where a and b differ. */
static bool same_secret(const char *a, size_t a_len, const char *b)
{
    size_t b_len = strlen(b);
    unsigned char diff = a_len != b_len;
    for (size_t i = 0; i < a_len; i++) diff |= (unsigned char)(a[i] ^ (b_len ? b[i % b_len] : 0));
    return diff == 0;
}

static bool has_key(struct kvr_access *a, const struct kvr_headers *h)
{
    static const char scheme[] = "bearer ";
    struct kvr_text v = kvr_headers_get(h, "authorization");
    size_t skip = sizeof scheme - 1;
    bool form = v.ptr && v.len > skip && strncasecmp(v.ptr, scheme, skip) == 0, ok = false;
    kvr_read_lock(&a->lock);
    if (!a->keys) ok = true;
    for (char **k = a->keys; form && k && *k; k++) ok |= same_secret(v.ptr + skip, v.len - skip, *k);
    kvr_rw_unlock(&a->lock);
    return ok;
}

bool kvr_access_has_keys(const struct kvr_access *a)
{
    return a->key_file != NULL;
}

/* ---- names ------------------------------------------------------------------------------------------- */

/* The name in "name[:port]" or "[v6]:port", without brackets and the dot of the root; false: it is none. */
static bool host_of(struct kvr_text authority, struct kvr_text *out)
{
    const char *p = authority.ptr, *end = p + authority.len, *stop;
    if (!authority.len) return false;
    if (*p == '[') {
        stop = memchr(p, ']', authority.len);
        if (!stop || (stop + 1 < end && stop[1] != ':')) return false;
        *out = (struct kvr_text){p + 1, (size_t)(stop - p) - 1};
        stop++;
    } else {
        stop = memchr(p, ':', authority.len);
        if (!stop) stop = end;
        *out = (struct kvr_text){p, (size_t)(stop - p)};
        if (out->len && out->ptr[out->len - 1] == '.') out->len--;
    }
    if (stop < end) stop++;
    while (stop < end && *stop >= '0' && *stop <= '9') stop++;
    return out->len && stop == end;
}

static bool is_address(struct kvr_text host)
{
    char text[64];
    unsigned char unused[16];
    const char *zone = memchr(host.ptr, '%', host.len);
    size_t n = zone ? (size_t)(zone - host.ptr) : host.len;
    if (n >= sizeof text) return false;
    memcpy(text, host.ptr, n);
    text[n] = 0;
    return inet_pton(AF_INET, text, unused) == 1 || inet_pton(AF_INET6, text, unused) == 1;
}

static bool is_configured(const struct kvr_access *a, struct kvr_text host)
{
    for (size_t i = 0; i < a->hosts_n; i++) {
        const char *h = a->hosts[i];
        size_t n = strlen(h);
        if (h[0] != '.' && kvr_text_is_nocase(host, h)) return true;
        if (h[0] == '.' && host.len > n && strncasecmp(host.ptr + host.len - n, h, n) == 0) return true;
    }
    return false;
}

static bool is_own_name(struct kvr_text host)
{
    static const char *const loopback[] = {"localhost", "ip6-localhost", "ip6-loopback"};
    char name[256] = "";
    for (size_t i = 0; i < KVR_ARRAY_LEN(loopback); i++)
        if (kvr_text_is_nocase(host, loopback[i])) return true;
    return gethostname(name, sizeof name - 1) == 0 && kvr_text_is_nocase(host, name);
}

static bool is_known_host(const struct kvr_access *a, struct kvr_text authority)
{
    struct kvr_text host;
    for (size_t i = 0; i < a->hosts_n; i++)
        if (strcmp(a->hosts[i], "*") == 0) return true;
    if (!host_of(authority, &host)) return false;
    return is_address(host) || is_own_name(host) || (a->bind && kvr_text_is_nocase(host, a->bind)) ||
           (a->advertised && kvr_text_is_nocase(host, a->advertised)) || is_configured(a, host);
}

/* The port behind a host, or that of the scheme. */
static unsigned port_of(struct kvr_text authority, unsigned otherwise)
{
    const char *end = authority.ptr + authority.len, *p = end;
    unsigned v = 0;
    while (p > authority.ptr && p[-1] >= '0' && p[-1] <= '9') p--;
    if (p == end || p == authority.ptr || p[-1] != ':') return otherwise;
    for (; p < end && v <= 65535; p++) v = v * 10 + (unsigned)(*p - '0');
    return v;
}

/* A page's origin: where the request goes to anyhow, or a host that is configured. */
static bool is_own_origin(const struct kvr_access *a, struct kvr_text origin, struct kvr_text authority)
{
    static const struct {
        const char *prefix;
        unsigned port;
    } schemes[] = {{"http://", 80}, {"https://", 443}};
    for (size_t i = 0; i < KVR_ARRAY_LEN(schemes); i++) {
        size_t n = strlen(schemes[i].prefix);
        struct kvr_text from, to;
        if (origin.len <= n || strncasecmp(origin.ptr, schemes[i].prefix, n) != 0) continue;
        struct kvr_text rest = {origin.ptr + n, origin.len - n};
        if (!host_of(rest, &from)) return false;
        if (is_configured(a, from)) return true;
        return authority.ptr && host_of(authority, &to) && from.len == to.len && strncasecmp(from.ptr, to.ptr, to.len) == 0 &&
               port_of(rest, schemes[i].port) == port_of(authority, schemes[i].port);
    }
    return false;
}

/* ---- the check --------------------------------------------------------------------------------------- */

bool kvr_media_type_is(struct kvr_text value, const char *type)
{
    size_t n = strlen(type);
    if (!value.ptr || value.len < n || strncasecmp(value.ptr, type, n) != 0) return false;
    while (n < value.len && (value.ptr[n] == ' ' || value.ptr[n] == '\t')) n++;
    return n == value.len || value.ptr[n] == ';';
}

static bool types_are_good(const struct kvr_http_request *rq, bool packed)
{
    size_t found = 0;
    for (size_t i = 0; i < rq->headers->n; i++) {
        struct kvr_text v = kvr_headers_value(rq->headers, i);
        if (!kvr_text_is_nocase(kvr_headers_name(rq->headers, i), "content-type")) continue;
        if (!kvr_media_type_is(v, "application/json") && !(packed && kvr_media_type_is(v, "application/msgpack"))) return false;
        found++;
    }
    return found > 0;
}

static bool origins_are_good(const struct kvr_access *a, const struct kvr_http_request *rq, struct kvr_text host, struct kvr_text *bad)
{
    for (size_t i = 0; i < rq->headers->n; i++) {
        if (!kvr_text_is_nocase(kvr_headers_name(rq->headers, i), "origin")) continue;
        *bad = kvr_headers_value(rq->headers, i);
        if (!is_own_origin(a, *bad, host)) return false;
    }
    return true;
}

static bool refuse(struct kvr_access *a, enum reason why, int status, struct kvr_access_refusal *out)
{
    atomic_fetch_add_explicit(&a->refused[why], 1, memory_order_relaxed);
    out->status = status;
    out->extra = why == BAD_KEY ? "WWW-Authenticate: Bearer\r\n" : NULL;
    return false;
}

static bool refuse_name(struct kvr_access *a, enum reason why, struct kvr_text name, struct kvr_access_refusal *out)
{
    int n = (int)KVR_MIN(name.len, (size_t)100);
    if (why == BAD_HOST)
        snprintf(out->text, sizeof out->text,
                 "the Host '%.*s' is not known here; allowed: IP addresses, loopback names, this machine's name, and the names given by "
                 "--allowed-hosts (serve: --admin-allowed-hosts)",
                 n, name.ptr);
    else
        snprintf(out->text, sizeof out->text,
                 "pages of the origin '%.*s' may not use this port; allowed: its own, and those of the hosts given by --allowed-hosts "
                 "(serve: --admin-allowed-hosts)",
                 n, name.ptr);
    return refuse(a, why, 403, out);
}

bool kvr_access_check(struct kvr_access *a, const struct kvr_http_request *rq, unsigned flags, struct kvr_access_refusal *out)
{
    struct kvr_text host = kvr_headers_get(rq->headers, "host"), bad;
    bool looks = kvr_text_is(rq->method, "GET") || kvr_text_is(rq->method, "HEAD");
    if (looks && flags & KVR_ACCESS_PROBE) return true;
    if (host.ptr && !is_known_host(a, host)) return refuse_name(a, BAD_HOST, host, out); /* none: HTTP/1.0, which no page speaks */
    if (!origins_are_good(a, rq, host, &bad)) return refuse_name(a, BAD_ORIGIN, bad, out);
    if (!(looks && flags & KVR_ACCESS_KEYLESS) && !has_key(a, rq->headers)) {
        snprintf(out->text, sizeof out->text, "a valid API key is required: Authorization: Bearer KEY");
        return refuse(a, BAD_KEY, 401, out);
    }
    if (rq->body_len && !types_are_good(rq, flags & KVR_ACCESS_PACKED)) {
        snprintf(out->text, sizeof out->text, "expected the header 'Content-Type: application/json'%s",
                 flags & KVR_ACCESS_PACKED ? " or application/msgpack" : "");
        return refuse(a, BAD_TYPE, 415, out);
    }
    return true;
}

size_t kvr_access_body_room(struct kvr_access *a, const struct kvr_http_request *rq)
{
    return has_key(a, rq->headers) ? SIZE_MAX : 0;
}

uint64_t kvr_access_refused_keys(struct kvr_access *a)
{
    return atomic_load_explicit(&a->refused[BAD_KEY], memory_order_relaxed);
}

void kvr_access_metrics(struct kvr_access *a, struct kvr_prom_page *out)
{
    static const char *const names[REASONS] = {"host", "origin", "key", "content_type"};
    kvr_prom_family(out, "kvroute_", "access_refused_total", "counter", "Requests refused for Host, Origin, key or Content-Type");
    for (int i = 0; i < REASONS; i++)
        kvr_prom_put_u64(out, KVR_PROM_PAIRS(KVR_PROM_TEXT("reason", names[i])),
                         atomic_load_explicit(&a->refused[i], memory_order_relaxed));
}

bool kvr_access_warning(struct kvr_access *a, char *out, size_t cap)
{
    struct kvr_text bind = {a->bind, a->bind ? strlen(a->bind) : 0};
    bool loopback = !bind.len || is_own_name(bind) || strncmp(a->bind, "127.", 4) == 0 || strcmp(a->bind, "::1") == 0;
    if (loopback || a->key_file) return false;
    snprintf(out, cap, "every client that reaches %s may use this port: there is no key", a->bind);
    return true;
}

/* ---- life -------------------------------------------------------------------------------------------- */

/* The items of a comma list, without spaces around them. */
static int read_hosts(struct kvr_access *a, const char *list)
{
    size_t most = 1;
    for (const char *p = list; *p; p++) most += *p == ',';
    a->hosts = calloc(most + 1, sizeof *a->hosts);
    if (!a->hosts) return -1;
    while (*list) {
        size_t n = strcspn(list, ","), from = strspn(list, " \t"), to = n;
        while (to > from && (list[to - 1] == ' ' || list[to - 1] == '\t')) to--;
        if (from < to && !(a->hosts[a->hosts_n++] = strndup(list + from, to - from))) return -1;
        list += n + (list[n] == ',');
    }
    return 0;
}

int kvr_access_reload(struct kvr_access *a, char *err, size_t cap)
{
    if (!a->key_file) return 0;
    char **fresh = kvr_keys_read(a->key_file, err, cap), **old;
    if (!fresh) return -1;
    kvr_write_lock(&a->lock);
    old = a->keys;
    a->keys = fresh;
    kvr_rw_unlock(&a->lock);
    kvr_keys_free(old);
    return 0;
}

int kvr_access_create(const struct kvr_access_config *config, struct kvr_access **out, char *err, size_t cap)
{
    struct kvr_access *a = calloc(1, sizeof *a);
    snprintf(err, cap, "out of memory");
    if (!a) return -1;
    kvr_rwlock_init(&a->lock, KVR_LOCK_ACCESS);
    if (config->bind && !(a->bind = strdup(config->bind))) goto failed;
    if (config->hosts && read_hosts(a, config->hosts)) goto failed;
    if (config->key_file && !(a->key_file = strdup(config->key_file))) goto failed;
    if (config->advertised && !(a->advertised = strdup(config->advertised))) goto failed;
    if (kvr_access_reload(a, err, cap)) goto failed;
    *out = a;
    return 0;
failed:
    kvr_access_destroy(a);
    return -1;
}

void kvr_access_destroy(struct kvr_access *a)
{
    if (!a) return;
    for (size_t i = 0; i < a->hosts_n; i++) free(a->hosts[i]);
    free(a->hosts);
    free(a->bind);
    free(a->key_file);
    free(a->advertised);
    kvr_keys_free(a->keys);
    kvr_rwlock_destroy(&a->lock);
    free(a);
}
