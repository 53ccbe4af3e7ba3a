# SPDX-License-Identifier: Apache-2.0
"""Two prompts that differ in an image alone are two prompts, whichever door they come through."""
import pytest
from conftest import Indexer, Select, call, wait_for

T = list(range(100, 116))  # four blocks of four
CAT, DOG = 0x1111111111111111, 9533257059414191570
SHAPES = [5, {}, [1], [{}], [{"mm_objects": 3}], [{"mm_objects": [{"mm_hash": -1}]}], [{"mm_objects": [{"mm_hash": "x"}]}], [None] * 5,
          [{"mm_objects": [{"mm_hash": 1}] * 65}]]


def infos(h, at=1, n=2):
    """The object h in blocks [at, at + n)."""
    return [None] * at + [{"mm_objects": [{"mm_hash": h, "offsets": [[0, 4]]}]}] * n


def stored_with_image(e, names, tokens, h, at=1, n=2, **kw):
    key = f"{h:016x}" + "0" * 48
    keys = [None] * at + [[[key, 0]]] * n + [None] * (len(names) - at - n)
    e.send(e.batch(["BlockStored", names, None, tokens, 4, None, "GPU", None, keys]), **kw)


@pytest.fixture
def cat_is_cached(start, engine):
    """A selection service whose worker 1 holds T with a cat in its second and third block."""
    e = engine()
    s = start(Select)
    s.worker(1, kv_events_endpoints={"0": f"tcp://127.0.0.1:{e.events}"}, replay_endpoint=f"tcp://127.0.0.1:{e.replay_port}")
    s.worker(2)
    e.until("subscribed", lambda: s.views()[(1, 0)]["trusted"])
    stored_with_image(e, [1, 2, 3, 4], T, CAT)
    e.until("seen", lambda: s.overlap(T)[(1, 0)] == 1)  # plain: up to the image
    return s


def test_overlap_scores_of_another_image(cat_is_cached):
    s = cat_is_cached
    assert s.overlap(T, block_mm_infos=infos(CAT))[(1, 0)] == 4
    assert s.overlap(T, block_mm_infos=infos(DOG))[(1, 0)] == 1
    assert s.overlap(T, block_mm_infos=infos(CAT, at=2, n=1))[(1, 0)] == 1
    assert s.overlap(T, block_mm_infos=None)[(1, 0)] == 1


def test_select_and_request_of_another_image(cat_is_cached):
    s = cat_is_cached
    for path, key in (("/select", "selection_id"), ("/select_and_reserve", "selection_id")):
        cat = s.ask(path, {"token_ids": T, key: "cat", "block_mm_infos": infos(CAT)})
        dog = s.ask(path, {"token_ids": T, key: "dog", "block_mm_infos": infos(DOG), "pinned_worker": {"worker_id": 1}})
        assert (cat["overlap"]["gpu"], dog["overlap"]["gpu"]) == (16, 4 if path == "/select" else dog["overlap"]["gpu"])
        assert cat["effective_prefill_tokens"] == 0 and dog["effective_prefill_tokens"] == 12
    reserved = [s.ask("/select_and_reserve", {"token_ids": T, "selection_id": n, "block_mm_infos": m})["sequence_hashes"]
                for n, m in (("a", infos(CAT)), ("b", infos(DOG)), ("c", None))]
    assert reserved[0][0] == reserved[1][0] == reserved[2][0]
    assert len({r[1] for r in reserved}) == len({r[3] for r in reserved}) == 3
    ask = {"method": "new", "tokens": T}
    assert s.ask("/request", {**ask, "request_id": "x", "block_mm_infos": infos(CAT)})["overlap_blocks"] == 4
    dog = s.ask("/request", {**ask, "request_id": "y", "block_mm_infos": infos(DOG)})
    assert dog["overlap_blocks"] == (1 if dog["worker_id"] == 1 else 0)


def test_query_of_another_image_on_the_admin_port(cat_is_cached):
    s = cat_is_cached

    def gpu(h):
        return s.ask("/query", {"token_ids": T, "block_mm_infos": infos(h)})["scores"]["1"]["0"]
    assert (gpu(CAT), gpu(DOG)) == (16, 4)


def test_booked_blocks_of_two_images_are_not_shared(start):
    s = start(Select)
    s.worker(1)
    for n, h in (("a", CAT), ("b", DOG), ("c", CAT)):
        s.ask("/select_and_reserve", {"token_ids": T, "selection_id": n, "block_mm_infos": infos(h)})
    assert s.loads()[(1, 0)][1:] == (7, 3)  # the first block is everybody's, three are the cat's, three the dog's
    booked = {"worker_id": 1, "token_ids": T, "selection_id": "d", "block_mm_infos": infos(DOG)}
    s.ask("/reservations", booked, 201)
    assert s.loads()[(1, 0)][1:] == (7, 4)


@pytest.mark.parametrize("shape", SHAPES, ids=range(len(SHAPES)))
def test_block_mm_infos_of_another_shape_are_refused_by_name(start, shape):
    s = start(Select)
    s.worker(1)
    for path, body in (("/select", {"token_ids": T}), ("/select_and_reserve", {"token_ids": T}), ("/overlap_scores", {"token_ids": T}),
                       ("/query", {"token_ids": T}), ("/potential_loads", {"token_ids": T}), ("/request", {"method": "new", "tokens": T})):
        assert "block_mm_infos" in s.ask(path, {**body, "block_mm_infos": shape}, 400)["error"]
    assert s.idle()


def test_block_mm_infos_with_hashes_are_refused(start):
    s = start(Select)
    s.worker(1)
    body = {"block_hashes": [1, 2], "sequence_hashes": [1, 2], "isl_tokens": 8, "block_mm_infos": infos(CAT)}
    for path in ("/select", "/overlap_scores", "/query_by_hash"):
        assert "block_mm_infos" in s.ask(path, body, 400)["error"]


def test_indexer_query_of_another_image(start, engine):
    e = engine()
    ix = start(Indexer)
    ix.register(7, e)
    e.until("subscribed", ix.trusted)
    stored_with_image(e, [1, 2, 3, 4], T, CAT)
    e.until("seen", lambda: ix.scores(T, block_mm_infos=infos(CAT)) == {(7, 0): 16})
    assert ix.scores(T) == {(7, 0): 4} == ix.scores(T, block_mm_infos=infos(DOG))
    for shape in SHAPES:
        assert "block_mm_infos" in ix.post("/query", {"token_ids": T, "model_name": "m", "block_mm_infos": shape}, 422)["error"]
    assert "block_mm_infos" in ix.post("/query_by_hash", {"block_hashes": [1], "model_name": "m", "block_mm_infos": infos(CAT)}, 400)["error"]
    assert call(ix.port, "GET", "/health").status == 200


@pytest.mark.parametrize("key", [["cat-1", 3], ["a" * 64, 0], "b" * 64, "cat-1", b"\x01\x02"])
def test_a_block_with_an_image_is_not_a_text_block(start, engine, key):
    """Whatever way an engine names what is in a block: a prompt of text alone does not hit it."""
    e = engine()
    ix = start(Indexer)
    ix.register(7, e)
    e.until("subscribed", ix.trusted)
    e.send(e.batch(["BlockStored", [1, 2], None, T[:8], 4, None, "GPU", None, [None, [key]]]))
    e.until("seen", lambda: ix.metric("kvroute_index_blocks") == 2)
    assert ix.scores(T[:8]) == {(7, 0): 4}
    wait_for("alive", lambda: call(ix.port, "GET", "/health").status == 200)
