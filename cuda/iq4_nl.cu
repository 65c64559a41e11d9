// IQ4_NL: 4 bits that index 16 unevenly spaced values; d for each step.
#include "product.cuh"
#include "uneven.cuh"

struct IQ4_NL {
    static const bool NIBBLES = true, WIDE = false, PAIRS = false, BITS = false;
    static const int STEP_BYTES = 2, BLOCK_BYTES = 0, SHIFT = 0;
    static const bool HALVES = false, MIN = false;
    template <class Part> static DEVICE_MEMBER void unpack(const Part &p, int t, uint32_t &low, uint32_t &high) {
        uneven(p.low, low, high);
    }
    static DEVICE_MEMBER Scales scales(uint32_t step, uint32_t block) {
        return whole(low_half(step), 0.0f);
    }
};

WIDE_FORMAT(iq4_nl, IQ4_NL)
