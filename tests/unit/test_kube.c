/* SPDX-License-Identifier: Apache-2.0 */
#include "test.h"

#include "wire/kube.h"

static struct kvr_json_parser *parser;

static int setup(void **)
{
    return (parser = kvr_json_parser_new()) ? 0 : -1;
}

static int teardown(void **)
{
    kvr_json_parser_free(parser);
    return 0;
}

/* ' stands for ". */
static struct kvr_json parsed(const char *text)
{
    static char copy[8192];
    struct kvr_json root;
    snprintf(copy, sizeof copy, "%s", text);
    for (char *p = copy; *p; p++)
        if (*p == '\'') *p = '"';
    assert_int_equal(kvr_json_parse(parser, copy, strlen(copy), &root, NULL), 0);
    return root;
}

static void lines_of_a_watch(void **)
{
    struct kvr_kube_event e;
    struct kvr_kube_status s;
    assert_true(kvr_kube_event_read(parsed("{'type':'MODIFIED','object':{'metadata':{'resourceVersion':'17'}}}"), &e));
    assert_true(e.kind == KVR_KUBE_IS && strcmp(e.version, "17") == 0);
    assert_true(kvr_kube_event_read(parsed("{'type':'DELETED','object':{'metadata':{'resourceVersion':'18'}}}"), &e));
    assert_int_equal(e.kind, KVR_KUBE_GONE);
    assert_true(
        kvr_kube_event_read(parsed("{'type':'BOOKMARK','object':{'metadata':{'resourceVersion':'19','creationTimestamp':null}}}"), &e));
    assert_true(e.kind == KVR_KUBE_BOOKMARK && strcmp(e.version, "19") == 0);
    assert_true(
        kvr_kube_event_read(parsed("{'type':'ERROR','object':{'kind':'Status','code':410,'message':'too old','reason':'Expired'}}"), &e));
    kvr_kube_status_read(e.object, &s);
    assert_true(e.kind == KVR_KUBE_ERROR && s.code == 410 && strcmp(s.message, "too old") == 0);
    static const char *const bad[] = {"{'type':'ADDED','object':{}}",
                                      "{'type':'NEWS','object':{'metadata':{'resourceVersion':'1'}}}",
                                      "[]",
                                      "{'type':'ADDED'}",
                                      "{'type':'ADDED','object':{'metadata':{'resourceVersion':17}}}",
                                      "17"};
    for (size_t i = 0; i < KVR_ARRAY_LEN(bad); i++) assert_false(kvr_kube_event_read(parsed(bad[i]), &e));
}

static void pages_of_a_list(void **)
{
    struct kvr_kube_page p;
    assert_true(kvr_kube_page_read(parsed("{'metadata':{'resourceVersion':'9','continue':'abc'},'items':[{},{}]}"), &p));
    assert_true(kvr_json_count(p.items) == 2 && strcmp(p.more, "abc") == 0 && strcmp(p.version, "9") == 0);
    assert_true(kvr_kube_page_read(parsed("{'metadata':{'resourceVersion':'9'},'items':null}"), &p));
    assert_true(kvr_json_count(p.items) == 0 && !p.more[0]);
    assert_false(kvr_kube_page_read(parsed("{'kind':'Status','code':500}"), &p));
    assert_false(kvr_kube_page_read(parsed("{'metadata':{'resourceVersion':'9','continue':7},'items':[]}"), &p));
}

#define POD(meta, status) "{'metadata':{'name':'vllm-0','uid':'a-1'" meta "},'status':{'podIP':'10.0.0.1'" status "}}"
#define READY             ",'conditions':[{'type':'PodScheduled','status':'True'},{'type':'Ready','status':'True'}]"

static void pods(void **)
{
    struct kvr_kube_pod p;
    assert_null(kvr_kube_pod_read(parsed(POD("", READY)), &p));
    assert_true(p.ready && !p.over && !p.has_active && strcmp(p.name, "vllm-0") == 0 && strcmp(p.address, "10.0.0.1") == 0 && !p.role[0]);
    assert_null(kvr_kube_pod_read(parsed(POD("", "")), &p));
    assert_false(p.ready);
    assert_null(kvr_kube_pod_read(parsed(POD("", ",'conditions':[{'type':'Ready','status':'False'}]")), &p));
    assert_false(p.ready);
    assert_null(kvr_kube_pod_read(parsed(POD(",'deletionTimestamp':'2026-01-01T00:00:00Z'", READY)), &p));
    assert_false(p.ready || p.over);
    assert_null(kvr_kube_pod_read(parsed(POD("", READY ",'phase':'Succeeded'")), &p));
    assert_true(p.over && !p.ready);
    assert_null(kvr_kube_pod_read(parsed(POD(",'labels':{'llm-d.ai/role':'prefill-decode'}", READY)), &p));
    assert_string_equal(p.role, "both");
    assert_null(kvr_kube_pod_read(parsed(POD(",'labels':{'llm-d.ai/role':'cook'}", READY)), &p));
    assert_string_equal(p.role, "");
    assert_null(kvr_kube_pod_read(
        parsed(POD(",'annotations':{'kvroute.io/worker':'tp=2','inference.networking.k8s.io/active-ports':'8001, 8000'}", READY)), &p));
    assert_true(p.has_active && p.active.n == 2 && p.active.list[0] == 8001 && strcmp(p.worker, "tp=2") == 0);
    assert_null(kvr_kube_pod_read(parsed(POD(",'annotations':{'inference.networking.k8s.io/active-ports':''}", READY)), &p));
    assert_true(p.has_active && p.active.n == 0);
    assert_non_null(kvr_kube_pod_read(parsed(POD(",'annotations':{'inference.networking.k8s.io/active-ports':'8000;8001'}", READY)), &p));
    assert_non_null(kvr_kube_pod_read(parsed("{'metadata':{'name':'a b','uid':'1'}}"), &p));
    assert_true(!p.name[0]);
    assert_non_null(kvr_kube_pod_read(parsed("{'metadata':{'name':'a','uid':'1/2'}}"), &p));
    assert_true(!p.uid[0]); /* it would be a part of keys */
    assert_non_null(kvr_kube_pod_read(parsed("{'metadata':{'name':'a','uid':''}}"), &p));
    assert_non_null(kvr_kube_pod_read(parsed("{'metadata':{'name':'a','uid':'1'},'status':{'podIP':'10.0.0.1,id=7'}}"), &p));
    assert_true(!p.address[0] && strcmp(p.name, "a") == 0);
    assert_null(kvr_kube_pod_read(parsed("{'metadata':{'name':'a','uid':'1'},'status':{'podIP':'fd00::1'}}"), &p));
}

static void pools(void **)
{
    struct kvr_kube_pool p;
    assert_null(kvr_kube_pool_read(parsed("{'spec':{'selector':{'matchLabels':{'app':'qwen','x.io/"
                                          "tier':''}},'targetPorts':[{'number':8001},{'number':8000}],'appProtocol':'http'}}"),
                                   &p));
    assert_string_equal(p.selector, "app=qwen,x.io/tier=");
    assert_true(p.ports.n == 2 && p.ports.list[0] == 8001);
    static const char *const bad[] = {
        "{'spec':{'selector':{'matchLabels':{}},'targetPorts':[{'number':8001}]}}",
        "{'spec':{'selector':{'app':'qwen'},'targetPorts':[{'number':8001}]}}",
        "{'spec':{'selector':{'matchLabels':{'app':'qwen'}},'targetPorts':[]}}",
        "{'spec':{'selector':{'matchLabels':{'app':'qwen'}},'targetPorts':[{'number':0}]}}",
        "{'spec':{'selector':{'matchLabels':{'app':'qwen'}},'targetPorts':[{'number':80},{'number':80}]}}",
        "{'spec':{'selector':{'matchLabels':{'app':'q,b=c'}},'targetPorts':[{'number':80}]}}",
        "{'spec':{'selector':{'matchLabels':{'app':'q'}},'targetPorts':[{'number':80}],'appProtocol':'kubernetes.io/h2c'}}",
    };
    for (size_t i = 0; i < KVR_ARRAY_LEN(bad); i++) assert_non_null(kvr_kube_pool_read(parsed(bad[i]), &p));
}

static void slices(void **)
{
    struct kvr_kube_slice s;
    assert_null(kvr_kube_slice_read(
        parsed("{'metadata':{'name':'s'},'addressType':'IPv4','endpoints':[{'addresses':['10.0.0.1','10.0.0.9']},"
               "{'addresses':['10.0.0.2'],'conditions':{'ready':false}},{'addresses':['10.0.0.3'],'conditions':{'ready':null}},"
               "{'addresses':['fd00::1']},{'addresses':[]},{'addresses':['nobody']}]}"),
        &s));
    assert_true(s.n == 2 && strcmp(s.addresses[0], "10.0.0.1") == 0 && strcmp(s.addresses[1], "10.0.0.3") == 0);
    assert_null(kvr_kube_slice_read(parsed("{'metadata':{'name':'s'},'addressType':'IPv6','endpoints':null}"), &s));
    assert_true(s.n == 0 && s.v6);
    assert_non_null(kvr_kube_slice_read(parsed("{'metadata':{'name':'s'},'addressType':'FQDN'}"), &s));
}

static void what_goes_into_questions(void **)
{
    struct kvr_kube_ports p;
    struct kvr_buf b = {0};
    kvr_kube_put_query(&b, "app=q,x.io/a=b c\xc3");
    assert_true(b.len == strlen("app%3Dq%2Cx.io%2Fa%3Db%20c%C3") && memcmp(b.data, "app%3Dq%2Cx.io%2Fa%3Db%20c%C3", b.len) == 0);
    kvr_buf_free(&b);
    assert_true(kvr_kube_selector_ok("a=b") && kvr_kube_selector_ok("a.io/b=,c=d"));
    static const char *const bad[] = {"", "a", "a=b,", ",a=b", "a==b", "a!=b", "a in (b)", "a=b=c"};
    for (size_t i = 0; i < KVR_ARRAY_LEN(bad); i++) assert_false(kvr_kube_selector_ok(bad[i]));
    assert_true(kvr_kube_name_ok("vllm-0.b") && !kvr_kube_name_ok("") && !kvr_kube_name_ok("../a") && !kvr_kube_name_ok("a/b") &&
                !kvr_kube_name_ok("a?b"));
    assert_true(kvr_kube_ports_parse("1, 65535", 8, &p) && p.n == 2);
    static const char *const ports[] = {"", ",", "1,", "0", "65536", "1,1", "1,2,3,4,5,6,7,8,9", "a", "1 2"};
    for (size_t i = 0; i < KVR_ARRAY_LEN(ports); i++) assert_false(kvr_kube_ports_parse(ports[i], strlen(ports[i]), &p));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(lines_of_a_watch), cmocka_unit_test(pages_of_a_list),          cmocka_unit_test(pods), cmocka_unit_test(pools),
        cmocka_unit_test(slices),           cmocka_unit_test(what_goes_into_questions),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
