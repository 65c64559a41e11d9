// The KV cache: rounding rows into it and moving slots. A part (keys or values of one head of one layer) is [slots, width]
// elements and, for q8_0, [slots, width / 32] scales after them.
#include "cache.cuh"

// A warp rounds 32 neighbouring elements of one head of one row, of keys or of values.
template <class T> DEVICE void store(const float *k, const float *v, uint8_t *keys, uint8_t *values, const Step *step, int heads, int width, int slots, int rows) {
    const int unit = (blockIdx.x * blockDim.x + threadIdx.x) / 32, lane = threadIdx.x % 32;
    const int chunks = (width + 31) / 32;
    const int chunk = unit % chunks, head = unit / chunks % heads, row = unit / (chunks * heads) % rows, part = unit / (chunks * heads * rows);
    if (part >= 2) return;
    const int at = chunk * 32 + lane;
    const float *from = (part == 0 ? k : v) + ((size_t)row * heads + head) * width;
    uint8_t *to = (part == 0 ? keys : values) + (size_t)head * T::part_bytes(slots, width);
    const size_t slot = step->slot + row;
    T::round(at < width ? from[at] : 0.0f, at < width, to, slot, slots, width, at);
}

// Moves slot after slot; a thread keeps to its columns, so that what it overwrites it has read.
template <class T> DEVICE void move(uint8_t *cache, const uint32_t *from, int to, int count, int parts, int width, int slots) {
    uint8_t *part = cache + (size_t)blockIdx.x * T::part_bytes(slots, width);
    const int words = width * T::ELEMENT_BYTES / 4;
    const int scales = T::SCALED ? width / 32 : 0;
    for (int column = threadIdx.x; column < words + scales; column += blockDim.x) {
        if (column < words) {
            uint32_t *data = (uint32_t *)part + column;
            for (int i = 0; i < count; i++) data[(size_t)(to + i) * words] = data[(size_t)from[i] * words];
        } else {
            uint16_t *data = (uint16_t *)(part + (size_t)slots * width) + column - words;
            for (int i = 0; i < count; i++) data[(size_t)(to + i) * scales] = data[(size_t)from[i] * scales];
        }
    }
}

#define CACHE(type, name)                                                                                                \
    extern "C" __global__ void store_##name(const float *k, const float *v, uint8_t *keys, uint8_t *values, const Step *step, int heads, int width, int slots, int rows) { \
        store<type>(k, v, keys, values, step, heads, width, slots, rows);                                                 \
    }                                                                                                                     \
    ENTRY(store_##name)                                                                                                   \
    extern "C" __global__ void move_##name(uint8_t *cache, const uint32_t *from, int to, int count, int parts, int width, int slots) { \
        move<type>(cache, from, to, count, parts, width, slots);                                                          \
    }                                                                                                                     \
    ENTRY(move_##name)

CACHE(F32, f32)
CACHE(F16, f16)
CACHE(Q8_0, q8_0)
