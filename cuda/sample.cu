// Picking tokens where the logits are.
#include "prelude.cuh"

const uint32_t NO_TOKEN = 0xffffffffu;

// The better of two candidates: the larger logit, of equal ones the lower id. A token that is none is the worst.
DEVICE void take(float &logit, uint32_t &token, float other, uint32_t other_token) {
    if (other > logit || (other == logit && other_token < token)) {
        logit = other;
        token = other_token;
    }
}

// A block of 1024 threads a row.
extern "C" __global__ void arg_max(const float *logits, uint32_t *tokens, int vocab) {
    __shared__ float best[32];
    __shared__ uint32_t ids[32];
    const float *row = logits + (size_t)blockIdx.x * vocab;
    // What is no number, or no bound, beats everything and stays.
    const float TOO_MUCH = 1.0f / 0.0f;
    float logit = NEGATIVE_INFINITY;
    uint32_t token = NO_TOKEN;
    for (int i = threadIdx.x; i < vocab; i += 1024) {
        const float x = row[i];
        take(logit, token, x < TOO_MUCH ? x : TOO_MUCH, i);
    }
    for (int round = 0; round < 2; round++) {
#pragma unroll
        for (int mask = 16; mask > 0; mask >>= 1) {
            const float other = shuffle_xor(logit, mask);
            const uint32_t other_token = shuffle_xor(token, mask);
            take(logit, token, other, other_token);
        }
        if (round == 1) break;
        if (threadIdx.x % 32 == 0) {
            best[threadIdx.x / 32] = logit;
            ids[threadIdx.x / 32] = token;
        }
        __syncthreads();
        logit = best[threadIdx.x % 32];
        token = ids[threadIdx.x % 32];
    }
    if (threadIdx.x == 0) tokens[blockIdx.x] = logit > NEGATIVE_INFINITY && logit < TOO_MUCH ? token : NO_TOKEN;
}
ENTRY(arg_max)
