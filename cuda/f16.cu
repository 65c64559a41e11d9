// F16: IEEE halves.
#include "float.cuh"

struct F16 {
    static const int BYTES = 2;
    static DEVICE_MEMBER void load(uint4 v, float *w) {
        const uint32_t words[4] = {v.x, v.y, v.z, v.w};
        for (int i = 0; i < 8; i++) w[i] = half_to_float((uint16_t)(words[i / 2] >> i % 2 * 16));
    }
};

FORMAT(f16, F16)
