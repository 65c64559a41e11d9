// Runs the kernels on a CPU: the part of CUDA that they use, for tests on machines without a GPU.
//
// The threads of a block are fibers on one thread of the system. Barriers and everything that a warp does together are
// places where fibers wait for one another; waiting that can never end (a barrier that not all threads reach, a shuffle that
// a lane misses) is reported and aborts. The order in which threads that can run are picked is an input of the tests:
// forward, reverse or seeded random, so that a missing barrier shows as another result.
#pragma once
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#define __global__
#define __device__
#define __forceinline__ inline __attribute__((always_inline))
#define __launch_bounds__(...)
#define __restrict__ __restrict
#define __shared__ static thread_local /* one block at a time on a thread of the system */
#define DEVICE static __forceinline__
#define DEVICE_MEMBER __forceinline__
#define ENTRY(name) static const bool entered_##name = emulator::enter(#name, name);

struct dim3 {
    unsigned x, y, z;
};
struct alignas(8) float2 {
    float x, y;
};
struct alignas(16) float4 {
    float x, y, z, w;
};
struct alignas(8) uint2 {
    uint32_t x, y;
};
struct alignas(16) uint4 {
    uint32_t x, y, z, w;
};
DEVICE float2 make_float2(float x, float y) { return {x, y}; }
DEVICE float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
DEVICE uint4 make_uint4(uint32_t x, uint32_t y, uint32_t z, uint32_t w) { return {x, y, z, w}; }

// ---------------------------------------------------------------------------------------------------------------- fibers

// Saves the callee's registers and the stack pointer in *save, goes on with the stack pointer at load.
extern "C" void emulator_switch(void **save, void *load);
#if defined(__x86_64__)
asm(".text\n.weak emulator_switch\n.type emulator_switch,@function\nemulator_switch:\n"
    "pushq %rbp\npushq %rbx\npushq %r12\npushq %r13\npushq %r14\npushq %r15\n"
    "movq %rsp,(%rdi)\nmovq %rsi,%rsp\n"
    "popq %r15\npopq %r14\npopq %r13\npopq %r12\npopq %rbx\npopq %rbp\nret\n");
#elif defined(__aarch64__)
asm(".text\n.weak emulator_switch\n.type emulator_switch,%function\nemulator_switch:\n"
    "sub sp,sp,#160\nstp x19,x20,[sp]\nstp x21,x22,[sp,#16]\nstp x23,x24,[sp,#32]\nstp x25,x26,[sp,#48]\n"
    "stp x27,x28,[sp,#64]\nstp x29,x30,[sp,#80]\nstp d8,d9,[sp,#96]\nstp d10,d11,[sp,#112]\nstp d12,d13,[sp,#128]\n"
    "stp d14,d15,[sp,#144]\nmov x9,sp\nstr x9,[x0]\nmov sp,x1\n"
    "ldp x19,x20,[sp]\nldp x21,x22,[sp,#16]\nldp x23,x24,[sp,#32]\nldp x25,x26,[sp,#48]\nldp x27,x28,[sp,#64]\n"
    "ldp x29,x30,[sp,#80]\nldp d8,d9,[sp,#96]\nldp d10,d11,[sp,#112]\nldp d12,d13,[sp,#128]\nldp d14,d15,[sp,#144]\n"
    "add sp,sp,#160\nret\n");
#else
#error "no fibers for this processor"
#endif

namespace emulator {

constexpr size_t STACK = 64 * 1024;
constexpr unsigned MOST_THREADS = 1024;
// Bytes that a lane can show the others at once.
constexpr size_t SHOWN = 64;

enum Order { FORWARD, REVERSE, RANDOM };
// Of the whole process, and of this thread when it has one of its own.
inline Order process_order = FORWARD;
inline uint64_t process_seed = 1;
inline thread_local bool own_order = false;
inline thread_local Order thread_order;
inline thread_local uint64_t thread_seed;

struct Warp {
    unsigned arrived;
    const char *what;
    // Two sets in turn: a lane that is past a meeting may already come to the next, but not to the one after.
    unsigned turn;
    alignas(16) unsigned char shown[2][32][SHOWN];
    alignas(16) unsigned char results[2][32][16];
};

struct Fiber {
    void *stack_pointer;
    dim3 thread;
    unsigned number;
    Warp *warp;
    // What it waits in, if it waits.
    const char *waits;
    bool done;
};

struct Block {
    dim3 index, threads, grid;
    unsigned alive, arrived;
    Fiber *current;
    void *scheduler;
    const std::function<void()> *body;
    std::vector<Fiber> fibers;
    std::vector<Warp> warps;
    char *stacks = nullptr;
};
inline thread_local Block block;

[[noreturn]] inline void fail(const char *why) {
    Block &b = block;
    fprintf(stderr, "emulator: %s in block (%u,%u,%u)\n", why, b.index.x, b.index.y, b.index.z);
    unsigned shown = 0;
    for (const Fiber &f : b.fibers)
        if (!f.done && f.waits && shown++ < 6) fprintf(stderr, "  thread %u waits in %s\n", f.number, f.waits);
    abort();
}

inline void wait(const char *what) {
    block.current->waits = what;
    emulator_switch(&block.current->stack_pointer, block.scheduler);
}

inline void barrier() {
    Block &b = block;
    // A thread that has ended cannot come to a barrier: on a device that is no error, in these kernels it is.
    if (b.alive != b.fibers.size()) fail("a barrier after threads have ended");
    if (++b.arrived < b.alive) return wait("__syncthreads");
    b.arrived = 0;
    for (Fiber &f : b.fibers) f.waits = nullptr;
}

// All 32 lanes show a value and then see everyone's; the last to come also runs `together` on them, once.
template <class T, class F> inline Warp &meet(const char *what, const T &value, F together) {
    static_assert(sizeof(T) <= SHOWN);
    Fiber *me = block.current;
    Warp &w = *me->warp;
    if (w.arrived == 0) w.what = what;
    if (w.what != what) fail("lanes of a warp meet in different places");
    memcpy(w.shown[w.turn][me->number % 32], &value, sizeof value);
    if (++w.arrived < 32) {
        wait(what);
        return w;
    }
    together(w.shown[w.turn], w.results[w.turn]);
    w.arrived = 0;
    w.turn ^= 1;
    Fiber *first = me - me->number % 32;
    for (unsigned i = 0; i < 32; i++) first[i].waits = nullptr;
    return w;
}

inline void entry() {
    (*block.body)();
    block.current->done = true;
    block.alive--;
    emulator_switch(&block.current->stack_pointer, block.scheduler);
    abort();
}

inline void begin(Block &b) {
    const unsigned n = b.threads.x * b.threads.y * b.threads.z;
    if (!b.stacks) {
        void *stacks = mmap(nullptr, MOST_THREADS * STACK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (stacks == MAP_FAILED) abort();
        b.stacks = (char *)stacks;
    }
    b.fibers.resize(n);
    b.warps.resize((n + 31) / 32);
    b.alive = n;
    b.arrived = 0;
    for (Warp &w : b.warps) w.arrived = w.turn = 0;
    for (unsigned i = 0; i < n; i++) {
        const dim3 thread = {i % b.threads.x, i / b.threads.x % b.threads.y, i / (b.threads.x * b.threads.y)};
        // Tops at different places of a page, so that they do not compete for the same lines of the cache.
        void **top = (void **)(b.stacks + (size_t)(i + 1) * STACK - 192 - i % 32 * 256);
#if defined(__x86_64__)
        top[6] = (void *)entry;
        top[7] = nullptr;
#else
        top[11] = (void *)entry;
#endif
        b.fibers[i] = Fiber{top, thread, i, &b.warps[i / 32], nullptr, false};
    }
}

inline void run_block(Block &b, Order order, uint64_t random) {
    begin(b);
    const unsigned n = b.fibers.size(), warps = b.warps.size();
    auto below = [&](unsigned m) {
        random ^= random << 13, random ^= random >> 7, random ^= random << 17;
        return (unsigned)(random >> 33) % m;
    };
    auto mix = [&](std::vector<unsigned> &all) {
        for (unsigned i = all.size(); i-- > 1;) std::swap(all[i], all[below(i + 1)]);
    };
    std::vector<unsigned> warp_order(warps), lane_order(32);
    for (unsigned i = 0; i < warps; i++) warp_order[i] = order == REVERSE ? warps - 1 - i : i;
    for (unsigned i = 0; i < 32; i++) lane_order[i] = order == REVERSE ? 31 - i : i;
    while (b.alive) {
        bool ran = false;
        if (order == RANDOM) mix(warp_order);
        for (unsigned w : warp_order) {
            // One warp as far as it gets, sometimes less, then the next.
            for (bool again = true; again;) {
                again = false;
                if (order == RANDOM) mix(lane_order);
                for (unsigned lane : lane_order) {
                    const unsigned i = w * 32 + lane;
                    if (i >= n || b.fibers[i].done || b.fibers[i].waits) continue;
                    b.current = &b.fibers[i];
                    emulator_switch(&b.scheduler, b.current->stack_pointer);
                    again = true;
                }
                ran |= again;
                if (order == RANDOM && below(4) == 0) break;
            }
        }
        if (!ran) fail("no thread can run");
    }
}

inline void run(dim3 grid, dim3 threads, const std::function<void()> &body) {
    if (threads.x * threads.y * threads.z > MOST_THREADS) abort();
    Block &b = block;
    b.threads = threads;
    b.grid = grid;
    b.body = &body;
    const Order order = own_order ? thread_order : process_order;
    const uint64_t seed = own_order ? thread_seed : process_seed;
    const uint64_t blocks = (uint64_t)grid.x * grid.y * grid.z;
    for (uint64_t i = 0; i < blocks; i++) {
        const uint64_t at = order == REVERSE ? blocks - 1 - i : i;
        b.index = {(unsigned)(at % grid.x), (unsigned)(at / grid.x % grid.y), (unsigned)(at / ((uint64_t)grid.x * grid.y))};
        run_block(b, order, seed * 0x9e3779b97f4a7c15ull + at + 1);
    }
}

// What cuLaunchKernel is given: pointers to the arguments. How many bytes each has, for copies that outlive the call.
struct Kernel {
    std::function<void(dim3, dim3, void **)> launch;
    std::vector<size_t> sizes;
};

inline std::map<std::string, Kernel> &kernels() {
    static std::map<std::string, Kernel> all;
    return all;
}

template <class... A, size_t... I> inline void call(void (*kernel)(A...), void **arguments, std::index_sequence<I...>) {
    kernel(*(A *)arguments[I]...);
}

template <class... A> inline bool enter(const char *name, void (*kernel)(A...)) {
    auto launch = [kernel](dim3 grid, dim3 threads, void **arguments) {
        run(grid, threads, [&] { call(kernel, arguments, std::index_sequence_for<A...>{}); });
    };
    return kernels().insert({name, {launch, {sizeof(A)...}}}).second;
}

}  // namespace emulator

#define threadIdx (emulator::block.current->thread)
#define blockIdx (emulator::block.index)
#define blockDim (emulator::block.threads)
#define gridDim (emulator::block.grid)

// ----------------------------------------------------------------------------------------------------------- instructions

static inline void __syncthreads() { emulator::barrier(); }
static inline void __syncwarp() {
    emulator::meet("__syncwarp", 0, [](auto &, auto &) {});
}

template <class T> static inline T shuffle_xor(T x, int mask) {
    emulator::Warp &w = emulator::meet("a shuffle", x, [](auto &, auto &) {});
    T result;
    memcpy(&result, w.shown[w.turn ^ 1][(emulator::block.current->number ^ mask) % 32], sizeof result);
    return result;
}

DEVICE float half_to_float(uint16_t h) {
    _Float16 f;
    memcpy(&f, &h, 2);
    return (float)f;
}
DEVICE uint16_t float_to_half(float f) {
    const _Float16 rounded = (_Float16)f;
    uint16_t h;
    memcpy(&h, &rounded, 2);
    return h;
}
DEVICE int32_t dp4a(uint32_t a, uint32_t b, int32_t c) {
    for (int i = 0; i < 4; i++) c += (int8_t)(a >> 8 * i) * (int8_t)(b >> 8 * i);
    return c;
}
DEVICE uint32_t permute(uint32_t a, uint32_t b, uint32_t s) {
    const uint64_t all = (uint64_t)b << 32 | a;
    uint32_t result = 0;
    for (int i = 0; i < 4; i++) {
        const unsigned selector = s >> 4 * i & 15;
        uint8_t byte = all >> 8 * (selector & 7);
        if (selector & 8) byte = byte & 128 ? 255 : 0;
        result |= (uint32_t)byte << 8 * i;
    }
    return result;
}
DEVICE float as_float(uint32_t x) {
    float f;
    memcpy(&f, &x, 4);
    return f;
}
DEVICE uint32_t as_bits(float x) {
    uint32_t u;
    memcpy(&u, &x, 4);
    return u;
}
DEVICE int population(uint64_t x) { return __builtin_popcountll(x); }
DEVICE int lowest_bit(uint64_t x) { return __builtin_ffsll(x) - 1; }
DEVICE uint64_t high_product(uint64_t a, uint64_t b) { return (unsigned __int128)a * b >> 64; }
DEVICE int leading_zeros(uint64_t x) { return x ? __builtin_clzll(x) : 64; }
DEVICE uint64_t double_bits(double x) {
    uint64_t u;
    memcpy(&u, &x, 8);
    return u;
}
DEVICE double as_double(uint64_t x) {
    double d;
    memcpy(&d, &x, 8);
    return d;
}
DEVICE int atomic_add(int *at, int x) { return __atomic_fetch_add(at, x, __ATOMIC_RELAXED); }

// Fragments as the PTX manual lays them out (see prelude.cuh): the last lane to come multiplies for all.
struct Fragments {
    uint32_t a[4], b[2];
    int32_t c[4];
};
static inline void mma(int32_t d[4], const Fragments &mine, const char *what, int halves) {
    emulator::Warp &w = emulator::meet(what, mine, [halves](auto &shown, auto &results) {
        int8_t a[16][32], b[8][32];
        for (int lane = 0; lane < 32; lane++) {
            const Fragments &f = *(const Fragments *)shown[lane];
            const int g = lane / 4, t = lane % 4;
            for (int half = 0; half < halves; half++) {
                memcpy(&a[g][16 * half + 4 * t], &f.a[2 * half], 4);
                memcpy(&a[g + 8][16 * half + 4 * t], &f.a[2 * half + 1], 4);
                memcpy(&b[g][16 * half + 4 * t], &f.b[half], 4);
            }
        }
        for (int lane = 0; lane < 32; lane++) {
            const Fragments &f = *(const Fragments *)shown[lane];
            for (int i = 0; i < 4; i++) {
                const int8_t *row = a[lane / 4 + i / 2 * 8], *column = b[lane % 4 * 2 + i % 2];
                int32_t sum = 0;
                for (int k = 0; k < 16 * halves; k++) sum += row[k] * column[k];
                sum += f.c[i];
                memcpy(results[lane] + 4 * i, &sum, 4);
            }
        }
    });
    memcpy(d, w.results[w.turn ^ 1][emulator::block.current->number % 32], 16);
}
static inline void mma_k32(int32_t d[4], const uint32_t a[4], const uint32_t b[2], const int32_t c[4]) {
    mma(d, {{a[0], a[1], a[2], a[3]}, {b[0], b[1]}, {c[0], c[1], c[2], c[3]}}, "mma m16n8k32", 2);
}
static inline void mma_k16(int32_t d[4], const uint32_t a[2], uint32_t b, const int32_t c[4]) {
    mma(d, {{a[0], a[1], 0, 0}, {b, 0}, {c[0], c[1], c[2], c[3]}}, "mma m16n8k16", 1);
}
