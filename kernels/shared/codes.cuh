// Bytes at any address: a tile's codes, BYTES bytes for each of a thread's vectors, and floats; and
// the mean of what several payloads decode to.

#ifndef KERNELS_CODES_CUH
#define KERNELS_CODES_CUH

#include "shared/tiles.cuh"

template <int BYTES>
struct Unsigned;
template <>
struct Unsigned<1> { using Type = u8; };
template <>
struct Unsigned<2> { using Type = u16; };
template <>
struct Unsigned<4> { using Type = u32; };
template <>
struct Unsigned<8> { using Type = u64; };

template <int BYTES>
using Word = typename Unsigned<BYTES>::Type;

template <int BYTES, int PIECE, int NUM>
__device__ __forceinline__ void load_pieces(const u8* from, int room, Word<BYTES> (&words)[NUM]) {
#pragma unroll
    for (int k = 0; k < NUM; ++k) {
        words[k] = 0;
#pragma unroll
        for (int b = 0; b < BYTES; b += PIECE) {
            const int at = offset_of<BYTES>(k) + b;
            if (at < room) {
                const Word<BYTES> piece = *reinterpret_cast<const Word<PIECE>*>(from + at);
                words[k] |= piece << 8 * b;
            }
        }
    }
}

template <int BYTES, int PIECE, int NUM>
__device__ __forceinline__ void store_pieces(
    u8* to, int room, const Word<BYTES> (&words)[NUM]) {
#pragma unroll
    for (int k = 0; k < NUM; ++k) {
#pragma unroll
        for (int b = 0; b < BYTES; b += PIECE) {
            const int at = offset_of<BYTES>(k) + b;
            if (at < room) {
                *reinterpret_cast<Word<PIECE>*>(to + at) = static_cast<Word<PIECE>>(words[k] >> 8 * b);
            }
        }
    }
}

// The codes of this thread's vectors, zeros beyond `room` bytes, which are all of the tile's.
template <int BYTES, int NUM>
__device__ __forceinline__ void load_codes(const u8* from, int room, Word<BYTES> (&words)[NUM]) {
    constexpr int SMALLER = BYTES > 4 ? 4 : 1;
    if (is_aligned<BYTES>(from) && room % BYTES == 0) {  // the same for the whole block
        load_pieces<BYTES, BYTES>(from, room, words);
    } else if (is_aligned<SMALLER>(from) && room % SMALLER == 0) {
        load_pieces<BYTES, SMALLER>(from, room, words);
    } else {
        load_pieces<BYTES, 1>(from, room, words);
    }
}

template <int BYTES, int NUM>
__device__ __forceinline__ void store_codes(u8* to, int room, const Word<BYTES> (&words)[NUM]) {
    constexpr int SMALLER = BYTES > 4 ? 4 : 1;
    if (is_aligned<BYTES>(to) && room % BYTES == 0) {
        store_pieces<BYTES, BYTES>(to, room, words);
    } else if (is_aligned<SMALLER>(to) && room % SMALLER == 0) {
        store_pieces<BYTES, SMALLER>(to, room, words);
    } else {
        store_pieces<BYTES, 1>(to, room, words);
    }
}

__device__ __forceinline__ float load_float(const u8* from) {
    if (is_aligned<4>(from)) return __uint_as_float(*reinterpret_cast<const u32*>(from));
    u32 bits = 0;
    for (int b = 0; b < 4; ++b) bits |= static_cast<u32>(from[b]) << 8 * b;
    return __uint_as_float(bits);
}

__device__ __forceinline__ void store_float(u8* to, float x) {
    const u32 bits = __float_as_uint(x);
    if (is_aligned<4>(to)) {
        *reinterpret_cast<u32*>(to) = bits;
    } else {
        for (int b = 0; b < 4; ++b) to[b] = static_cast<u8>(bits >> 8 * b);
    }
}

// A row's tile as the mean of the row's `num_codes` payloads, which follow each other: summed from
// the first to the last, each by `decode(payload, tile, values, context...)`. Of one, what it
// decodes to.
template <auto decode, class... Context>
__device__ __forceinline__ void decode_mean(
    const u8* payloads, i64 num_codes, i64 num_bytes, const Tile& tile,
    float (&values)[PER_THREAD], const Context&... context) {
    const u8* payload = payloads + tile.row * num_codes * num_bytes;
    decode(payload, tile, values, context...);
    for (i64 i = 1; i < num_codes; ++i) {
        float decoded[PER_THREAD] = {};
        decode(payload + i * num_bytes, tile, decoded, context...);
#pragma unroll
        for (int e = 0; e < PER_THREAD; ++e) values[e] = ieee::add(values[e], decoded[e]);
    }
    if (num_codes > 1) {
#pragma unroll
        for (int e = 0; e < PER_THREAD; ++e) {
            values[e] = ieee::divide(values[e], static_cast<float>(num_codes));
        }
    }
}

// `decode_mean` of all rows into `chunks`.
template <auto decode, class... Context>
__device__ __forceinline__ void decode_means(
    const u8* payloads, u32* chunks, i64 rows, i64 n, i64 num_codes, i64 num_bytes,
    const Context&... context) {
    const i64 per_row = tiles_of_row(n, tile_size());
    for (i64 index = blockIdx.x; index < rows * per_row; index += gridDim.x) {
        const Tile tile = tile_at(index, per_row, n, tile_size());
        float values[PER_THREAD] = {};
        decode_mean<decode>(payloads, num_codes, num_bytes, tile, values, context...);
        store_tile<F32>(chunks + tile.row * n, tile, values);
    }
}

#endif
