/* SPDX-License-Identifier: Apache-2.0 */
/* The reason for which an engine has ended an answer, found in its bytes. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "wire/finish.h"

/* In memory of its very size, so that a look beyond its end is seen. */
static enum kvr_finish in(const char *text)
{
    size_t n = strlen(text);
    char *exact = malloc(n ? n : 1);
    assert_non_null(exact);
    memcpy(exact, text, n);
    enum kvr_finish found = kvr_finish_in(exact, n);
    free(exact);
    return found;
}

static void the_reason_is_found_by_its_name(void **)
{
    assert_int_equal(in("{\"choices\":[{\"text\":\"a\",\"finish_reason\":\"stop\"}]}"), KVR_FINISH_STOP);
    assert_int_equal(in("{\"finish_reason\" : \"length\"}"), KVR_FINISH_LENGTH);
    assert_int_equal(in("{\"finish_reason\":\"tool_calls\"}"), KVR_FINISH_TOOL_CALLS);
    assert_int_equal(in("{\"finish_reason\":\"content_filter\"}"), KVR_FINISH_CONTENT_FILTER);
    assert_int_equal(in("{\"finish_reason\":\"stopped\"}"), KVR_FINISH_OTHER);
    assert_int_equal(in("{\"finish_reason\":\"\"}"), KVR_FINISH_OTHER);
}

static void what_is_no_reason_tells_none(void **)
{
    static const char *const none[] = {
        "",
        "{}",
        "{\"finish_reason\":null}",
        "{\"finish_reason\":",
        "{\"finish_reason\"",
        "{\"finish_reason\":\"sto",
        "{\"finish_reason\":\"",
        "{\"finish_reason\":7}",
        "{\"text\":\"\\\"finish_reason\\\":\\\"stop\\\"\"}", /* a text that speaks of it */
    };
    for (size_t i = 0; i < sizeof none / sizeof none[0]; i++) assert_int_equal(in(none[i]), KVR_FINISH_UNTOLD);
}

static void the_last_of_several_choices_counts(void **)
{
    assert_int_equal(in("[{\"finish_reason\":\"stop\"},{\"finish_reason\":\"length\"},{\"finish_reason\":null}]"), KVR_FINISH_LENGTH);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_reason_is_found_by_its_name),
        cmocka_unit_test(what_is_no_reason_tells_none),
        cmocka_unit_test(the_last_of_several_choices_counts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
