// Quantising what a kernel has just made.
#pragma once
#include "prelude.cuh"

// What a block is multiplied with to be quantised, given its largest value. An inverse that overflows belongs to a block of
// subnormals, which count as zero.
DEVICE float inverse_of(float top) {
    const float inverse = 127.0f / top;
    return fabsf(inverse) < 1.0f / 0.0f ? inverse : 0.0f;
}

// What is kept of a block, given that and the sums of the halves of its quants.
DEVICE Info info_of(float top, float inverse, int low, int high) {
    Info info;
    info.scale = inverse == 0.0f ? 0.0f : top / 127.0f;
    info.sum = info.scale * (float)(low + high);
    info.low = low;
    info.high = high;
    return info;
}

// The 32 lanes' values to a block of int8, which is block number `at / 32`: as the kernel `quantise` does it.
DEVICE void quantise_warp(float x, size_t at, uint8_t *quants, Info *info) {
    float top = fabsf(x);
#pragma unroll
    for (int mask = 16; mask > 0; mask >>= 1) top = larger(top, shuffle_xor(top, mask));
    const float inverse = inverse_of(top);
    const int q = (int)rintf(x * inverse);
    int sum = q;
#pragma unroll
    for (int mask = 8; mask > 0; mask >>= 1) sum += shuffle_xor(sum, mask);
    const int other = shuffle_xor(sum, 16);
    quants[at] = (uint8_t)q;
    if (at % 32 == 0) info[at / 32] = info_of(top, inverse, sum, other);
}
