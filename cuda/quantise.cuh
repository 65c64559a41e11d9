// Quantising what a kernel has just made.
#pragma once
#include "prelude.cuh"

// The 32 lanes' values to a block of int8, which is block number `at / 32`: as the kernel `quantise` does it.
DEVICE void quantise_warp(float x, size_t at, uint8_t *quants, Info *info) {
    float top = fabsf(x);
#pragma unroll
    for (int mask = 16; mask > 0; mask >>= 1) top = larger(top, shuffle_xor(top, mask));
    float inverse = 127.0f / top;
    if (!(fabsf(inverse) < 1.0f / 0.0f)) inverse = 0.0f;
    const int q = (int)rintf(x * inverse);
    int sum = q;
#pragma unroll
    for (int mask = 8; mask > 0; mask >>= 1) sum += shuffle_xor(sum, mask);
    const int other = shuffle_xor(sum, 16);
    quants[at] = (uint8_t)q;
    if (at % 32 == 0) {
        Info out;
        out.scale = inverse == 0.0f ? 0.0f : top / 127.0f;
        out.sum = out.scale * (float)(sum + other);
        out.low = sum;
        out.high = other;
        info[at / 32] = out;
    }
}
