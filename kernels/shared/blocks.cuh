// Reductions over a block, whose result every thread gets, and what blocks know of each other.

#ifndef KERNELS_BLOCKS_CUH
#define KERNELS_BLOCKS_CUH

#include "shared/tiles.cuh"

constexpr u32 ALL_LANES = 0xFFFFFFFF;

template <int NUM>
__device__ __forceinline__ void block_max(u32 (&keys)[NUM]) {
    __shared__ u32 of_warp[NUM][MAX_THREADS / 32];
    const int lane = threadIdx.x % 32;
    __syncthreads();  // the last call's results have been read
#pragma unroll
    for (int i = 0; i < NUM; ++i) {
        const u32 key = __reduce_max_sync(ALL_LANES, keys[i]);
        if (lane == 0) of_warp[i][threadIdx.x / 32] = key;
    }
    __syncthreads();
#pragma unroll
    for (int i = 0; i < NUM; ++i) {
        const u32 key = lane < static_cast<int>(blockDim.x) / 32 ? of_warp[i][lane] : 0;
        keys[i] = __reduce_max_sync(ALL_LANES, key);
    }
}

// In an order that depends on the number of threads alone.
__device__ __forceinline__ double block_sum(double value) {
    __shared__ double of_warp[MAX_THREADS / 32];
    const int lane = threadIdx.x % 32;
    for (int distance = 16; distance > 0; distance /= 2) {
        value += __shfl_xor_sync(ALL_LANES, value, distance);
    }
    __syncthreads();
    if (lane == 0) of_warp[threadIdx.x / 32] = value;
    __syncthreads();
    value = lane < static_cast<int>(blockDim.x) / 32 ? of_warp[lane] : 0.0;
    for (int distance = MAX_THREADS / 64; distance > 0; distance /= 2) {
        value += __shfl_xor_sync(ALL_LANES, value, distance);
    }
    return __shfl_sync(ALL_LANES, value, 0);
}

// Whether this block is the last of `num_blocks` to come here for a row. It then sees what the
// others wrote before they came.
__device__ __forceinline__ bool comes_last(u64* arrived, u64 num_blocks) {
    __shared__ bool last;
    __syncthreads();  // every thread of the block has written
    if (threadIdx.x == 0) {
        __threadfence();
        last = atomicAdd(arrived, 1ull) == num_blocks - 1;
        if (last) __threadfence();
    }
    __syncthreads();
    return last;
}

#endif
