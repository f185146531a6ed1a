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

// number - less as a float, for integers below 2^23, without a conversion, which has a slower pipeline.
__device__ __forceinline__ float from_small(u32 number, int less = 0) {
    return ieee::subtract(__uint_as_float(0x4B000000 | number), static_cast<float>((1 << 23) + less));
}

// Its bits.
__device__ __forceinline__ constexpr u32 power_of_two(int exponent) {
    return static_cast<u32>(127 + exponent) << 23;
}

// Quotients by one number, rounded as by a division, where all of it is far from the denormals and
// from infinity. The reciprocal is rounded, so the first guess is within an ulp and a half of the
// quotient, the second is one of the two floats next to it, and the third the nearer one (Markstein,
// "Computation of elementary functions on the IBM RISC System/6000 processor", 1990): the residuals
// are exact.
struct Divisor {
    float minus, reciprocal;

    explicit __device__ __forceinline__ Divisor(float number)
        : minus(__uint_as_float(__float_as_uint(number) ^ 0x80000000u)),
          reciprocal(ieee::divide(1.0f, number)) {}

    __device__ __forceinline__ float divide(float x) const {
        float q = ieee::multiply(x, reciprocal);
        q = ieee::multiply_add(ieee::multiply_add(q, minus, x), reciprocal, q);
        return ieee::multiply_add(ieee::multiply_add(q, minus, x), reciprocal, q);
    }
};

// The integer of an integral float in [0, 2^23).
__device__ __forceinline__ u32 to_small(float number) {
    return __float_as_uint(ieee::add(number, 8388608.0f)) & 0x7FFFFF;
}

// The greatest integer up to a float in [0, 2^23).
__device__ __forceinline__ u32 floor_of_small(float number) {
    return __float_as_uint(ieee::add_rounding_down(number, 8388608.0f)) & 0x7FFFFF;
}

#endif
