/* SPDX-License-Identifier: Apache-2.0 */
#include "wire/prompt_tokens.h"

#include <string.h>

bool kvr_truncated_length(const struct kvr_prompt_members *m, size_t n, uint64_t room, size_t *keep)
{
    *keep = n;
    if (m->truncation == KVR_TRUNCATE_NOT) return true;
    if (m->keep < 0 && room == 0) return false;
    uint64_t most = m->keep < 0 ? room - (m->wants_output ? 1 : 0) : (uint64_t)m->keep; /* a place is left for the first of the answer */
    if (most < n) *keep = (size_t)most;
    return true;
}

void kvr_truncate(uint32_t *tokens, size_t n, size_t keep, enum kvr_truncation side)
{
    if (side != KVR_TRUNCATE_RIGHT) memmove(tokens, tokens + (n - keep), keep * sizeof *tokens);
}

bool kvr_truncate_between(uint32_t *tokens, size_t n, const uint32_t *bare, size_t bare_n, size_t keep)
{
    if (bare_n > n || keep > n || keep < n - bare_n) return false;
    size_t before = 0, drop = n - keep;
    while (before <= n - bare_n && memcmp(tokens + before, bare, bare_n * sizeof *bare) != 0) before++;
    if (before > n - bare_n) return false;
    memmove(tokens + before, tokens + before + drop, (keep - before) * sizeof *tokens);
    return true;
}
