/* SPDX-License-Identifier: Apache-2.0 */
/* Policies against each other over five workloads, in virtual time: prints the table of docs/scheduling.md. */
#include <stdio.h>
#include <stdlib.h>

#include "app/sim/sim.h"

enum { SEEDS = 3 };

static void run(enum sim_workload w, enum sim_policy p, uint32_t requests, double load, struct sim_result *mean)
{
    *mean = (struct sim_result){0};
    for (uint64_t seed = 1; seed <= SEEDS; seed++) {
        struct sim_config c = {.workload = w, .policy = p, .workers = 8, .requests = requests, .seed = seed, .load = load};
        struct sim_result r;
        if (sim_run(&c, &r)) exit(1);
        mean->ttft_mean_ms += r.ttft_mean_ms / SEEDS;
        mean->ttft_p50_ms += r.ttft_p50_ms / SEEDS;
        mean->ttft_p99_ms += r.ttft_p99_ms / SEEDS;
        mean->cached_ratio += r.cached_ratio / SEEDS;
        mean->completed += r.completed;
        mean->seconds += r.seconds / SEEDS;
    }
}

int main(int argc, char **argv)
{
    double load = argc > 2 ? strtod(argv[2], NULL) : 1;
    uint32_t requests = argc > 1 ? (uint32_t)strtoul(argv[1], NULL, 10) : 2400;
    printf("| workload | policy | mean TTFT ms | p50 | p99 | cached of prompt | mean TTFT against round-robin, least-loaded |\n"
           "|---|---|---:|---:|---:|---:|---|\n");
    for (int w = 0; w < SIM_WORKLOADS; w++) {
        struct sim_result r[SIM_POLICIES];
        for (int p = 0; p < SIM_POLICIES; p++) run((enum sim_workload)w, (enum sim_policy)p, requests, load, &r[p]);
        for (int p = 0; p < SIM_POLICIES; p++)
            printf("| %s | %s | %.1f | %.1f | %.1f | %.1f %% | %.2f, %.2f |\n", p ? "" : sim_workload_name((enum sim_workload)w),
                   sim_policy_name((enum sim_policy)p), r[p].ttft_mean_ms, r[p].ttft_p50_ms, r[p].ttft_p99_ms, 100 * r[p].cached_ratio,
                   r[p].ttft_mean_ms / r[SIM_ROUND_ROBIN].ttft_mean_ms, r[p].ttft_mean_ms / r[SIM_LEAST_LOADED].ttft_mean_ms);
        fflush(stdout);
    }
    return 0;
}
