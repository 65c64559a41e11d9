// Q2_K: 2 bits; for each half of a step a scale and a minimum of 4 bits, d and dmin for eight steps.
#include "product.cuh"

struct Q2_K {
    static const bool NIBBLES = false, WIDE = false, PAIRS = true, BITS = false;
    static const int STEP_BYTES = 2, BLOCK_BYTES = 4, SHIFT = 0;
    static const bool HALVES = true, MIN = true;
    template <class Part> static DEVICE_MEMBER void unpack(const Part &p, int t, uint32_t &low, uint32_t &high) {
        low = pair(p.pairs[0], t, 0);
        high = pair(p.pairs[1], t, 0);
    }
    static DEVICE_MEMBER Scales scales(uint32_t step, uint32_t block) {
        const int32_t first = step & 255, last = step >> 8;
        return {low_half(block), -high_half(block), {first & 15, last & 15}, {first >> 4, last >> 4}};
    }
};

FORMAT(q2_k, Q2_K)
