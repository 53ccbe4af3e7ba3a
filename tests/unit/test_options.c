/* SPDX-License-Identifier: Apache-2.0 */
/* A file of options as cli/options.h reads it: what it sets, from where, and with memory that fails at each allocation in turn. */
#include "test.h"

#include <stdio.h>

#include "cli/commands.h"
#include "cli/serve_cli.h"
#include "failing_memory.h"

struct heard {
    char text[2048];
    unsigned n;
};

static void on_wrong(void *arg, const char *text)
{
    struct heard *h = arg;
    snprintf(h->text, sizeof h->text, "%s", text);
    h->n++;
}

static struct serve_cli cli;
static struct options_from from;
static struct heard heard;

static int read_text(const char *text)
{
    const struct options_ear ear = {on_wrong, &heard};
    cli = (struct serve_cli){0};
    heard = (struct heard){0};
    return options_parse_text(&command_serve.table, "f", text, strlen(text), &ear, &cli, &from);
}

static size_t line(const char *name)
{
    return options_line(&from, &command_serve.table, name);
}

static void forget(void)
{
    options_free(&command_serve.table, &cli, &from);
}

static const char all_forms[] = "port: 81\n"
                                "no-kv-events: true\n"
                                "worker:\n"
                                "- {url: 'http://a', model: 'x,y', taint: [s, t]}\n"
                                "- http://b,model=m\n"
                                "tokenizer-dir: {m: /a, n: /b}\n"
                                "discovery-worker: {tp: 2, model: 'c,d'}\n"
                                "use-remote-indexer: [http://a, http://b]\n"
                                "max-body-size: 3 MiB\n"
                                "router-queue-threshold: none\n"
                                "router-mode: random\n";

static void assert_all_forms(void)
{
    assert_int_equal(cli.o.port, 81);
    assert_false(cli.o.kv_events);
    assert_int_equal(cli.workers.n, 2);
    assert_int_equal(cli.workers.items[0].n, 3);
    assert_string_equal(cli.workers.items[0].parts[0].value, "x,y");
    assert_int_equal(cli.workers.items[0].parts[0].line, 4);
    assert_int_equal(cli.workers.items[1].line, 5);
    assert_string_equal(cli.workers.items[1].file, "f");
    assert_int_equal(cli.tokenizer_dirs.n, 2);
    assert_string_equal(cli.tokenizer_dirs.items[1], "n=/b");
    assert_string_equal(cli.o.discovery_worker, "tp=2,model=c\\,d");
    assert_string_equal(cli.o.use_remote_indexer, "http://a,http://b");
    assert_int_equal(cli.o.max_body_size, 3 << 20);
    assert_true(cli.o.queue_threshold == -1);
    assert_int_equal(cli.o.mode, 2);
}

static void each_form_of_a_value_is_read_and_knows_its_line(void **)
{
    assert_int_equal(read_text(all_forms), 0);
    assert_int_equal(heard.n, 0);
    assert_all_forms();
    assert_int_equal(line("port"), 1);
    assert_int_equal(line("router-kv-events"), 2);
    assert_int_equal(line("worker"), 3);
    assert_int_equal(line("admin-port"), 0);
    forget();
}

static void what_is_wrong_leaves_the_value_of_before(void **)
{
    assert_int_equal(read_text("port: x\nhost: ''\nrouter-mode: y\nadmin-port: 1\n"), 2);
    assert_int_equal(heard.n, 3);
    assert_int_equal(cli.o.port, 8080);
    assert_string_equal(cli.o.host, "0.0.0.0");
    assert_int_equal(cli.o.mode, 0);
    assert_int_equal(cli.o.admin_port, 1);
    forget();
}

static void an_empty_file_says_nothing(void **)
{
    assert_int_equal(read_text("# nothing\n"), 0);
    assert_int_equal(cli.o.port, 8080);
    forget();
}

/* strdup is the C library's and does not fail here. */
static void memory_that_fails_is_called_that(void **)
{
    for (long n = 0;; n++) {
        memory_fails_at(n, 0);
        int rc = read_text(all_forms);
        bool failed = memory_has_failed();
        memory_recovers();
        if (!failed) {
            assert_int_equal(rc, 0);
            assert_all_forms();
            forget();
            return;
        }
        if (rc != 2 || !strstr(heard.text, "out of memory")) fail_msg("allocation %ld failed: %d, '%s'", n, rc, heard.text);
        forget();
        assert_true(n < 1000);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_form_of_a_value_is_read_and_knows_its_line),
        cmocka_unit_test(what_is_wrong_leaves_the_value_of_before),
        cmocka_unit_test(an_empty_file_says_nothing),
        cmocka_unit_test(memory_that_fails_is_called_that),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
