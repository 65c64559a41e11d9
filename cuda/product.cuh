// Products of quantised weights [outputs, cols] and int8 activations [rows, cols]: a block of sixteen warps takes a tile of 32
// outputs and N rows of the batch, each warp one part of the columns (see Cut).
//
// `dot`: a lane is an output, four-way dot products. `mma`: tensor cores, outputs as the rows of the left operand. Sums of a
// step are exact integers in both, and what follows is the same operations in the same order, so both give the same bits.
#pragma once
#include "weight.cuh"

struct Operands {
    Weight weight;
    // [rows, cols] and [rows, cols / 32], with room for a multiple of 64 rows: what lies beyond is read and not used.
    const uint32_t *x;
    const Info *info;
    // [outputs] or null
    const float *bias;
    // [rows, outputs]
    float *out;
    int outputs, cols, rows;
};

// Adds one step to a sum.
template <class F> DEVICE float advance(float sum, int32_t low, int32_t high, const Scales &by, const Info &info) {
    float total;
    if (F::HALVES) {
        total = (float)(low * by.half[0] + high * by.half[1]);
    } else {
        total = (float)(low + high);
    }
    sum = fmaf(total * info.scale, by.scale, sum);
    if (F::MIN && F::HALVES) {
        return fmaf((float)(info.low * by.min_half[0] + info.high * by.min_half[1]) * info.scale, by.min, sum);
    }
    return F::MIN ? fmaf(info.sum, by.min, sum) : sum;
}

// Adds up the parts of an output in order, and its bias.
DEVICE void finish(const Operands &o, const float *parts, int stride, int count, int row, int output) {
    if (row >= o.rows || output >= o.outputs) return;
    float sum = parts[0];
    for (int part = 1; part < count; part++) sum += parts[part * stride];
    if (o.bias) sum += o.bias[output];
    o.out[(size_t)row * o.outputs + output] = sum;
}

template <class F, int N> DEVICE void dot(const Operands &o, int tile) {
    // Steps whose weights are asked for before the first of them is used.
    const int AHEAD = 4;
    __shared__ float parts[PARTS][N][TILE];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, first = blockIdx.x * N;
    const Cut c = cut(o.cols);
    const int from = warp * c.of_part, to = from + c.of_part < c.steps ? from + c.of_part : c.steps;
    const uint8_t *records = o.weight.quants + (size_t)tile * c.steps * Tile<F>::RECORD;
    float sums[N];
#pragma unroll
    for (int n = 0; n < N; n++) sums[n] = 0.0f;
    for (int start = from; start < to; start += AHEAD) {
        typename Tile<F>::Row rows[AHEAD];
        Scales scales[AHEAD];
#pragma unroll
        for (int i = 0; i < AHEAD; i++) {
            if (start + i < to) {
                rows[i] = Tile<F>::row(records + (size_t)(start + i) * Tile<F>::RECORD, lane);
                scales[i] = Tile<F>::scales(o.weight, tile, c.steps, start + i, lane);
            }
        }
#pragma unroll
        for (int i = 0; i < AHEAD; i++) {
            if (start + i >= to) break;
            uint32_t w[8];
#pragma unroll
            for (int t = 0; t < 4; t++) F::unpack(Tile<F>::part(rows[i], t), t, w[t], w[4 + t]);
#pragma unroll
            for (int n = 0; n < N; n++) {
                const size_t block = (size_t)(first + n) * c.steps + start + i;
                const uint4 x0 = *(const uint4 *)(o.x + block * 8), x1 = *(const uint4 *)(o.x + block * 8 + 4);
                const Info info = o.info[block];
                int32_t low = F::SHIFT ? -info.low * (1 << F::SHIFT) : 0, high = F::SHIFT ? -info.high * (1 << F::SHIFT) : 0;
                low = dp4a(w[0], x0.x, dp4a(w[1], x0.y, dp4a(w[2], x0.z, dp4a(w[3], x0.w, low))));
                high = dp4a(w[4], x1.x, dp4a(w[5], x1.y, dp4a(w[6], x1.z, dp4a(w[7], x1.w, high))));
                sums[n] = advance<F>(sums[n], low, high, scales[i], info);
            }
        }
    }
#pragma unroll
    for (int n = 0; n < N; n++) parts[warp][n][lane] = sums[n];
    __syncthreads();
    if (warp < N) finish(o, &parts[0][warp][lane], N * TILE, c.parts, first + warp, tile * TILE + lane);
}

// Sums of a step lie within 2^22 where there is one scale a step: added to this, they are the low bits of a float.
const int32_t MAGIC_BITS = 0x4b400000;
const float MAGIC = 12582912.0f;

// One step of sixteen outputs and eight rows: adds to a lane's sums, of two outputs and two rows.
template <class F>
DEVICE void multiply(float (*sums)[2], const uint32_t a[4], const uint32_t b[2], const Scales by[2], const Info of[2]) {
    int32_t low[4], high[4], start[4], other[4];
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const Info &info = of[i % 2];
        start[i] = F::SHIFT ? -info.low * (1 << F::SHIFT) : 0;
        other[i] = F::SHIFT ? -info.high * (1 << F::SHIFT) : 0;
        if (!F::HALVES) start[i] += MAGIC_BITS + other[i];
    }
    if (F::HALVES) {
        mma_k16(low, a, b[0], start);
        mma_k16(high, a + 2, b[1], other);
    } else {
        mma_k32(low, a, b, start);
    }
#pragma unroll
    for (int i = 0; i < 4; i++) {
        float &sum = sums[i / 2][i % 2];
        const Scales &scales = by[i / 2];
        const Info &info = of[i % 2];
        if (F::HALVES) {
            sum = advance<F>(sum, low[i], high[i], scales, info);
        } else {
            sum = fmaf((as_float((uint32_t)low[i]) - MAGIC) * info.scale, scales.scale, sum);
            if (F::MIN) sum = fmaf(info.sum, scales.min, sum);
        }
    }
}

template <class F, int N> DEVICE void mma(const Operands &o, int tile) {
    const int COLUMNS = N / 8;
    // Steps whose weights are asked for before the first of them is used: few rows wait for memory, many for the units.
    const int AHEAD = N == 8 && !F::HALVES ? 4 : N <= 16 ? 2 : 1;
    // Columns of eight that are added up at a time, and the distance of their rows that keeps banks apart.
    const int TOGETHER = COLUMNS > 1 ? 2 : 1, STRIDE = 36;
    __shared__ float parts[PARTS][TOGETHER * 8][STRIDE];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, t = lane % 4;
    const int first = blockIdx.x * N;
    const Cut c = cut(o.cols);
    const int from = warp * c.of_part, to = from + c.of_part < c.steps ? from + c.of_part : c.steps;
    const uint8_t *records = o.weight.quants + (size_t)tile * c.steps * Tile<F>::RECORD;
    const uint32_t *x = o.x + (size_t)(first + g) * c.steps * 8 + t;
    const Info *info = o.info + (size_t)(first + 2 * t) * c.steps;
    // Outputs g, g + 8, g + 16, g + 24 of the tile and rows 2t, 2t + 1 of each eight.
    float sums[COLUMNS][4][2];
#pragma unroll
    for (int i = 0; i < COLUMNS * 8; i++) sums[i / 8][i / 2 % 4][i % 2] = 0.0f;
    // Takes a step, its weights unpacked.
    auto take = [&](int step, const uint32_t (*a)[4], const Scales *scales) {
        // A 32-bit index that moves on: eight pointers would not fit into registers.
        uint32_t block = step;
#pragma unroll
        for (int column = 0; column < COLUMNS; column++, block += 8 * c.steps) {
            const uint32_t b[2] = {x[(size_t)block * 8], x[(size_t)block * 8 + 4]};
            const Info infos[2] = {info[block], info[block + c.steps]};
            multiply<F>(sums[column], a[0], b, scales, infos);
            multiply<F>(sums[column] + 2, a[1], b, scales + 2, infos);
        }
    };
    uint32_t a[2][4];
    Scales scales[4];
    if (AHEAD == 1) {
#pragma unroll 1
        for (int step = from; step < to; step++) {
            const uint8_t *record = records + (size_t)step * Tile<F>::RECORD;
#pragma unroll
            for (int i = 0; i < 4; i++) {
                F::unpack(Tile<F>::part(record, g + 8 * i, t), t, a[i / 2][i % 2], a[i / 2][2 + i % 2]);
                scales[i] = Tile<F>::scales(o.weight, tile, c.steps, step, g + 8 * i);
            }
            take(step, a, scales);
        }
    } else {
#pragma unroll 1
        for (int start = from; start < to; start += AHEAD) {
            typename Tile<F>::Part weights[AHEAD][4];
            typename Tile<F>::Raw raw[AHEAD][4];
#pragma unroll
            for (int i = 0; i < AHEAD * 4; i++) {
                const int step = start + i / 4, row = g + 8 * (i % 4);
                if (step < to) {
                    weights[i / 4][i % 4] = Tile<F>::part(records + (size_t)step * Tile<F>::RECORD, row, t);
                    raw[i / 4][i % 4] = Tile<F>::raw(o.weight, tile, c.steps, step, row);
                }
            }
#pragma unroll
            for (int ahead = 0; ahead < AHEAD; ahead++) {
                if (start + ahead >= to) break;
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    F::unpack(weights[ahead][i], t, a[i / 2][i % 2], a[i / 2][2 + i % 2]);
                    scales[i] = F::scales(raw[ahead][i].step, raw[ahead][i].block);
                }
                take(start + ahead, a, scales);
            }
        }
    }
#pragma unroll
    for (int column = 0; column < COLUMNS; column += TOGETHER) {
        if (column > 0) __syncthreads();
#pragma unroll
        for (int i = 0; i < TOGETHER * 8; i++)
            parts[warp][i / 8 * 8 + 2 * t + i % 2][g + i / 2 % 4 * 8] = sums[column + i / 8][i / 2 % 4][i % 2];
        __syncthreads();
        if (warp < TOGETHER * 8)
            finish(o, &parts[0][warp][lane], TOGETHER * 8 * STRIDE, c.parts, first + column * 8 + warp, tile * TILE + lane);
    }
}

// Up to three products with the same input (kernels.rs: Products); those that are missing have no outputs.
struct Products {
    const uint8_t *quants[3], *steps[3], *blocks[3];
    const float *bias[3];
    float *out[3];
    int outputs[3];
};

// What a block works on, and its tile: tiles of all products lie in a row. Chosen without an index, which would move the
// parameters to memory. Kernels of many rows, which have no register to spare, take the first product only.
template <bool SEVERAL> DEVICE Operands choose(const Products &p, const uint32_t *x, const Info *info, int cols, int rows, int &tile) {
    const int first = (p.outputs[0] + TILE - 1) / TILE, second = (p.outputs[1] + TILE - 1) / TILE;
    tile = blockIdx.y;
    if (!SEVERAL || tile < first) return {{p.quants[0], p.steps[0], p.blocks[0]}, x, info, p.bias[0], p.out[0], p.outputs[0], cols, rows};
    tile -= first;
    if (tile < second) return {{p.quants[1], p.steps[1], p.blocks[1]}, x, info, p.bias[1], p.out[1], p.outputs[1], cols, rows};
    tile -= second;
    return {{p.quants[2], p.steps[2], p.blocks[2]}, x, info, p.bias[2], p.out[2], p.outputs[2], cols, rows};
}

#define PRODUCT(name, kind, F, N)                                                                                          \
    extern "C" __global__ void __launch_bounds__(32 * PARTS, 1)                                                               \
        name(Products products, const uint32_t *x, const Info *info, int cols, int rows) {                                 \
        int tile;                                                                                                          \
        const Operands o = choose<N <= 8>(products, x, info, cols, rows, tile);                                            \
        kind<F, N>(o, tile);                                                                                               \
    }                                                                                                                      \
    ENTRY(name)

// All kernels of a format. Some go without the widest (kernels.rs: is_narrow): its registers would spill.
#define FORMAT(name, F)                                                                                                    \
    PRODUCT(name##_dot1, dot, F, 1)                                                                                        \
    PRODUCT(name##_dot2, dot, F, 2)                                                                                        \
    PRODUCT(name##_dot4, dot, F, 4)                                                                                        \
    PRODUCT(name##_mma8, mma, F, 8)                                                                                        \
    PRODUCT(name##_mma16, mma, F, 16)                                                                                      \
    PRODUCT(name##_mma32, mma, F, 32)                                                                                      \
    extern "C" __global__ void name##_embed(const uint8_t *quants, const uint8_t *steps, const uint8_t *blocks,            \
                                            const uint32_t *tokens, float *out, int cols, int rows, float scale) {         \
        embed<F>({quants, steps, blocks}, tokens, out, cols, rows, scale);                                                 \
    }                                                                                                                      \
    ENTRY(name##_embed)

#define WIDE_FORMAT(name, F) FORMAT(name, F) PRODUCT(name##_mma64, mma, F, 64)
