// The element types, what is asked of their bits, and integers as floats.

#ifndef KERNELS_NUMBERS_CUH
#define KERNELS_NUMBERS_CUH

#include "shared/ieee.cuh"

using u8 = unsigned char;
using u16 = unsigned short;
using u32 = unsigned int;
using u64 = unsigned long long;
using i64 = long long;

constexpr u32 INFINITE = 0x7F800000;
constexpr u32 NOT_A_NUMBER = 0x7FC00000;

struct F32 {
    using Bits = u32;
    static constexpr int PER_VECTOR = 4;
    static __device__ __forceinline__ float widen(u32 bits) { return __uint_as_float(bits); }
    static __device__ __forceinline__ u32 narrow(float x) { return __float_as_uint(x); }
};

struct F16 {
    using Bits = u16;
    static constexpr int PER_VECTOR = 8;
    static __device__ __forceinline__ float widen(u16 bits) { return ieee::from_half(bits); }
    static __device__ __forceinline__ u16 narrow(float x) { return ieee::to_half(x); }
};

struct BF16 {
    using Bits = u16;
    static constexpr int PER_VECTOR = 8;
    static __device__ __forceinline__ float widen(u16 bits) {
        return __uint_as_float(static_cast<u32>(bits) << 16);
    }
    static __device__ __forceinline__ u16 narrow(float x) {
        const u32 bits = __float_as_uint(x);
        if ((bits & ~0x80000000u) > INFINITE) return NOT_A_NUMBER >> 16;
        return static_cast<u16>((bits + 0x7FFF + (bits >> 16 & 1)) >> 16);  // half to even
    }
};

__device__ __forceinline__ u32 magnitude(float x) { return __float_as_uint(x) & 0x7FFFFFFF; }

__device__ __forceinline__ bool is_finite(float x) { return magnitude(x) < INFINITE; }

// The float of an integer below 2^23, without a conversion, which has a slower pipeline.
__device__ __forceinline__ float from_small(u32 number) {
    return ieee::subtract(__uint_as_float(0x4B000000 | number), 8388608.0f);
}

// The integer of an integral float in [0, 2^23).
__device__ __forceinline__ u32 to_small(float number) {
    return __float_as_uint(ieee::add(number, 8388608.0f)) & 0x7FFFFF;
}

#endif
