// Runs CUDA kernels on the CPU: it stands in for a GPU where a test has none.
//
// A .cu file compiles as C++ with this header before it. A block runs on a thread of the system, its
// CUDA threads as fibers that take turns at barriers, several blocks at a time. What only hardware
// can show is not shown: speed, and memory that different blocks see in different order.

#pragma once

#include <sched.h>
#include <setjmp.h>
#include <ucontext.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <thread>
#include <vector>

#define __global__
#define __device__
#define __forceinline__ inline __attribute__((always_inline))
#define __launch_bounds__(...)
#define __shared__ static thread_local  // a block has a thread of its own

using std::max;
using std::min;

struct alignas(16) uint4 {
    unsigned x, y, z, w;
};
inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return {x, y, z, w}; }

inline unsigned __float_as_uint(float x) { return __builtin_bit_cast(unsigned, x); }
inline float __uint_as_float(unsigned x) { return __builtin_bit_cast(float, x); }

// --- in place of ieee.cuh, whose PTX has these meanings ---

#define KERNELS_IEEE_CUH
namespace ieee {
inline float add(float a, float b) { return a + b; }
inline float add_rounding_down(float a, float b) {
    const double exact = static_cast<double>(a) + b;  // of the numbers that are added here
    const float nearest = static_cast<float>(exact);
    return nearest > exact ? std::nextafter(nearest, -INFINITY) : nearest;
}
inline float subtract(float a, float b) { return a - b; }
inline float multiply(float a, float b) { return a * b; }
inline float divide(float a, float b) { return a / b; }
inline float multiply_add(float a, float b, float c) { return std::fma(a, b, c); }
inline float least(float a, float b) { return std::fmin(a, b); }
inline float greatest(float a, float b) { return std::fmax(a, b); }
inline float round(float a) { return std::nearbyint(a); }
inline double to_double(float a) { return a; }
inline float from_double(double a) { return static_cast<float>(a); }

inline float from_half(unsigned short half) {
    const int exponent = half >> 10 & 31, mantissa = half & 1023;
    const float sign = half >> 15 ? -1.0f : 1.0f;
    if (exponent == 31) return mantissa ? NAN : sign * INFINITY;
    if (exponent == 0) return sign * std::ldexp(static_cast<float>(mantissa), -24);
    return sign * std::ldexp(static_cast<float>(1024 + mantissa), exponent - 25);
}

inline unsigned short to_half(float a) {
    const unsigned sign = std::signbit(a) ? 0x8000 : 0;
    if (std::isnan(a)) return 0x7FFF;
    if (std::fabs(a) >= 65520.0f) return sign | 0x7C00;
    int exponent;
    std::frexp(a, &exponent);
    exponent = a == 0 ? -14 : std::max(exponent - 1, -14);
    const unsigned steps = std::nearbyint(std::ldexp(std::fabs(a), 10 - exponent));
    return sign | (((exponent + 14) << 10) + steps);
}
}  // namespace ieee

// --- blocks and their fibers ---

namespace emulation {

constexpr int WARP = 32;
constexpr int STACK_BYTES = 1 << 16;

struct Dimension {
    unsigned x;
};

struct Barrier {
    int waiting = 0;
    unsigned generation = 0;
};

// What the lanes of a warp show each other. Turns alternate between two rows: a lane that is ahead
// cannot overwrite what another has still to read.
struct Warp {
    Barrier barrier;
    const char* operation[2];
    unsigned long long shown[2][WARP];
};

struct Fiber {
    ucontext_t start;
    jmp_buf here;
    std::unique_ptr<char[]> stack{new char[STACK_BYTES]};
    Dimension thread;
    bool started, finished;
};

using Kernel = void (*)(long long, long long, long long, long long, long long, long long,
                        long long, long long, long long, long long, long long, long long);

struct Block {
    Kernel kernel;
    const long long* arguments;
    Dimension grid, size, index;
    std::vector<Fiber> fibers;
    std::vector<Warp> warps;
    Barrier barrier;
    std::vector<char> votes;
    Fiber* running;
    jmp_buf scheduler;
};

inline thread_local Block* block;

// swapcontext would ask the system for the signal mask each time.
inline void yield() {
    if (_setjmp(block->running->here) == 0) _longjmp(block->scheduler, 1);
}

inline void resume(Fiber& fiber) {
    block->running = &fiber;
    if (_setjmp(block->scheduler) != 0) return;
    if (fiber.started) _longjmp(fiber.here, 1);
    fiber.started = true;
    setcontext(&fiber.start);
}

// Returns the number of the turn when `count` fibers have come.
inline unsigned wait_at(Barrier& barrier, int count) {
    const unsigned generation = barrier.generation;
    if (++barrier.waiting == count) {
        barrier.waiting = 0;
        ++barrier.generation;
    } else {
        while (barrier.generation == generation) yield();
    }
    return generation;
}

inline const unsigned long long* show(unsigned lanes, const char* operation, unsigned long long x) {
    const unsigned lane = block->running->thread.x % WARP;
    Warp& warp = block->warps[block->running->thread.x / WARP];
    const unsigned turn = warp.barrier.generation % 2;
    if (warp.barrier.waiting == 0) warp.operation[turn] = operation;
    if (lanes != 0xFFFFFFFF || warp.operation[turn] != operation) {
        std::fprintf(stderr, "a warp's lanes did not come together at %s\n", operation);
        std::abort();
    }
    warp.shown[turn][lane] = x;
    wait_at(warp.barrier, WARP);
    return warp.shown[turn];
}

inline void run_fiber() {
    const long long* a = block->arguments;
    block->kernel(a[0], a[1], a[2], a[3], a[4], a[5], a[6], a[7], a[8], a[9], a[10], a[11]);
    block->running->finished = true;
    yield();
}

inline void run_block(Block& state) {
    state.barrier = {};
    for (Warp& warp : state.warps) warp.barrier = {};
    for (unsigned t = 0; t < state.size.x; ++t) {
        Fiber& fiber = state.fibers[t];
        getcontext(&fiber.start);
        fiber.start.uc_stack = {fiber.stack.get(), 0, STACK_BYTES};
        makecontext(&fiber.start, run_fiber, 0);
        fiber.thread = {t};
        fiber.started = fiber.finished = false;
    }
    for (unsigned left = state.size.x; left > 0;) {
        for (Fiber& fiber : state.fibers) {
            if (fiber.finished) continue;
            resume(fiber);
            left -= fiber.finished;
        }
    }
}

}  // namespace emulation

#define threadIdx (emulation::block->running->thread)
#define blockIdx (emulation::block->index)
#define blockDim (emulation::block->size)
#define gridDim (emulation::block->grid)

// Run `kernel`, whose parameters are pointers and 64-bit integers, at most 12: the calling
// convention passes both alike, and those it does not take do no harm.
extern "C" void emulate(
    emulation::Kernel kernel, const long long* arguments, unsigned num_blocks, unsigned num_threads,
    unsigned at_a_time) {
    std::atomic<unsigned> next{0};
    const auto work = [&] {
        emulation::Block state;
        state.kernel = kernel;
        state.arguments = arguments;
        state.grid = {num_blocks};
        state.size = {num_threads};
        state.votes.resize(num_threads);
        state.fibers = std::vector<emulation::Fiber>(num_threads);
        state.warps = std::vector<emulation::Warp>(num_threads / emulation::WARP);
        emulation::block = &state;
        while ((state.index.x = next++) < num_blocks) emulation::run_block(state);
    };
    std::vector<std::thread> threads;
    for (unsigned t = 0; t < std::min(at_a_time, num_blocks); ++t) threads.emplace_back(work);
    for (std::thread& thread : threads) thread.join();
}

// --- what kernels call ---

inline void __syncthreads() { emulation::wait_at(emulation::block->barrier, blockDim.x); }

inline int __syncthreads_and(int vote) {
    std::vector<char>& votes = emulation::block->votes;
    votes[threadIdx.x] = vote != 0;
    __syncthreads();
    const int result = *std::min_element(votes.begin(), votes.end());
    __syncthreads();  // all have read
    return result;
}

template <class T>
T __shfl_sync(unsigned lanes, T x, int lane) {
    const auto* shown = emulation::show(lanes, "shfl", __builtin_bit_cast(unsigned long long, double(x)));
    return static_cast<T>(__builtin_bit_cast(double, shown[lane]));
}

template <class T>
T __shfl_xor_sync(unsigned lanes, T x, int mask) {
    const int lane = threadIdx.x % emulation::WARP;
    const auto* shown = emulation::show(lanes, "xor", __builtin_bit_cast(unsigned long long, double(x)));
    return static_cast<T>(__builtin_bit_cast(double, shown[lane ^ mask]));
}

inline unsigned __shfl_down_sync(unsigned lanes, unsigned x, int by) {
    const int lane = threadIdx.x % emulation::WARP;
    const auto* shown = emulation::show(lanes, "down", x);
    return lane + by < emulation::WARP ? shown[lane + by] : x;
}

inline unsigned __reduce_max_sync(unsigned lanes, unsigned x) {
    const auto* shown = emulation::show(lanes, "max", x);
    return *std::max_element(shown, shown + emulation::WARP);
}

inline int __all_sync(unsigned lanes, int vote) {
    const auto* shown = emulation::show(lanes, "all", vote != 0);
    return *std::min_element(shown, shown + emulation::WARP) != 0;
}

inline unsigned long long atomicAdd(unsigned long long* to, unsigned long long x) {
    return __atomic_fetch_add(to, x, __ATOMIC_RELAXED);
}

inline unsigned atomicMax(unsigned* to, unsigned x) {
    unsigned seen = __atomic_load_n(to, __ATOMIC_RELAXED);
    while (seen < x && !__atomic_compare_exchange_n(
                           to, &seen, x, true, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
    }
    return seen;
}

inline void __threadfence() { std::atomic_thread_fence(std::memory_order_seq_cst); }

inline void __nanosleep(unsigned) {
    sched_yield();
    emulation::yield();
}
