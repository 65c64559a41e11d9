// Q3_K: 3 bits around zero; a signed scale for each half of a step, d for eight steps.
#include "product.cuh"

struct Q3_K {
    static const bool NIBBLES = false, WIDE = false, PAIRS = true, BITS = true;
    static const int STEP_BYTES = 2, BLOCK_BYTES = 2, SHIFT = 2;
    static const bool HALVES = true, MIN = false;
    template <class Part> static DEVICE_MEMBER void unpack(const Part &p, int t, uint32_t &low, uint32_t &high) {
        low = pair(p.pairs[0], t, 0) | bit(p.bits, t, 2);
        high = pair(p.pairs[1], t, 0) | bit(p.bits, 4 + t, 2);
    }
    static DEVICE_MEMBER Scales scales(uint32_t step, uint32_t block) {
        return {low_half(block), 0.0f, {(int8_t)step, (int8_t)(step >> 8)}, {0, 0}};
    }
};

FORMAT(q3_k, Q3_K)
