// Q5_K: 5 bits; scales as in Q4_K.
#include "product.cuh"

struct Q5_K {
    static const bool NIBBLES = true, WIDE = false, PAIRS = false, BITS = true;
    static const int STEP_BYTES = 2, BLOCK_BYTES = 4, SHIFT = 0;
    static const bool HALVES = false, MIN = true;
    template <class Part> static DEVICE_MEMBER void unpack(const Part &p, int t, uint32_t &low, uint32_t &high) {
        five_bits(p.low, p.bits, t, low, high);
    }
    static DEVICE_MEMBER Scales scales(uint32_t step, uint32_t block) {
        return whole(low_half(block) * (float)(step & 255), -high_half(block) * (float)(step >> 8));
    }
};

FORMAT(q5_k, Q5_K)
