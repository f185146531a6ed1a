// Codes of QSGD to numbers, and their means.

#ifndef KERNELS_QSGD_DECODING_CUH
#define KERNELS_QSGD_DECODING_CUH

#include "qsgd/groups.cuh"
#include "shared/codes.cuh"

// 1 / S as two floats. By them a level over S is rounded as by a division: of every code this was
// tried, and is in the tests.
template <int BITS>
struct Reciprocal {
    static constexpr int S = (1 << (BITS - 1)) - 1;
    static constexpr float HIGH = static_cast<float>(1.0 / S);
    static constexpr float LOW = static_cast<float>(1.0 / S - static_cast<double>(HIGH));
};

template <int BITS>
__device__ __forceinline__ float decode(u32 code, float norm) {
    using R = Reciprocal<BITS>;
    const float level = from_small(code, R::S);
    if constexpr (R::S == 1) return ieee::multiply(norm, level);
    const float share = ieee::multiply_add(level, R::HIGH, ieee::multiply(level, R::LOW));
    return ieee::multiply(norm, share);
}

template <int BITS>
struct Codec {
    static constexpr int V = F32::PER_VECTOR, BYTES = V * BITS / 8;

    const Shape& shape;

    struct Codes {
        Word<BYTES> words[PER_THREAD / V];
    };

    static __device__ __forceinline__ u32 code_of(const Codes& codes, int e) {
        return codes.words[e / V] >> BITS * (e % V) & ((1 << BITS) - 1);
    }

    template <bool ALIGNED>
    __device__ __forceinline__ void load(const u8* payload, const Tile& tile, Codes& codes) const {
        const u8* from = payload + NORM_BYTES * shape.groups + tile.start * BITS / 8;
        load_codes<BYTES, ALIGNED>(from, room_of<BITS>(shape, tile), codes.words);
    }
};

// Where no vector lies in two groups, and payloads begin at multiples of 4 bytes.
template <int BITS>
struct CodecOfVectors : Codec<BITS> {
    using Base = Codec<BITS>;

    i64 first;                         // group of the tile
    u32 groups[PER_THREAD / Base::V];  // of the vectors, counted from the first; not beyond the end

    struct Codes : Base::Codes {
        float norms[PER_THREAD / Base::V];
    };

    __device__ __forceinline__ CodecOfVectors(
        const Shape& shape, const Groups& of_tile, const Tile& tile)
        : Base{shape}, first(of_tile.of_row) {
#pragma unroll
        for (int k = 0; k < PER_THREAD / Base::V; ++k) {
            groups[k] = of_tile.group_of(min(offset_of<Base::V>(k), tile.count - 1));
        }
    }

    static __device__ __forceinline__ bool is_aligned(const u8*) { return true; }

    template <bool ALIGNED>
    __device__ __forceinline__ void load(const u8* payload, const Tile& tile, Codes& codes) const {
        const u8* norms = payload + NORM_BYTES * first;
#pragma unroll
        for (int k = 0; k < PER_THREAD / Base::V; ++k) {
            codes.norms[k] = load_float<ALIGNED>(norms + NORM_BYTES * groups[k]);
        }
        Base::template load<ALIGNED>(payload, tile, codes);
    }

    __device__ __forceinline__ void decode(
        const Codes& codes, const Tile&, float (&values)[PER_THREAD]) const {
#pragma unroll
        for (int e = 0; e < PER_THREAD; ++e) {
            values[e] = ::decode<BITS>(Base::code_of(codes, e), codes.norms[e / Base::V]);
        }
    }
};

// Of any groups and payloads.
template <int BITS>
struct CodecOfElements : Codec<BITS> {
    using Base = Codec<BITS>;

    Groups groups;

    struct Codes : Base::Codes {
        const u8* norms;  // from the first group's on
    };

    __device__ __forceinline__ CodecOfElements(const Shape& shape, const Groups& of_tile, const Tile&)
        : Base{shape}, groups(of_tile) {}

    static __device__ __forceinline__ bool is_aligned(const u8*) { return false; }

    template <bool ALIGNED>
    __device__ __forceinline__ void load(const u8* payload, const Tile& tile, Codes& codes) const {
        codes.norms = payload + NORM_BYTES * groups.of_row;
        Base::template load<ALIGNED>(payload, tile, codes);
    }

    __device__ __forceinline__ void decode(
        const Codes& codes, const Tile& tile, float (&values)[PER_THREAD]) const {
#pragma unroll
        for (int k = 0; k < PER_THREAD / Base::V; ++k) {
            const int i = offset_of<Base::V>(k);
            if (i < tile.count) {
                Place place(groups, i);
                float norm = load_float(codes.norms + NORM_BYTES * place.group);
#pragma unroll
                for (int j = 0; j < Base::V; ++j) {
                    const int e = k * Base::V + j;
                    values[e] = ::decode<BITS>(Base::code_of(codes, e), norm);
                    if (place.advance() && i + j + 1 < tile.count) {
                        norm = load_float(codes.norms + NORM_BYTES * place.group);
                    }
                }
            }
        }
    }
};

template <template <int> class Codec, int BITS>
__device__ __forceinline__ void decode_means_of_rows(
    const u8* payloads, u32* chunks, const Shape& shape, i64 num_codes) {
    const i64 num_bytes = wire_bytes<BITS>(shape);
    for (i64 index = blockIdx.x; index < shape.rows * shape.per_row; index += gridDim.x) {
        const Tile tile = tile_at(index, shape.per_row, shape.n, shape.size);
        const Codec<BITS> codec(shape, Groups(shape, tile), tile);
        float values[PER_THREAD];
        decode_mean(codec, payloads, num_codes, num_bytes, tile, values);
        store_tile<F32>(chunks + tile.row * shape.n, tile, values);
    }
}

#endif
