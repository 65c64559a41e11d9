// BF16: the upper half of an f32.
#include "float.cuh"

struct BF16 {
    static const int BYTES = 2;
    static DEVICE_MEMBER void load(uint4 v, float *w) {
        const uint32_t words[4] = {v.x, v.y, v.z, v.w};
        for (int i = 0; i < 8; i++) w[i] = as_float(i % 2 ? words[i / 2] & 0xffff0000u : words[i / 2] << 16);
    }
};

FORMAT(bf16, BF16)
