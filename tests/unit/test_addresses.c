/* SPDX-License-Identifier: Apache-2.0 */
/* Connections by address: what is one address, and how many it may have. */
#include "test.h"

#include <arpa/inet.h>
#include <netinet/in.h>

#include "net/http/addresses.h"

static uint64_t of(const char *text)
{
    struct sockaddr_in v4 = {.sin_family = AF_INET};
    struct sockaddr_in6 v6 = {.sin6_family = AF_INET6};
    if (inet_pton(AF_INET, text, &v4.sin_addr) == 1) return kvr_address_of((struct sockaddr *)&v4);
    assert_int_equal(inet_pton(AF_INET6, text, &v6.sin6_addr), 1);
    return kvr_address_of((struct sockaddr *)&v6);
}

static void an_ipv6_client_is_its_64_and_mapped_ipv4_is_ipv4(void **)
{
    assert_true(of("2001:db8::1") == of("2001:db8::ffff:1"));
    assert_true(of("2001:db8::1") != of("2001:db8:0:1::1"));
    assert_true(of("::ffff:10.0.0.1") == of("10.0.0.1"));
    assert_true(of("10.0.0.1") != of("10.0.0.2"));
    assert_true(of("0.0.0.0") != of("::1"));
}

static void so_many_and_no_more_and_none_is_kept(void **)
{
    struct kvr_addresses a = {0};
    struct kvr_rng rng = {env_u64("KVR_SEED", 5)};
    uint64_t open[50] = {0};
    kvr_addresses_init(&a, 3);
    for (int i = 0; i < 100000; i++) {
        uint32_t at = kvr_rng_below(&rng, 50);
        if (kvr_rng_below(&rng, 2)) {
            bool ok = kvr_addresses_enter(&a, at * 77, 1) == 0;
            assert_true(ok == (open[at] < 3));
            open[at] += ok;
        } else if (open[at]) {
            kvr_addresses_leave(&a, at * 77, 1);
            open[at]--;
        }
    }
    for (uint32_t at = 0; at < 50; at++)
        while (open[at]--) kvr_addresses_leave(&a, at * 77, 1);
    assert_int_equal(a.had.n, 0);
    kvr_addresses_destroy(&a);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_ipv6_client_is_its_64_and_mapped_ipv4_is_ipv4),
        cmocka_unit_test(so_many_and_no_more_and_none_is_kept),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
