# SPDX-License-Identifier: Apache-2.0
from . import _kvroute
from ._check import bad, whole

MM_OBJECTS_MAX = 64  # KVR_MM_OBJECTS_MAX


def mm_of(block_mm_infos, name="block_mm_infos"):
    """None, or ([how many objects each block has], [their hashes])."""
    if block_mm_infos is None:
        return None
    if not isinstance(block_mm_infos, (list, tuple)):
        raise bad(name, block_mm_infos, "None, or for each block None or {'mm_objects': [{'mm_hash': int}, ...]}")
    counts, hashes = [], []
    for i, info in enumerate(block_mm_infos):
        objects = [] if info is None else info.get("mm_objects", ()) if isinstance(info, dict) else None
        if not isinstance(objects, (list, tuple)) or len(objects) > MM_OBJECTS_MAX:
            raise bad(f"{name}[{i}]", info, f"None, {{'mm_objects': [{{'mm_hash': int}}, ...]}} with at most {MM_OBJECTS_MAX} objects")
        for k, o in enumerate(objects):
            if not isinstance(o, dict) or "mm_hash" not in o:
                raise bad(f"{name}[{i}].mm_objects[{k}]", o, "{'mm_hash': int}")
            hashes.append(whole(f"{name}[{i}].mm_objects[{k}].mm_hash", o["mm_hash"]))
        counts.append(len(objects))
    return (counts, hashes) if hashes else None


def prompt_of(tokens, block_size, lora_name=None, is_eagle=False, cache_namespace=None, block_mm_infos=None):
    """What the compiled part makes local hashes from."""
    return tokens, block_size, lora_name, cache_namespace, bool(is_eagle), mm_of(block_mm_infos)


def compute_block_hash_for_seq(tokens, kv_block_size, block_mm_infos=None, *, lora_name=None, is_eagle=False, cache_namespace=None):
    """Local hashes of a prompt's full blocks, as unsigned 64-bit integers.

    tokens: integers, or a buffer of 4-byte integers (no copy). block_mm_infos: for each block None or
    {"mm_objects": [{"mm_hash": int}, ...]}; a list that is shorter than the prompt leaves the other blocks plain, one that is longer is
    another block size's and refused. lora_name and
    cache_namespace (the cache salt) separate hash domains; "" is None."""
    return _kvroute.hash_locals(*prompt_of(tokens, whole("kv_block_size", kv_block_size, 0, 65536), lora_name, is_eagle, cache_namespace,
                                           block_mm_infos))


def compute_seq_hash_for_block(block_hashes):
    """Rolling sequence hashes of local hashes."""
    return _kvroute.hash_sequence(block_hashes)
