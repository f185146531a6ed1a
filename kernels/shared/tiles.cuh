// How a block reads and writes its piece of a row, at any alignment, and what its threads share.
//
// A row is a chunk of n elements. It is cut into tiles of 16 elements a thread; a thread holds them
// as vectors of 128 bits of the input's type, so that a warp reads and writes without gaps.

#ifndef KERNELS_TILES_CUH
#define KERNELS_TILES_CUH

#include "shared/numbers.cuh"

constexpr int PER_THREAD = 16;
constexpr int MAX_THREADS = 256;

// A kernel of which a processor runs so many blocks at a time: 4 leave 64 registers a thread, 2 128.
#define KERNEL(blocks) extern "C" __global__ void __launch_bounds__(MAX_THREADS, blocks)

template <int BYTES>
__device__ __forceinline__ bool is_aligned(const void* address) {
    return reinterpret_cast<u64>(address) % BYTES == 0;
}

// Elements start .. start + count - 1 of a row.
struct Tile {
    i64 row;
    i64 start;
    int count;
};

// A 64-bit division takes several times the instructions of a 32-bit one, and that takes 20.
__device__ __forceinline__ u64 quotient(u64 a, u64 b) {
    if (a < b) return 0;
    if ((a | b) >> 32) return a / b;
    return static_cast<u32>(a) / static_cast<u32>(b);
}

__device__ __forceinline__ int tile_size() { return PER_THREAD * static_cast<int>(blockDim.x); }

__device__ __forceinline__ i64 tiles_of_row(i64 n, int size) {
    return static_cast<i64>(quotient(n + size - 1, size));
}

__device__ __forceinline__ Tile tile_of_row(i64 row, i64 index, i64 n, int size) {
    const i64 start = index * size;
    return {row, start, static_cast<int>(n - start < size ? n - start : size)};
}

// Tile `index` of all rows', each of which has `per_row`.
__device__ __forceinline__ Tile tile_at(i64 index, i64 per_row, i64 n, int size) {
    const i64 row = quotient(index, per_row);
    return tile_of_row(row, index - row * per_row, n, size);
}

// A piece of a row is one tile or several. The one of it that begins at its element `done`:
__device__ __forceinline__ Tile part_of(const Tile& piece, int done) {
    return {piece.row, piece.start + done, min(piece.count - done, tile_size())};
}

// Where in its tile this thread's vector `k` begins.
template <int PER_VECTOR>
__device__ __forceinline__ int offset_of(int k) {
    return (k * static_cast<int>(blockDim.x) + static_cast<int>(threadIdx.x)) * PER_VECTOR;
}

// This thread's elements of a tile in vectors of V, zeros beyond its end; `row` is where the tile's
// row begins.
template <class Type, int V = Type::PER_VECTOR>
__device__ __forceinline__ void load_tile(
    const typename Type::Bits* row, const Tile& tile, float (&values)[PER_THREAD]) {
    constexpr int PER_LOAD = Type::PER_VECTOR, BITS = 128 / PER_LOAD;
    const typename Type::Bits* x = row + tile.start;
    if (is_aligned<16>(x) && tile.count % V == 0) {  // the same for the whole block
        uint4 loaded[PER_THREAD / PER_LOAD];
#pragma unroll
        for (int e = 0; e < PER_THREAD; e += PER_LOAD) {
            const int i = offset_of<V>(e / V) + e % V;
            loaded[e / PER_LOAD] = make_uint4(0, 0, 0, 0);
            if (i < tile.count) loaded[e / PER_LOAD] = *reinterpret_cast<const uint4*>(x + i);
        }
#pragma unroll
        for (int e = 0; e < PER_THREAD; ++e) {
            const uint4 vector = loaded[e / PER_LOAD];
            const u32 words[4] = {vector.x, vector.y, vector.z, vector.w};
            const int bit = e % PER_LOAD * BITS;
            values[e] = Type::widen(static_cast<typename Type::Bits>(words[bit / 32] >> bit % 32));
        }
    } else {
#pragma unroll
        for (int e = 0; e < PER_THREAD; ++e) {
            const int i = offset_of<V>(e / V) + e % V;
            values[e] = i < tile.count ? Type::widen(x[i]) : 0.0f;
        }
    }
}

template <class Type, int V = Type::PER_VECTOR>
__device__ __forceinline__ void store_tile(
    typename Type::Bits* row, const Tile& tile, const float (&values)[PER_THREAD]) {
    constexpr int PER_STORE = Type::PER_VECTOR, BITS = 128 / PER_STORE;
    typename Type::Bits* x = row + tile.start;
    if (is_aligned<16>(x) && tile.count % V == 0) {
#pragma unroll
        for (int e = 0; e < PER_THREAD; e += PER_STORE) {
            u32 words[4] = {0, 0, 0, 0};
#pragma unroll
            for (int j = 0; j < PER_STORE; ++j) {
                words[j * BITS / 32] |= static_cast<u32>(Type::narrow(values[e + j])) << j * BITS % 32;
            }
            const int i = offset_of<V>(e / V) + e % V;
            if (i < tile.count) {
                *reinterpret_cast<uint4*>(x + i) =
                    make_uint4(words[0], words[1], words[2], words[3]);
            }
        }
    } else {
#pragma unroll
        for (int e = 0; e < PER_THREAD; ++e) {
            const int i = offset_of<V>(e / V) + e % V;
            if (i < tile.count) x[i] = Type::narrow(values[e]);
        }
    }
}

#endif
