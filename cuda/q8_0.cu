// Q8_0: signed bytes; d for each step.
#include "product.cuh"

struct Q8_0 {
    static const bool NIBBLES = false, WIDE = true, PAIRS = false, BITS = false;
    static const int STEP_BYTES = 2, BLOCK_BYTES = 0, SHIFT = 0;
    static const bool HALVES = false, MIN = false;
    template <class Part> static DEVICE_MEMBER void unpack(const Part &p, int t, uint32_t &low, uint32_t &high) {
        low = p.low;
        high = p.high;
    }
    static DEVICE_MEMBER Scales scales(uint32_t step, uint32_t block) {
        return whole(low_half(step), 0.0f);
    }
};

WIDE_FORMAT(q8_0, Q8_0)
