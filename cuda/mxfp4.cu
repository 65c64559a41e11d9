// MXFP4: 4-bit floats, doubled to make them integers; a power of two for each step.
#include "product.cuh"

DEVICE void floats(uint32_t word, uint32_t &low, uint32_t &high) {
    const uint32_t values[4] = {0x03020100u, 0x0c080604u, 0xfdfeff00u, 0xf4f8fafcu};
    look_up(values, word, low, high);
}

struct MXFP4 {
    static const bool NIBBLES = true, WIDE = false, PAIRS = false, BITS = false;
    static const int STEP_BYTES = 1, BLOCK_BYTES = 0, SHIFT = 0;
    static const bool HALVES = false, MIN = false;
    template <class Part> static DEVICE_MEMBER void unpack(const Part &p, int t, uint32_t &low, uint32_t &high) {
        floats(p.low, low, high);
    }
    static DEVICE_MEMBER Scales scales(uint32_t step, uint32_t block) {
        // 2^(step - 128); the two lowest are subnormal.
        return whole(as_float(step < 2 ? 1u << (21 + step) : (step - 1) << 23), 0.0f);
    }
};

WIDE_FORMAT(mxfp4, MXFP4)
