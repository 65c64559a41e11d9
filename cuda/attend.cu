// Attention over the cache in fixed blocks of 128 logical positions.
//
// A row sees committed slots (position = slot) and then, in a tree, its ancestors in depth order at the positions that follow;
// in a chain these are simply the next slots. A block's scores, their exponentials and their weighted sum of values depend on
// positions alone, and blocks are added up in order, so neither the batch, nor the slots of ancestors, nor the kernel that is
// used change a bit.
#include "cache.cuh"
#include "quantise.cuh"

const int BLOCK = 128;
// Elements of keys that are staged at a time, and the distance of their rows that keeps banks apart.
const int CHUNK = 32, STRIDE = 36;
const int MOST_WIDTH = 256;

// kernels.rs: AttendShape.
struct Shape {
    int rows, heads, group, width, slots, blocks;
    float scale, softcap;
    int window;
};

// What a block of threads works with: Q queries of one KV head.
template <int Q> struct Room {
    // Staged keys; afterwards the sums of the groups of threads, [group][Q][width].
    alignas(16) float stage[BLOCK * STRIDE];
    alignas(16) float q[Q][MOST_WIDTH];
    alignas(16) float weights[BLOCK][Q];
    int slot[BLOCK];
    // Per query: the last and the first position it sees.
    int last[Q], lowest[Q];
    // Of a block: the largest score, the sum of exponentials; and what warps found of either.
    float top[Q], total[Q];
    float found[4][Q];
    // Of all blocks so far; and what they and a new block are multiplied by.
    float running_top[Q], running_total[Q], old_factor[Q], new_factor[Q];
};

DEVICE int position(int row, int base, const uint64_t *ancestors) { return ancestors ? base + population(ancestors[row]) - 1 : base + row; }

DEVICE int lowest_position(int position, int window) { return window > 0 && position + 1 > window ? position + 1 - window : 0; }

// Adds a block to those before it.
DEVICE void extend(float &top, float &total, float &old_factor, float &new_factor, float of_top, float of_total) {
    const float larger_top = larger(top, of_top);
    old_factor = exponential(top - larger_top);
    new_factor = exponential(of_top - larger_top);
    total = fmaf(total, old_factor, of_total * new_factor);
    top = larger_top;
}

template <class T, int Q> struct Attend {
    Room<Q> &room;
    const float *q;
    const uint8_t *keys, *values;
    const uint64_t *ancestors;
    const Shape &shape;
    int base, head, first, count;

    // Reads the queries first .. first + count.
    DEVICE_MEMBER void load(const Step *step) {
        const int tid = threadIdx.x, queries = shape.rows * shape.group;
        base = step->base;
        count = queries - first < Q ? queries - first : Q;
        const size_t part = T::part_bytes(shape.slots, shape.width);
        keys += head * part;
        values += head * part;
        for (int i = tid; i < count * shape.width; i += BLOCK) room.q[i / shape.width][i % shape.width] = q[offset(i / shape.width) + i % shape.width];
        if (tid < count) {
            room.last[tid] = position(row_of(tid), base, ancestors);
            room.lowest[tid] = lowest_position(room.last[tid], shape.window);
            room.running_top[tid] = NEGATIVE_INFINITY;
            room.running_total[tid] = 0.0f;
        }
        __syncthreads();
    }
    DEVICE_MEMBER int row_of(int query) const { return (first + query) / shape.group; }
    // Number of a query's head among those of all rows.
    DEVICE_MEMBER int unit(int query) const { return row_of(query) * shape.heads * shape.group + head * shape.group + (first + query) % shape.group; }
    DEVICE_MEMBER size_t offset(int query) const { return (size_t)unit(query) * shape.width; }
    DEVICE_MEMBER bool sees(int query, int start) const { return room.last[query] >= start && room.lowest[query] < start + BLOCK; }

    // Calls what(from, to) for runs of queries that see the block at `start` through the same slots, those being in `room`.
    template <class F> DEVICE_MEMBER void for_runs(int start, F what) {
        const bool together = !ancestors || start + BLOCK <= base;
        for (int from = 0; from < count;) {
            int to = count;
            if (!together) to = (row_of(from) + 1) * shape.group - first;
            if (to > count) to = count;
            bool seen = false;
            int last = 0;
            for (int query = from; query < to; query++) {
                seen |= sees(query, start);
                last = room.last[query] > last ? room.last[query] : last;
            }
            if (seen) {
                const int at = start + threadIdx.x;
                int slot = at <= last ? at : -1;
                if (ancestors && slot >= base) {
                    uint64_t rest = ancestors[row_of(from)];
                    for (int i = base; i < at; i++) rest &= rest - 1;
                    slot = base + lowest_bit(rest);
                }
                room.slot[threadIdx.x] = slot;
                __syncthreads();
                score(start, from, to);
                weigh();
                what(from, to);
                __syncthreads();
            }
            from = to;
        }
    }

    // Exponentials of scores against the block's largest, and their sum: a thread is a position.
    DEVICE_MEMBER void score(int start, int from, int to) {
        const int tid = threadIdx.x, width = shape.width;
        float scores[Q];
#pragma unroll
        for (int i = 0; i < Q; i++) scores[i] = 0.0f;
        // A chunk is asked for while the one before it is worked on: a thread has four elements of every sixteenth key.
        typename T::Four ahead[CHUNK / 4];
        const auto ask = [&](int chunk) {
            const int fours = chunk_width(chunk) / 4;
#pragma unroll
            for (int i = 0; i < CHUNK / 4; i++) {
                const int at = (tid + i * BLOCK) / fours, four = (tid + i * BLOCK) % fours;
                if (i < fours && room.slot[at] >= 0) ahead[i] = T::four(keys, room.slot[at], shape.slots, width, chunk + four * 4);
            }
        };
        ask(0);
        for (int chunk = 0; chunk < width; chunk += CHUNK) {
            const int fours = chunk_width(chunk) / 4;
#pragma unroll
            for (int i = 0; i < CHUNK / 4; i++) {
                const int at = (tid + i * BLOCK) / fours, four = (tid + i * BLOCK) % fours;
                if (i < fours && room.slot[at] >= 0) *(float4 *)(room.stage + at * STRIDE + four * 4) = T::widen(ahead[i]);
            }
            __syncthreads();
            if (chunk + CHUNK < width) ask(chunk + CHUNK);
            for (int four = 0; four < fours; four++) {
                const float4 k = *(const float4 *)(room.stage + tid * STRIDE + four * 4);
#pragma unroll
                for (int i = 0; i < Q; i++) {
                    const float4 v = *(const float4 *)(room.q[i] + chunk + four * 4);
                    scores[i] = fmaf(k.x, v.x, scores[i]);
                    scores[i] = fmaf(k.y, v.y, scores[i]);
                    scores[i] = fmaf(k.z, v.z, scores[i]);
                    scores[i] = fmaf(k.w, v.w, scores[i]);
                }
            }
            __syncthreads();
        }
        const float inverse = 1.0f / shape.softcap;
#pragma unroll
        for (int i = 0; i < Q; i++) {
            const bool seen = i >= from && i < to && start + tid <= room.last[i] && start + tid >= room.lowest[i];
            float score = scores[i] * shape.scale;
            if (shape.softcap > 0.0f) score = shape.softcap * hyperbolic_tangent(score * inverse);
            scores[i] = seen ? score : NEGATIVE_INFINITY;
            float top = scores[i];
#pragma unroll
            for (int mask = 16; mask > 0; mask >>= 1) top = larger(top, shuffle_xor(top, mask));
            if (tid % 32 == 0) room.found[tid / 32][i] = top;
        }
        __syncthreads();
        float exponentials[Q];
#pragma unroll
        for (int i = 0; i < Q; i++) {
            const float top = larger(larger(room.found[0][i], room.found[1][i]), larger(room.found[2][i], room.found[3][i]));
            exponentials[i] = scores[i] > NEGATIVE_INFINITY ? exponential(scores[i] - top) : 0.0f;
            room.weights[tid][i] = exponentials[i];
            if (tid == 0) room.top[i] = top;
        }
        __syncthreads();
#pragma unroll
        for (int i = 0; i < Q; i++) {
            const float sum = warp_sum(exponentials[i]);
            if (tid % 32 == 0) room.found[tid / 32][i] = sum;
        }
        __syncthreads();
        if (tid < Q) room.total[tid] = room.found[0][tid] + room.found[1][tid] + room.found[2][tid] + room.found[3][tid];
    }

    DEVICE_MEMBER int chunk_width(int chunk) const { return shape.width - chunk < CHUNK ? shape.width - chunk : CHUNK; }

    // Groups of threads that share the values' rows between them.
    DEVICE_MEMBER int groups() const { return BLOCK / (shape.width / 4); }

    // The weighted sum of values: a thread takes four elements of every groups()-th position.
    DEVICE_MEMBER void weigh() {
        const int AHEAD = 8;
        const int fours = shape.width / 4, group = threadIdx.x / fours, element = threadIdx.x % fours * 4;
        float4 sums[Q];
#pragma unroll
        for (int i = 0; i < Q; i++) sums[i] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        if (group < groups()) {
            for (int start = group; start < BLOCK; start += AHEAD * groups()) {
                typename T::Four ahead[AHEAD];
                bool seen[AHEAD];
#pragma unroll
                for (int j = 0; j < AHEAD; j++) {
                    const int at = start + j * groups(), slot = at < BLOCK ? room.slot[at] : -1;
                    seen[j] = slot >= 0;
                    if (seen[j]) ahead[j] = T::four(values, slot, shape.slots, shape.width, element);
                }
#pragma unroll
                for (int j = 0; j < AHEAD; j++) {
                    if (!seen[j]) break;
                    const float4 v = T::widen(ahead[j]);
                    const float *weights = room.weights[start + j * groups()];
#pragma unroll
                    for (int i = 0; i < Q; i++) {
                        sums[i].x = fmaf(weights[i], v.x, sums[i].x);
                        sums[i].y = fmaf(weights[i], v.y, sums[i].y);
                        sums[i].z = fmaf(weights[i], v.z, sums[i].z);
                        sums[i].w = fmaf(weights[i], v.w, sums[i].w);
                    }
                }
            }
#pragma unroll
            for (int i = 0; i < Q; i++) *(float4 *)(room.stage + (group * Q + i) * shape.width + element) = sums[i];
        }
        __syncthreads();
    }
    // Element `element` of a query's weighted sum.
    DEVICE_MEMBER float weighed(int query, int element) const {
        float sum = room.stage[query * shape.width + element];
        for (int group = 1; group < groups(); group++) sum += room.stage[(group * Q + query) * shape.width + element];
        return sum;
    }
};

// One block of positions: [top, total, width sums] of every query that sees it.
template <class T, int Q>
DEVICE void attend_split(const float *q, const uint8_t *keys, const uint8_t *values, const Step *step, const uint64_t *ancestors, float *scratch, const Shape &shape) {
    __shared__ Room<Q> room;
    Attend<T, Q> a = {room, q, keys, values, ancestors, shape, 0, (int)blockIdx.y, (int)blockIdx.z * Q, 0};
    a.load(step);
    const int start = blockIdx.x * BLOCK;
    a.for_runs(start, [&](int from, int to) {
        for (int query = from; query < to; query++) {
            if (!a.sees(query, start)) continue;
            float *out = scratch + ((size_t)a.unit(query) * shape.blocks + blockIdx.x) * (shape.width + 2);
            if (threadIdx.x == 0) {
                out[0] = room.top[query];
                out[1] = room.total[query];
            }
            for (int i = threadIdx.x; i < shape.width; i += BLOCK) out[2 + i] = a.weighed(query, i);
        }
    });
}

// Adds up the blocks of one query, in order; where there is room for quants the result is quantised as well.
DEVICE void merge(const float *scratch, const Step *step, const uint64_t *ancestors, float *out, const Shape &shape, uint8_t *quants, Info *info) {
    const int unit = blockIdx.x, last = position(unit / (shape.heads * shape.group), step->base, ancestors);
    const int first_block = lowest_position(last, shape.window) / BLOCK;
    float top = NEGATIVE_INFINITY, total = 0.0f, sums[2] = {0.0f, 0.0f};
#pragma unroll 4
    for (int block = first_block; block <= last / BLOCK; block++) {
        const float *of = scratch + ((size_t)unit * shape.blocks + block) * (shape.width + 2);
        float old_factor, new_factor;
        extend(top, total, old_factor, new_factor, of[0], of[1]);
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const int element = threadIdx.x + i * BLOCK;
            if (element < shape.width) sums[i] = fmaf(sums[i], old_factor, of[2 + element] * new_factor);
        }
    }
    const float inverse = 1.0f / total;
#pragma unroll
    for (int i = 0; i < 2; i++) {
        const int element = threadIdx.x + i * BLOCK;
        if (element < shape.width) {
            const size_t at = (size_t)unit * shape.width + element;
            out[at] = sums[i] * inverse;
            if (quants) quantise_warp(sums[i] * inverse, at, quants, info);
        }
    }
}

extern "C" __global__ void attend_merge(const float *scratch, const Step *step, const uint64_t *ancestors, float *out, Shape shape) {
    merge(scratch, step, ancestors, out, shape, nullptr, nullptr);
}
ENTRY(attend_merge)

extern "C" __global__ void attend_merge_quantised(const float *scratch, const Step *step, const uint64_t *ancestors, float *out, Shape shape, uint8_t *quants, Info *info) {
    merge(scratch, step, ancestors, out, shape, quants, info);
}
ENTRY(attend_merge_quantised)

// All blocks of positions, one after the other.
template <class T, int Q>
DEVICE void attend_whole(const float *q, const uint8_t *keys, const uint8_t *values, const Step *step, const uint64_t *ancestors, float *out, const Shape &shape) {
    __shared__ Room<Q> room;
    Attend<T, Q> a = {room, q, keys, values, ancestors, shape, 0, (int)blockIdx.y, (int)blockIdx.x * Q, 0};
    a.load(step);
    float sums[Q][2];
    int first = room.lowest[0], last = 0;
#pragma unroll
    for (int i = 0; i < Q; i++) sums[i][0] = sums[i][1] = 0.0f;
    for (int i = 0; i < a.count; i++) {
        first = room.lowest[i] < first ? room.lowest[i] : first;
        last = room.last[i] > last ? room.last[i] : last;
    }
    for (int start = first / BLOCK * BLOCK; start <= last; start += BLOCK) {
        a.for_runs(start, [&](int from, int to) {
            const int tid = threadIdx.x;
            if (tid >= from && tid < to && a.sees(tid, start))
                extend(room.running_top[tid], room.running_total[tid], room.old_factor[tid], room.new_factor[tid], room.top[tid], room.total[tid]);
            __syncthreads();
#pragma unroll
            for (int i = 0; i < Q; i++) {
                if (i < from || i >= to || !a.sees(i, start)) continue;
#pragma unroll
                for (int part = 0; part < 2; part++) {
                    const int element = tid + part * BLOCK;
                    if (element < shape.width) sums[i][part] = fmaf(sums[i][part], room.old_factor[i], a.weighed(i, element) * room.new_factor[i]);
                }
            }
        });
    }
#pragma unroll
    for (int i = 0; i < Q; i++) {
        if (i >= a.count) break;
        const float inverse = 1.0f / room.running_total[i];
#pragma unroll
        for (int part = 0; part < 2; part++) {
            const int element = threadIdx.x + part * BLOCK;
            if (element < shape.width) out[a.offset(i) + element] = sums[i][part] * inverse;
        }
    }
}

#define ATTEND(kind, type, name, Q)                                                                                        \
    extern "C" __global__ void __launch_bounds__(BLOCK, 1)                                                                  \
        attend_##kind##_##name##_##Q(const float *q, const uint8_t *keys, const uint8_t *values, const Step *step,         \
                                     const uint64_t *ancestors, float *out, Shape shape) {                                 \
        attend_##kind<type, Q>(q, keys, values, step, ancestors, out, shape);                                              \
    }                                                                                                                      \
    ENTRY(attend_##kind##_##name##_##Q)

#define ATTEND_TYPE(type, name)     \
    ATTEND(split, type, name, 1)    \
    ATTEND(split, type, name, 4)    \
    ATTEND(split, type, name, 8)    \
    ATTEND(whole, type, name, 1)    \
    ATTEND(whole, type, name, 4)    \
    ATTEND(whole, type, name, 8)

ATTEND_TYPE(F32, f32)
ATTEND_TYPE(F16, f16)
ATTEND_TYPE(Q8_0, q8_0)
