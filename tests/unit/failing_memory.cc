// SPDX-License-Identifier: Apache-2.0
#include "failing_memory.h"

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <dlfcn.h>
#include <new>

static std::atomic<long> asked{0}, first{-1}, last{-1};
static std::atomic<bool> armed{false}, failed{false};
static thread_local bool exempt;

static bool refuse()
{
    if (!armed.load(std::memory_order_relaxed) || exempt) return false;
    long n = asked.fetch_add(1);
    if (n < first || n > last) return false;
    failed = true;
    return true;
}

extern "C" {
void *__real_malloc(size_t n);
void *__real_calloc(size_t n, size_t each);
void *__real_realloc(void *p, size_t n);
void *__wrap_malloc(size_t n);
void *__wrap_calloc(size_t n, size_t each);
void *__wrap_realloc(void *p, size_t n);

void *__wrap_malloc(size_t n)
{
    return refuse() ? nullptr : __real_malloc(n);
}

void *__wrap_calloc(size_t n, size_t each)
{
    return refuse() ? nullptr : __real_calloc(n, each);
}

void *__wrap_realloc(void *p, size_t n)
{
    return n && refuse() ? nullptr : __real_realloc(p, n);
}

void memory_fails_at(long n, long more)
{
    asked = 0;
    failed = false;
    first = n;
    last = n + more;
    armed = n >= 0;
}

long memory_recovers(void)
{
    armed = false;
    return asked;
}

bool memory_has_failed(void)
{
    return failed;
}

void memory_exempts_this_thread(void)
{
    exempt = true;
}
}

// Of C++'s libraries only the one that reads JSON is ours to fail: libzmq ends the process when it has no memory.
static bool is_ours(const void *caller)
{
    Dl_info at, here;
    if (!armed.load(std::memory_order_relaxed) || !dladdr(caller, &at) || !dladdr(reinterpret_cast<void *>(is_ours), &here)) return false;
    return at.dli_fbase == here.dli_fbase || strstr(at.dli_fname, "simdjson");
}

static void *take(size_t n, const void *caller)
{
    return is_ours(caller) && refuse() ? nullptr : __real_malloc(n ? n : 1);
}

static void *take_or_throw(size_t n, const void *caller)
{
    void *p = take(n, caller);
    if (!p) throw std::bad_alloc();
    return p;
}

void *operator new(size_t n, const std::nothrow_t &) noexcept
{
    return take(n, __builtin_return_address(0));
}

void *operator new[](size_t n, const std::nothrow_t &) noexcept
{
    return take(n, __builtin_return_address(0));
}

void *operator new(size_t n)
{
    return take_or_throw(n, __builtin_return_address(0));
}

void *operator new[](size_t n)
{
    return take_or_throw(n, __builtin_return_address(0));
}

void operator delete(void *p) noexcept
{
    free(p);
}

void operator delete[](void *p) noexcept
{
    free(p);
}

void operator delete(void *p, size_t) noexcept
{
    free(p);
}

void operator delete[](void *p, size_t) noexcept
{
    free(p);
}

void operator delete(void *p, const std::nothrow_t &) noexcept
{
    free(p);
}

void operator delete[](void *p, const std::nothrow_t &) noexcept
{
    free(p);
}
