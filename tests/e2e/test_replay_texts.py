# SPDX-License-Identifier: Apache-2.0
"""`kvroute replay` of traces whose rows are texts and chats, where tokens are needed. The expected token ids are made by token_parts.py."""
import json
import os
import subprocess

import pytest
from conftest import BINARY
from token_parts import ids_of, make_folder

LIBRARY = os.environ["TOKENIZER_LIBRARY"]
SYSTEM = {"role": "system", "content": "Be brief, wörld. " * 60}


@pytest.fixture
def folder(tmp_path):
    return make_folder(tmp_path / "model")


def replay(*args):
    r = subprocess.run([BINARY, "replay", "--no-progress", "--tokenizer-lib", LIBRARY, *map(str, args)], capture_output=True, text=True, timeout=240)
    assert "Sanitizer" not in r.stderr, r.stderr
    return r


def chat(i):
    return [SYSTEM, {"role": "user", "content": f"{i:03d} and more"}]


def written(tmp_path, rows):
    path = tmp_path / "texts.jsonl"
    path.write_text("".join(json.dumps({"timestamp": i * 500, "output_length": 20, **r}) + "\n" for i, r in enumerate(rows)))
    return path


def test_a_simulation_finds_what_chats_share(tmp_path, folder):
    """On one worker all but the first request find the whole blocks that its ids share with it."""
    trace = written(tmp_path, [{"messages": chat(i)} for i in range(16)])
    r = replay("--offline", "--trace", trace, "--tokenizer-dir", folder, "--workers", 1, "--compare", "round-robin", "--seeds", 1, "--json", tmp_path / "o.json")
    assert r.returncode == 0, r.stdout + r.stderr
    ids = [ids_of({"messages": chat(i)}) for i in range(2)]
    shared = next(i for i, (a, b) in enumerate(zip(*ids)) if a != b) // 16 * 16
    assert f"{len(ids[0])} prompt tokens on average" in r.stdout and "16 requests in 8 s" in r.stdout
    out = json.loads((tmp_path / "o.json").read_text())["policies"][0]
    assert out["completed"] == 16 and out["failed"] == 0
    assert out["hit_pct"] == pytest.approx(100 * 15 * shared / (16 * len(ids[0])), abs=1.5)  # users' numbers share a block here and there


def test_texts_and_rows_of_other_kinds_go_together(tmp_path, folder):
    rows = [{"prompt": "Once upon a time"}, {"input_length": 100, "hash_ids": [1]}, {"messages": chat(0)},
            {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "http://x/secret"}}]}]}]
    r = replay("--offline", "--trace", written(tmp_path, rows), "--tokenizer-dir", folder, "--compare", "linear", "--seeds", 1)
    mean = (len(ids_of({"prompt": "Once upon a time"})) + 100 + len(ids_of({"messages": chat(0)}))) / 3
    assert r.returncode == 0 and f"3 requests in 1 s, {mean:.0f} prompt tokens" in r.stdout, r.stdout + r.stderr
    assert "1 line(s) are no rows and left out, the first because: its tokens are made by engines only: part" in r.stderr and "secret" not in r.stderr


def test_texts_are_written_as_rows_with_the_same_shared_blocks(tmp_path, folder):
    trace = written(tmp_path, [{"messages": chat(0)}, {"messages": chat(1)}, {"prompt": "x"}])
    r = replay("--trace", trace, "--write-trace", tmp_path / "rows.jsonl", "--tokenizer-dir", folder)
    rows = [json.loads(line) for line in (tmp_path / "rows.jsonl").read_text().splitlines()]
    assert r.returncode == 0 and r.stdout == "3 rows\n" and "secret" not in r.stdout
    n = len(ids_of({"messages": chat(0)}))
    assert [x["input_length"] for x in rows] == [n, n, len(ids_of({"prompt": "x"}))] and [x["timestamp"] for x in rows] == [0, 500, 1000]
    assert all(len(x["hash_ids"]) == -(-x["input_length"] // 512) for x in rows) and all(h < 1 << 53 for x in rows for h in x["hash_ids"])
    whole = n // 512  # the users' messages are behind them
    assert whole >= 2 and rows[0]["hash_ids"][:whole] == rows[1]["hash_ids"][:whole] and rows[0]["hash_ids"][-1] != rows[1]["hash_ids"][-1]
    assert len(set(rows[0]["hash_ids"])) == whole + 1
