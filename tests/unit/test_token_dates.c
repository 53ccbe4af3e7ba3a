/* SPDX-License-Identifier: Apache-2.0 */
/* When a difference of ids may be one of dates (src/token/dates.h). */
#include "token/dates.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

static bool turns(int hour, int min, int sec)
{
    struct tm t = {.tm_hour = hour, .tm_min = min, .tm_sec = sec};
    return kvr_date_turns(&t);
}

static void a_date_turns_within_a_minute_of_midnight(void **)
{
    assert_true(turns(0, 0, 0));
    assert_true(turns(0, 0, 59));
    assert_false(turns(0, 1, 0));
    assert_false(turns(12, 0, 0));
    assert_false(turns(23, 58, 59));
    assert_true(turns(23, 59, 0));
    assert_true(turns(23, 59, 59));
    assert_true(turns(23, 59, 60)); /* a leap second */
}

static void midnight_is_that_of_the_time_zone(void **)
{
    time_t midnight = 1764028800; /* 2025-11-25T00:00:00Z */
    struct tm t;
    assert_int_equal(setenv("TZ", "UTC0", 1), 0);
    tzset();
    assert_non_null(localtime_r(&midnight, &t));
    assert_true(kvr_date_turns(&t));
    assert_int_equal(setenv("TZ", "XXX-5:30", 1), 0);
    tzset();
    assert_non_null(localtime_r(&midnight, &t));
    assert_false(kvr_date_turns(&t));
    midnight -= 5 * 3600 + 1800;
    assert_non_null(localtime_r(&midnight, &t));
    assert_true(kvr_date_turns(&t));
}

static void only_a_template_that_writes_the_date_has_dates(void **)
{
    static const char yes[] = "{\"template\":\"yes\",\"dates\":true}", no[] = "{\"template\":\"\\\"dates\\\":true\",\"dates\":false}";
    assert_true(kvr_info_has_dates(yes, strlen(yes)));
    assert_false(kvr_info_has_dates(no, strlen(no)));
    assert_false(kvr_info_has_dates(yes, strlen(yes) - 2));
    assert_false(kvr_info_has_dates("", 0));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_date_turns_within_a_minute_of_midnight),
        cmocka_unit_test(midnight_is_that_of_the_time_zone),
        cmocka_unit_test(only_a_template_that_writes_the_date_has_dates),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
