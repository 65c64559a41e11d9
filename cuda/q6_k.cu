// Q6_K: 6 bits around zero; a signed scale for each half of a step, d for eight steps.
#include "product.cuh"

struct Q6_K {
    static const bool NIBBLES = true, WIDE = false, PAIRS = true, BITS = false;
    static const int STEP_BYTES = 2, BLOCK_BYTES = 2, SHIFT = 5;
    static const bool HALVES = true, MIN = false;
    template <class Part> static DEVICE_MEMBER void unpack(const Part &p, int t, uint32_t &low, uint32_t &high) {
        nibbles(p.low, low, high);
        low |= pair(p.pairs[0], t, 4);
        high |= pair(p.pairs[1], t, 4);
    }
    static DEVICE_MEMBER Scales scales(uint32_t step, uint32_t block) {
        return {low_half(block), 0.0f, {(int8_t)step, (int8_t)(step >> 8)}, {0, 0}};
    }
};

FORMAT(q6_k, Q6_K)
