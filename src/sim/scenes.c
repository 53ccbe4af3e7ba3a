/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Scenes: a row each. Conversations, siblings, hot prefixes, uniform prompts and tails on four workers are those of a laboratory of real
 * processes; agents, shared prefixes, bursts and long tails on eight are this simulator's oldest. Traces have their answers cut to 24
 * tokens, as engines that generate little show what routing does.
 */
#include <string.h>

#include "sim/sim.h"

#define CONV       "conversations,rate="
#define PAUSES     "conversations,rate=12,think=8,seconds=60"
#define TRACE      "trace,seconds=16,output-max=24,speedup="
#define MADE       "mooncake,seconds=40,output-max=24,speedup="
#define LONG(rate) "uniform,rate=" rate ",own-tokens=8000,own-spread=0.5,output=150,output-spread=0.5,seconds=20"
#define OLD        ",seconds=0,requests=2400"

enum { LEG_BLOCKS = 28672 };

const struct sim_scene sim_scenes[] = {
    {.name = "conv15", .meaning = "conversations, scarce caches, little load", .traffic = CONV "15", .workers = 4, .blocks = 2560},
    {.name = "conv60", .meaning = "conversations, scarce caches", .traffic = CONV "60", .workers = 4, .blocks = 2560},
    {.name = "conv80", .meaning = "conversations, scarce caches, much load", .traffic = CONV "80", .workers = 4, .blocks = 2560},
    {.name = "conv95", .meaning = "conversations, scarce caches, more than is good", .traffic = CONV "95", .workers = 4, .blocks = 2560},
    {.name = "conv120", .meaning = "conversations, scarce caches, overload", .traffic = CONV "120", .workers = 4, .blocks = 2560},
    {.name = "conv60-tiny", .meaning = "conversations, caches far too small", .traffic = CONV "60", .workers = 4, .blocks = 1600},
    {.name = "conv60-big", .meaning = "conversations, caches that hold everything", .traffic = CONV "60", .workers = 4, .blocks = 8192},
    {.name = "conv60-chunks",
     .meaning = "conversations, passes of 1,024 tokens",
     .traffic = CONV "60",
     .workers = 4,
     .blocks = 2560,
     .tokens_per_pass = 1024},
    {.name = "conv25-answers",
     .meaning = "conversations with answers of 200 tokens",
     .traffic = CONV "25,output=200,output-spread=0.5",
     .workers = 4,
     .blocks = 4096},
    {.name = "sib48", .meaning = "bursts of 16 siblings", .traffic = "siblings,rate=48", .workers = 4, .blocks = 8192},
    {.name = "sib100", .meaning = "bursts of 16 siblings, much load", .traffic = "siblings,rate=100", .workers = 4, .blocks = 8192},
    {.name = "hot55", .meaning = "one hot prefix", .traffic = "hot,rate=55", .workers = 4, .blocks = 8192},
    {.name = "hot120", .meaning = "one hot prefix, much load", .traffic = "hot,rate=120", .workers = 4, .blocks = 8192},
    {.name = "uniform30", .meaning = "nothing shared", .traffic = "uniform,rate=30", .workers = 4, .blocks = 8192},
    {.name = "tail50", .meaning = "lognormal lengths, nothing shared", .traffic = "tail,rate=50", .workers = 4, .blocks = 8192},
    {.name = "tail50-chunks",
     .meaning = "lognormal lengths, passes of 1,024 tokens",
     .traffic = "tail,rate=50",
     .workers = 4,
     .blocks = 8192,
     .tokens_per_pass = 1024},
    {.name = "mixed60", .meaning = "several kinds beside each other", .traffic = "mixed,rate=60", .workers = 4, .blocks = 4096},
    {.name = "agents", .meaning = "twelve turns, 8 workers", .traffic = "agents,rate=68.6" OLD, .workers = 8, .blocks = 16384},
    {.name = "agents-scarce", .meaning = "twelve turns, scarce caches", .traffic = "agents,rate=68.6" OLD, .workers = 8, .blocks = 6000},
    {.name = "agents-busy", .meaning = "twelve turns, half as much again", .traffic = "agents,rate=103" OLD, .workers = 8, .blocks = 16384},
    {.name = "shared", .meaning = "64 prefixes of unlike popularity", .traffic = "shared,rate=83.3" OLD, .workers = 8, .blocks = 16384},
    {.name = "uniform91",
     .meaning = "nothing shared, longer answers",
     .traffic = "uniform,rate=90.9,own-tokens=1500,own-spread=0.667,output=100,output-spread=0.5" OLD,
     .workers = 8,
     .blocks = 16384},
    {.name = "burst32",
     .meaning = "bursts of 32 siblings on an idle fleet",
     .traffic = "siblings,rate=100,burst=32,output=100,output-spread=0.5" OLD,
     .workers = 8,
     .blocks = 16384},
    {.name = "longtail", .meaning = "Pareto lengths, nothing shared", .traffic = "long-tail,rate=90.9" OLD, .workers = 8, .blocks = 16384},
    {.name = "trace4", .meaning = "a trace four times as fast", .traffic = TRACE "4", .workers = 4, .blocks = 16384, .speed = 2},
    {.name = "trace8", .meaning = "a trace eight times as fast", .traffic = TRACE "8", .workers = 4, .blocks = 16384, .speed = 2},
    {.name = "mooncake4", .meaning = "a made-up trace four times as fast", .traffic = MADE "4", .workers = 4, .blocks = 16384, .speed = 2},
    {.name = "mooncake8", .meaning = "a made-up trace eight times as fast", .traffic = MADE "8", .workers = 4, .blocks = 16384, .speed = 2},
    {.name = "fleet8", .meaning = "conversations, 8 workers", .traffic = CONV "190", .workers = 8, .blocks = 2560},
    {.name = "fleet32", .meaning = "conversations, 32 workers of 800 blocks", .traffic = CONV "480", .workers = 32, .blocks = 800},
    {.name = "fleet32-uniform", .meaning = "nothing shared, 32 workers", .traffic = "uniform,rate=240", .workers = 32, .blocks = 8192},
    {.name = "fleet256", .meaning = "conversations, 256 workers", .traffic = CONV "3840,seconds=4", .workers = 256, .blocks = 800},
    {.name = "speeds",
     .meaning = "conversations, engines of unlike speed",
     .traffic = CONV "60",
     .workers = 4,
     .blocks = 2560,
     .speeds = {1.5, 1.5, 0.75, 0.75}},
    {.name = "speeds-hot",
     .meaning = "a hot prefix, engines of unlike speed",
     .traffic = "hot,rate=120",
     .workers = 4,
     .blocks = 8192,
     .speeds = {1.5, 1.5, 0.75, 0.75}},
    {.name = "caches", .meaning = "conversations, caches 1 to 4", .traffic = CONV "60", .workers = 4, .blocks = 2560, .caches = {0.4, 1.6}},
    {.name = "host",
     .meaning = "conversations with pauses, four times the caches in the hosts, reading at a tenth of computing",
     .traffic = PAUSES ",own-tokens=800",
     .workers = 4,
     .blocks = 2560,
     .host_blocks = 10240,
     .load_ratio = 0.1},
    {.name = "host-own",
     .meaning = "the same, no prompt like another's",
     .traffic = PAUSES ",system-tokens=0,own-tokens=1200",
     .workers = 4,
     .blocks = 2560,
     .host_blocks = 10240,
     .load_ratio = 0.1},
    {.name = "host-half",
     .meaning = "the first, reading at half of computing",
     .traffic = PAUSES ",own-tokens=800",
     .workers = 4,
     .blocks = 2560,
     .host_blocks = 10240,
     .load_ratio = 0.5},
    {.name = "host-slow",
     .meaning = "the first, reading takes longer than computing",
     .traffic = PAUSES ",own-tokens=800",
     .workers = 4,
     .blocks = 2560,
     .host_blocks = 10240,
     .load_ratio = 1.5},
    {.name = "host-conv60",
     .meaning = "conversations without pauses, scarce caches, four times as much in the hosts",
     .traffic = CONV "60",
     .workers = 4,
     .blocks = 1600,
     .host_blocks = 6400,
     .load_ratio = 0.1},
    {.name = "comes-and-goes",
     .meaning = "conversations, a worker leaves and comes back empty",
     .traffic = CONV "60",
     .workers = 4,
     .blocks = 2560,
     .leaves_s = 5,
     .returns_s = 9},
    {.name = "routers2",
     .meaning = "conversations, two routers that hear of each other after 2 ms",
     .traffic = CONV "80",
     .workers = 4,
     .blocks = 2560,
     .routers = 2,
     .tell_ms = 2},
    {.name = "routers4",
     .meaning = "conversations, four routers that hear of each other after 2 ms",
     .traffic = CONV "80",
     .workers = 4,
     .blocks = 2560,
     .routers = 4,
     .tell_ms = 2},
};

const size_t sim_scenes_n = KVR_ARRAY_LEN(sim_scenes);

/* Eight workers with the memory that a mid-size model leaves on a large GPU. Rates are such that limits are missed somewhere. */
const struct sim_scene sim_leg_scenes[] = {
    {.name = "long-prompts",
     .meaning = "long prompts, answers that must flow",
     .traffic = LONG("24"),
     .workers = 8,
     .blocks = LEG_BLOCKS,
     .prefill_workers = 4,
     .ttft_ms = 2000,
     .itl_ms = 30},
    {.name = "long-chunks",
     .meaning = "the same in passes of 2,048 tokens",
     .traffic = LONG("22"),
     .workers = 8,
     .blocks = LEG_BLOCKS,
     .prefill_workers = 4,
     .ttft_ms = 2000,
     .itl_ms = 30,
     .tokens_per_pass = 2048},
    {.name = "very-long",
     .meaning = "prompts of 30,000 tokens",
     .traffic = "uniform,rate=5,own-tokens=30000,own-spread=0.3,output=200,seconds=30",
     .workers = 8,
     .blocks = LEG_BLOCKS,
     .prefill_workers = 4,
     .ttft_ms = 4000,
     .itl_ms = 25},
    {.name = "flowing",
     .meaning = "longer answers to prompts of 2,000 tokens, that must flow",
     .traffic = "uniform,rate=55,own-tokens=2000,own-spread=0.5,output=300,output-spread=0.5,seconds=20",
     .workers = 8,
     .blocks = LEG_BLOCKS,
     .prefill_workers = 3,
     .ttft_ms = 1000,
     .itl_ms = 20},
    {.name = "long-even",
     .meaning = "long prompts, a load that both can bear",
     .traffic = LONG("18"),
     .workers = 8,
     .blocks = LEG_BLOCKS,
     .prefill_workers = 4,
     .ttft_ms = 2000,
     .itl_ms = 30},
    {.name = "agents-even",
     .meaning = "agents, a load that both can bear",
     .traffic = "agents,rate=80,seconds=12,think=5,output=300",
     .workers = 8,
     .blocks = LEG_BLOCKS,
     .prefill_workers = 3,
     .ttft_ms = 2000,
     .itl_ms = 20},
    {.name = "few-prefill",
     .meaning = "long prompts, two prefill workers",
     .traffic = LONG("20"),
     .workers = 8,
     .blocks = LEG_BLOCKS,
     .prefill_workers = 2,
     .ttft_ms = 2000,
     .itl_ms = 30},
    {.name = "long-slack",
     .meaning = "long prompts, much load, answers may falter",
     .traffic = LONG("32"),
     .workers = 8,
     .blocks = LEG_BLOCKS,
     .prefill_workers = 4,
     .ttft_ms = 3000,
     .itl_ms = 100},
    {.name = "answers",
     .meaning = "short prompts, long answers",
     .traffic = "uniform,rate=120,own-tokens=1000,own-spread=0.5,output=400,seconds=8",
     .workers = 8,
     .blocks = LEG_BLOCKS,
     .prefill_workers = 2,
     .ttft_ms = 1000,
     .itl_ms = 30},
    {.name = "chat",
     .meaning = "chats whose prompts are cached",
     .traffic = "conversations,rate=600,seconds=8",
     .workers = 8,
     .blocks = LEG_BLOCKS,
     .prefill_workers = 2,
     .ttft_ms = 500,
     .itl_ms = 50},
    {.name = "chat-many",
     .meaning = "the same, half of the workers for prompts",
     .traffic = "conversations,rate=600,seconds=8",
     .workers = 8,
     .blocks = LEG_BLOCKS,
     .prefill_workers = 4,
     .ttft_ms = 500,
     .itl_ms = 50},
    {.name = "agents2",
     .meaning = "agents, two prefill workers",
     .traffic = "agents,rate=150,seconds=12",
     .workers = 8,
     .blocks = LEG_BLOCKS,
     .prefill_workers = 2,
     .ttft_ms = 1000,
     .itl_ms = 25},
    {.name = "mixed3",
     .meaning = "several kinds beside each other",
     .traffic = "mixed,rate=200,seconds=12",
     .workers = 8,
     .blocks = LEG_BLOCKS,
     .prefill_workers = 3,
     .ttft_ms = 1000,
     .itl_ms = 40},
    {.name = "agents3",
     .meaning = "agents, three prefill workers, so few that answer",
     .traffic = "agents,rate=150,seconds=12",
     .workers = 8,
     .blocks = LEG_BLOCKS,
     .prefill_workers = 3,
     .ttft_ms = 1000,
     .itl_ms = 25},
    {.name = "long-quick",
     .meaning = "as long-slack, but the first token must be quick",
     .traffic = LONG("32"),
     .workers = 8,
     .blocks = LEG_BLOCKS,
     .prefill_workers = 4,
     .ttft_ms = 1000,
     .itl_ms = 100},
    {.name = "chat-tight",
     .meaning = "chats whose answers must flow",
     .traffic = "conversations,rate=400,seconds=8",
     .workers = 8,
     .blocks = LEG_BLOCKS,
     .prefill_workers = 2,
     .ttft_ms = 500,
     .itl_ms = 20},
};

const size_t sim_leg_scenes_n = KVR_ARRAY_LEN(sim_leg_scenes);

#define STEADY(rate, tokens) "uniform,seconds=60,own-spread=0.3,output=50,output-spread=0.5,rate=" rate ",own-tokens=" tokens

/* Two tenants. The first one asks for less than its half; the other one alone is more than the fleet can take. */
const struct sim_scene sim_crowd_scenes[] = {
    {.name = "crowd",
     .meaning = "prompts of 2,000 tokens, a flood of the same",
     .traffic = STEADY("20", "2000"),
     .flood = STEADY("250", "2000"),
     .workers = 8,
     .blocks = 16384,
     .tokens_per_pass = 2048,
     .queue_frac = 0.5},
    {.name = "crowd-short",
     .meaning = "the same, a flood of short prompts",
     .traffic = STEADY("20", "2000"),
     .flood = STEADY("900", "300"),
     .workers = 8,
     .blocks = 16384,
     .tokens_per_pass = 2048,
     .queue_frac = 0.5},
    {.name = "crowd-long",
     .meaning = "the same, a flood of long prompts",
     .traffic = STEADY("20", "2000"),
     .flood = STEADY("60", "16000"),
     .workers = 8,
     .blocks = 16384,
     .tokens_per_pass = 2048,
     .queue_frac = 0.5},
    {.name = "crowd-small",
     .meaning = "prompts of 2,000 tokens, a flood of the same, two workers",
     .traffic = STEADY("5", "2000"),
     .flood = STEADY("60", "2000"),
     .workers = 2,
     .blocks = 16384,
     .tokens_per_pass = 2048,
     .queue_frac = 0.5},
    {.name = "crowd-long-own",
     .meaning = "own prompts of 16,000 tokens, a flood of short ones",
     .traffic = STEADY("3", "16000"),
     .flood = STEADY("900", "300"),
     .workers = 8,
     .blocks = 16384,
     .tokens_per_pass = 2048,
     .queue_frac = 0.5},
};

const size_t sim_crowd_scenes_n = KVR_ARRAY_LEN(sim_crowd_scenes);

static const struct sim_scene *find_in(const struct sim_scene *list, size_t n, const char *name, size_t len)
{
    for (size_t i = 0; i < n; i++)
        if (kvr_span_is(name, len, list[i].name)) return &list[i];
    return NULL;
}

const struct sim_scene *sim_scene_find(const char *name, size_t len)
{
    const struct sim_scene *s = find_in(sim_scenes, sim_scenes_n, name, len);
    if (!s) s = find_in(sim_leg_scenes, sim_leg_scenes_n, name, len);
    return s ? s : find_in(sim_crowd_scenes, sim_crowd_scenes_n, name, len);
}

bool sim_scene_needs_trace(const struct sim_scene *scene)
{
    return strncmp(scene->traffic, "trace,", 6) == 0;
}

int sim_scene_config(const struct sim_scene *scene, const char *trace, struct sim_config *out, char *err, size_t cap)
{
    struct sim_config c;
    sim_config_init(&c);
    c.traffic.file = trace;
    int rc = traffic_parse(scene->traffic, &c.traffic, err, cap);
    if (rc == 0 && scene->flood) rc = traffic_parse(scene->flood, &c.flood, err, cap);
    if (rc) return rc;
    c.queue_frac = scene->queue_frac;
    c.workers = scene->workers;
    c.blocks = scene->blocks;
    if (scene->tokens_per_pass) c.tokens_per_pass = scene->tokens_per_pass;
    if (scene->speed > 0) c.speed = scene->speed;
    memcpy(c.speeds, scene->speeds, sizeof c.speeds);
    memcpy(c.caches, scene->caches, sizeof c.caches);
    if (scene->routers) c.routers = scene->routers;
    c.tell_ms = scene->tell_ms;
    c.leaves_s = scene->leaves_s;
    c.returns_s = scene->returns_s;
    if (scene->prefill_workers) c.prefill_workers = scene->prefill_workers;
    if (scene->transfer_bytes_s > 0) c.transfer_bytes_s = scene->transfer_bytes_s;
    c.host_blocks = scene->host_blocks;
    c.load_ratio = scene->load_ratio;
    c.ttft_ms = scene->ttft_ms;
    c.itl_ms = scene->itl_ms;
    *out = c;
    return 0;
}
