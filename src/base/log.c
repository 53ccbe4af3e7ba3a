/* SPDX-License-Identifier: Apache-2.0 */
#include <stdarg.h>
#include <string.h>

#include "base/base.h"

enum { LINE = 4096 };

/* Bytes of the UTF-8 character at p that may stand in a line: 0 for a control character (C0, DEL, C1) and for what is no UTF-8. */
static size_t plain_len(const unsigned char *p, size_t left)
{
    if (*p < 0x80) return *p >= 0x20 && *p != 0x7f;
    size_t n = *p >= 0xf0 && *p < 0xf5 ? 4 : *p >= 0xe0 ? 3 : *p >= 0xc2 ? 2 : 0;
    if (!n || n > left || *p >= 0xf5) return 0;
    for (size_t i = 1; i < n; i++)
        if ((p[i] & 0xc0) != 0x80) return 0;
    bool c1 = p[0] == 0xc2 && p[1] < 0xa0, separator = p[0] == 0xe2 && p[1] == 0x80 && (p[2] == 0xa8 || p[2] == 0xa9);
    bool turns = p[0] == 0xe2 && ((p[1] == 0x80 && p[2] >= 0xaa && p[2] <= 0xae) || (p[1] == 0x81 && p[2] >= 0xa6 && p[2] <= 0xa9));
    return c1 || separator || turns ? 0 : n;
}

size_t kvr_printable(const char *text, size_t len, char *out, size_t cap)
{
    static const char hex[] = "0123456789abcdef";
    const unsigned char *p = (const unsigned char *)text;
    size_t n = 0;
    for (size_t i = 0; i < len;) {
        size_t k = plain_len(p + i, len - i);
        if (n + (k ? k : 4) >= cap) break;
        if (k) {
            memcpy(out + n, p + i, k);
            n += k;
            i += k;
            continue;
        }
        memcpy(out + n, (const char[]){'\\', 'x', hex[p[i] >> 4], hex[p[i] & 15]}, 4);
        n += 4;
        i++;
    }
    if (cap) out[n] = 0;
    return n;
}

void kvr_log(const char *fmt, ...)
{
    char text[LINE], line[2 * LINE];
    va_list ap;
    va_start(ap, fmt);
    int len = vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    if (len < 0) return;
    size_t n = kvr_printable(text, KVR_MIN((size_t)len, sizeof text - 1), line, sizeof line - 1);
    line[n++] = '\n';
    (void)fwrite(line, 1, n, stderr); /* one write: lines of threads do not mix */
}
