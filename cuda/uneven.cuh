// The values that quants of IQ4_NL and IQ4_XS index, dense around zero.
#pragma once
#include "weight.cuh"

DEVICE void uneven(uint32_t word, uint32_t &low, uint32_t &high) {
    const uint32_t values[4] = {0xbfad9881u, 0xf6eaddcfu, 0x26190d01u, 0x71594535u};
    look_up(values, word, low, high);
}
