// Philox4x32-10 on the GPU, as `philox_reference.py` specifies it.

#ifndef KERNELS_PHILOX_CUH
#define KERNELS_PHILOX_CUH

#include "shared/numbers.cuh"

struct Philox {
    u32 stream[3];
    u32 key[2];

    __device__ __forceinline__ void draw(u64 counter, u32 (&words)[4]) const {
        u64 c[4] = {counter, stream[0], stream[1], stream[2]};  // the first alone beyond 32 bits
        u32 k0 = key[0], k1 = key[1];
#pragma unroll
        for (int round = 0; round < 10; ++round) {
            const u64 a = c[0] * 0xD2511F53u, b = c[2] * 0xCD9E8D57u;
            c[0] = (b >> 32) ^ c[1] ^ k0;
            c[2] = (a >> 32) ^ c[3] ^ k1;
            c[1] = static_cast<u32>(b);
            c[3] = static_cast<u32>(a);
            k0 += 0x9E3779B9u;
            k1 += 0xBB67AE85u;
        }
#pragma unroll
        for (int j = 0; j < 4; ++j) words[j] = static_cast<u32>(c[j]);
    }

    // The words of elements `element` .. + 3 of the stream, four of which share a counter.
    __device__ __forceinline__ void draw_from(u64 element, u32 (&words)[4]) const {
        draw(element / 4, words);
        const int phase = element % 4;
        if (phase == 0) return;
        u32 next[4];
        draw(element / 4 + 1, next);
        if (phase & 1) shift<1>(words, next);
        if (phase & 2) shift<2>(words, next);
    }

    template <int BY>
    static __device__ __forceinline__ void shift(u32 (&words)[4], u32 (&next)[4]) {
#pragma unroll
        for (int j = 0; j < 4; ++j) words[j] = j + BY < 4 ? words[(j + BY) % 4] : next[(j + BY) % 4];
#pragma unroll
        for (int j = 0; j + BY < 4; ++j) next[j] = next[j + BY];
    }
};

#endif
