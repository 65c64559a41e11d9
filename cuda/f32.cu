// F32: as it is.
#include "float.cuh"

struct F32 {
    static const int BYTES = 4;
    static DEVICE_MEMBER void load(uint4 v, float *w) {
        const uint32_t words[4] = {v.x, v.y, v.z, v.w};
        for (int i = 0; i < 4; i++) w[i] = as_float(words[i]);
    }
};

FORMAT(f32, F32)
