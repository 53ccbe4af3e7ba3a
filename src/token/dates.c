/* SPDX-License-Identifier: Apache-2.0 */
#include "token/dates.h"

#include <string.h>

bool kvr_date_turns(const struct tm *local)
{
    int s = (local->tm_hour * 60 + local->tm_min) * 60 + local->tm_sec;
    return s < KVR_DATE_TURNS_S || s >= 24 * 3600 - KVR_DATE_TURNS_S;
}

uint64_t kvr_date_today(void)
{
    struct tm local;
    time_t now = time(NULL);
    return localtime_r(&now, &local) ? (uint64_t)(local.tm_year * 366 + local.tm_yday) : 0;
}

bool kvr_info_has_dates(const char *info, size_t len)
{
    static const char says[] = "\"dates\":true"; /* a quote within a text of the JSON has a backslash before it */
    size_t n = sizeof says - 1;
    for (size_t i = 0; i + n <= len; i++) {
        if (memcmp(info + i, says, n) == 0) return true;
    }
    return false;
}
