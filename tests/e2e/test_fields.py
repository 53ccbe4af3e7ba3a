# SPDX-License-Identifier: Apache-2.0
"""Members of bodies: a number that is out of range, or none, is refused and named, never read as 0 or as absent; its neighbours are
what they are; a member that is there twice is refused, since two readers would take different ones."""
import json
import pathlib
import re
import subprocess

import pytest
from conftest import BINARY, Indexer, Mock, Publish, ScriptedServer, Select, Serve, call, free_ports, wait_for

BEYOND = ["18446744073709551616", "-9223372036854775809", "1e400", "-1e400", "123456789012345678901234567890"]
NO_COUNT = BEYOND + ["-1", "1.5", '"1"', "true", "[]", "{}"]
NO_NUMBER = BEYOND[2:4] + ['"1"', "true", "[]", "{}"]  # integers beyond 64 bits are not checked apart: a double could hold them
JSON = {"Content-Type": "application/json"}


def raw(port, path, text, method="POST", headers=None):
    """Sends the text as it is."""
    return call(port, method, path, text.encode(), {**JSON, **(headers or {})})


# (path, body with @ where the value goes, the member that is named)
COUNTS = [
    ("/workers", '{"worker_id":@,"endpoint":"http://h:1"}', "worker_id"),
    ("/workers", '{"worker_id":5,"endpoint":"http://h:1","block_size":@}', "block_size"),
    ("/workers", '{"worker_id":5,"endpoint":"http://h:1","data_parallel_start_rank":@}', "data_parallel_start_rank"),
    ("/workers", '{"worker_id":5,"endpoint":"http://h:1","data_parallel_size":@}', "data_parallel_size"),
    ("/workers", '{"worker_id":5,"endpoint":"http://h:1","max_num_batched_tokens":@}', "max_num_batched_tokens"),
    ("/workers", '{"worker_id":5,"endpoint":"http://h:1","total_kv_blocks":@}', "total_kv_blocks"),
    ("/register", '{"worker_id":@,"model_name":"x","block_size":4,"dp_start":0,"dp_size":1}', "worker_id"),
    ("/register", '{"worker_id":5,"model_name":"x","block_size":@,"dp_start":0,"dp_size":1}', "block_size"),
    ("/register", '{"worker_id":5,"model_name":"x","block_size":4,"dp_start":@,"dp_size":1}', "dp_start"),
    ("/register", '{"worker_id":5,"model_name":"x","block_size":4,"dp_start":0,"dp_size":@}', "dp_size"),
    ("/unregister", '{"worker_id":@,"model_name":"default"}', "worker_id"),
    ("/add", '{"model_name":"default","request_id":"r","worker_id":@,"dp_rank":0,"sequence_hashes":[]}', "worker_id"),
    ("/add", '{"model_name":"default","request_id":"r","worker_id":0,"dp_rank":@,"sequence_hashes":[]}', "dp_rank"),
    ("/add", '{"model_name":"default","request_id":"r","worker_id":0,"dp_rank":0,"sequence_hashes":[],"new_isl_tokens":@}', "new_isl_tokens"),
    ("/select", '{"token_ids":[1,@]}', "token_ids"),
    ("/select", '{"tokens":[1,@]}', "token_ids"),
    ("/select", '{"block_hashes":[1],"sequence_hashes":[1],"isl_tokens":@}', "isl_tokens"),
    ("/select", '{"token_ids":[1],"strict_priority":@}', "strict_priority"),
    ("/select", '{"token_ids":[1],"pinned_worker":{"worker_id":@}}', "pinned_worker"),
    ("/select", '{"token_ids":[1],"pinned_worker":{"worker_id":0,"dp_rank":@}}', "pinned_worker"),
    ("/select", '{"token_ids":[1],"shared_cache_ranges":[[0,@]]}', "shared_cache_ranges"),
    ("/select", '{"token_ids":[1],"shared_cache_ranges":[[@,9]]}', "shared_cache_ranges"),
    ("/select_and_reserve", '{"token_ids":[1,2,@]}', "token_ids"),
    ("/overlap_scores", '{"token_ids":[@]}', "token_ids"),
    ("/potential_loads", '{"sequence_hashes":[1],"new_isl_tokens":@}', "new_isl_tokens"),
    ("/query", '{"token_ids":[@]}', "token_ids"),
    ("/reservations", '{"worker_id":@,"dp_rank":0,"sequence_hashes":[1],"isl_tokens":4}', "worker_id"),
    ("/reservations", '{"worker_id":0,"dp_rank":@,"sequence_hashes":[1],"isl_tokens":4}', "dp_rank"),
    ("/reservations", '{"worker_id":0,"dp_rank":0,"sequence_hashes":[1],"isl_tokens":@}', "isl_tokens"),
    ("/reservations", '{"worker_id":0,"dp_rank":0,"sequence_hashes":[1],"isl_tokens":4,"effective_prefill_tokens":@}',
     "effective_prefill_tokens"),
    ("/request", '{"method":"new","tokens":[@]}', "token_ids"),
    ("/request", '{"method":"new","tokens":[1],"strict_priority":@}', "strict_priority"),
    ("/request", '{"method":"potential_loads","tokens":[@]}', "token_ids"),
]
HASHES = [  # signed or not
    ("/add", '{"model_name":"default","request_id":"r","worker_id":0,"dp_rank":0,"sequence_hashes":[@]}', "sequence_hashes"),
    ("/select", '{"block_hashes":[@],"isl_tokens":4}', "block_hashes"),
    ("/select", '{"block_hashes":[1],"sequence_hashes":[@],"isl_tokens":4}', "sequence_hashes"),
    ("/select", '{"token_ids":[1],"allowed_worker_ids":[0,@]}', "allowed_worker_ids"),
    ("/overlap_scores", '{"block_hashes":[@]}', "block_hashes"),
    ("/query_by_hash", '{"block_hashes":[@]}', "block_hashes"),
    ("/potential_loads", '{"sequence_hashes":[@],"new_isl_tokens":4}', "sequence_hashes"),
    ("/reservations", '{"worker_id":0,"dp_rank":0,"sequence_hashes":[@],"isl_tokens":4}', "sequence_hashes"),
]
NUMBERS = [
    ("/select", '{"token_ids":[1],"priority_jump":@}', "priority_jump"),
    ("/select", '{"token_ids":[1],"routing_constraints":{"preferred_taints":{"a":@}}}', "preferred_taints"),
    ("/select", '{"token_ids":[1],"router_config_override":{"overlap_score_credit":@}}', "overlap_score_credit"),
    ("/select", '{"token_ids":[1],"router_config_override":{"prefill_load_scale":@}}', "prefill_load_scale"),
    ("/select", '{"token_ids":[1],"router_config_override":{"router_temperature":@}}', "router_temperature"),
    ("/select", '{"token_ids":[1],"router_config_override":{"shared_cache_multiplier":@}}', "shared_cache_multiplier"),
    ("/select", '{"token_ids":[1],"router_config_override":{"overlap_score_weight":@}}', "overlap_score_weight"),
    ("/busy_threshold", '{"active_decode_blocks_threshold":@}', "active_decode_blocks_threshold"),
    ("/busy_threshold", '{"active_prefill_tokens_threshold":@}', "active_prefill_tokens_threshold"),
    ("/busy_threshold", '{"active_prefill_tokens_threshold_frac":@}', "active_prefill_tokens_threshold_frac"),
    ("/reservations/kept/output_block", '{"decay_fraction":@}', "decay_fraction"),
]
NEGATIVE = [("/select", '{"token_ids":[1],"router_config_override":{"%s":@}}' % k, k)
            for k in ("overlap_score_credit", "router_temperature", "shared_cache_multiplier", "prefill_load_scale")]


def rows():
    for list_, values in ((COUNTS, NO_COUNT), (HASHES, [v for v in NO_COUNT if v != "-1"]), (NUMBERS, NO_NUMBER), (NEGATIVE, ["-1"])):
        for path, body, field in list_:
            yield from ((path, body.replace("@", v), field) for v in values)


@pytest.fixture
def select(start):
    s = start(Select)
    for i in (0, 1):
        s.ask("/workers", {"worker_id": i, "endpoint": f"http://10.0.0.{i}:8000", "block_size": 4}, 201, headers=JSON)
    s.ask("/select_and_reserve", {"token_ids": [1, 2, 3, 4, 5], "selection_id": "kept"}, headers=JSON)
    return s


def settled(s):
    """The workers, but for what the passing of time changes."""
    return [{k: v for k, v in w.items() if k != "since_s"} for w in s.get("/workers")]


def test_a_number_that_is_none_is_refused_and_named_by_every_admin_route(select):
    before = settled(select), select.loads(), select.get("/busy_threshold")
    wrong = []
    for path, body, field in rows():
        r = raw(select.port, path, body)
        text = r.json().get("error", "") if r.status < 500 else r.body.decode()
        if r.status != 400 or f"'{field}'" not in text or "allowed" not in text:
            wrong.append((path, body, r.status, text))
    assert not wrong, "\n".join(map(str, wrong))
    assert (settled(select), select.loads(), select.get("/busy_threshold")) == before


def test_every_member_of_a_body_has_words_for_what_is_allowed():
    folder = pathlib.Path(__file__).parents[2] / "src/app/serve"
    text = {str(f.relative_to(folder)): f.read_text(encoding="utf-8") for f in folder.rglob("*.c")}
    read = set(re.findall(r'member_(?:u64|text|double|bool)\(o, "(\w+)"', "".join(text.values())))
    for name in ("admin/question.c", "admin/tracker.c", "admin/selection.c", "admin/worker_object.c", "admin/questions.c", "workers/entry/read_object.c"):
        read |= set(re.findall(r'(?:bad = |return |bad_field\(c, |\? |: )"([a-z_]+)"', text[name])) & set(re.findall(r'"([a-z]+_[a-z_]+)"', text[name]))
    assert {"worker_id", "token_ids", "endpoint"} <= read
    read -= {"prefill_marked", "free_marked"}  # answers
    assert {m for m in read if f'{{"{m}", ' not in text["common/fields.c"]} == set()


def test_patch_refuses_a_number_beyond_64_bits(select):
    for v in NO_COUNT:
        r = raw(select.port, "/workers/0", '{"total_kv_blocks":%s}' % v, "PATCH")
        assert r.status == 400 and "total_kv_blocks" in r.json()["error"]
    for rank in ("18446744073709551616", "4294967296", "-0", " 0", "+0", "0x0", ""):
        r = raw(select.port, "/workers/0", '{"kv_events_endpoints":{"%s":"tcp://h:1"}}' % rank, "PATCH")
        assert r.status == 400 and "kv_events_endpoints" in r.json()["error"]


def test_a_worker_id_beyond_64_bits_in_a_path_is_no_worker(start):
    s = start(Select)
    top = 2 ** 64 - 1
    s.ask("/workers", {"worker_id": top, "endpoint": "http://10.0.0.1:1", "block_size": 4}, 201, headers=JSON)
    for bad in ("18446744073709551616", "99999999999999999999999", "-1", "+1", "1x"):
        assert call(s.port, "DELETE", f"/workers/{bad}").status == 404
    assert [w["worker_id"] for w in s.get("/workers")] == [top]
    assert call(s.port, "DELETE", f"/workers/{top}").status == 200


def test_a_number_that_nobody_reads_does_not_turn_its_neighbours_into_0(select):
    """1e400 used to make every long number of the body a 0."""
    top = 2 ** 64 - 1
    s = select
    r = raw(s.port, "/workers", '{"worker_id":%d,"endpoint":"http://h:1","block_size":4,"note":1e400,"total_kv_blocks":1234567890123456789}' % top)
    assert r.status == 400 and "unknown member 'note'" in r.json()["error"]
    r = raw(s.port, "/workers", '{"worker_id":%d,"endpoint":"http://h:1","block_size":4,"taints":[],"total_kv_blocks":1234567890123456789}' % top)
    assert r.status == 201
    w = {w["worker_id"]: w for w in s.get("/workers")}
    assert set(w) == {0, 1, top} and w[top]["total_kv_blocks"] == 1234567890123456789
    r = raw(s.port, "/unregister", '{"x":-1e999,"worker_id":%d,"model_name":"default"}' % top)
    assert r.status == 200 and {w["worker_id"] for w in s.get("/workers")} == {0, 1}


def test_a_member_that_is_there_twice_is_refused_by_the_admin_port(select):
    for path, body, name in [
            ("/unregister", '{"worker_id":5,"model_name":"default","worker_id":0}', "worker_id"),
            ("/select", '{"cache_salt":"a","token_ids":[1],"cache_salt":"b"}', "cache_salt"),
            ("/select", '{"token_ids":[1],"pinned_worker":{"worker_id":0,"worker_id":1}}', "worker_id"),
            ("/router_mode", '{"router_mode":"kv","router\\u005fmode":"random"}', "router_mode"),
            ("/query", '{"token_ids":[1],"token_ids":[2]}', "token_ids")]:
        r = raw(select.port, path, body)
        assert r.status == 400 and f"'{name}'" in r.json()["error"], r.body
    r = raw(select.port, "/select", "{%s}" % ",".join(f'"k{i}":0' for i in range(5000)))
    assert r.status == 400 and "4096" in r.json()["error"]
    assert len(select.get("/workers")) == 2


# ---- the indexer -------------------------------------------------------------------------------------------------------

REGISTER = '"endpoint":"tcp://127.0.0.1:1","model_name":"m"'
INDEXER = [
    ("/register", '{"instance_id":@,"block_size":4,%s}' % REGISTER, "instance_id"),
    ("/register", '{"instance_id":5,"block_size":@,%s}' % REGISTER, "block_size"),
    ("/register", '{"instance_id":5,"block_size":4,"dp_rank":@,%s}' % REGISTER, "dp_rank"),
    ("/unregister", '{"instance_id":@,"model_name":"m"}', "instance_id"),
    ("/unregister", '{"instance_id":0,"model_name":"m","routing_group":"default","dp_rank":@}', "dp_rank"),
    ("/query", '{"model_name":"m","token_ids":[1,2,@]}', "token_ids"),
    ("/test/pause_listener", '{"instance_id":@}', "instance_id"),
    ("/test/pause_listener", '{"instance_id":0,"dp_rank":@}', "dp_rank"),
    ("/test/resume_listener", '{"instance_id":0,"dp_rank":@}', "dp_rank"),
    ("/events", '{"model_name":"e","block_size":@,"events":[]}', "block_size"),
    ("/events", '{"model_name":"e","block_size":4,"events":[{"worker_id":@,"event":{"event_id":0,"data":"cleared"}}]}', "events[0]"),
    ("/events", '{"model_name":"e","block_size":4,"events":[{"worker_id":9,"event":{"event_id":@,"data":"cleared"}}]}', "events[0]"),
    ("/events", '{"model_name":"e","block_size":4,"events":[{"worker_id":9,"event":{"event_id":0,"data":"cleared","dp_rank":@}}]}', "events[0]"),
    ("/events", '{"model_name":"e","block_size":4,"events":[{"worker_id":9,"event":{"event_id":0,"data":{"stored":{"parent_hash":@,"blocks":[]}}}}]}',
     "events[0]"),
    ("/events", '{"model_name":"e","block_size":4,"events":[{"worker_id":9,"event":{"event_id":0,"data":{"stored":{"start_position":@,"blocks":[]}}}}]}',
     "events[0]"),
    ("/events", '{"model_name":"e","block_size":4,"events":[{"worker_id":9,"event":{"event_id":0,"data":{"stored":{"blocks":[{"block_hash":@,'
     '"tokens_hash":1}]}}}}]}', "events[0]"),
    ("/events", '{"model_name":"e","block_size":4,"events":[{"worker_id":9,"event":{"event_id":0,"data":{"stored":{"blocks":[{"block_hash":1,'
     '"tokens_hash":@}]}}}}]}', "events[0]"),
]
INDEXER_HASHES = [
    ("/query_by_hash", '{"model_name":"m","block_hashes":[@]}', "block_hashes"),
    ("/kv_indexer_query", '{"model_name":"m","block_hashes":[1,@]}', "block_hashes"),
    ("/events", '{"model_name":"e","block_size":4,"events":[{"worker_id":9,"event":{"event_id":0,"data":{"removed":{"block_hashes":[@]}}}}]}',
     "events[0]"),
]


def test_a_number_that_is_none_is_refused_and_named_by_every_indexer_route(start, engine):
    ix, e = start(Indexer, "--test-endpoints", "--accept-events"), engine()
    ix.register(0, e)
    wrong = []
    for rows_, values in ((INDEXER, NO_COUNT), (INDEXER_HASHES, [v for v in NO_COUNT if v != "-1"])):
        for path, body, field in rows_:
            for v in values:
                r = raw(ix.port, path, body.replace("@", v))
                if r.status not in (400, 422) or field not in r.body.decode():
                    wrong.append((path, body.replace("@", v), r.status, r.body))
    assert not wrong, "\n".join(map(str, wrong))
    assert [w["instance_id"] for w in ix.get("/workers")] == [0]  # the one that such numbers used to mean


def test_unregister_of_an_instance_beyond_64_bits_removes_nobody(start, engine):
    ix, e = start(Indexer), engine()
    ix.register(0, e)
    r = raw(ix.port, "/unregister", '{"instance_id":18446744073709551616,"model_name":"m"}')
    assert r.status == 422 and "instance_id" in r.json()["error"]
    r = raw(ix.port, "/unregister", '{"instance_id":12345678901234567890,"model_name":"m","x":1e400}')
    assert r.status == 404 and "12345678901234567890" in r.json()["error"]
    assert [w["instance_id"] for w in ix.get("/workers")] == [0]


def test_a_member_that_is_there_twice_is_refused_by_the_indexer(start, engine):
    ix, e = start(Indexer), engine()
    ix.register(0, e)
    for path, body, name in [("/unregister", '{"instance_id":5,"instance_id":0,"model_name":"m"}', "instance_id"),
                             ("/query", '{"model_name":"m","token_ids":[1],"cache_salt":"a","cache_salt":"b"}', "cache_salt"),
                             ("/kv_indexer_query", '{"model_name":"m","block_hashes":[1],"block_hashes":[2]}', "block_hashes")]:
        r = raw(ix.port, path, body)
        assert r.status == 400 and f"`{name}`" in r.json()["error"], r.body
    assert [w["instance_id"] for w in ix.get("/workers")] == [0]


def test_a_filter_that_is_too_long_filters(start, engine):
    ix, e = start(Indexer), engine()
    ix.register(0, e)
    assert ix.get("/workers?model_name=" + "m" * 3000) == []
    assert ix.get("/workers?routing_group=default%00") == []
    s = start(Select)
    s.ask("/workers", {"worker_id": 1, "endpoint": "http://10.0.0.1:1"}, 201, headers=JSON)
    assert s.get("/workers?model_name=" + "m" * 3000) == [] and s.get("/loads?routing_group=" + "m" * 3000) == []


# ---- what comes from peers, files and engines -----------------------------------------------------------------------------

EVENT = '{"worker_id":%s,"event":{"event_id":0,"data":{"stored":{"blocks":[{"block_hash":1,"tokens_hash":2}]}},"dp_rank":0}}'


@pytest.mark.parametrize("dump", ['{"m:default":{"block_size":4,"events":[%s]}}' % (EVENT % "18446744073709551616"),
                                  '{"m:default":{"block_size":4,"note":1e400,"events":[%s]}}' % (EVENT % "1e400"),
                                  '{"m:default":{"block_size":18446744073709551620,"events":[%s]}}' % (EVENT % "7"),
                                  '{"m:default":{"block_size":4.0,"events":[%s]}}' % (EVENT % "7"),
                                  '{"m:default":{"block_size":-4,"events":[%s]}}' % (EVENT % "7"),
                                  '{"m:default":{"block_size":"4","events":[%s]}}' % (EVENT % "7"),
                                  '{"m:default":{"block_size":["4"],"events":[%s]}}' % (EVENT % "7")])
def test_a_dump_of_a_peer_with_such_numbers_is_not_taken(start, dump):
    peer = ScriptedServer(lambda q: dump.encode())
    try:
        ix = start(Indexer, "--peers", peer.url, ready=False)
        wait_for("over it", lambda: call(ix.port, "GET", "/health").status == 200 and peer.asked)
        wait_for("ready", lambda: call(ix.port, "GET", "/ready").status == 200, 20)
        assert ix.get("/dump") == {} or all(not p["events"] for p in ix.get("/dump").values())
    finally:
        peer.close()


def test_a_recorded_line_with_such_a_number_is_refused(tmp_path):
    for v in BEYOND + ["-1", "1.5"]:
        for line in ('{"timestamp":1,"event":%s}' % (EVENT % v), '{"timestamp":%s,"event":%s}' % (v, EVENT % "7")):
            (tmp_path / "r.jsonl").write_text(line + "\n")
            r = subprocess.run([BINARY, "replay-events", "--check", str(tmp_path / "r.jsonl")], capture_output=True, text=True)
            assert r.returncode != 0 and "line 1" in r.stdout + r.stderr, (line, r)


def test_a_trace_line_with_such_a_number_is_refused(tmp_path):
    for key in ("timestamp", "input_length", "output_length", "hash_ids"):
        row = {"timestamp": 0, "input_length": 10, "output_length": 2, "hash_ids": [1]}
        row[key] = ["@"] if key == "hash_ids" else "@"
        (tmp_path / "t.jsonl").write_text(json.dumps(row).replace('"@"', "1e400") + "\n")
        r = subprocess.run([BINARY, "replay", "--url", "http://127.0.0.1:1", "--trace", str(tmp_path / "t.jsonl")], capture_output=True, text=True)
        assert r.returncode != 0 and key in r.stderr, (key, r)


def test_a_discovery_line_with_a_number_beyond_64_bits_is_refused(tmp_path):
    for line, key in (("http://h:1,id=18446744073709551616", "id"), ("http://h:1,total-kv-blocks=99999999999999999999", "total-kv-blocks")):
        (tmp_path / "workers").write_text(line + "\n")
        r = subprocess.run([BINARY, "serve", "--host", "127.0.0.1", "--port", str(free_ports()), "--admin-port", str(free_ports()), "--discovery", "file",
                            "--discovery-target", str(tmp_path / "workers")], capture_output=True, text=True, timeout=60)
        assert r.returncode != 0 and f"'{key}'" in r.stderr and "workers:1: worker:" in r.stderr, r.stderr


def test_options_refuse_numbers_that_wrap(tmp_path):
    (tmp_path / "r.jsonl").write_text("")
    for option in ("--max-count=-1", "--max-count=18446744073709551617", "--block-size=-16", "--block-size=18446744073709551632", "--max-count="):
        r = subprocess.run([BINARY, "replay-events", "--check", option, str(tmp_path / "r.jsonl")], capture_output=True, text=True)
        assert r.returncode == 2 and option[2:].split("=")[0] in r.stderr, r


def test_a_recovery_question_with_such_a_number_is_refused(start, engine):
    p = start(Publish, engine(), "--worker-id", 1)
    for v in ("18446744073709551616", "-1", "1.5", "0x1", "1%00", "0" * 100 + "1"):
        for key in ("start", "end", "dp_rank", "worker_id"):
            r = call(p.port, "GET", f"/kv_recover?{key}={v}")
            assert r.status == 400 and key in r.json()["Error"], (key, v, r.body)


# ---- the data port -----------------------------------------------------------------------------------------------------

def test_a_body_with_numbers_that_only_the_engine_reads_is_relayed_and_read_right(start):
    """The engine gets the bytes; routing reads the tokens beside a number that fits nowhere."""
    m = start(Mock)
    s = start(Serve, [m])
    tokens = list(range(1000, 1032))
    body = '{"prompt":%s,"max_tokens":2,"seed":123456789012345678901234567890,"x":[1e400,-1e999]}' % json.dumps(tokens)
    r = raw(s.port, "/v1/completions", body)
    assert r.status == 200, r.body
    wait_for("stored", lambda: s.overlap(tokens)[(1, 0)] == 2)
    r = raw(s.port, "/v1/completions", body)
    assert r.status == 200 and int(r.headers["x-kvroute-overlap-blocks"]) == 2


def test_members_that_routing_reads_are_refused_twice_on_the_data_port(start):
    m = start(Mock)
    s = start(Serve, [m])
    for body, name in [('{"prompt":"x","cache_salt":"a","cache_salt":"b"}', "cache_salt"),
                       ('{"model":"nobody","prompt":"x","model":"mock-model"}', "model"),
                       ('{"prompt":"x","prompt":"y"}', "prompt"),
                       ('{"prompt":"x","nvext":{"token_data":[1],"token_data":[2]}}', "nvext.token_data")]:
        r = raw(s.port, "/v1/completions", body)
        assert r.status == 400 and f"`{name}`" in r.json()["error"]["message"], r.body
    r = raw(s.port, "/v1/completions", '{"prompt":"x","nvext":{"token_data":[1,18446744073709551616]}}')
    assert r.status == 400 and "token_data" in r.json()["error"]["message"]
    r = raw(s.port, "/v1/completions", '{"prompt":"x","max_tokens":1,"logit_bias":{"1":0,"1":0}}')
    assert r.status == 200, r.body  # what only the engine reads is the engine's business


def test_the_highest_worker_id_can_be_pinned(start):
    top = 2 ** 64 - 1
    m = start(Mock)
    s = start(Serve, [m.spec(f",id={top}")])
    assert s.complete("x", headers={**JSON, "x-kvroute-worker": str(top)}).headers["x-kvroute-worker"] == str(top)
    for bad in ("18446744073709551616", "99999999999999999999999", "-1", ""):
        assert s.complete("x", headers={**JSON, "x-kvroute-worker": bad}).status // 100 == 4
