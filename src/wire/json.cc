// SPDX-License-Identifier: Apache-2.0
#include "wire/json.h"
#include "wire/json_brief.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <new>
#include <simdjson.h>
#include <string>
#include <string_view>
#include <vector>

#include <kvroute/error.h>

using simdjson::dom::element;
using simdjson::dom::element_type;

static_assert(sizeof(element) == sizeof(kvr_json), "an element travels in a struct kvr_json");
static_assert(std::is_trivially_copyable<element>::value, "elements are copied as bytes");

struct kvr_json_parser {
    simdjson::dom::parser *dom;
    struct kvr_json_brief brief;
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

// simdjson takes memory once, when it looks for what the processor can do, and ends the process when there is none, which nobody can
// catch. So that is done before main, where a process without memory does not get far anyway.
static const simdjson::implementation *const set_up = simdjson::get_active_implementation();

kvr_json_parser *kvr_json_parser_new(void)
{
    if (!set_up) return nullptr;
    auto *p = new (std::nothrow) kvr_json_parser{};
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
    kvr_json_brief_free(&p->brief);
    delete p;
}

// ---- numbers that fit nowhere -----------------------------------------------------------------------
//
// simdjson refuses a document with a well-formed number beyond 64 bits, or beyond a double. Then the text is gone
// through once: such numbers are written as 0, so that the rest can be parsed, and which of the document's numbers they
// were is kept. The parser's tape has the numbers in the same order; there they become a NaN, which no text can be.

static bool is_digit(char c)
{
    return c >= '0' && c <= '9';
}

static bool in_scalar(char c)
{
    return is_digit(c) || c == '-' || c == '+' || c == '.' || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}

static size_t digits_from(std::string_view t, size_t i)
{
    size_t n = i;
    while (n < t.size() && is_digit(t[n])) n++;
    return n - i;
}

// `digits` are those of a number from the first that is not 0, which stands for 10 to the power of `e`.
static bool is_infinite(const std::string &digits, int64_t e)
{
    if (e != 308) return e > 308;
    std::string text = digits.substr(0, 400); // 309 digits decide
    text += "e" + std::to_string(309 - static_cast<int>(text.size()));
    return std::isinf(std::strtod(text.c_str(), nullptr));
}

// A number with a fraction or an exponent: whether its value is beyond a double.
static bool is_beyond_double(std::string_view whole, std::string_view fraction, std::string_view exponent)
{
    std::string digits;
    size_t at = whole.find_first_not_of('0'), skipped = 0;
    if (at == whole.npos) {
        skipped = fraction.find_first_not_of('0');
        if (skipped == fraction.npos) return false;
        digits = fraction.substr(skipped, 400);
    } else {
        digits = whole.substr(0, 400);
        if (digits.size() < 400) digits += fraction.substr(0, 400 - digits.size());
    }
    int64_t e = at == whole.npos ? -static_cast<int64_t>(skipped) - 1 : static_cast<int64_t>(whole.size()) - 1, x = 0;
    bool negative = !exponent.empty() && exponent[0] == '-';
    for (char c : exponent)
        if (is_digit(c) && x < INT64_C(1000000000000)) x = x * 10 + (c - '0');
    return is_infinite(digits, negative ? e - x : e + x);
}

static bool is_beyond_integers(std::string_view digits, bool negative)
{
    std::string_view limit = negative ? "9223372036854775808" : "18446744073709551615";
    return digits.size() != limit.size() ? digits.size() > limit.size() : digits > limit;
}

// Whether a token is a JSON number and none that a 64-bit integer or a double can be.
static bool is_beyond_range(std::string_view t)
{
    bool negative = t[0] == '-';
    size_t i = negative, n = digits_from(t, i);
    std::string_view whole = t.substr(i, n), fraction, exponent;
    if (n == 0 || (n > 1 && t[i] == '0')) return false;
    i += n;
    if (i == t.size()) return is_beyond_integers(whole, negative);
    if (t[i] == '.') {
        n = digits_from(t, ++i);
        fraction = t.substr(i, n);
        if (n == 0) return false;
        i += n;
    }
    if (i < t.size() && (t[i] == 'e' || t[i] == 'E')) {
        size_t from = ++i;
        if (i < t.size() && (t[i] == '-' || t[i] == '+')) i++;
        n = digits_from(t, i);
        if (n == 0) return false;
        i += n;
        exponent = t.substr(from, i - from);
    }
    return i == t.size() && is_beyond_double(whole, fraction, exponent);
}

// Writes such numbers as 0. Returns: which numbers of the text they were, counted from 0, rising.
static std::vector<size_t> take_out(std::string &s)
{
    std::vector<size_t> which;
    size_t numbers = 0;
    for (size_t i = 0; i < s.size(); i++) {
        if (s[i] == '"') {
            for (i++; i < s.size() && s[i] != '"'; i++)
                if (s[i] == '\\') i++;
            continue;
        }
        if (!in_scalar(s[i])) continue;
        size_t end = i;
        while (end < s.size() && in_scalar(s[end])) end++;
        if (s[i] == '-' || is_digit(s[i])) {
            if (end - i > 4 && is_beyond_range(std::string_view(s).substr(i, end - i))) {
                s.replace(i, end - i, end - i, ' ');
                s[i] = '0';
                which.push_back(numbers);
            }
            numbers++;
        }
        i = end - 1;
    }
    return which;
}

// A word of the tape: its type in the upper 8 bits, for strings where their length and bytes are in the rest. Behind the
// word of a number is its value (simdjson's doc/tape.md). The first word says how many there are.
static char tape_type(uint64_t word)
{
    return static_cast<char>(word >> 56);
}

static uint64_t tape_rest(uint64_t word)
{
    return word & ((UINT64_C(1) << 56) - 1);
}

static bool is_number(uint64_t word)
{
    return tape_type(word) == 'l' || tape_type(word) == 'u' || tape_type(word) == 'd';
}

static void mark(uint64_t *tape, const std::vector<size_t> &which)
{
    double none = std::numeric_limits<double>::quiet_NaN();
    size_t number = 0, next = 0;
    for (uint64_t *word = tape; next < which.size(); word++) {
        if (!is_number(*word)) continue;
        if (number++ == which[next]) {
            *word = static_cast<uint64_t>('d') << 56;
            std::memcpy(word + 1, &none, sizeof none);
            next++;
        }
        word++;
    }
}

static simdjson::error_code parse_with_odd_numbers(simdjson::dom::parser *dom, const char *buf, size_t len, element &e)
{
    std::string text(buf, len);
    std::vector<size_t> which = take_out(text);
    auto error = dom->parse(text.data(), text.size(), true).get(e);
    if (!error) mark(dom->doc.tape.get(), which);
    return error;
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
    static const char mark[] = "\xef\xbb\xbf";
    if (len >= 3 && memcmp(buf, mark, 3) == 0) buf += 3, len -= 3;
    try {
        if (p->dom && p->dom->capacity() > keep_capacity && len < keep_capacity) discard(p);
        if (!p->dom) p->dom = new simdjson::dom::parser();
        element e;
        auto error = p->dom->parse(buf, len, true).get(e);
        if (error == simdjson::NUMBER_ERROR) error = parse_with_odd_numbers(p->dom, buf, len, e);
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

// ---- texts of which much is not wanted ------------------------------------------------------------------
//
// The brief text is parsed. On the tape a list that was cut gets the number of elements that it has in the long text, in the upper half of
// its word, and in place of its one element where they are.

bool kvr__json_is_utf8(const char *text, size_t len)
{
    return simdjson::validate_utf8(text, len);
}

// Shorter texts are not worth the pass.
static const size_t brief_from = 2048;

static void mark_cuts(uint64_t *tape, const struct kvr_json_brief &brief)
{
    size_t list = 0, next = 0;
    for (uint64_t *word = tape; next < brief.cuts_n; word++) {
        if (is_number(*word)) {
            word++;
            continue;
        }
        if (tape_type(*word) != '[' || list++ != brief.cuts[next].list) continue;
        const kvr_json_cut &cut = brief.cuts[next++];
        *word = (*word & ~(UINT64_C(0xffffff) << 32)) | static_cast<uint64_t>(cut.n) << 32;
        word[2] = reinterpret_cast<uintptr_t>(cut.at);
    }
}

int kvr_json_parse_brief(kvr_json_parser *p, const char *buf, size_t len, enum kvr_json_wanted wanted, kvr_json *root, const char **why)
{
    if (wanted == KVR_JSON_ALL || len < brief_from || !kvr_json_brief(buf, len, wanted, &p->brief))
        return kvr_json_parse(p, buf, len, root, why);
    int rc = kvr_json_parse(p, p->brief.text.data, p->brief.text.len, root, why);
    if (rc == 0) mark_cuts(p->dom->doc.tape.get(), p->brief);
    if (p->brief.text.cap > keep_capacity) kvr_json_brief_free(&p->brief);
    return rc;
}

// The ids of one that was cut; nullptr: it was not.
static const char *cut_at(simdjson::dom::array a)
{
    const size_t of_one = 4; // words of the tape: two brackets, and two for a number
    uint64_t at = 0;
    bool is_cut = a.size() > 1 && a.number_of_slots() == of_one && !(*a.begin()).get(at);
    return is_cut ? reinterpret_cast<const char *>(at) : nullptr;
}

enum kvr_json_type kvr_json_type_of(kvr_json v)
{
    if (!v.doc) return KVR_JSON_NONE;
    switch (unwrap(v).type()) {
    case element_type::ARRAY: return KVR_JSON_ARRAY;
    case element_type::OBJECT: return KVR_JSON_OBJECT;
    case element_type::INT64:
    case element_type::UINT64: return KVR_JSON_INT;
    case element_type::DOUBLE: return std::isnan(unwrap(v).get_double().value_unsafe()) ? KVR_JSON_RANGE : KVR_JSON_DOUBLE;
    case element_type::STRING: return KVR_JSON_STRING;
    case element_type::BOOL: return KVR_JSON_BOOL;
    default: return KVR_JSON_NULL;
    }
}

kvr_json kvr_json_get(kvr_json object, const char *key)
{
    kvr_json v;
    (void)kvr_json_pick(object, &key, 1, &v);
    return v;
}

int kvr_json_pick(kvr_json object, const char *const *keys, size_t n, kvr_json *out)
{
    simdjson::dom::object o;
    int twice = -1;
    for (size_t i = 0; i < n; i++) out[i] = absent;
    if (!object.doc || unwrap(object).get(o)) return twice;
    for (auto f = o.begin(), end = o.end(); f != end; ++f) {
        std::string_view name = f.key();
        char first = name.empty() ? '\0' : name[0];
        for (size_t i = 0; i < n; i++) { // mostly the first letter decides
            if (first != keys[i][0] || name != keys[i]) continue;
            if (out[i].doc) twice = static_cast<int>(i);
            out[i] = wrap(f.value());
        }
    }
    return twice;
}

// ---- members that are there twice ---------------------------------------------------------------------

namespace
{
// The names of the members of the objects that are open at a place of the tape, innermost last.
struct open_members {
    struct level {
        size_t from;
        bool is_object, wants_key; // wants_key: the next string is a member's name
    };
    std::vector<std::string_view> names;
    std::vector<level> levels;

    bool at_key() const
    {
        return !levels.empty() && levels.back().wants_key;
    }
    void open(bool is_object)
    {
        levels.push_back({names.size(), is_object, is_object});
    }
    void value_over()
    {
        if (!levels.empty()) levels.back().wants_key = levels.back().is_object;
    }
    // Returns: false when the object has too many.
    bool add(std::string_view name)
    {
        names.push_back(name);
        levels.back().wants_key = false;
        return names.size() - levels.back().from <= KVR_JSON_MEMBERS_MAX;
    }
    // Ends the innermost. Returns: whether it had a name twice; `name` is that one.
    bool close(std::string_view &name)
    {
        auto from = names.begin() + static_cast<std::ptrdiff_t>(levels.back().from);
        std::sort(from, names.end());
        auto twice = std::adjacent_find(from, names.end());
        bool found = twice != names.end();
        if (found) name = *twice;
        names.erase(from, names.end());
        levels.pop_back();
        value_over();
        return found;
    }
};
} // namespace

static std::string_view tape_string(const simdjson::dom::document &doc, uint64_t word)
{
    const uint8_t *at = doc.string_buf.get() + tape_rest(word);
    uint32_t len;
    std::memcpy(&len, at, sizeof len);
    return {reinterpret_cast<const char *>(at) + sizeof len, len};
}

// Returns: 0, -KVR_EEXISTS with the name that is there twice, -KVR_ELIMIT.
static int check_members(const simdjson::dom::document &doc, std::string_view &name)
{
    const uint64_t *tape = doc.tape.get();
    open_members m;
    for (size_t i = 1, end = tape_rest(tape[0]) - 1; i < end; i++) {
        char type = tape_type(tape[i]);
        if (type == '{' || type == '[') {
            m.open(type == '{');
        } else if (type == '}' || type == ']') {
            if (m.close(name)) return -KVR_EEXISTS;
        } else if (type == '"' && m.at_key()) {
            if (!m.add(tape_string(doc, tape[i]))) return -KVR_ELIMIT;
        } else {
            if (is_number(tape[i])) i++;
            m.value_over();
        }
    }
    return 0;
}

int kvr_json_check_members(const kvr_json_parser *p, char *name, size_t cap)
{
    try {
        std::string_view twice;
        int rc = check_members(p->dom->doc, twice);
        size_t n = std::min(twice.size(), cap - 1);
        if (rc == -KVR_EEXISTS) {
            std::memcpy(name, twice.data(), n);
            name[n] = 0;
        }
        return rc;
    } catch (const std::bad_alloc &) {
        return -KVR_ENOMEM;
    }
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
    const size_t most = 0xffffff; // what the tape counts up to
    if (!unwrap(v).get(a)) {
        if (a.size() < most) return a.size();
        size_t n = 0;
        for (element e : a) (void)e, n++;
        return n;
    }
    if (!unwrap(v).get(o)) {
        if (o.size() < most) return o.size();
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
    double d;
    if (!v.doc || unwrap(v).get(d) || std::isnan(d)) return false;
    *out = d;
    return true;
}

bool kvr_json_as_bool(kvr_json v, bool *out)
{
    return v.doc && !unwrap(v).get(*out);
}

bool kvr_json_are_u32(kvr_json v)
{
    simdjson::dom::array a;
    uint64_t x;
    if (!v.doc || unwrap(v).get(a)) return false;
    if (cut_at(a)) return true;
    for (element e : a)
        if (e.get(x) || x > UINT32_MAX) return false;
    return true;
}

long kvr_json_u32_array(kvr_json array, uint32_t *out, size_t cap)
{
    simdjson::dom::array a;
    size_t n = 0;
    if (!array.doc || unwrap(array).get(a)) return -KVR_EFORMAT;
    if (const char *at = cut_at(a)) {
        if (a.size() > cap) return -KVR_ELIMIT;
        kvr_json_brief_ids(at, a.size(), out);
        return static_cast<long>(a.size());
    }
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

template <class Position> static kvr_json pack(Position at)
{
    kvr_json v;
    static_assert(sizeof at == sizeof v && std::is_trivially_copyable<Position>::value, "a position travels in a struct kvr_json");
    std::memcpy(&v, static_cast<const void *>(&at), sizeof v);
    return v;
}

template <class Position> static Position unpack(kvr_json v)
{
    Position at;
    std::memcpy(static_cast<void *>(&at), &v, sizeof at);
    return at;
}

struct kvr_json_iter kvr_json_iter(kvr_json v)
{
    struct kvr_json_iter i = {};
    simdjson::dom::array a;
    simdjson::dom::object o;
    if (!v.doc) return i;
    i.value.doc = v.doc;
    if (!unwrap(v).get(a)) {
        i.next = pack(a.begin()).at;
        i.end = pack(a.end()).at;
    } else if (!unwrap(v).get(o)) {
        i.members = true;
        i.next = pack(o.begin()).at;
        i.end = pack(o.end()).at;
    }
    return i;
}

bool kvr_json_next(struct kvr_json_iter *i)
{
    if (i->next == i->end) return false;
    i->value.at = i->next;
    if (i->members) {
        auto at = unpack<simdjson::dom::object::iterator>(i->value);
        std::string_view key = at.key();
        i->key = key.data();
        i->key_len = key.size();
        i->value = wrap(at.value());
        i->next = pack(++at).at;
    } else {
        auto at = unpack<simdjson::dom::array::iterator>(i->value);
        i->next = pack(++at).at;
    }
    return true;
}
