/* SPDX-License-Identifier: Apache-2.0 */
#include <malloc.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <kvroute/error.h>

#include "cli/commands.h"
#include "cli/log_options.h"

static const struct {
    const char *name, *help;
    int (*run)(int argc, char **argv);
} commands[] = {
    {"serve", "OpenAI-compatible router in front of inference workers", cmd_serve},
    {"indexer", "who holds which KV blocks: events in, overlap queries over HTTP", cmd_indexer},
    {"select", "selection service: choose and book workers over HTTP", cmd_select},
    {"publish", "beside one engine: local index, recovery, events published again", cmd_publish},
    {"check", "check the files that serve reads, without starting anything", cmd_check},
    {"doctor", "find out why cache-aware routing misses, in a live deployment", cmd_doctor},
    {"mock", "mock engine: prefix cache, batching, KV events, OpenAI API", cmd_mock},
    {"replay", "replay a trace or a synthetic workload against an endpoint", cmd_replay},
    {"replay-events", "check or replay a recording of KV events", cmd_replay_events},
    {"curve-key", "make a key pair that guards ZMQ connections", cmd_curve_key},
    {"hash", "print the hashes of tokens", cmd_hash},
};

static void print_commands(FILE *f)
{
    fprintf(f, "kvroute %s: KV-cache-aware router for LLM inference\n\nusage: kvroute COMMAND [options]\n\n", kvr_version());
    for (size_t i = 0; i < sizeof commands / sizeof *commands; i++) fprintf(f, "  %-13s %s\n", commands[i].name, commands[i].help);
    fprintf(f, "\n`kvroute COMMAND --help` explains a command; `kvroute version` prints the version.\n");
}

/* Large blocks are mapped, so they go back to the system when they are freed. Left to itself glibc stops doing that for blocks of
 * up to 32 MiB after the first one that is freed, and the memory of a large body stays in a heap. */
static void map_large_blocks(void)
{
#ifdef M_MMAP_THRESHOLD
    (void)mallopt(M_MMAP_THRESHOLD, 512 << 10);
#endif
}

static int run(int (*command)(int argc, char **argv), int argc, char **argv)
{
    int rc = log_from_environment();
    if (rc == 0) rc = command(argc, argv);
    kvr_log_finish();
    return rc;
}

int main(int argc, char **argv)
{
    const char *name = argc > 1 ? argv[1] : "";
    map_large_blocks();
    (void)signal(SIGHUP, SIG_IGN); /* those with something to read again do so; nobody dies of it */
    if (!strcmp(name, "help") || !strcmp(name, "--help") || !strcmp(name, "-h")) {
        print_commands(stdout);
        return 0;
    }
    if (!strcmp(name, "version") || !strcmp(name, "--version")) {
        printf("kvroute %s\n", kvr_version());
        return 0;
    }
    for (size_t i = 0; i < sizeof commands / sizeof *commands; i++)
        if (!strcmp(name, commands[i].name)) return run(commands[i].run, argc - 1, argv + 1);
    if (argc > 1) kvr_log_error("kvroute: unknown command '%s'", name);
    else kvr_log_error("kvroute: a command is missing");
    fputc('\n', stderr);
    print_commands(stderr);
    return 2;
}
