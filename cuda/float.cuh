// Products of float weights and f32 activations, cut and added up as those of quantised weights are; a lane is an output.
#pragma once
#include "weight.cuh"

// A format F has BYTES of a weight and load: the weights of 16 bytes.
template <class F, int N>
DEVICE void dot(const uint8_t *weights, const float *x, const float *bias, float *out, int outputs, int cols, int rows) {
    const int WIDTH = 16 / F::BYTES, CHUNKS = STEP / WIDTH;
    __shared__ float parts[PARTS][N][TILE];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, tile = blockIdx.y, first = blockIdx.x * N;
    const Cut c = cut(cols);
    const int from = warp * c.of_part, to = from + c.of_part < c.steps ? from + c.of_part : c.steps;
    const uint8_t *chunks = weights + (size_t)tile * c.steps * CHUNKS * TILE * 16 + lane * 16;
    const float *row[N];
    float sums[N];
#pragma unroll
    for (int n = 0; n < N; n++) {
        row[n] = x + (size_t)(first + n < rows ? first + n : rows - 1) * cols;
        sums[n] = 0.0f;
    }
    const bool aligned = cols % 4 == 0;
#pragma unroll(N < 8 ? 4 : 1)
    for (int chunk = from * CHUNKS; chunk < to * CHUNKS; chunk++) {
        float w[WIDTH];
        F::load(*(const uint4 *)(chunks + (size_t)chunk * TILE * 16), w);
        const int column = chunk * WIDTH;
        if (aligned && column + WIDTH <= cols) {
#pragma unroll
            for (int n = 0; n < N; n++) {
#pragma unroll
                for (int i = 0; i < WIDTH; i += 4) {
                    const float4 v = *(const float4 *)(row[n] + column + i);
                    sums[n] = fmaf(w[i], v.x, sums[n]);
                    sums[n] = fmaf(w[i + 1], v.y, sums[n]);
                    sums[n] = fmaf(w[i + 2], v.z, sums[n]);
                    sums[n] = fmaf(w[i + 3], v.w, sums[n]);
                }
            }
        } else {
#pragma unroll
            for (int i = 0; i < WIDTH; i++) {
                if (column + i < cols) {
#pragma unroll
                    for (int n = 0; n < N; n++) sums[n] = fmaf(w[i], row[n][column + i], sums[n]);
                }
            }
        }
    }
#pragma unroll
    for (int n = 0; n < N; n++) parts[warp][n][lane] = sums[n];
    __syncthreads();
    const int output = tile * TILE + lane;
    if (warp >= N || first + warp >= rows || output >= outputs) return;
    float sum = parts[0][warp][lane];
    for (int part = 1; part < c.parts; part++) sum += parts[part][warp][lane];
    if (bias) sum += bias[output];
    out[(size_t)(first + warp) * outputs + output] = sum;
}

// A table's row widened: a thread a column.
template <class F> DEVICE void embed(const uint8_t *weights, const uint32_t *tokens, float *out, int cols, int rows, float scale) {
    const int WIDTH = 16 / F::BYTES, CHUNKS = STEP / WIDTH;
    const int column = blockIdx.x * blockDim.x + threadIdx.x;
    if (column >= cols) return;
    const int token = tokens[blockIdx.y], steps = (cols + STEP - 1) / STEP;
    const size_t chunk = (size_t)(token / TILE) * steps * CHUNKS + column / WIDTH;
    float w[WIDTH];
    F::load(*(const uint4 *)(weights + (chunk * TILE + token % TILE) * 16), w);
    float value = 0.0f;
#pragma unroll
    for (int i = 0; i < WIDTH; i++) value = i == column % WIDTH ? w[i] : value;
    out[(size_t)blockIdx.y * cols + column] = scale == 1.0f ? value : value * scale;
}

#define PRODUCT(name, F, N)                                                                                               \
    extern "C" __global__ void __launch_bounds__(32 * PARTS, 1)                                                              \
        name(const uint8_t *weights, const float *x, const float *bias, float *out, int outputs, int cols, int rows) {    \
        dot<F, N>(weights, x, bias, out, outputs, cols, rows);                                                            \
    }                                                                                                                     \
    ENTRY(name)

// All kernels of a format.
#define FORMAT(name, F)                                                                                                   \
    PRODUCT(name##_dot1, F, 1)                                                                                            \
    PRODUCT(name##_dot2, F, 2)                                                                                            \
    PRODUCT(name##_dot4, F, 4)                                                                                            \
    PRODUCT(name##_dot8, F, 8)                                                                                            \
    extern "C" __global__ void name##_embed(const uint8_t *weights, const uint32_t *tokens, float *out, int cols,         \
                                            int rows, float scale) {                                                      \
        embed<F>(weights, tokens, out, cols, rows, scale);                                                                \
    }                                                                                                                     \
    ENTRY(name##_embed)
