# SPDX-License-Identifier: Apache-2.0
"""What each real publisher is made to publish, and what the router must read in it then. Blocks of 4 tokens.

A step is (what a release must be able to say, batch, expectations): the batch as scripts/engines/publishers.py takes it, an expectation a
question of /overlap_scores and the device blocks that answer it. tests/engines runs it live; scripts/engines/record.py records it."""

BLOCK = 4
RELEASES = {  # what each can say beside stores, removals and clears; how it names blocks
    "vllm-0.9.2": {"copies"},
    "vllm-0.11.0": {"copies", "medium"},
    "vllm-0.16.0": {"copies", "medium", "lora_name", "bytes"},
    "vllm-0.32.0": {"copies", "medium", "lora_name", "extra_keys", "groups"},
    "sglang-0.5.23": {"medium", "lora_name", "cache_salt", "signed"},  # a page of its tree has a name of its own: no copies
}


def name(can, n):
    """The n-th block's name, as the release gives them: numbers, negative ones, or digests."""
    if "bytes" in can:
        return "0x" + f"{n:02x}" * 32
    return -n * 1000003 if "signed" in can else n * 1000003


def steps(release):
    can = RELEASES[release]
    a, b, c, d, e = (list(range(k, k + 32)) for k in (100, 200, 300, 400, 500))

    def store(names, tokens, parent=None, **members):
        return {"store": {"block_hashes": [name(can, n) for n in names], "parent_block_hash": parent and name(can, parent), "token_ids": tokens,
                          "block_size": BLOCK, **({"medium": "GPU"} if "medium" in can else {}), **members}}

    def remove(*names):
        return {"remove": {"block_hashes": [name(can, n) for n in names], **({"medium": "GPU"} if "medium" in can else {})}}

    def ask(blocks, tokens, **more):
        return {"token_ids": tokens, **more}, blocks

    salted, below = {}, {}
    if "extra_keys" in can:
        salted, below = {"extra_keys": [["s1"], None]}, {"extra_keys": [None]}
    elif "cache_salt" in can:
        salted = below = {"cache_salt": "s1"}
    both = {"lora_name": "ad1", "lora_id": 1, "extra_keys": [["ad1", "s1"], ["ad1"]]} if "extra_keys" in can else {"lora_name": "ad1", "cache_salt": "s1"}
    plan = [
        ((), [store([1, 2], a[:8])], [ask(2, a)]),
        ((), [store([3], a[8:12], 2), store([4], a[12:16], 3)], [ask(4, a)]),
        ((), [remove(4)], [ask(3, a)]),
        ((), [remove(3), store([5, 6], b[8:16], 2)], [ask(2, a), ask(4, a[:8] + b[8:])]),
        (("copies",), [store([2], a[4:8], 1)], [ask(2, a)]),  # a second copy
        (("copies",), [remove(2)], [ask(2, a)]),  # one is left
        ((), [remove(2)], [ask(1, a)]),
        ((), [remove(1)], [ask(0, a)]),
        (("medium",), [store([31], e[:4], medium="CPU")], [ask(0, e)]),
        (("lora_name",), [store([11, 12], c[:8], lora_name="ad1", lora_id=1)], [ask(2, c, lora_name="ad1"), ask(0, c), ask(0, c, lora_name="ad2")]),
        (("lora_name",), [store([13], c[8:12], 12, lora_name="ad1", lora_id=1)], [ask(3, c, lora_name="ad1"), ask(0, c)]),
        (("salt",), [store([14, 15], d[:8], **salted)], [ask(2, d, cache_salt="s1"), ask(0, d), ask(0, d, cache_salt="s2")]),
        (("salt",), [store([16], d[8:12], 15, **below)], [ask(3, d, cache_salt="s1"), ask(0, d)]),
        (("salt",), [store([17, 18], d[:8], **both)], [ask(2, d, cache_salt="s1", lora_name="ad1"), ask(3, d, cache_salt="s1"), ask(0, d, lora_name="ad1")]),
        (("groups",), [store([21, 22], e[:8], group_idx=0, kv_cache_spec_kind="full_attention")], [ask(2, e)]),
        ((), [{"clear": {}}], [ask(0, a), ask(0, c, lora_name="ad1"), ask(0, d, cache_salt="s1")]),
        ((), [store([1, 2], a[:8])], [ask(2, a)]),
    ]
    can = can | ({"salt"} if can & {"extra_keys", "cache_salt"} else set())
    return [(batch, asks) for need, batch, asks in plan if set(need) <= can]
