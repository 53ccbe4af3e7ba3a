// SPDX-License-Identifier: Apache-2.0
#include "wire/json.h"

#include <cstring>
#include <new>
#include <simdjson.h>
#include <string>

#include <kvroute/error.h>

using simdjson::dom::element;
using simdjson::dom::element_type;

static_assert(sizeof(element) == sizeof(kvr_json), "an element travels in a struct kvr_json");
static_assert(std::is_trivially_copyable<element>::value, "elements are copied as bytes");

struct kvr_json_parser {
    simdjson::dom::parser *dom;
};

static element unwrap(kvr_json v)
{
    element e;
    std::memcpy(static_cast<void *>(&e), &v, sizeof e);
    return e;
}

static kvr_json wrap(element e)
{
    kvr_json v;
    std::memcpy(&v, static_cast<const void *>(&e), sizeof v);
    return v;
}

static const kvr_json absent = {nullptr, 0};
// Memory of a parser that met a large document is given back.
static const size_t keep_capacity = 256u << 10;

kvr_json_parser *kvr_json_parser_new(void)
{
    auto *p = new (std::nothrow) kvr_json_parser{nullptr};
    if (p && !(p->dom = new (std::nothrow) simdjson::dom::parser())) {
        delete p;
        return nullptr;
    }
    return p;
}

void kvr_json_parser_free(kvr_json_parser *p)
{
    if (!p) return;
    delete p->dom;
    delete p;
}

// Replaces the digits of numbers outside of strings by a 0 and blanks, when they are long or have an exponent:
// these are the ones that simdjson may refuse although they are JSON.
static std::string tame_numbers(const char *buf, size_t len)
{
    std::string s(buf, len);
    for (size_t i = 0; i < len; i++) {
        if (s[i] == '"') {
            for (i++; i < len && s[i] != '"'; i++)
                if (s[i] == '\\') i++;
            continue;
        }
        size_t start = i;
        if (s[i] == '-') i++;
        size_t digits = i;
        while (i < len && s[i] >= '0' && s[i] <= '9') i++;
        bool number = i > digits && (s[digits] != '0' || i == digits + 1);
        size_t end = i;
        bool odd = end - digits > 18;
        if (number && i < len && s[i] == '.') {
            size_t f = ++i;
            while (i < len && s[i] >= '0' && s[i] <= '9') i++;
            number = i > f;
        }
        if (number && i < len && (s[i] == 'e' || s[i] == 'E')) {
            i++;
            if (i < len && (s[i] == '+' || s[i] == '-')) i++;
            size_t x = i;
            while (i < len && s[i] >= '0' && s[i] <= '9') i++;
            number = i > x;
            odd = true;
        }
        if (number && odd) {
            s[start] = '0';
            for (size_t k = start + 1; k < i; k++) s[k] = ' ';
        }
        if (i > start) i--;
    }
    return s;
}

// After an allocation that failed simdjson's parser is half made and must not be used again; see also keep_capacity.
static void discard(kvr_json_parser *p)
{
    delete p->dom;
    p->dom = nullptr;
}

static int out_of_memory(kvr_json_parser *p, const char **why)
{
    discard(p);
    if (why) *why = "out of memory";
    return -KVR_ENOMEM;
}

int kvr_json_parse(kvr_json_parser *p, const char *buf, size_t len, kvr_json *root, const char **why)
{
    try {
        if (p->dom && p->dom->capacity() > keep_capacity && len < keep_capacity) discard(p);
        if (!p->dom) p->dom = new simdjson::dom::parser();
        element e;
        auto error = p->dom->parse(buf, len, true).get(e);
        if (error == simdjson::NUMBER_ERROR) {
            std::string tamed = tame_numbers(buf, len);
            error = p->dom->parse(tamed.data(), tamed.size(), true).get(e);
        }
        if (error == simdjson::MEMALLOC) return out_of_memory(p, why);
        if (error) {
            if (why) *why = simdjson::error_message(error);
            return -KVR_EFORMAT;
        }
        *root = wrap(e);
        return 0;
    } catch (const std::bad_alloc &) {
        return out_of_memory(p, why);
    }
}

enum kvr_json_type kvr_json_type_of(kvr_json v)
{
    if (!v.doc) return KVR_JSON_NONE;
    switch (unwrap(v).type()) {
    case element_type::ARRAY: return KVR_JSON_ARRAY;
    case element_type::OBJECT: return KVR_JSON_OBJECT;
    case element_type::INT64:
    case element_type::UINT64: return KVR_JSON_INT;
    case element_type::DOUBLE: return KVR_JSON_DOUBLE;
    case element_type::STRING: return KVR_JSON_STRING;
    case element_type::BOOL: return KVR_JSON_BOOL;
    default: return KVR_JSON_NULL;
    }
}

kvr_json kvr_json_get(kvr_json object, const char *key)
{
    simdjson::dom::object o;
    element e;
    if (!object.doc || unwrap(object).get(o)) return absent;
    return o.at_key(key).get(e) ? absent : wrap(e);
}

kvr_json kvr_json_at(kvr_json array, size_t i)
{
    simdjson::dom::array a;
    element e;
    if (!array.doc || unwrap(array).get(a)) return absent;
    return a.at(i).get(e) ? absent : wrap(e);
}

size_t kvr_json_count(kvr_json v)
{
    simdjson::dom::array a;
    simdjson::dom::object o;
    if (!v.doc) return 0;
    if (!unwrap(v).get(a)) {
        size_t n = 0;
        for (element e : a) (void)e, n++;
        return n;
    }
    if (!unwrap(v).get(o)) {
        size_t n = 0;
        for (auto f : o) (void)f, n++;
        return n;
    }
    return 0;
}

bool kvr_json_as_str(kvr_json v, const char **s, size_t *len)
{
    std::string_view sv;
    if (!v.doc || unwrap(v).get(sv)) return false;
    *s = sv.data();
    *len = sv.size();
    return true;
}

bool kvr_json_as_u64(kvr_json v, uint64_t *out)
{
    return v.doc && !unwrap(v).get(*out);
}

bool kvr_json_as_i64_bits(kvr_json v, uint64_t *out)
{
    int64_t i;
    if (!v.doc) return false;
    if (!unwrap(v).get(*out)) return true;
    if (unwrap(v).get(i)) return false;
    *out = static_cast<uint64_t>(i);
    return true;
}

bool kvr_json_as_double(kvr_json v, double *out)
{
    return v.doc && !unwrap(v).get(*out);
}

bool kvr_json_as_bool(kvr_json v, bool *out)
{
    return v.doc && !unwrap(v).get(*out);
}

long kvr_json_u32_array(kvr_json array, uint32_t *out, size_t cap)
{
    simdjson::dom::array a;
    size_t n = 0;
    if (!array.doc || unwrap(array).get(a)) return -KVR_EFORMAT;
    for (element e : a) {
        uint64_t x;
        if (e.get(x) || x > UINT32_MAX) return -KVR_EFORMAT;
        if (n == cap) return -KVR_ELIMIT;
        out[n++] = static_cast<uint32_t>(x);
    }
    return static_cast<long>(n);
}

long kvr_json_u64_array(kvr_json array, uint64_t *out, size_t cap)
{
    simdjson::dom::array a;
    size_t n = 0;
    if (!array.doc || unwrap(array).get(a)) return -KVR_EFORMAT;
    for (element e : a) {
        if (n == cap) return -KVR_ELIMIT;
        if (!kvr_json_as_i64_bits(wrap(e), &out[n++])) return -KVR_EFORMAT;
    }
    return static_cast<long>(n);
}

int kvr_json_each(kvr_json v, kvr_json_each_fn *fn, void *ctx)
{
    simdjson::dom::array a;
    simdjson::dom::object o;
    if (!v.doc) return 0;
    if (!unwrap(v).get(a)) {
        for (element e : a)
            if (int rc = fn(ctx, nullptr, 0, wrap(e))) return rc;
    } else if (!unwrap(v).get(o)) {
        for (auto f : o)
            if (int rc = fn(ctx, f.key.data(), f.key.size(), wrap(f.value))) return rc;
    }
    return 0;
}
