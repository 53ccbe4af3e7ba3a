# SPDX-License-Identifier: Apache-2.0
from ._c import MASK, ffi, lib, text_of, tokens_of
from ._errors import check


def local_hashes(tokens, block_size, lora_name=None, is_eagle=False, cache_namespace=None, block_mm_infos=None):
    """uint64_t[] of a prompt's local hashes, and how many there are."""
    block_size = int(block_size)
    if not 0 <= block_size <= 65536:
        raise ValueError(f"kv_block_size: bad value {block_size}; allowed: 0 to 65536")
    data, n = tokens_of(tokens)
    lora, lora_n = text_of(lora_name)
    salt, salt_n = text_of(cache_namespace)
    seed = lib.kvr_hash_seed(lora, lora_n, salt, salt_n)
    mm, counts = [], []
    for info in block_mm_infos or []:
        objects = (info or {}).get("mm_objects") or []
        mm += [int(o["mm_hash"]) & MASK for o in objects]
        counts.append(len(objects))
    blocks = lib.kvr_hash_block_count(n, block_size, bool(is_eagle))
    counts = counts[:blocks]
    out = ffi.new("uint64_t[]", max(blocks, 1))
    if blocks:
        check(lib.py_hash_locals(data, n, block_size, bool(is_eagle), seed, ffi.new("uint64_t[]", mm or [0]), ffi.new("size_t[]", counts or [0]),
                                 len(counts), out))
    return out, blocks


def compute_block_hash_for_seq(tokens, kv_block_size, block_mm_infos=None, *, lora_name=None, is_eagle=False, cache_namespace=None):
    """Local hashes of a prompt's full blocks, as unsigned 64-bit integers.

    tokens: integers, or a buffer of 4-byte integers (no copy). block_mm_infos: for each block None or
    {"mm_objects": [{"mm_hash": int}, ...]}. lora_name and cache_namespace (the cache salt) separate hash domains; "" is None."""
    out, n = local_hashes(tokens, kv_block_size, lora_name, is_eagle, cache_namespace, block_mm_infos)
    return ffi.unpack(out, n) if n else []


def compute_seq_hash_for_block(block_hashes):
    """Rolling sequence hashes of local hashes."""
    values = [int(h) & MASK for h in block_hashes]
    if not values:
        return []
    data = ffi.new("uint64_t[]", values)
    lib.kvr_hash_sequence(data, len(values), data)
    return ffi.unpack(data, len(values))
