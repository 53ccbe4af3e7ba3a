/* SPDX-License-Identifier: Apache-2.0 */
/* Tokens to hashes. */
#include <string.h>

#include "binding.h"

int py_prompt(PyObject *tuple, struct py_prompt *p)
{
    PyObject *tokens, *lora, *salt, *mm;
    unsigned bs;
    if (!PyArg_ParseTuple(tuple, "OIOOpO", &tokens, &bs, &lora, &salt, &p->eagle, &mm)) return -1;
    p->block_size = bs;
    if (py_tokens(tokens, &p->tokens) || py_text(lora, "lora_name", &p->lora) || py_text(salt, "cache_namespace", &p->salt) ||
        py_mm(mm, &p->mm))
        return -1;
    size_t blocks = bs ? (p->tokens.n + bs - 1) / bs : p->mm.n;
    if (p->mm.n <= blocks) return 0;
    PyErr_Format(PyExc_ValueError, "block_mm_infos: %zu entries; allowed: at most %zu, one for each block of %u of the %zu tokens", p->mm.n,
                 blocks, bs, p->tokens.n);
    return -1;
}

void py_prompt_free(struct py_prompt *p)
{
    py_tokens_free(&p->tokens);
    py_text_free(&p->lora);
    py_text_free(&p->salt);
    py_mm_free(&p->mm);
}

int py_prompt_locals(const struct py_prompt *p, uint64_t **out, size_t *n)
{
    size_t blocks = kvr_hash_block_count(p->tokens.n, p->block_size, p->eagle);
    uint64_t *locals = malloc((blocks + 1) * sizeof *locals);
    long rc = 0;
    if (!locals) {
        PyErr_NoMemory();
        return -1;
    }
    if (blocks) {
        Py_BEGIN_ALLOW_THREADS uint64_t seed = kvr_hash_seed(p->lora.at, p->lora.n, p->salt.at, p->salt.n);
        rc = kvr_hash_locals(p->tokens.at, p->tokens.n, p->block_size, p->eagle, seed, p->mm.blocks, p->mm.n, locals);
        Py_END_ALLOW_THREADS
    }
    if (rc < 0) {
        free(locals);
        py_fail((int)rc);
        return -1;
    }
    *out = locals;
    *n = blocks;
    return 0;
}

PyObject *py_hash_locals(PyObject *module, PyObject *args)
{
    struct py_prompt p = {0};
    uint64_t *locals = NULL;
    PyObject *list = NULL;
    size_t n;
    (void)module;
    if (py_prompt(args, &p) == 0 && py_prompt_locals(&p, &locals, &n) == 0) list = py_list(locals, n);
    free(locals);
    py_prompt_free(&p);
    return list;
}

PyObject *py_hash_sequence(PyObject *module, PyObject *args)
{
    PyObject *hashes, *list;
    uint64_t *h;
    size_t n;
    (void)module;
    if (!PyArg_ParseTuple(args, "O", &hashes) || py_names(hashes, &h, &n)) return NULL;
    Py_BEGIN_ALLOW_THREADS if (n) kvr_hash_sequence(h, n, h);
    Py_END_ALLOW_THREADS list = py_list(h, n);
    free(h);
    return list;
}
