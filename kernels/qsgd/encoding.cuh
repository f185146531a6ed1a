// Where tiles can begin at the start of a group, a block finds its groups' norms and encodes them in
// one pass. It cannot know then whether the rest of its row is finite: the last block of a row that
// is not writes the row anew. For other groups `find_norms` finds the norms first.

#ifndef KERNELS_QSGD_ENCODING_CUH
#define KERNELS_QSGD_ENCODING_CUH

#include "qsgd/groups.cuh"
#include "shared/codes.cuh"
#include "shared/philox.cuh"
#include "shared/two_passes.cuh"

// Raise norms[group] to the magnitudes of the group's elements in this tile; the greatest of this
// thread's. Norms are the bits of floats, which sort as they do; those of NaN sort highest.
template <int V>
__device__ __forceinline__ u32 raise_norms(
    u32* norms, const Groups& groups, const Tile& tile, const float (&values)[PER_THREAD]) {
    u32 greatest_of_all = 0;
#pragma unroll
    for (int k = 0; k < PER_THREAD / V; ++k) {
        const int i = offset_of<V>(k);
        Place place(groups, i);
        u32 greatest = 0;
#pragma unroll
        for (int j = 0; j < V; ++j) greatest = max(greatest, magnitude(values[k * V + j]));
        greatest_of_all = max(greatest_of_all, greatest);
        const bool in_one = place.index + V <= groups.size;
        const u32 of_warp = __shfl_sync(ALL_LANES, place.group, 0);
        if (__all_sync(ALL_LANES, in_one && place.group == of_warp)) {
            greatest = __reduce_max_sync(ALL_LANES, greatest);
            if (threadIdx.x % 32 == 0 && i < tile.count) atomicMax(&norms[of_warp], greatest);
        } else if (in_one) {
            if (i < tile.count) atomicMax(&norms[place.group], greatest);
        } else {
#pragma unroll
            for (int j = 0; j < V; ++j) {
                if (i + j < tile.count) {
                    atomicMax(&norms[place.group], magnitude(values[k * V + j]));
                    place.advance();
                }
            }
        }
    }
    return greatest_of_all;
}

// --- one element ---

// A level below or above x by the draw, from the share of x's magnitude in the norm.
template <int BITS>
__device__ __forceinline__ u32 encode_share(float x, float share, u32 draw) {
    constexpr int S = (1 << (BITS - 1)) - 1;
    const float y = ieee::multiply(share, static_cast<float>(S));
    const u32 whole = floor_of_small(y);
    // Both sides of draw / 2^24 < y - whole as integers below 2^24, and their order as bits.
    const float fraction = ieee::multiply(ieee::subtract(y, from_small(whole)), 16777216.0f);
    const bool up = __float_as_uint(static_cast<float>(draw >> 8)) < __float_as_uint(fraction);
    const u32 level = whole + up;
    return __float_as_uint(x) >> 31 ? S - level : S + level;
}

template <int BITS>
__device__ __forceinline__ u32 encode(float x, float norm, u32 draw) {
    const float divisor = __float_as_uint(norm) == 0 ? 1.0f : norm;
    const float share = ieee::divide(__uint_as_float(magnitude(x)), divisor);
    return encode_share<BITS>(x, share, draw);
}

// Whether `Divisor` divides by this norm all that it is the greatest of, but for the tiny.
__device__ __forceinline__ bool is_usual(float norm) {
    return __float_as_uint(norm) - power_of_two(-100) < power_of_two(20) - power_of_two(-100);
}

// Numbers other than 0 whose residuals could be denormal.
__device__ __forceinline__ bool is_tiny(float x) {
    return magnitude(x) - 1 < power_of_two(-100) - 1;
}

// --- a tile ---

// `norms` are those of the tile's groups.
template <int V, int BITS>
__device__ __forceinline__ void encode_tile(
    u8* payload, const Shape& shape, const Tile& tile, const float (&values)[PER_THREAD],
    const u32* norms, const Groups& groups, bool encodable, const Philox& philox, u64 first_draw) {
    constexpr int BYTES = V * BITS / 8;
    Word<BYTES> words[PER_THREAD / V];
    bool none_tiny = true;
#pragma unroll
    for (int e = 0; e < PER_THREAD; ++e) none_tiny = none_tiny && !is_tiny(values[e]);
#pragma unroll
    for (int k = 0; k < PER_THREAD / V; ++k) {
        const int i = offset_of<V>(k);
        words[k] = 0;
        if (i < tile.count) {
            Place place(groups, i);
            float norm = __uint_as_float(encodable ? norms[place.group] : 0);
            const bool in_one = place.index + V <= groups.size;
            u32 draws[4];
            if (in_one && i + V <= tile.count && none_tiny && is_usual(norm)) {
                const Divisor divisor(norm);
#pragma unroll
                for (int j = 0; j < V; ++j) {
                    if (j % 4 == 0) philox.draw_from(first_draw + tile.start + i + j, draws);
                    const float x = values[k * V + j];
                    const float share = divisor.divide(__uint_as_float(magnitude(x)));
                    const u32 code = encode_share<BITS>(x, share, draws[j % 4]);
                    words[k] |= static_cast<Word<BYTES>>(code) << BITS * j;
                }
                continue;
            }
#pragma unroll
            for (int j = 0; j < V; ++j) {
                if (j % 4 == 0) philox.draw_from(first_draw + tile.start + i + j, draws);
                if (i + j < tile.count) {
                    const float x = encodable ? values[k * V + j] : 0.0f;
                    const u32 code = encode<BITS>(x, norm, draws[j % 4]);
                    words[k] |= static_cast<Word<BYTES>>(code) << BITS * j;
                    const bool is_last = i + j + 1 == tile.count;
                    if (!in_one && place.advance() && encodable && !is_last) {
                        norm = __uint_as_float(norms[place.group]);
                    }
                }
            }
        }
    }
    u8* codes = payload + NORM_BYTES * shape.groups + tile.start * BITS / 8;
    store_codes<BYTES>(codes, room_of<BITS>(shape, tile), words);
}

// Norms into the header: those of the groups that begin in this tile.
__device__ __forceinline__ void write_norms(
    u8* payload, const Groups& groups, const u32* norms, bool encodable) {
    const int begun = groups.place > 0;  // before the tile
    for (int group = begun + threadIdx.x; group < groups.count; group += blockDim.x) {
        const u32 norm = encodable ? norms[group] : NOT_A_NUMBER;
        store_float(payload + NORM_BYTES * (groups.of_row + group), __uint_as_float(norm));
    }
}

// What a row that is not finite is sent as: norms of NaN, and codes of zero.
template <int BITS>
__device__ __forceinline__ void write_not_encodable(u8* payload, const Shape& shape) {
    constexpr u32 S = (1 << (BITS - 1)) - 1;
    for (i64 group = threadIdx.x; group < shape.groups; group += blockDim.x) {
        store_float(payload + NORM_BYTES * group, __uint_as_float(NOT_A_NUMBER));
    }
    u8* codes = payload + NORM_BYTES * shape.groups;
    for (i64 b = threadIdx.x; b < code_bytes<BITS>(shape.n); b += blockDim.x) {
        u32 byte = 0;
        for (int j = 0; j < 8 / BITS; ++j) {
            if (b * (8 / BITS) + j < shape.n) byte |= S << BITS * j;
        }
        codes[b] = static_cast<u8>(byte);
    }
}

// --- rows ---

// The norms of a tile's groups, where it begins with a group, into shared memory; whether all are
// finite.
template <int V>
__device__ __forceinline__ bool find_norms_of_tile(
    u32* norms, const Groups& groups, const Tile& tile, const float (&values)[PER_THREAD]) {
    __syncthreads();  // the last tile's norms have been read
    for (int group = threadIdx.x; group < groups.count; group += blockDim.x) norms[group] = 0;
    __syncthreads();
    const u32 greatest = raise_norms<V>(norms, groups, tile, values);
    return __syncthreads_and(greatest < INFINITE);
}

struct Draws {
    const i64* streams;
    i64 rows_of_worker;
    u32 key[2];

    __device__ __forceinline__ Philox of_row(i64 row) const {
        const i64* stream = streams + 3 * quotient(row, rows_of_worker);
        Philox philox;
        for (int i = 0; i < 3; ++i) philox.stream[i] = static_cast<u32>(stream[i]);
        for (int i = 0; i < 2; ++i) philox.key[i] = key[i];
        return philox;
    }

    __device__ __forceinline__ u64 first_of_row(i64 row, i64 n) const {
        return (row - static_cast<i64>(quotient(row, rows_of_worker)) * rows_of_worker) * n;
    }
};

template <class Type, int BITS>
__device__ __forceinline__ void encode_rows(
    const typename Type::Bits* chunks, u8* payload, const Shape& shape, const Draws& draws,
    RowState* states, const u32* norms) {
    constexpr int V = Type::PER_VECTOR;
    __shared__ u32 norms_of_tile[PER_THREAD * MAX_THREADS];
    for (i64 index = blockIdx.x; index < shape.rows * shape.per_row; index += gridDim.x) {
        const Tile tile = tile_at(index, shape.per_row, shape.n, shape.size);
        const Groups groups(shape, tile);
        u8* to = payload + tile.row * wire_bytes<BITS>(shape);
        float values[PER_THREAD];
        load_tile<Type>(chunks + tile.row * shape.n, tile, values);
        const u32* of_groups = norms_of_tile;
        bool finite;
        if (norms == nullptr) {
            finite = find_norms_of_tile<V>(norms_of_tile, groups, tile, values);
        } else {
            of_groups = norms + tile.row * shape.groups + groups.of_row;
            finite = states[1 + tile.row].keys[0] < INFINITE;
        }
        write_norms(to, groups, of_groups, finite);
        encode_tile<V, BITS>(
            to, shape, tile, values, of_groups, groups, finite, draws.of_row(tile.row),
            draws.first_of_row(tile.row, shape.n));
        if (norms == nullptr && shape.per_row > 1) {
            RowState* state = &states[1 + tile.row];
            if (threadIdx.x == 0 && !finite) atomicMax(&state->keys[0], INFINITE);
            if (comes_last(&state->arrived, shape.per_row)) {
                const u32 greatest = *const_cast<const volatile u32*>(&state->keys[0]);
                if (greatest >= INFINITE) write_not_encodable<BITS>(to, shape);
            }
        }
    }
}

// The norms of all rows' groups into `norms`, which holds zeros, and the greatest of each row.
template <class Type>
__device__ __forceinline__ void find_norms_of_rows(
    const typename Type::Bits* chunks, u32* norms, RowState* states, const Shape& shape) {
    for (i64 index = blockIdx.x; index < shape.rows * shape.per_row; index += gridDim.x) {
        const Tile tile = tile_at(index, shape.per_row, shape.n, shape.size);
        const Groups groups(shape, tile);
        float values[PER_THREAD];
        load_tile<Type>(chunks + tile.row * shape.n, tile, values);
        u32* of_groups = norms + tile.row * shape.groups + groups.of_row;
        u32 greatest[1] = {0};
#pragma unroll
        for (int e = 0; e < PER_THREAD; ++e) greatest[0] = max(greatest[0], magnitude(values[e]));
        block_max(greatest);
        if (threadIdx.x == 0) atomicMax(&states[1 + tile.row].keys[0], greatest[0]);
        if (groups.count > 1) {
            raise_norms<Type::PER_VECTOR>(of_groups, groups, tile, values);
        } else if (threadIdx.x == 0) {
            atomicMax(of_groups, greatest[0]);
        }
    }
}

#endif
