/* SPDX-License-Identifier: Apache-2.0 */
/* RFC 9112, sections 2 to 7, without what it leaves to leniency: see http/internal.h. */
#include "net/http/internal.h"

#include <string.h>

enum {
    EXTENSIONS_MAX = 16 * 1024,
    CHUNK_DIGITS_MAX = 15 /* of the size, leading zeros too: it stays below 2^60 */
};

enum state {
    BEGIN,    /* requests: blank lines may come before */
    BEGIN_LF, /* the line feed of one */
    METHOD,
    TARGET,
    VERSION,     /* the word "HTTP/1.x"; a request's line ends with it, an answer's begins with it */
    STATUS_LINE, /* the rest of it: llhttp knows what a status is */
    LINE_LF,
    LINE, /* at the start of a header line */
    NAME,
    VALUE,
    LAST_LF,
    HEAD_OVER,
    CHUNK_SIZE,
    CHUNK_EXTENSION,
    CHUNK_SIZE_LF,
    CHUNK_DATA,
    CHUNK_DATA_CR,
    CHUNK_DATA_LF,
    BODY_OVER
};

void kvr__framing_begin(struct kvr__framing *f, enum kvr__framing_kind kind)
{
    *f = (struct kvr__framing){.kind = (uint8_t)kind, .state = kind == KVR__REQUESTS ? BEGIN : VERSION};
}

bool kvr__framing_started(const struct kvr__framing *f)
{
    return f->state != BEGIN && f->state != BEGIN_LF;
}

bool kvr__framing_in_head(const struct kvr__framing *f)
{
    return f->state < HEAD_OVER && !f->trailer;
}

bool kvr__framing_in_chunks(const struct kvr__framing *f)
{
    return (f->state > HEAD_OVER && f->state < BODY_OVER) || f->trailer;
}

void kvr__framing_chunks(struct kvr__framing *f)
{
    f->state = CHUNK_SIZE;
    f->at = 0;
    f->chunk_left = 0;
    f->extensions = 0;
}

/* RFC 9110, 5.6.2: what a token consists of, and what a header's value does; of targets all that is visible ASCII but '#'. */
enum { TOKEN = 1, TEXT = 2, PATH = 4, SOME = TEXT | PATH, ALL = TOKEN | TEXT | PATH };

static const uint8_t kinds[256] = {
    ['\t'] = TEXT,        [' '] = TEXT,        ['!'] = ALL,           ['"'] = SOME,        ['#'] = TOKEN | TEXT, ['$' ... '\''] = ALL,
    ['(' ... ')'] = SOME, ['*' ... '+'] = ALL, [','] = SOME,          ['-' ... '.'] = ALL, ['/'] = SOME,         ['0' ... '9'] = ALL,
    [':' ... '@'] = SOME, ['A' ... 'Z'] = ALL, ['[' ... ']'] = SOME,  ['^' ... 'z'] = ALL, ['{'] = SOME,         ['|'] = ALL,
    ['}'] = SOME,         ['~'] = ALL,         [0x80 ... 0xff] = TEXT};

static bool is_token(unsigned char c)
{
    return kinds[c] & TOKEN;
}

static bool is_text(unsigned char c)
{
    return kinds[c] & TEXT;
}

/* Are all eight bytes of a word text? false is also said of a tab. */
static bool are_text(const char *data)
{
    const uint64_t ones = 0x0101010101010101, tops = ones << 7;
    uint64_t w, del;
    memcpy(&w, data, sizeof w);
    del = w ^ 0x7f * ones;
    return !((((w - 0x20 * ones) & ~w) | ((del - ones) & ~del)) & tops);
}

static size_t span_of(uint8_t kind, const char *data, size_t len)
{
    size_t n = 0;
    while (kind == TEXT && len - n >= 8 && are_text(data + n)) n += 8;
    while (n < len && kinds[(unsigned char)data[n]] & kind) n++;
    return n;
}

/* A header line that is there as a whole; 0: it is not, or is not as it should be. */
static size_t line_of(const char *data, size_t len)
{
    size_t n = span_of(TOKEN, data, len);
    if (n == 0 || n == len || data[n] != ':') return 0;
    n++;
    n += span_of(TEXT, data + n, len - n);
    return len - n >= 2 && data[n] == '\r' && data[n + 1] == '\n' ? n + 2 : 0;
}

/* Bytes after which the state is the same: what heads mostly consist of. */
static size_t run_of(const struct kvr__framing *f, const char *data, size_t len)
{
    static const uint8_t in[LAST_LF] = {[METHOD] = TOKEN, [TARGET] = PATH, [STATUS_LINE] = TEXT, [NAME] = TOKEN, [VALUE] = TEXT};
    if (f->state == LINE) return line_of(data, len);
    return f->state < LAST_LF && (f->state != TARGET || f->at) ? span_of(in[f->state], data, len) : 0;
}

/* Each takes one byte. Returns: the next state, or -1. */
static int start_line(struct kvr__framing *f, unsigned char c)
{
    static const char version[] = "HTTP/1.";
    switch (f->state) {
    case BEGIN: return c == '\r' ? BEGIN_LF : is_token(c) ? METHOD : -1;
    case BEGIN_LF: return c == '\n' ? BEGIN : -1;
    case METHOD: return c == ' ' ? TARGET : is_token(c) ? METHOD : -1;
    case TARGET:
        if (c == ' ') return f->at ? (f->at = 0, VERSION) : -1;
        f->at = 1; /* it is not empty */
        return kinds[c] & PATH ? TARGET : -1;
    case VERSION:
        if (f->at == sizeof version) return f->kind == KVR__ANSWERS ? (c == ' ' ? STATUS_LINE : -1) : c == '\r' ? LINE_LF : -1;
        if (f->at == sizeof version - 1 ? c < '0' || c > '9' : c != (unsigned char)version[f->at]) return -1;
        f->at++;
        return VERSION;
    default: return c == '\r' ? LINE_LF : is_text(c) ? STATUS_LINE : -1;
    }
}

static int header_line(struct kvr__framing *f, unsigned char c)
{
    switch (f->state) {
    case LINE_LF: return c == '\n' ? LINE : -1;
    case LINE: return c == '\r' ? LAST_LF : is_token(c) ? NAME : -1;
    case NAME: return c == ':' ? VALUE : is_token(c) ? NAME : -1;
    case VALUE: return c == '\r' ? LINE_LF : is_text(c) ? VALUE : -1;
    default: return c != '\n' ? -1 : f->trailer ? BODY_OVER : HEAD_OVER;
    }
}

static int chunk_size(struct kvr__framing *f, unsigned char c)
{
    int digit = kvr_hex_digit((char)c);
    if (digit < 0) return f->at == 0 ? -1 : c == '\r' ? CHUNK_SIZE_LF : c == ';' ? CHUNK_EXTENSION : -1;
    if (f->at++ == CHUNK_DIGITS_MAX) return -1;
    f->chunk_left = f->chunk_left * 16 + (unsigned)digit;
    return CHUNK_SIZE;
}

static int chunk(struct kvr__framing *f, unsigned char c)
{
    switch (f->state) {
    case CHUNK_SIZE: return chunk_size(f, c);
    case CHUNK_EXTENSION: return ++f->extensions > EXTENSIONS_MAX ? -1 : c == '\r' ? CHUNK_SIZE_LF : is_text(c) ? CHUNK_EXTENSION : -1;
    case CHUNK_SIZE_LF:
        if (c != '\n') return -1;
        f->at = 0;
        if (f->chunk_left) return CHUNK_DATA;
        f->trailer = true;
        f->section = 0;
        return LINE;
    case CHUNK_DATA_CR: return c == '\r' ? CHUNK_DATA_LF : -1;
    default: return c == '\n' ? CHUNK_SIZE : -1;
    }
}

long kvr__framing_scan(struct kvr__framing *f, const char *data, size_t len)
{
    size_t i = 0;
    while (i < len && f->state != HEAD_OVER && f->state != BODY_OVER) {
        if (f->state == CHUNK_DATA) {
            size_t n = (size_t)KVR_MIN(f->chunk_left, (uint64_t)(len - i));
            f->chunk_left -= n;
            i += n;
            if (!f->chunk_left) f->state = CHUNK_DATA_CR;
            continue;
        }
        size_t run = run_of(f, data + i, KVR_MIN(len - i, KVR_HTTP_HEAD_MAX - f->section));
        i += run;
        f->section += run;
        if (i == len || (run && f->state == LINE)) continue;
        unsigned char c = (unsigned char)data[i++];
        int next = f->state <= STATUS_LINE ? start_line(f, c) : f->state < HEAD_OVER ? header_line(f, c) : chunk(f, c);
        if (next < 0) return KVR__FRAMING_BAD;
        f->state = (uint8_t)next;
        if (f->state > BEGIN_LF && f->state <= HEAD_OVER && ++f->section > KVR_HTTP_HEAD_MAX) return KVR__FRAMING_TOO_LARGE;
    }
    return (long)i;
}
