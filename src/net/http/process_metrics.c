/* SPDX-License-Identifier: Apache-2.0 */
#include "net/http/process_metrics.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

/* The start of a file of /proc; "" when it cannot be read. */
static void read_start(const char *path, char *out, size_t cap)
{
    FILE *f = fopen(path, "re");
    size_t n = f ? fread(out, 1, cap - 1, f) : 0;
    out[n] = 0;
    if (f) fclose(f);
}

/* Field `n` of a line, from 1; 0 when there is none. */
static unsigned long long field(const char *line, int n)
{
    for (; n > 1 && line; n--) {
        line = strchr(line, ' ');
        if (line) line++;
    }
    return line ? strtoull(line, NULL, 10) : 0;
}

/* Ticks from the system's start to that of the process; the second field, its name in brackets, may have spaces. */
static double started_after(void)
{
    char text[1024];
    read_start("/proc/self/stat", text, sizeof text);
    const char *end = strrchr(text, ')');
    return end && end[1] ? (double)field(end + 2, 20) / (double)sysconf(_SC_CLK_TCK) : 0;
}

/* The system's start, in seconds of the epoch; 0: not known. */
static double system_start(void)
{
    char line[256];
    unsigned long long at = 0;
    FILE *f = fopen("/proc/stat", "re");
    while (f && !at && fgets(line, sizeof line, f))
        if (strncmp(line, "btime ", 6) == 0) at = field(line, 2);
    if (f) fclose(f);
    return (double)at;
}

/* Without the one that is open to count them; 0: not known. */
static uint64_t open_fds(void)
{
    uint64_t n = 0;
    DIR *d = opendir("/proc/self/fd");
    if (!d) return 0;
    for (const struct dirent *e; (e = readdir(d));) n += e->d_name[0] != '.';
    closedir(d);
    return n ? n - 1 : 0;
}

static double cpu_seconds(void)
{
    struct rusage u;
    if (getrusage(RUSAGE_SELF, &u)) return 0;
    return (double)(u.ru_utime.tv_sec + u.ru_stime.tv_sec) + (double)(u.ru_utime.tv_usec + u.ru_stime.tv_usec) / 1e6;
}

static void put_known(struct kvr_prom_page *b, const char *name, const char *help, double v)
{
    kvr_prom_family(b, "process_", name, "gauge", help);
    if (v > 0) kvr_prom_put_double(b, KVR_PROM_NONE, v);
}

void kvr_process_metrics(const char *program, struct kvr_prom_page *b)
{
    char memory[128];
    struct rlimit fds = {0};
    double page = (double)sysconf(_SC_PAGESIZE), boot = system_start();
    read_start("/proc/self/statm", memory, sizeof memory);
    (void)getrlimit(RLIMIT_NOFILE, &fds);
    kvr_prom_family(b, "kvroute_", "build_info", "gauge", "1, with the version and the program");
    kvr_prom_put_u64(b, KVR_PROM_PAIRS(KVR_PROM_TEXT("version", kvr_version()), KVR_PROM_TEXT("program", program)), 1);
    kvr_prom_one_double(b, "process_", "cpu_seconds_total", "counter", "User and system CPU time, in seconds", cpu_seconds());
    put_known(b, "resident_memory_bytes", "Resident memory", (double)field(memory, 2) * page);
    put_known(b, "virtual_memory_bytes", "Virtual memory", (double)field(memory, 1) * page);
    put_known(b, "open_fds", "Open file descriptors", (double)open_fds());
    put_known(b, "max_fds", "Most file descriptors that may be open", (double)fds.rlim_cur);
    put_known(b, "start_time_seconds", "When the process began, in seconds since the epoch", boot > 0 ? boot + started_after() : 0);
}
