// Element types of the KV cache: how they are rounded and read.
#pragma once
#include "prelude.cuh"

struct F32 {
    static const int ELEMENT_BYTES = 4;
    static const bool SCALED = false;
    static DEVICE_MEMBER size_t part_bytes(int slots, int width) { return (size_t)slots * width * 4; }
    static DEVICE_MEMBER void round(float x, bool inside, uint8_t *part, size_t slot, int slots, int width, int at) {
        if (inside) ((float *)part)[slot * width + at] = x;
    }
    // Elements at .. at + 4 of a slot as they are stored, and widened.
    typedef float4 Four;
    static DEVICE_MEMBER Four four(const uint8_t *part, size_t slot, int slots, int width, int at) {
        return *(const float4 *)((const float *)part + slot * width + at);
    }
    static DEVICE_MEMBER float4 widen(Four x) { return x; }
};

struct F16 {
    static const int ELEMENT_BYTES = 2;
    static const bool SCALED = false;
    static DEVICE_MEMBER size_t part_bytes(int slots, int width) { return (size_t)slots * width * 2; }
    static DEVICE_MEMBER void round(float x, bool inside, uint8_t *part, size_t slot, int slots, int width, int at) {
        if (inside) ((uint16_t *)part)[slot * width + at] = float_to_half(x);
    }
    typedef uint2 Four;
    static DEVICE_MEMBER Four four(const uint8_t *part, size_t slot, int slots, int width, int at) {
        return *(const uint2 *)((const uint16_t *)part + slot * width + at);
    }
    static DEVICE_MEMBER float4 widen(Four x) {
        return make_float4(half_to_float((uint16_t)x.x), half_to_float((uint16_t)(x.x >> 16)), half_to_float((uint16_t)x.y), half_to_float((uint16_t)(x.y >> 16)));
    }
};

struct Q8_0 {
    static const int ELEMENT_BYTES = 1;
    static const bool SCALED = true;
    static DEVICE_MEMBER size_t part_bytes(int slots, int width) { return (size_t)slots * (width / 32) * 34; }
    static DEVICE_MEMBER uint16_t *scale_at(const uint8_t *part, size_t slot, int slots, int width, int at) {
        return (uint16_t *)(part + (size_t)slots * width) + slot * (width / 32) + at / 32;
    }
    static DEVICE_MEMBER void round(float x, bool inside, uint8_t *part, size_t slot, int slots, int width, int at) {
        float top = fabsf(x);
#pragma unroll
        for (int mask = 16; mask > 0; mask >>= 1) top = larger(top, shuffle_xor(top, mask));
        // Quants go with the scale as it is before it is rounded to f16, as ggml has it.
        const float scale = top / 127.0f;
        const float reciprocal = 1.0f / scale;
        const float inverse = scale > 0.0f && reciprocal < 1.0f / 0.0f ? reciprocal : 0.0f;
        if (!inside) return;
        ((int8_t *)part)[slot * width + at] = (int8_t)(int)rintf(x * inverse);
        if (at % 32 == 0) *scale_at(part, slot, slots, width, at) = float_to_half(scale);
    }
    struct Four {
        uint32_t quants;
        uint16_t scale;
    };
    static DEVICE_MEMBER Four four(const uint8_t *part, size_t slot, int slots, int width, int at) {
        return {*(const uint32_t *)(part + slot * width + at), *scale_at(part, slot, slots, width, at)};
    }
    static DEVICE_MEMBER float4 widen(Four x) {
        const float scale = half_to_float(x.scale);
        const int32_t q = (int32_t)x.quants;
        return make_float4((float)(int8_t)q * scale, (float)(int8_t)(q >> 8) * scale, (float)(int8_t)(q >> 16) * scale, (float)(int8_t)(q >> 24) * scale);
    }
};
