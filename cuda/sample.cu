// Picking tokens where the logits are: a block of 1024 threads takes a row. What is no number, and +inf, makes a row have no
// answer.
#include "prelude.cuh"

const uint32_t NO_TOKEN = 0xffffffffu;
const int THREADS = 1024;

DEVICE float too_much() { return 1.0f / 0.0f; }

// The better of two candidates: the larger logit, of equal ones the lower id. NO_TOKEN is the highest.
template <class T> DEVICE void take(T &logit, uint32_t &token, T other, uint32_t other_token) {
    if (other > logit || (other == logit && other_token < token)) {
        logit = other;
        token = other_token;
    }
}

// The best of all threads' candidates, in every thread.
template <class T> DEVICE void best_of_block(T &logit, uint32_t &token) {
    __shared__ T logits[32];
    __shared__ uint32_t tokens[32];
    for (int round = 0; round < 2; round++) {
#pragma unroll
        for (int mask = 16; mask > 0; mask >>= 1) {
            const T other = shuffle_xor(logit, mask);
            const uint32_t other_token = shuffle_xor(token, mask);
            take(logit, token, other, other_token);
        }
        if (round == 1) break;
        if (threadIdx.x % 32 == 0) {
            logits[threadIdx.x / 32] = logit;
            tokens[threadIdx.x / 32] = token;
        }
        __syncthreads();
        logit = logits[threadIdx.x % 32];
        token = tokens[threadIdx.x % 32];
    }
    __syncthreads();
}

// The largest logit of a row; +inf if there is none.
DEVICE void largest(const float *row, int vocab, float &logit, uint32_t &token) {
    logit = NEGATIVE_INFINITY;
    token = NO_TOKEN;
    for (int i = threadIdx.x; i < vocab; i += THREADS) take(logit, token, row[i] < too_much() ? row[i] : too_much(), (uint32_t)i);
    best_of_block(logit, token);
    if (!(logit > NEGATIVE_INFINITY)) logit = too_much();
}

// As top_k with k = 1.
extern "C" __global__ void arg_max(const float *logits, int *counts, uint32_t *tokens, float *values, int vocab) {
    float logit;
    uint32_t token;
    largest(logits + (size_t)blockIdx.x * vocab, vocab, logit, token);
    if (threadIdx.x > 0) return;
    counts[blockIdx.x] = logit < too_much() ? 1 : -1;
    tokens[blockIdx.x] = token;
    values[blockIdx.x] = logit;
}
ENTRY(arg_max)

// Floats as integers of the same order.
DEVICE uint32_t ordered(float x) {
    const uint32_t bits = as_bits(x);
    return bits >> 31 ? ~bits : bits | 0x80000000u;
}

// What the blocks of the kernels below write for a row: how many tokens (-1: no answer), tokens and their logits.
struct Picked {
    int *count;
    uint32_t *tokens;
    float *logits;
    int room;
};

DEVICE void put(const Picked &out, int *next, uint32_t token, float logit) {
    const int at = atomic_add(next, 1);
    if (at >= out.room) return;
    out.tokens[at] = token;
    out.logits[at] = logit;
}

// The k largest logits of a row, in no order; of those that are equal to the last the lowest ids. Masked ones (-inf) are none.
extern "C" __global__ void top_k(const float *logits, int *counts, uint32_t *tokens, float *values, int vocab, int k) {
    __shared__ int histogram[256];
    __shared__ uint32_t shared_key;
    __shared__ int shared_need, equal, next;
    const float *row = logits + (size_t)blockIdx.x * vocab;
    const Picked out = {counts + blockIdx.x, tokens + (size_t)blockIdx.x * k, values + (size_t)blockIdx.x * k, k};
    float top;
    uint32_t best;
    largest(row, vocab, top, best);
    if (!(top < too_much())) {
        if (threadIdx.x == 0) *out.count = -1;
        return;
    }
    // The k-th largest, eight bits at a time: `key` is what is known of it, `need` how many are still to be found among those
    // that begin with it.
    uint32_t key = 0;
    int need = k;
    for (int shift = 24; shift >= 0; shift -= 8) {
        if (threadIdx.x < 256) histogram[threadIdx.x] = 0;
        __syncthreads();
        for (int i = threadIdx.x; i < vocab; i += THREADS) {
            const uint32_t of = ordered(row[i]);
            if (row[i] > NEGATIVE_INFINITY && (shift == 24 || of >> (shift + 8) == key)) atomic_add(&histogram[of >> shift & 255], 1);
        }
        __syncthreads();
        if (threadIdx.x == 0) {
            int digit = 255;
            // At the lowest digit all are needed that there are.
            for (; digit > 0 && histogram[digit] < need; digit--) need -= histogram[digit];
            shared_key = key << 8 | (uint32_t)digit;
            shared_need = need;
            equal = histogram[digit];
            next = 0;
        }
        __syncthreads();
        key = shared_key;
        need = shared_need;
    }
    const bool all_equal = equal <= need;
    for (int i = threadIdx.x; i < vocab; i += THREADS) {
        const uint32_t of = ordered(row[i]);
        if (row[i] > NEGATIVE_INFINITY && (of > key || (of == key && all_equal))) put(out, &next, i, row[i]);
    }
    // Too many equal ones: the lowest ids, one after the other.
    int last = -1;
    for (int found = 0; !all_equal && found < need; found++) {
        uint32_t lowest = NO_TOKEN;
        float nothing = 0.0f;
        for (int i = threadIdx.x; i < vocab; i += THREADS)
            if (i > last && ordered(row[i]) == key && (uint32_t)i < lowest) lowest = i;
        best_of_block(nothing, lowest);
        if (threadIdx.x == 0) put(out, &next, lowest, row[lowest]);
        last = (int)lowest;
    }
    __syncthreads();
    if (threadIdx.x == 0) *out.count = next < k ? next : k;
}
ENTRY(top_k)

// ---------------------------------------------------------------------------------------------------------- Gumbel-max

// 64 random bits for each of the tokens 4 quad .. 4 quad + 4: Philox4x64-10, as src/sample/noise.rs has it.
DEVICE void philox(uint64_t counter[4], uint64_t seed, uint64_t purpose) {
    uint64_t key[2] = {seed, purpose};
#pragma unroll 1
    for (int round = 0; round < 10; round++) {
        const uint64_t a = 0xD2E7470EE14C6C93ull, b = 0xCA5A826395121157ull;
        const uint64_t next[4] = {high_product(b, counter[2]) ^ counter[1] ^ key[0], b * counter[2],
                                  high_product(a, counter[0]) ^ counter[3] ^ key[1], a * counter[0]};
        for (int i = 0; i < 4; i++) counter[i] = next[i];
        key[0] += 0x9E3779B97F4A7C15ull;
        key[1] += 0xBB67AE8584CAA73Bull;
    }
}

// ln((1 + s) / (1 - s)) for |s| <= 1/3, to about 1e-13.
DEVICE double log_ratio(double s) {
    const double square = s * s;
    double sum = 0.0;
#pragma unroll
    for (int i = 27; i >= 1; i -= 2) sum = fma(sum, square, 1.0 / i);
    return 2.0 * s * sum;
}

// ln x of a positive normal number.
DEVICE double natural_log(double x) {
    const uint64_t bits = double_bits(x);
    // x = 2^exponent m with m in [3/4, 3/2).
    int exponent = (int)(bits >> 52) - 1023;
    double m = as_double((bits & 0xfffffffffffffull) | 0x3ff0000000000000ull);
    if (m >= 1.5) {
        m *= 0.5;
        exponent++;
    }
    return exponent * 0.6931471805599453 + log_ratio((m - 1.0) / (m + 1.0));
}

// As src/sample/noise.rs: gumbel, to about 1e-12.
DEVICE double gumbel_of(uint64_t bits) {
    const double STEP = 1.0 / 18446744073709551616.0;
    double exponential;
    if (bits >> 63 == 0) {
        const double e = ((double)bits + 0.5) * STEP;
        exponential = -log_ratio(-e / (2.0 - e));
    } else {
        exponential = -natural_log(((double)~bits + 0.5) * STEP);
    }
    return -natural_log(exponential);
}

// Calls what(token, logit, score) for tokens that may have a score of at least floor() under temperature and noise.
template <class F, class G>
DEVICE void for_scores(const float *row, int vocab, float top, float temperature, uint64_t seed, uint64_t ordinal, F floor, G what) {
    for (int quad = threadIdx.x; quad * 4 < vocab; quad += THREADS) {
        uint64_t bits[4] = {ordinal, (uint64_t)quad, 0, 0};
        philox(bits, seed, 0);
        for (int i = 0; i < 4 && quad * 4 + i < vocab; i++) {
            const float logit = row[quad * 4 + i];
            const double distance = ((double)logit - (double)top) / (double)temperature;
            // No noise is above this; a masked token has no score.
            const double bound = (double)(leading_zeros(bits[i]) + 1) * 0.6931471805599453 + 1e-9;
            if (logit > NEGATIVE_INFINITY && distance + bound >= floor()) what(quad * 4 + i, logit, distance + gumbel_of(bits[i]));
        }
    }
}

// The tokens with the largest `logit / temperature + noise`, all that are within 1e-6 of the best: this arithmetic is that much
// closer than that to the host's, which decides among them.
extern "C" __global__ void gumbel(const float *logits, int *counts, uint32_t *tokens, float *values, const uint64_t *ordinals,
                                  int vocab, int room, float temperature, uint32_t seed_low, uint32_t seed_high) {
    __shared__ int next;
    const float *row = logits + (size_t)blockIdx.x * vocab;
    const Picked out = {counts + blockIdx.x, tokens + (size_t)blockIdx.x * room, values + (size_t)blockIdx.x * room, room};
    const uint64_t seed = (uint64_t)seed_high << 32 | seed_low, ordinal = ordinals[blockIdx.x];
    float top;
    uint32_t token;
    largest(row, vocab, top, token);
    if (!(top < too_much())) {
        if (threadIdx.x == 0) *out.count = -1;
        return;
    }
    double best = -1e300;
    if (threadIdx.x == 0) next = 0;
    for_scores(row, vocab, top, temperature, seed, ordinal, [&] { return best; }, [&](int, float, double score) { best = score > best ? score : best; });
    best_of_block(best, token);
    const double floor = best - 1e-6;
    for_scores(row, vocab, top, temperature, seed, ordinal, [&] { return floor; }, [&](int id, float logit, double score) {
        if (score >= floor) put(out, &next, id, logit);
    });
    __syncthreads();
    if (threadIdx.x == 0) *out.count = next;
}
ENTRY(gumbel)
