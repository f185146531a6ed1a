// Bytes at any address: a tile's codes, BYTES bytes for each of a thread's vectors, and floats.

#ifndef KERNELS_CODES_CUH
#define KERNELS_CODES_CUH

#include "tiles.cuh"

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

#endif
