// Q5_0: 5 bits around zero; d for each step.
#include "product.cuh"

struct Q5_0 {
    static const bool NIBBLES = true, WIDE = false, PAIRS = false, BITS = true;
    static const int STEP_BYTES = 2, BLOCK_BYTES = 0, SHIFT = 4;
    static const bool HALVES = false, MIN = false;
    template <class Part> static DEVICE_MEMBER void unpack(const Part &p, int t, uint32_t &low, uint32_t &high) {
        five_bits(p.low, p.bits, t, low, high);
    }
    static DEVICE_MEMBER Scales scales(uint32_t step, uint32_t block) {
        return whole(low_half(step), 0.0f);
    }
};

WIDE_FORMAT(q5_0, Q5_0)
