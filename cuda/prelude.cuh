// What every kernel is written over: types without headers, the instructions that have no plain C form, and our own exp and
// tanh. Compiled by nvrtc for the device, and by any C++17 compiler over emulated/shim.h for tests without one.
//
// Arithmetic is what is written: -fmad=false keeps products and sums apart, fused ones are fmaf. So the device, every
// architecture and the emulator give the same bits.
#pragma once

#ifdef EMULATED
#include "emulated/shim.h"
#else
typedef signed char int8_t;
typedef unsigned char uint8_t;
typedef short int16_t;
typedef unsigned short uint16_t;
typedef int int32_t;
typedef unsigned int uint32_t;
typedef unsigned long long uint64_t;
#define DEVICE static __device__ __forceinline__
#define DEVICE_MEMBER __device__ __forceinline__
// Says to the emulator that there is a kernel of this name.
#define ENTRY(name)

DEVICE float half_to_float(uint16_t h) {
    float f;
    asm("cvt.f32.f16 %0, %1;" : "=f"(f) : "h"(h));
    return f;
}
DEVICE uint16_t float_to_half(float f) {
    uint16_t h;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(h) : "f"(f));
    return h;
}
// c + the four products of the signed bytes of a and b.
DEVICE int32_t dp4a(uint32_t a, uint32_t b, int32_t c) {
    int32_t d;
    asm("dp4a.s32.s32 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(c));
    return d;
}
// d[16][8] = c + a[16][32] b[32][8] in int8. With g = lane / 4 and t = lane % 4, a lane has of a the columns 4t .. 4t+4 of
// rows g and g + 8, then the columns 16 + 4t .. of both; of b the rows 4t .. 4t+4 and 16 + 4t .. of column g; of c and d the
// columns 2t and 2t + 1 of row g, then of row g + 8.
DEVICE void mma_k32(int32_t d[4], const uint32_t a[4], const uint32_t b[2], const int32_t c[4]) {
    asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%10,%11,%12,%13};"
        : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]), "r"(c[0]), "r"(c[1]), "r"(c[2]), "r"(c[3]));
}
// The same with sixteen columns of a and rows of b: the first half of the registers.
DEVICE void mma_k16(int32_t d[4], const uint32_t a[2], uint32_t b, const int32_t c[4]) {
    asm("mma.sync.aligned.m16n8k16.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5}, {%6}, {%7,%8,%9,%10};"
        : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(b), "r"(c[0]), "r"(c[1]), "r"(c[2]), "r"(c[3]));
}
// Byte i of the result is byte (s >> 4i & 7) of the eight bytes a, b.
DEVICE uint32_t permute(uint32_t a, uint32_t b, uint32_t s) {
    uint32_t d;
    asm("prmt.b32 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(s));
    return d;
}
DEVICE float as_float(uint32_t x) { return __uint_as_float(x); }
DEVICE uint32_t as_bits(float x) { return __float_as_uint(x); }
DEVICE int population(uint64_t x) { return __popcll(x); }
// The number of the lowest bit that is set.
DEVICE int lowest_bit(uint64_t x) { return __ffsll((long long)x) - 1; }
DEVICE uint64_t high_product(uint64_t a, uint64_t b) { return __umul64hi(a, b); }
DEVICE int leading_zeros(uint64_t x) { return __clzll((long long)x); }
DEVICE uint64_t double_bits(double x) { return (uint64_t)__double_as_longlong(x); }
DEVICE double as_double(uint64_t x) { return __longlong_as_double((long long)x); }
// What was there before.
DEVICE int atomic_add(int *at, int x) { return atomicAdd(at, x); }
// From the lane whose number differs in the bits of mask; all 32 lanes take part.
template <class T> DEVICE T shuffle_xor(T x, int mask) { return __shfl_xor_sync(0xffffffffu, x, mask, 32); }
#endif

const float NEGATIVE_INFINITY = -1.0f / 0.0f;

// What is kept of a block of 32 quantised activations beside its quants (kernels.rs: INFO_BYTES).
struct Info {
    float scale;     // a quant times this is the activation
    float sum;       // scale times the sum of the quants
    int32_t low;     // the sum of the first sixteen quants
    int32_t high;    // and of the last
};

// Where a batch begins (kernels.rs: Step).
struct Step {
    uint32_t base;
    uint32_t slot;
};

DEVICE float larger(float a, float b) { return a > b ? a : b; }
DEVICE float smaller(float a, float b) { return a < b ? a : b; }

// As backend::cpu::math::exp, operation for operation.
DEVICE float exponential(float x) {
    x = larger(smaller(x, 88.3f), -87.3f);
    const float n = rintf(x * 1.44269504f);
    float r = fmaf(n, -0.6933594f, x);
    r = fmaf(n, 2.1219444e-4f, r);
    float p = 1.3888889e-3f;
    p = fmaf(p, r, 8.333334e-3f);
    p = fmaf(p, r, 4.1666668e-2f);
    p = fmaf(p, r, 1.6666667e-1f);
    p = fmaf(p, r, 0.5f);
    p = fmaf(p, r, 1.0f);
    p = fmaf(p, r, 1.0f);
    return p * as_float((uint32_t)((int32_t)n + 127) << 23);
}

// As backend::cpu::math::tanh.
DEVICE float hyperbolic_tangent(float x) {
    const float e = exponential(x + x);
    return 1.0f - 2.0f / (e + 1.0f);
}

// The sum of all lanes, by halving; the same in every lane.
DEVICE float warp_sum(float x) {
#pragma unroll
    for (int mask = 16; mask > 0; mask >>= 1) x += shuffle_xor(x, mask);
    return x;
}
