// IQ4_XS: quants as in IQ4_NL; a signed scale for each step, d for eight.
#include "product.cuh"
#include "uneven.cuh"

struct IQ4_XS {
    static const bool NIBBLES = true, WIDE = false, PAIRS = false, BITS = false;
    static const int STEP_BYTES = 1, BLOCK_BYTES = 2, SHIFT = 0;
    static const bool HALVES = false, MIN = false;
    template <class Part> static DEVICE_MEMBER void unpack(const Part &p, int t, uint32_t &low, uint32_t &high) {
        uneven(p.low, low, high);
    }
    static DEVICE_MEMBER Scales scales(uint32_t step, uint32_t block) {
        return whole(low_half(block) * (float)(int8_t)step, 0.0f);
    }
};

WIDE_FORMAT(iq4_xs, IQ4_XS)
