/* SPDX-License-Identifier: Apache-2.0 */
/* The one object of JSON that an operator writes by hand: token/profile_option.h. It is flat, and no text in it needs a backslash. */
#include "token/profile_option.h"

#include <stdio.h>
#include <string.h>

enum { PROFILE_MAX = 900, VALUES_MAX = 3 };

#define ALLOWED                                                                                                                            \
    "allowed: a JSON object with engine (\"vllm\", \"sglang\"), content_format (\"auto\", \"string\", \"openai\"), drop_none, "            \
    "alias_reasoning, developer_to_system, typed, raw (true, false)"

/* A piece of the option's text. */
struct span {
    const char *at;
    size_t len;
};

static bool is(struct span s, const char *text)
{
    return s.len == strlen(text) && !memcmp(s.at, text, s.len);
}

/* ---- what there may be ---------------------------------------------------------------------------------- */

static bool may_be(struct span name, struct span value)
{
    static const struct {
        const char *name, *values[VALUES_MAX]; /* as they are written */
    } members[] = {
        {"\"engine\"", {"\"vllm\"", "\"sglang\""}},
        {"\"content_format\"", {"\"auto\"", "\"string\"", "\"openai\""}},
        {"\"drop_none\"", {"true", "false"}},
        {"\"alias_reasoning\"", {"true", "false"}},
        {"\"developer_to_system\"", {"true", "false"}},
        {"\"typed\"", {"true", "false"}},
        {"\"raw\"", {"true", "false"}},
    };
    for (size_t i = 0; i < sizeof members / sizeof *members; i++) {
        for (size_t k = 0; k < VALUES_MAX && members[i].values[k]; k++)
            if (is(name, members[i].name) && is(value, members[i].values[k])) return true;
    }
    return false;
}

/* ---- reading -------------------------------------------------------------------------------------------- */

static void skip_space(const char **at)
{
    *at += strspn(*at, " \t\r\n");
}

static bool take(const char **at, char c)
{
    skip_space(at);
    if (**at != c) return false;
    (*at)++;
    return true;
}

/* A text with its quotes, or a word. Empty: there is none. */
static struct span take_span(const char **at)
{
    skip_space(at);
    struct span s = {*at, strspn(*at, "abcdefghijklmnopqrstuvwxyz")};
    if (**at == '"') {
        const char *end = strchr(*at + 1, '"');
        s.len = end ? (size_t)(end + 1 - *at) : 0;
    }
    *at += s.len;
    return s;
}

/* The members, up to the brace behind them. Returns: whether they may be; *bad: the name of one that may not. */
static bool read_members(const char **at, struct span *bad)
{
    do {
        struct span name = take_span(at);
        *bad = name;
        if (!take(at, ':') || !may_be(name, take_span(at))) return false;
    } while (take(at, ','));
    bad->len = 0;
    return take(at, '}');
}

static bool is_allowed(const char *profile, struct span *bad)
{
    const char *at = profile;
    if (strlen(profile) >= PROFILE_MAX || *at++ != '{') return false;
    return (take(&at, '}') || read_members(&at, bad)) && !*at;
}

int kvr_profile_option_check(const char *profile, char *why, size_t cap)
{
    struct span bad = {"", 0};
    if (!profile || is_allowed(profile, &bad)) return 0;
    if (bad.len)
        snprintf(why, cap, "--tokenizer-profile: '%.80s', member %.*s: " ALLOWED, profile, (int)(bad.len < 40 ? bad.len : 40), bad.at);
    else snprintf(why, cap, "--tokenizer-profile: '%.80s': " ALLOWED, profile);
    return -1;
}

bool kvr_profile_option_says(const char *profile)
{
    return profile && strchr(profile, '"');
}
