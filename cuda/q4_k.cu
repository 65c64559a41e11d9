// Q4_K: 4 bits; a scale and a minimum of 6 bits for each step, d and dmin for eight.
#include "product.cuh"

struct Q4_K {
    static const bool NIBBLES = true, WIDE = false, PAIRS = false, BITS = false;
    static const int STEP_BYTES = 2, BLOCK_BYTES = 4, SHIFT = 0;
    static const bool HALVES = false, MIN = true;
    template <class Part> static DEVICE_MEMBER void unpack(const Part &p, int t, uint32_t &low, uint32_t &high) {
        nibbles(p.low, low, high);
    }
    static DEVICE_MEMBER Scales scales(uint32_t step, uint32_t block) {
        return whole(low_half(block) * (float)(step & 255), -high_half(block) * (float)(step >> 8));
    }
};

WIDE_FORMAT(q4_k, Q4_K)
