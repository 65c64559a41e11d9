// Row and elementwise kernels; see src/backend/cuda/kernels.rs for their arguments. Those without a sum over a row give the
// bits of the CPU's scalar code.
#include "quantise.cuh"

#define ELEMENT (blockIdx.x * blockDim.x + threadIdx.x)

// Eight threads a block of 32, four activations each.
extern "C" __global__ void quantise(const float4 *x, uint32_t *quants, Info *info, int blocks) {
    const int i = ELEMENT;
    // Whole warps take part in the shuffles.
    const bool inside = i < blocks * 8;
    float4 v = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    if (inside) v = x[i];
    float top = larger(larger(fabsf(v.x), fabsf(v.y)), larger(fabsf(v.z), fabsf(v.w)));
#pragma unroll
    for (int mask = 4; mask > 0; mask >>= 1) top = larger(top, shuffle_xor(top, mask));
    const float inverse = inverse_of(top);
    const int q[4] = {(int)rintf(v.x * inverse), (int)rintf(v.y * inverse), (int)rintf(v.z * inverse), (int)rintf(v.w * inverse)};
    int sum = q[0] + q[1] + q[2] + q[3];
    sum += shuffle_xor(sum, 1);
    sum += shuffle_xor(sum, 2);
    const int other = shuffle_xor(sum, 4);
    if (!inside) return;
    quants[i] = (q[0] & 255) | (q[1] & 255) << 8 | (q[2] & 255) << 16 | (uint32_t)(q[3] & 255) << 24;
    if (i % 8 == 0) info[i / 8] = info_of(top, inverse, sum, other);
}
ENTRY(quantise)

DEVICE float norm_factor(float squares, int width, float eps) { return 1.0f / sqrtf(squares / (float)width + eps); }

// A warp a head.
extern "C" __global__ void rms_norm_warp(const float *x, const float *weight, float *out, int width, float eps, int rows) {
    const int row = ELEMENT / 32, lane = threadIdx.x % 32;
    if (row >= rows) return;
    x += (size_t)row * width;
    out += (size_t)row * width;
    float squares = 0.0f;
    for (int i = lane; i < width; i += 32) squares = fmaf(x[i], x[i], squares);
    const float factor = norm_factor(warp_sum(squares), width, eps);
    for (int i = lane; i < width; i += 32) out[i] = x[i] * factor * weight[i];
}
ENTRY(rms_norm_warp)

// 256 threads a row. Where they are not null, `y` is added to `x` first, and the result is quantised.
DEVICE void norm_row(float *x, const float *y, const float *weight, float *out, uint8_t *quants, Info *info, int width, float eps) {
    __shared__ float parts[8];
    const size_t start = (size_t)blockIdx.x * width;
    x += start;
    out += start;
    float squares = 0.0f;
    for (int i = threadIdx.x; i < width; i += 256) {
        float v = x[i];
        if (y) {
            v += y[start + i];
            x[i] = v;
        }
        squares = fmaf(v, v, squares);
    }
    squares = warp_sum(squares);
    if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = squares;
    __syncthreads();
    squares = parts[0];
#pragma unroll
    for (int i = 1; i < 8; i++) squares += parts[i];
    const float factor = norm_factor(squares, width, eps);
    for (int i = threadIdx.x; i < width; i += 256) {
        const float v = x[i] * factor * weight[i];
        out[i] = v;
        // Warps take blocks of 32 whole, since widths that are quantised are made of them.
        if (quants) quantise_warp(v, start + i, quants, info);
    }
}

extern "C" __global__ void rms_norm_block(float *x, const float *weight, float *out, int width, float eps, int rows) {
    norm_row(x, nullptr, weight, out, nullptr, nullptr, width, eps);
}
ENTRY(rms_norm_block)

extern "C" __global__ void rms_norm_fused(float *x, const float *y, const float *weight, float *out, uint8_t *quants, Info *info, int width, float eps, int rows) {
    norm_row(x, y, weight, out, quants, info, width, eps);
}
ENTRY(rms_norm_fused)

// Turns elements a and b of pair number `pair` among `heads * half` of a row.
template <int STRIDE> DEVICE void rotate(float *x, const float *cos, const float *sin, int cols, int width, int half, int rows) {
    const int i = ELEMENT, heads = cols / width;
    const int row = i / (heads * half), head = i / half % heads, pair = i % half;
    if (row >= rows) return;
    float *first = x + (size_t)row * cols + head * width + (STRIDE == 1 ? 2 * pair : pair);
    float *second = first + (STRIDE == 1 ? 1 : half);
    const float c = cos[row * half + pair], s = sin[row * half + pair], a = *first, b = *second;
    *first = a * c - b * s;
    *second = a * s + b * c;
}

extern "C" __global__ void rope_adjacent(float *x, const float *cos, const float *sin, int cols, int width, int half, int rows) {
    rotate<1>(x, cos, sin, cols, width, half, rows);
}
ENTRY(rope_adjacent)

extern "C" __global__ void rope_halves(float *x, const float *cos, const float *sin, int cols, int width, int half, int rows) {
    rotate<0>(x, cos, sin, cols, width, half, rows);
}
ENTRY(rope_halves)

DEVICE float silu_of(float x) { return x / (1.0f + exponential(0.0f - x)); }

DEVICE float gelu_of(float x) {
    const float cube = x * x * x;
    const float inner = 0.7978846f * fmaf(0.044715f, cube, x);
    return 0.5f * x * (1.0f + hyperbolic_tangent(inner));
}

#define ELEMENTWISE(name, arguments, expression)        \
    extern "C" __global__ void name arguments {         \
        const int i = ELEMENT;                          \
        if (i < n) x[i] = expression;                   \
    }                                                   \
    ENTRY(name)

ELEMENTWISE(silu, (float *x, int n), silu_of(x[i]))
ELEMENTWISE(gelu, (float *x, int n), gelu_of(x[i]))
ELEMENTWISE(glu_silu, (float *x, const float *up, int n), silu_of(x[i]) * up[i])
ELEMENTWISE(glu_gelu, (float *x, const float *up, int n), gelu_of(x[i]) * up[i])
// The same, quantised as well; n is a multiple of 32.
#define GLU_QUANTISED(name, activation)                                                                          \
    extern "C" __global__ void name(float *x, const float *up, uint8_t *quants, Info *info, int n) {             \
        const int i = ELEMENT;                                                                                   \
        if (i >= n) return;                                                                                      \
        x[i] = activation(x[i]) * up[i];                                                                         \
        quantise_warp(x[i], i, quants, info);                                                                    \
    }                                                                                                            \
    ENTRY(name)

GLU_QUANTISED(glu_silu_quantised, silu_of)
GLU_QUANTISED(glu_gelu_quantised, gelu_of)
ELEMENTWISE(add, (float *x, const float *y, int n), x[i] + y[i])
ELEMENTWISE(softcap, (float *x, float cap, int n), cap * hyperbolic_tangent(x[i] * (1.0f / cap)))

extern "C" __global__ void gather(const float *x, const uint32_t *rows, float *out, int cols, int count) {
    const int i = ELEMENT, row = i / cols;
    if (row < count) out[i] = x[(size_t)rows[row] * cols + i % cols];
}
ENTRY(gather)

extern "C" __global__ void columns(const float *from, float *to, int from_cols, int from_at, int to_cols, int to_at, int cols, int rows) {
    const int i = ELEMENT, row = i / cols, col = i % cols;
    if (row < rows) to[(size_t)row * to_cols + to_at + col] = from[(size_t)row * from_cols + from_at + col];
}
ENTRY(columns)

// A bijection that scatters neighbours (the finaliser of MurmurHash3).
DEVICE uint32_t scatter(uint32_t x) {
    x = (x ^ x >> 16) * 0x85ebca6bu;
    x = (x ^ x >> 13) * 0xc2b2ae35u;
    return x ^ x >> 16;
}

extern "C" __global__ void fill_bits(uint32_t *words, int n, uint32_t seed) {
    const int i = ELEMENT;
    if (i < n) words[i] = scatter(i ^ scatter(seed));
}
ENTRY(fill_bits)

extern "C" __global__ void fill_halves(uint16_t *halves, int n, float most, uint32_t seed) {
    const int i = ELEMENT;
    if (i < n) halves[i] = float_to_half(most * ((float)(scatter(i ^ scatter(seed)) >> 8) * (1.0f / 8388608.0f) - 1.0f));
}
ENTRY(fill_halves)
