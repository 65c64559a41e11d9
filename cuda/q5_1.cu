// Q5_1: 5 bits above a minimum; d and m for each step.
#include "product.cuh"

struct Q5_1 {
    static const bool NIBBLES = true, WIDE = false, PAIRS = false, BITS = true;
    static const int STEP_BYTES = 4, BLOCK_BYTES = 0, SHIFT = 0;
    static const bool HALVES = false, MIN = true;
    template <class Part> static DEVICE_MEMBER void unpack(const Part &p, int t, uint32_t &low, uint32_t &high) {
        five_bits(p.low, p.bits, t, low, high);
    }
    static DEVICE_MEMBER Scales scales(uint32_t step, uint32_t block) {
        return whole(low_half(step), high_half(step));
    }
};

FORMAT(q5_1, Q5_1)
