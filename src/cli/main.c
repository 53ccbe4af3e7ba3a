/* SPDX-License-Identifier: Apache-2.0 */
#include <malloc.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <kvroute/error.h>

#include "base/base.h"
#include "base/nearest.h"
#include "cli/commands.h"
#include "cli/log_options.h"

static const struct command *const list[] = {
    &command_serve,         &command_epp,       &command_indexer, &command_select, &command_publish,
    &command_check,         &command_doctor,    &command_top,     &command_mock,   &command_replay,
    &command_replay_events, &command_curve_key, &command_hash,    &command_man,    &command_completion,
};
static const struct commands all = {list, KVR_ARRAY_LEN(list)};

static void print_commands(FILE *f)
{
    fprintf(f, "kvroute %s: KV-cache-aware router for LLM inference\n\nusage: kvroute COMMAND [options]\n\n", kvr_version());
    for (size_t i = 0; i < all.n; i++) fprintf(f, "  %-13s %s\n", list[i]->table.command, list[i]->table.title);
    fprintf(f, "\n`kvroute help COMMAND` explains one; `kvroute version` prints the version.\n");
}

/* Large blocks are mapped, so they go back to the system when they are freed. Left to itself glibc stops doing that for blocks of
 * up to 32 MiB after the first one that is freed, and the memory of a large body stays in a heap. What is smaller stays with its heap
 * up to some of the largest: by default glibc gives back from 128 KiB on, so that each body of 32 KiB took its pages from the system
 * anew whenever nothing happened to lie above it (9 faults a request, 15 to 20 us). */
static void keep_small_blocks_map_large(void)
{
#ifdef M_MMAP_THRESHOLD
    enum { MAPPED_FROM = 512 << 10 };
    (void)mallopt(M_MMAP_THRESHOLD, MAPPED_FROM);
    (void)mallopt(M_TRIM_THRESHOLD, 8 * MAPPED_FROM);
#endif
}

static int run(const struct command *command, int argc, char **argv)
{
    kvr_log_set_spoken(true);
    int rc = log_from_environment();
    if (rc == 0) rc = command_run(command, &all, argc, argv);
    kvr_log_finish();
    return rc;
}

static void say_unknown(const char *name)
{
    struct kvr_nearest near = {.wanted = name};
    for (size_t i = 0; i < all.n && name; i++) kvr_nearest_offer(&near, list[i]->table.command);
    if (near.best) kvr_log_error("kvroute: unknown command '%s'; did you mean %s?", name, near.best);
    else if (name) kvr_log_error("kvroute: unknown command '%s'", name);
    else kvr_log_error("kvroute: a command is missing");
}

int main(int argc, char **argv)
{
    const char *name = argc > 1 ? argv[1] : "";
    keep_small_blocks_map_large();
    (void)signal(SIGHUP, SIG_IGN); /* those with something to read again do so; nobody dies of it */
    const struct command *explained = argc > 2 && !strcmp(name, "help") ? commands_find(&all, argv[2]) : NULL;
    if (explained) return run(explained, argc > 3 ? 3 : 2, (char *[]){argv[2], (char[]){"--help"}, argc > 3 ? argv[3] : NULL, NULL});
    if (!strcmp(name, "help") || !strcmp(name, "--help") || !strcmp(name, "-h")) {
        print_commands(stdout);
        return command_printed(0);
    }
    if (!strcmp(name, "version") || !strcmp(name, "--version")) {
        printf("kvroute %s\n", kvr_version());
        return command_printed(0);
    }
    const struct command *command = commands_find(&all, name);
    if (command) return run(command, argc - 1, argv + 1);
    kvr_log_set_spoken(true);
    say_unknown(argc > 1 ? name : NULL);
    fputc('\n', stderr);
    print_commands(stderr);
    return 2;
}
