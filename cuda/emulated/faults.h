// Kernels with a fault each, which tests expect to be noticed.
#pragma once
#include "../prelude.cuh"

extern "C" __global__ void fault_missing_barrier(const int *x, int *y) {
    __shared__ int shared[256];
    shared[threadIdx.x] = x[threadIdx.x];
    y[threadIdx.x] = shared[(threadIdx.x + 1) % 256];
}
ENTRY(fault_missing_barrier)

extern "C" __global__ void fault_divergent_barrier(int *y) {
    if (threadIdx.x < 16) __syncthreads();
    y[threadIdx.x] = 1;
}
ENTRY(fault_divergent_barrier)

extern "C" __global__ void fault_missing_lane(int *y) {
    if (threadIdx.x % 32 != 5) y[threadIdx.x] = shuffle_xor(1, 1);
}
ENTRY(fault_missing_lane)

extern "C" __global__ void fault_misaligned(const uint8_t *x, int *y) { y[threadIdx.x] = *(const int *)(x + 2 + threadIdx.x * 34); }
ENTRY(fault_misaligned)

extern "C" __global__ void fault_past_the_end(const int *x, int *y) { y[threadIdx.x] = x[threadIdx.x + 1]; }
ENTRY(fault_past_the_end)
