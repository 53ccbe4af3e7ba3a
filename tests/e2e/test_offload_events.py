# SPDX-License-Identifier: Apache-2.0
"""What engines tell of tiers beyond the device, as they tell it: by names alone, in chunks, in other letters, of other owners. In every
program that follows events each tier's depth is right, and the device's view stays whole."""
import pytest

from conftest import Indexer, Publish, Select, Serve

TOKENS = list(range(1, 41))
NAMES = [11 + i for i in range(10)]
BS = 4


def stored(form, names, tokens=(), parent=None, block_size=0, medium="CPU", **more):
    """As vLLM 0.32 writes it: a map with every field that is not a default; or the same as an array."""
    if form == "map":
        return {"type": "BlockStored", "block_hashes": names, "parent_block_hash": parent, "token_ids": list(tokens), "block_size": block_size,
                "lora_id": None, "medium": medium, "lora_name": None, **more}
    tail = [more.get(k) for k in ("extra_keys", "group_idx", "kv_cache_spec_kind", "kv_cache_spec_sliding_window", "locality", "ownership")]
    return ["BlockStored", names, parent, list(tokens), block_size, None, medium, None] + tail


def removed(form, names, medium="CPU", **more):
    if form == "map":
        return {"type": "BlockRemoved", "block_hashes": names, "medium": medium, **more}
    return ["BlockRemoved", names, medium] + [more.get(k) for k in ("group_idx", "locality", "ownership")]


class Fleet:
    """Every program that follows one engine's events: four directly, one router behind `publish`."""

    def __init__(self, start, engine):
        self.e = engine()
        ends = {"kv_events_endpoints": {"0": f"tcp://127.0.0.1:{self.e.events}"}, "replay_endpoint": f"tcp://127.0.0.1:{self.e.replay_port}"}
        self.publish = start(Publish, self.e, block_size=BS)
        url = f"http://127.0.0.1:1,events=tcp://127.0.0.1:{self.e.events},replay=tcp://127.0.0.1:{self.e.replay_port},model=m"
        behind = f"http://127.0.0.1:1,events=tcp://127.0.0.1:{self.publish.out},recover={self.publish.url},model=m"
        self.serve = start(Serve, [url], "--block-size", BS, ready=False)
        self.behind = start(Serve, [behind], "--block-size", BS, ready=False)
        self.select = start(Select)
        self.select.worker(1, **ends)
        self.indexer = start(Indexer)
        self.indexer.register(1, self.e)
        self.e.until("all follow", lambda: all(v == "whole" for v in self.views()))

    def routers(self):
        return (self.serve, self.behind, self.select)

    def views(self):
        return [s.views()[(1, 0)]["view"] for s in self.routers()] + ["whole" if self.indexer.whole() else "?"]

    def tell(self, *events):
        self.e.send(self.e.batch(*events))

    def depths(self):
        """Blocks on the device, with the host's, with all: of each program. They must agree."""
        rows = []
        for s in self.routers():
            (r,) = s.post("/overlap_scores", {"token_ids": TOKENS + [1], "model_name": "m" if s is not self.select else "default"}).json()["workers"]
            rows.append((r["device_blocks"], r["host_pinned_blocks"], r["disk_blocks"]))
        x = self.indexer.post("/query", {"model_name": "m", "token_ids": TOKENS + [1]})["instances"].get("1", {"gpu": 0, "cpu": 0, "disk": 0})
        rows.append(tuple(x[k] // BS for k in ("gpu", "cpu", "disk")))
        return rows

    def reach(self, *want):
        self.e.until(f"depths {want}", lambda: all(d == want for d in self.depths()))
        assert all(v == "whole" for v in self.views())


@pytest.fixture
def told(start, engine):
    f = Fleet(start, engine)
    f.tell(stored("map", NAMES[:3], TOKENS[:12], None, BS, "GPU", group_idx=0))
    f.reach(3, 3, 3)
    return f


@pytest.mark.parametrize("form", ["map", "array"])
def test_a_name_without_tokens_or_size_is_a_copy_of_what_it_names(told, form):
    told.tell(stored(form, [11], group_idx=0), stored(form, [12], group_idx=0))
    told.tell(removed(form, NAMES[:3], "GPU", group_idx=0))
    told.reach(0, 2, 2)
    told.tell(removed(form, [12], group_idx=0))
    told.reach(0, 1, 1)


@pytest.mark.parametrize("form", ["map", "array"])
def test_a_chunk_larger_than_a_block_is_read_as_a_whole(told, form):
    told.tell(stored(form, [21], TOKENS[:8], None, 8))
    told.tell(removed(form, NAMES[:3], "GPU", group_idx=0))
    told.reach(0, 2, 2)
    told.tell(stored(form, [22], TOKENS[8:16], 21, 8))
    told.reach(0, 4, 4)
    told.tell(stored(form, NAMES[:3], TOKENS[:12], None, BS, "GPU", group_idx=0))
    told.reach(3, 4, 4)  # the rest of a chunk that the device has begun


@pytest.mark.parametrize("form", ["map", "array"])
def test_a_chunk_whose_event_does_not_say_what_is_before_it(told, form):
    """As LMCache inside the engine tells it: parent 0, a token of the next chunk, and a name that is made of the one before."""
    first = hash((7, tuple(TOKENS[:8]), ()))
    second = hash((first, tuple(TOKENS[8:16]), ()))
    third = hash((second, tuple(TOKENS[16:24]), ()))
    told.tell(stored(form, [first], TOKENS[:9], None, 8), removed(form, NAMES[:3], "GPU", group_idx=0))
    told.tell(stored(form, [hash((second + 1, tuple(TOKENS[8:16]), ()))], TOKENS[8:17], 0, 8))
    told.tell(stored(form, [second], TOKENS[8:17], 0, 8))
    told.reach(0, 4, 4)
    told.tell(stored(form, [third], TOKENS[16:25], 0, 8))
    told.reach(0, 6, 6)


def test_a_chunk_that_two_requests_stored_goes_at_once(told):
    told.tell(stored("map", [21], TOKENS[:8], None, 8), stored("map", [21], TOKENS[:9], None, 8), removed("map", NAMES[:3], "GPU", group_idx=0))
    told.reach(0, 2, 2)
    told.tell(removed("map", [21]))
    told.reach(0, 0, 0)


@pytest.mark.parametrize("form", ["map", "array"])
def test_a_name_with_the_true_size_and_no_tokens_is_a_copy_too(told, form):
    told.tell(*[stored(form, [n], (), None, BS, group_idx=0, kv_cache_spec_kind="full_attention", locality="LOCAL") for n in NAMES[:3]])
    told.tell(removed(form, NAMES[:3], "GPU", group_idx=0))
    told.reach(0, 3, 3)


@pytest.mark.parametrize("form", ["map", "array"])
def test_stores_write_media_in_other_letters(told, form):
    told.tell(stored(form, [14], TOKENS[12:16], 13, BS, "cpu"))
    told.reach(3, 4, 4)
    told.tell(stored(form, [15], TOKENS[16:20], 14, BS, "SHARED_STORAGE"))
    told.reach(3, 4, 5)
    told.tell(stored(form, [16], TOKENS[20:24], 15, BS, "cpu", group_idx=0))  # Mooncake's store: what others share, too
    told.reach(3, 4, 6)


@pytest.mark.parametrize("form", ["map", "array"])
def test_secondary_tiers_have_places_and_owners(told, form):
    far = {"group_idx": 0, "locality": "REMOTE", "ownership": "far"}
    told.tell(stored(form, [11], group_idx=0), stored(form, [11], group_idx=0, ownership="near"),
              stored(form, [11], medium="STORAGE", **far), stored(form, [12], medium="STORAGE", **far))
    told.tell(removed(form, NAMES[:3], "GPU", group_idx=0))
    told.reach(0, 1, 2)  # one from the host, one from what others share
    told.tell(removed(form, [11], "CPU", group_idx=0, ownership="near"))
    told.reach(0, 1, 2)  # the engine's own copy is there still
    told.tell(removed(form, [11], "CPU", group_idx=0))
    told.reach(0, 0, 2)
    told.tell(removed(form, [12], "STORAGE", **far))
    told.reach(0, 0, 1)


def test_a_copy_that_is_told_after_the_block_has_gone(told):
    told.tell(stored("map", [11], group_idx=0))
    told.tell(removed("map", [12, 13], "GPU", group_idx=0), stored("map", [12], group_idx=0), stored("map", [13], group_idx=0))
    told.reach(1, 3, 3)


@pytest.mark.parametrize("first", [stored("map", [901], group_idx=0), stored("map", [902], TOKENS[:4], 900, BS), removed("map", [903], group_idx=0)])
def test_from_a_tiers_first_event_on_names_that_leave_are_remembered(told, first):
    told.tell(first)
    told.tell(removed("map", [12, 13], "GPU", group_idx=0), stored("map", [12], group_idx=0), stored("map", [13], group_idx=0))
    told.reach(1, 3, 3)


def test_a_copy_that_is_told_before_its_block_counts_when_it_is_told_again(told):
    told.tell(stored("map", [11], group_idx=0), stored("map", [14], group_idx=0))
    told.tell(stored("map", [14], TOKENS[12:16], 13, BS, "GPU", group_idx=0))
    told.reach(4, 4, 4)
    told.tell(removed("map", [14], "GPU", group_idx=0))
    told.reach(3, 3, 3)
    told.tell(stored("map", [14], group_idx=0))
    told.reach(3, 4, 4)


def test_names_that_nobody_knows_are_counted_and_hurt_nothing(told):
    told.tell(stored("map", [901], group_idx=0), stored("map", [902], TOKENS[:4], 900, BS), removed("map", [903]))
    told.tell(stored("map", [11], group_idx=0))
    told.e.until("both counted", lambda: told.serve.metric("kv_lower_unplaced_total") == 2)
    told.reach(3, 3, 3)
    tiers = told.serve.views()[(1, 0)]["tiers"]
    assert tiers == {"host_pinned": {"view": "partial", "blocks": 1, "chunk_blocks": 1, "unplaced": 2, "given_up": 0}}


def test_an_engine_that_starts_anew_has_empty_tiers(told):
    told.tell(*[stored("map", [n], group_idx=0) for n in NAMES[:3]])
    told.reach(3, 3, 3)
    told.e.seq, told.e.sent = 0, []
    told.tell(stored("map", NAMES[:1], TOKENS[:4], None, BS, "GPU", group_idx=0))
    told.reach(1, 1, 1)
    assert told.serve.views()[(1, 0)]["tiers"] == {}


def test_a_gap_is_repaired_with_all_tiers(told):
    told.e.send(told.e.batch(stored("map", [11], group_idx=0), removed("map", [12, 13], "GPU", group_idx=0)), drop=True)
    told.tell(stored("map", [13], group_idx=0), stored("map", [12], group_idx=0))
    told.reach(1, 3, 3)
    told.e.send(told.e.batch(removed("map", [12], group_idx=0)), drop=True)
    told.tell(removed("map", [901], group_idx=0))
    told.reach(1, 1, 1)


def test_a_replica_has_the_tiers_from_its_peer(told, start):
    """By a dump: copies whose blocks have left the device, a block that was told twice, one with a name of the disk's own; and it goes on from there."""
    told.tell(stored("map", NAMES[3:7], TOKENS[12:28], NAMES[2], BS, "GPU", group_idx=0))
    told.tell(*[stored("map", [n], group_idx=0) for n in NAMES[:7] + NAMES[:1]], stored("map", [60], TOKENS[12:16], NAMES[2], BS, "DISK"))
    told.tell(removed("map", NAMES[2:7], "GPU", group_idx=0), removed("map", [NAMES[3]], group_idx=0))
    told.reach(2, 6, 7)  # one of seven from the disk
    late = start(Indexer, "--peers", f"http://127.0.0.1:{told.indexer.port}")

    def depths(ix):
        x = ix.post("/query", {"model_name": "m", "token_ids": TOKENS + [1]})["instances"].get("1", {"gpu": 0, "cpu": 0, "disk": 0})
        return tuple(x[k] // BS for k in ("gpu", "cpu", "disk"))
    told.e.until("the same", lambda: depths(late) == (2, 6, 7))
    late.register(1, told.e, replay=False)
    told.e.until("it follows", lambda: all(l["status"] == "active" for l in late.listeners().values()))
    told.tell(removed("map", NAMES[:1], group_idx=0), removed("map", NAMES[:2], "GPU", group_idx=0))
    told.e.until("one copy is left", lambda: depths(late) == depths(told.indexer) == (0, 6, 7))
    told.tell(removed("map", NAMES[:1], group_idx=0))
    told.e.until("none is", lambda: depths(late) == depths(told.indexer) == (0, 0, 0))


def test_what_a_worker_stored_where_others_read_too_is_there_for_its_pool(start, engine):
    """The second and the third follow engines of their own, which tell nothing of it; the third is of no pool."""
    engines = [engine() for _ in range(3)]
    pools = [{"kv_pool": "store"}, {"kv_pool": "store"}, {}]
    ends = [f"events=tcp://127.0.0.1:{e.events},replay=tcp://127.0.0.1:{e.replay_port}" for e in engines]
    serve = start(Serve, [f"http://127.0.0.{i + 1}:1,{ends[i]},model=m" + (",kv-pool=store" if pools[i] else "") for i in range(3)], "--block-size", BS, ready=False)
    select, indexer = start(Select), start(Indexer)
    for i, (e, pool) in enumerate(zip(engines, pools), 1):
        select.worker(i, kv_events_endpoints={"0": f"tcp://127.0.0.1:{e.events}"}, replay_endpoint=f"tcp://127.0.0.1:{e.replay_port}", **pool)
        indexer.register(i, e, **pool)
    first = engines[0]

    def until(what, check):
        first.until(what, lambda: [e.serve_replay(0.005) for e in engines[1:]] and check())
    until("all follow", lambda: indexer.whole() and all(v["view"] == "whole" for s in (serve, select) for v in s.views().values()))
    first.send(first.batch(stored("map", NAMES[:5], TOKENS[:20], None, BS, "GPU", group_idx=0),
                           *[stored("map", [n], medium="STORAGE", group_idx=0, locality="REMOTE", ownership="far") for n in NAMES[:4]]))

    def depths():
        """Blocks on the device, with what others share."""
        rows = []
        for s in (serve, select):
            ws = s.post("/overlap_scores", {"token_ids": TOKENS + [1], "model_name": "default" if s is select else "m"}).json()["workers"]
            rows.append({w["worker_id"]: (w["device_blocks"], w["disk_blocks"]) for w in ws})
        found = indexer.post("/query", {"model_name": "m", "token_ids": TOKENS + [1]})["instances"]
        rows.append({int(i): (x["gpu"] // BS, x["disk"] // BS) for i, x in found.items()})
        return [[row.get(i, (0, 0)) for i in (1, 2, 3)] for row in rows]
    until("its pool has it", lambda: depths() == [[(5, 5), (0, 4), (0, 0)]] * 3)
    assert [indexer.listeners()[i, 0].get("kv_pool") for i in (1, 2, 3)] == ["store", "store", None]


def test_a_chunk_that_is_said_at_registration_is_read_as_a_whole_from_the_first(start, engine):
    """Names alone do not tell how many blocks are read at once: what is said counts before four chunks were seen."""
    e = engine()
    ix = start(Indexer)
    assert "multiple of block_size" in str(ix.register(1, e, kv_offload_chunk=BS + 1, status=400))
    ix.register(1, e, kv_offload_chunk=2 * BS)
    e.until("it follows", ix.whole)
    e.send(e.batch(stored("map", NAMES[:3], TOKENS[:12], None, BS, "GPU", group_idx=0), stored("map", [12], group_idx=0)))
    e.send(e.batch(removed("map", NAMES[:3], "GPU", group_idx=0)))
    e.until("both blocks of the chunk", lambda: ix.post("/query", {"model_name": "m", "token_ids": TOKENS + [1]})["instances"].get("1", {}).get("cpu") == 2 * BS)
