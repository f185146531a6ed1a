// Float32 arithmetic that no compiler flag changes.
//
// CuPy appends -ftz=true to every compilation and leaves no way around it (cupy/cupy#9576), and
// products and sums contract by default. These instructions keep denormals, round to nearest and
// are never contracted. So the kernels hold no other float32 operator, and compare bits, not floats.

#ifndef KERNELS_IEEE_CUH
#define KERNELS_IEEE_CUH

namespace ieee {

#define KERNELS_UNARY(name, instruction) \
    __device__ __forceinline__ float name(float a) { \
        float result; \
        asm(instruction " %0, %1;" : "=f"(result) : "f"(a)); \
        return result; \
    }

#define KERNELS_BINARY(name, instruction) \
    __device__ __forceinline__ float name(float a, float b) { \
        float result; \
        asm(instruction " %0, %1, %2;" : "=f"(result) : "f"(a), "f"(b)); \
        return result; \
    }

KERNELS_BINARY(add, "add.rn.f32")
KERNELS_BINARY(add_rounding_down, "add.rm.f32")
KERNELS_BINARY(subtract, "sub.rn.f32")
KERNELS_BINARY(multiply, "mul.rn.f32")
KERNELS_BINARY(divide, "div.rn.f32")
KERNELS_BINARY(least, "min.f32")  // of NaN and a number, the number
KERNELS_BINARY(greatest, "max.f32")
KERNELS_UNARY(round, "cvt.rni.f32.f32")  // half to even

// a * b + c, rounded once.
__device__ __forceinline__ float multiply_add(float a, float b, float c) {
    float result;
    asm("fma.rn.f32 %0, %1, %2, %3;" : "=f"(result) : "f"(a), "f"(b), "f"(c));
    return result;
}

#undef KERNELS_UNARY
#undef KERNELS_BINARY

__device__ __forceinline__ float from_half(unsigned short half) {
    float result;
    asm("cvt.f32.f16 %0, %1;" : "=f"(result) : "h"(half));
    return result;
}

__device__ __forceinline__ unsigned short to_half(float a) {
    unsigned short result;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(result) : "f"(a));
    return result;
}

__device__ __forceinline__ double to_double(float a) {
    double result;
    asm("cvt.f64.f32 %0, %1;" : "=d"(result) : "f"(a));
    return result;
}

__device__ __forceinline__ float from_double(double a) {
    float result;
    asm("cvt.rn.f32.f64 %0, %1;" : "=f"(result) : "d"(a));
    return result;
}

}  // namespace ieee

#endif
