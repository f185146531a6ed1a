// Bytes at any address: a tile's codes, BYTES bytes for each of a thread's vectors, and floats; and
// the mean of what several payloads decode to.
//
// ALIGNED says that a tile's codes, and as many bytes as there is room for, begin and end at multiples
// of BYTES, and floats at multiples of 4. Where nothing is known, the address is looked at.

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
template <int BYTES, bool ALIGNED = false, int NUM>
__device__ __forceinline__ void load_codes(const u8* from, int room, Word<BYTES> (&words)[NUM]) {
    constexpr int SMALLER = BYTES > 4 ? 4 : 1;
    if (ALIGNED || (is_aligned<BYTES>(from) && room % BYTES == 0)) {  // the same for the whole block
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

template <bool ALIGNED = false>
__device__ __forceinline__ float load_float(const u8* from) {
    if (ALIGNED || is_aligned<4>(from)) return __uint_as_float(*reinterpret_cast<const u32*>(from));
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

// How a codec decodes its tiles, for `decode_mean`. A `Codec` has
//   Codes                                 what a thread holds of a tile of one payload
//   load<ALIGNED>(payload, tile, codes)   reads them, and waits for nothing that it reads
//   decode(codes, tile, values)
//   is_aligned(payload)                   whether all of a payload that begins here is ALIGNED
//
// Add what payloads after another decode to; of `AT_ONCE` of them, all are read before the first is
// waited for.
template <int AT_ONCE, bool ALIGNED, class Codec>
__device__ __forceinline__ void add_decoded(
    const Codec& codec, const u8* payload, i64 num_codes, i64 num_bytes, const Tile& tile,
    float (&sums)[PER_THREAD]) {
    for (; num_codes > 0; num_codes -= AT_ONCE) {
        typename Codec::Codes codes[AT_ONCE];
#pragma unroll
        for (int i = 0; i < AT_ONCE; ++i) {
            if (i < num_codes) codec.template load<ALIGNED>(payload, tile, codes[i]);
            payload += num_bytes;
        }
#pragma unroll
        for (int i = 0; i < AT_ONCE; ++i) {
            if (i < num_codes) {
                float decoded[PER_THREAD];
                codec.decode(codes[i], tile, decoded);
#pragma unroll
                for (int e = 0; e < PER_THREAD; ++e) sums[e] = ieee::add(sums[e], decoded[e]);
            }
        }
    }
}

// Divide by a whole number, which takes one product where that is a power of two.
__device__ __forceinline__ void divide_by_number(float (&values)[PER_THREAD], i64 number) {
    const float divisor = static_cast<float>(number);
    if ((number & (number - 1)) == 0) {
        const float reciprocal = ieee::divide(1.0f, divisor);
#pragma unroll
        for (int e = 0; e < PER_THREAD; ++e) values[e] = ieee::multiply(values[e], reciprocal);
    } else {
#pragma unroll
        for (int e = 0; e < PER_THREAD; ++e) values[e] = ieee::divide(values[e], divisor);
    }
}

// A row's tile as the mean of the row's `num_codes` payloads, which follow each other: summed from
// the first to the last. Of one, what it decodes to.
template <class Codec>
__device__ __forceinline__ void decode_mean(
    const Codec& codec, const u8* payloads, i64 num_codes, i64 num_bytes, const Tile& tile,
    float (&values)[PER_THREAD]) {
    const u8* payload = payloads + tile.row * num_codes * num_bytes;
#pragma unroll
    for (int e = 0; e < PER_THREAD; ++e) values[e] = -0.0f;  // the sum of none: -0 + x is x
    if (codec.is_aligned(payload) && num_bytes % 4 == 0) {
        add_decoded<2, true>(codec, payload, num_codes, num_bytes, tile, values);
    } else {
        add_decoded<1, false>(codec, payload, num_codes, num_bytes, tile, values);
    }
    if (num_codes > 1) divide_by_number(values, num_codes);
}

// `decode_mean` of all rows into `chunks`.
template <class Codec>
__device__ __forceinline__ void decode_means(
    const Codec& codec, const u8* payloads, u32* chunks, i64 rows, i64 n, i64 num_codes,
    i64 num_bytes) {
    const i64 per_row = tiles_of_row(n, tile_size());
    for (i64 index = blockIdx.x; index < rows * per_row; index += gridDim.x) {
        const Tile tile = tile_at(index, per_row, n, tile_size());
        float values[PER_THREAD];
        decode_mean(codec, payloads, num_codes, num_bytes, tile, values);
        store_tile<F32>(chunks + tile.row * n, tile, values);
    }
}

#endif
