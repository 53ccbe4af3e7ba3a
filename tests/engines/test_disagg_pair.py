# SPDX-License-Identifier: Apache-2.0
"""Two real engines, of which one computes prompts and the other one answers: vLLM's NixlConnector and its ExampleConnector, on the CPU.

The answer of one engine alone is the judge of every text. What a prefill engine keeps is seen in its metrics: it must be nothing in the end, and
nothing of it may have been kept until the lease was over (LEASE is far longer than these tests)."""
from harness import LEASE, Leg, Serve, cached, post, predicted, scrape, tokens, usage, wait_until
from pair_parts import EXPIRED, PATIENCE, bodies, fleet_of, leave_at_any_moment, let_go, same_as_alone

def test_a_decode_engine_goes_on_from_what_a_prefill_engine_has_computed(start, pair):
    keeps, takes = pair
    s, expired, moved = fleet_of(start, pair, "vllm-nixl"), scrape(keeps, EXPIRED), scrape(takes, "vllm:nixl_xfer_time_seconds_count")
    for path, body in bodies(1, 18):
        same_as_alone(s, keeps, path, body)
    wait_until("the transfers", lambda: scrape(takes, "vllm:nixl_xfer_time_seconds_count") > moved, PATIENCE)
    let_go(keeps, expired)
    s.idle()


def test_what_a_prefill_engine_has_cached_is_what_was_predicted(start, pair, settle):
    """A conversation: what the client is told is what the prefill engine had, not what the decode engine says of its own cache."""
    keeps, _ = pair
    s, expired = fleet_of(start, pair, "vllm-nixl"), scrape(keeps, EXPIRED)
    prompt, hits = tokens(2, 150), 0
    for turn in range(6):
        settle(s, [keeps], last=True)
        a = same_as_alone(s, keeps, "/v1/completions", {"model": "tiny", "prompt": prompt, "max_tokens": 6, "temperature": 0, "stream": turn % 2 == 0,
                                                        **({"stream_options": {"include_usage": True}} if turn % 2 == 0 else {})})
        assert usage(a)["prompt_tokens"] == len(prompt)
        assert cached(a) == predicted(a)
        hits += cached(a)
        prompt = prompt + tokens(turn + 100, 90)
    assert hits > 0
    let_go(keeps, expired)


def test_a_prompt_that_nobody_goes_on_from_is_released(start, pair):
    """The decode worker that the client has pinned is gone when the prompt is computed: another one takes the blocks, for one token."""
    keeps, takes = pair
    gone = Leg(lambda n, body: 500)
    gone.models = ["tiny"]
    expired = scrape(keeps, EXPIRED)
    s = start(Serve, [keeps.spec(f",role=prefill,kv-lease={LEASE}"), takes.spec(",role=decode"), gone.spec("decode").replace("block-size=16", f"block-size={keeps.block}")],
              "--health-interval", 3600, "--max-retries", 0, "--disagg-release-timeout", 300)
    gone.vanish()
    a = post(s, "/v1/completions", {"model": "tiny", "prompt": tokens(3, 300), "max_tokens": 20}, {"x-kvroute-worker": "3"}, timeout=300)
    assert a.status == 502, a.body
    let_go(keeps, expired)
    wait_until("the end of the release", s.idle, PATIENCE)
    assert s.metric("disagg_releases_total", how="dispatched") == 1 and s.metric("disagg_releases_total", how="failed") == 0


def test_clients_that_leave_at_any_moment_leave_nothing_behind(start, pair):
    keeps, _ = pair
    s, expired = fleet_of(start, pair, "vllm-nixl"), scrape(keeps, EXPIRED)
    leave_at_any_moment(s)
    if s.metric("disagg_possible_leaks_total") == 0:  # else the router says itself that the lease may have to do it
        let_go(keeps, expired)
    for path, body in bodies(5, 4):
        same_as_alone(s, keeps, path, body)


def test_engines_that_share_a_store_need_no_object(start, sharing):
    """ExampleConnector finds a prompt by its tokens, if it has more than one block and is not a multiple of the block and one more."""
    writes, reads = sharing
    s, hits = fleet_of(start, sharing, "none"), scrape(reads, "vllm:external_prefix_cache_hits_total")
    for seed in range(4):
        body = {"model": "tiny", "prompt": tokens(seed, 200 + seed), "max_tokens": 6, "temperature": 0, "stream": bool(seed & 1)}
        same_as_alone(s, writes, "/v1/completions", body)
    assert scrape(reads, "vllm:external_prefix_cache_hits_total") >= hits + 4 * 160
