// Quantised weights in tiles of 32 rows (layout: src/backend/cuda/pack.rs), and what a format says about itself.
//
// A format F has
//   NIBBLES, WIDE, PAIRS, BITS   the planes it has: 4 bits, twice 4 x 8 bits, 2 bits and 1 bit a weight
//   STEP_BYTES, BLOCK_BYTES      scales of a row for a step and for a block of eight steps
//   SHIFT                        what is taken off a quant, as a power of two; 0 for nothing
//   HALVES                       the halves of a step have integer scales of their own
//   MIN                          weights have a minimum
//   unpack                       the int8 quants of groups t and 4 + t (columns 4t .. 4t+4 and 16 + 4t ..) of a row
//   scales                       what they are multiplied by
// and a weight is scale * half * (quant - 2^SHIFT) + min * min_half.
#pragma once
#include "prelude.cuh"

const int TILE = 32;
const int STEP = 32;

// What a step's integer sums are multiplied by, for one row.
struct Scales {
    float scale;
    float min;
    int32_t half[2];
    int32_t min_half[2];
};

DEVICE Scales whole(float scale, float min) { return {scale, min, {1, 1}, {1, 1}}; }

// The arrays of a weight.
struct Weight {
    const uint8_t *quants, *steps, *blocks;
};

template <class F> struct Tile {
    static const int WORDS = 4 * F::NIBBLES + 8 * F::WIDE + 2 * F::PAIRS + F::BITS;
    static const int RECORD = TILE * WORDS * 4;
    static const int PAIRS_AT = F::NIBBLES ? TILE * 16 : 0;
    static const int BITS_AT = PAIRS_AT + (F::PAIRS ? TILE * 8 : 0);

    // The words of one row and one step that groups t and 4 + t are in.
    struct Part {
        uint32_t low, high, pairs[2], bits;
    };
    // All words of one row and one step.
    struct Row {
        uint4 low, high;
        uint2 pairs;
        uint32_t bits;
    };

    static DEVICE_MEMBER Row row(const uint8_t *record, int row) {
        Row r;
        if (F::NIBBLES || F::WIDE) r.low = *(const uint4 *)(record + row * 16);
        if (F::WIDE) r.high = *(const uint4 *)(record + TILE * 16 + row * 16);
        if (F::PAIRS) r.pairs = *(const uint2 *)(record + PAIRS_AT + row * 8);
        if (F::BITS) r.bits = *(const uint32_t *)(record + BITS_AT + row * 4);
        return r;
    }
    static DEVICE_MEMBER Part part(const uint8_t *record, int row, int t) {
        Part p;
        if (F::NIBBLES || F::WIDE) p.low = *(const uint32_t *)(record + row * 16 + t * 4);
        if (F::WIDE) p.high = *(const uint32_t *)(record + TILE * 16 + row * 16 + t * 4);
        if (F::PAIRS) {
            const uint2 both = *(const uint2 *)(record + PAIRS_AT + row * 8);
            p.pairs[0] = both.x;
            p.pairs[1] = both.y;
        }
        if (F::BITS) p.bits = *(const uint32_t *)(record + BITS_AT + row * 4);
        return p;
    }
    static DEVICE_MEMBER Part part(const Row &r, int t) {
        Part p;
        p.low = t == 0 ? r.low.x : t == 1 ? r.low.y : t == 2 ? r.low.z : r.low.w;
        p.high = t == 0 ? r.high.x : t == 1 ? r.high.y : t == 2 ? r.high.z : r.high.w;
        p.pairs[0] = r.pairs.x;
        p.pairs[1] = r.pairs.y;
        p.bits = r.bits;
        return p;
    }

    template <int BYTES> static DEVICE_MEMBER uint32_t number(const uint8_t *array, size_t i) {
        if (BYTES == 1) return array[i];
        if (BYTES == 2) return ((const uint16_t *)array)[i];
        return BYTES == 4 ? ((const uint32_t *)array)[i] : 0;
    }
    // The scales of a row of a tile in a step, as they are stored; `steps` is the number of them in a row.
    struct Raw {
        uint32_t step, block;
    };
    static DEVICE_MEMBER Raw raw(const Weight &w, int tile, int steps, int step, int row) {
        Raw r = {number<F::STEP_BYTES>(w.steps, ((size_t)tile * steps + step) * TILE + row), 0};
        if (F::BLOCK_BYTES) r.block = number<F::BLOCK_BYTES>(w.blocks, ((size_t)tile * (steps / 8) + step / 8) * TILE + row);
        return r;
    }
    static DEVICE_MEMBER Scales scales(const Weight &w, int tile, int steps, int step, int row) {
        const Raw r = raw(w, tile, steps, step, row);
        return F::scales(r.step, r.block);
    }
};

// Nibbles of four bytes: the low ones are group t, the high ones group 4 + t.
DEVICE void nibbles(uint32_t word, uint32_t &low, uint32_t &high) {
    low = word & 0x0f0f0f0fu;
    high = word >> 4 & 0x0f0f0f0fu;
}

// Bit t and bit 4 + t of four bytes, moved to bit `to`.
DEVICE uint32_t bit(uint32_t word, int t, int to) { return (word >> t & 0x01010101u) << to; }

// Quants of five bits: nibbles, and their fifth bits in another plane.
DEVICE void five_bits(uint32_t word, uint32_t bits, int t, uint32_t &low, uint32_t &high) {
    nibbles(word, low, high);
    low |= bit(bits, t, 4);
    high |= bit(bits, 4 + t, 4);
}

// Bits 2t and 2t + 1 of four bytes, moved up by `up`.
DEVICE uint32_t pair(uint32_t word, int t, int up) { return (word >> 2 * t & 0x03030303u) << up; }

// Sixteen bytes by the eight nibbles of a word: those of the low nibbles, those of the high ones.
DEVICE void look_up(const uint32_t table[4], uint32_t word, uint32_t &low, uint32_t &high) {
    // A selector's fourth bit means something else to the instruction: it chooses between the halves of the table instead.
    const uint32_t index = word & 0x77777777u, upper = 0x32103210u | (word & 0x88888888u) >> 1;
    const uint32_t first = permute(permute(table[0], table[1], index), permute(table[2], table[3], index), upper);
    const uint32_t last = permute(permute(table[0], table[1], index >> 16), permute(table[2], table[3], index >> 16), upper >> 16);
    low = permute(first, last, 0x6420);
    high = permute(first, last, 0x7531);
}

// The two halves of a word.
DEVICE float low_half(uint32_t word) { return half_to_float((uint16_t)word); }
DEVICE float high_half(uint32_t word) { return half_to_float((uint16_t)(word >> 16)); }

// A row of a product is cut into this many parts of so many steps, each summed in order from 0, then added up in order:
// whatever computes a product, its sum has this order, and so these bits.
const int PARTS = 16;
struct Cut {
    int steps, of_part, parts;
};
DEVICE Cut cut(int cols) {
    const int steps = (cols + STEP - 1) / STEP, of_part = (steps + PARTS - 1) / PARTS;
    return {steps, of_part, (steps + of_part - 1) / of_part};
}

// A table's row widened: a thread for groups t and 4 + t of one step.
template <class F> DEVICE void embed(Weight w, const uint32_t *tokens, float *out, int cols, int rows, float scale) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x, step = i / 4, t = i % 4, steps = cols / STEP;
    if (step >= steps) return;
    const int token = tokens[blockIdx.y], tile = token / TILE, row = token % TILE;
    const uint8_t *record = w.quants + ((size_t)tile * steps + step) * Tile<F>::RECORD;
    uint32_t group[2];
    F::unpack(Tile<F>::part(record, row, t), t, group[0], group[1]);
    const Scales s = Tile<F>::scales(w, tile, steps, step, row);
    for (int half = 0; half < 2; half++) {
        float v[4];
        for (int c = 0; c < 4; c++) {
            const int quant = (int8_t)(group[half] >> 8 * c) - (F::SHIFT ? 1 << F::SHIFT : 0);
            const float by = F::HALVES ? s.scale * (float)s.half[half] : s.scale;
            const float min = F::HALVES ? s.min * (float)s.min_half[half] : s.min;
            // Products are exact; only a minimum makes a rounding, and so one.
            const float value = F::MIN ? fmaf(by, (float)quant, min) : by * (float)quant;
            v[c] = scale == 1.0f ? value : value * scale;
        }
        *(float4 *)(out + (size_t)blockIdx.y * cols + step * STEP + half * 16 + t * 4) = make_float4(v[0], v[1], v[2], v[3]);
    }
}
