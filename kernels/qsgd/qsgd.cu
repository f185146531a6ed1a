// QSGD on the GPU. `qsgd_reference.py` specifies every bit, `philox_reference.py` the random numbers;
// `qsgd_cuda.py` chooses and launches these kernels.
//
// Where tiles can begin at the start of a group, a block finds its groups' norms and encodes them in
// one pass. It cannot know then whether the rest of its row is finite: the last block of a row that
// is not writes the row anew. For other groups `find_norms` finds the norms first.

#include "shared/codes.cuh"
#include "shared/philox.cuh"
#include "shared/two_passes.cuh"

constexpr int NORM_BYTES = 4;

// --- rows and groups ---

struct Shape {
    i64 rows, n, group_size, groups;
    int size;  // of a tile

    __device__ __forceinline__ Shape(i64 rows_, i64 n_, i64 group_size_, i64 size_)
        : rows(rows_),
          n(n_),
          group_size(group_size_),
          groups(quotient(n_ + group_size_ - 1, group_size_)),
          size(static_cast<int>(size_)) {}

    __device__ __forceinline__ i64 per_row() const { return tiles_of_row(n, size); }
};

template <int BITS>
__device__ __forceinline__ i64 code_bytes(i64 n) {
    return (n * BITS + 31) / 32 * 4;
}

template <int BITS>
__device__ __forceinline__ i64 wire_bytes(const Shape& shape) {
    return NORM_BYTES * shape.groups + code_bytes<BITS>(shape.n);
}

// Of a tile's codes, and behind the row's last of the padding.
template <int BITS>
__device__ __forceinline__ int room_of(const Shape& shape, const Tile& tile) {
    const bool is_last = tile.start + tile.count == shape.n;
    return static_cast<int>(
        is_last ? code_bytes<BITS>(shape.n) - tile.start * BITS / 8 : tile.count * BITS / 8);
}

// Where groups begin in a tile, in 32 bits: in a tile, groups of 2^30 and of more are alike.
struct Groups {
    u32 size;   // elements
    u32 first;  // place of the tile's first element in its group

    __device__ __forceinline__ Groups(i64 place, i64 group_size) {
        constexpr i64 MOST = 1 << 30;
        size = static_cast<u32>(min(group_size, MOST));
        first = size - static_cast<u32>(min(group_size - place, MOST));
    }
};

// The group of element `i` of a tile, counted from the tile's first, and the element's place in it.
struct Place {
    u32 size, index, group;

    __device__ __forceinline__ Place(const Groups& groups, int i) : size(groups.size) {
        group = (groups.first + i) / size;
        index = groups.first + i - group * size;
    }

    // To the next element; whether that one begins a group.
    __device__ __forceinline__ bool advance() {
        if (++index < size) return false;
        index = 0;
        ++group;
        return true;
    }
};

// Raise norms[group] to the magnitudes of the group's elements in this tile. Norms are the bits of
// floats, which sort as they do; those of NaN sort highest.
template <int V>
__device__ __forceinline__ void raise_norms(
    u32* norms, const Groups& groups, const Tile& tile, const float (&values)[PER_THREAD]) {
#pragma unroll
    for (int k = 0; k < PER_THREAD / V; ++k) {
        const int i = offset_of<V>(k);
        Place place(groups, i);
        u32 greatest = 0;
#pragma unroll
        for (int j = 0; j < V; ++j) greatest = max(greatest, magnitude(values[k * V + j]));
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
}

// --- one element ---

template <int BITS>
__device__ __forceinline__ u32 encode(float x, float norm, u32 draw) {
    constexpr int S = (1 << (BITS - 1)) - 1;
    const float divisor = __float_as_uint(norm) == 0 ? 1.0f : norm;
    const float y = ieee::multiply(
        ieee::divide(__uint_as_float(magnitude(x)), divisor), static_cast<float>(S));
    const float whole = ieee::floor(y);
    // Both sides of draw / 2^24 < y - whole as integers below 2^24, and their order as bits.
    const float fraction = ieee::multiply(ieee::subtract(y, whole), 16777216.0f);
    const bool up = __float_as_uint(static_cast<float>(draw >> 8)) < __float_as_uint(fraction);
    const u32 level = to_small(whole) + up;
    return __float_as_uint(x) >> 31 ? S - level : S + level;
}

// A level over S, rounded as a division: a first guess, and one correction by its exact residual.
template <int BITS>
__device__ __forceinline__ float decode(u32 code, float norm) {
    constexpr float S = (1 << (BITS - 1)) - 1;
    constexpr float RECIPROCAL = 1.0f / S;
    const float level = ieee::subtract(from_small(code), S);
    const float guess = ieee::multiply(level, RECIPROCAL);
    const float share = ieee::multiply_add(ieee::multiply_add(guess, -S, level), RECIPROCAL, guess);
    return ieee::multiply(norm, share);
}

// --- a tile ---

// `norms` are those of the tile's groups.
template <int V, int BITS>
__device__ __forceinline__ void encode_tile(
    u8* payload, const Shape& shape, const Tile& tile, const float (&values)[PER_THREAD],
    const u32* norms, const Groups& groups, bool encodable, const Philox& philox, u64 first_draw) {
    constexpr int BYTES = V * BITS / 8;
    Word<BYTES> words[PER_THREAD / V];
#pragma unroll
    for (int k = 0; k < PER_THREAD / V; ++k) {
        const int i = offset_of<V>(k);
        words[k] = 0;
        if (i < tile.count) {
            Place place(groups, i);
            float norm = __uint_as_float(encodable ? norms[place.group] : 0);
            const bool in_one = place.index + V <= groups.size;
            u32 draws[4];
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

template <int BITS>
__device__ __forceinline__ void decode_tile(
    const u8* payload, const Tile& tile, float (&values)[PER_THREAD], const Shape& shape) {
    constexpr int V = F32::PER_VECTOR, BYTES = V * BITS / 8;
    Word<BYTES> words[PER_THREAD / V];
    const u8* codes = payload + NORM_BYTES * shape.groups + tile.start * BITS / 8;
    load_codes<BYTES>(codes, room_of<BITS>(shape, tile), words);
    const i64 group = quotient(tile.start, shape.group_size);
    const u8* norms = payload + NORM_BYTES * group;
    const Groups groups(tile.start - group * shape.group_size, shape.group_size);
#pragma unroll
    for (int k = 0; k < PER_THREAD / V; ++k) {
        const int i = offset_of<V>(k);
        if (i < tile.count) {
            Place place(groups, i);
            float norm = load_float(norms + NORM_BYTES * place.group);
            const bool in_one = place.index + V <= groups.size;
#pragma unroll
            for (int j = 0; j < V; ++j) {
                const u32 code = words[k] >> BITS * j & ((1 << BITS) - 1);
                values[k * V + j] = decode<BITS>(code, norm);
                if (!in_one && place.advance() && i + j + 1 < tile.count) {
                    norm = load_float(norms + NORM_BYTES * place.group);
                }
            }
        }
    }
}

// Norms into the header: those of the groups that begin in this tile.
__device__ __forceinline__ void write_norms(
    u8* payload, const Shape& shape, const Tile& tile, const u32* norms, bool encodable) {
    const i64 first = quotient(tile.start, shape.group_size);
    const i64 begin = quotient(tile.start + shape.group_size - 1, shape.group_size);
    const i64 end = quotient(tile.start + tile.count + shape.group_size - 1, shape.group_size);
    for (i64 group = begin + threadIdx.x; group < end; group += blockDim.x) {
        const u32 norm = encodable ? norms[group - first] : NOT_A_NUMBER;
        store_float(payload + NORM_BYTES * group, __uint_as_float(norm));
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

// --- kernels ---

// The norms of a tile's groups, where it begins with a group, into shared memory; whether all are
// finite.
template <int V>
__device__ __forceinline__ bool find_norms_of_tile(
    u32* norms, const Shape& shape, const Tile& tile, const float (&values)[PER_THREAD]) {
    const i64 groups = quotient(tile.count + shape.group_size - 1, shape.group_size);
    __syncthreads();  // the last tile's norms have been read
    for (i64 group = threadIdx.x; group < groups; group += blockDim.x) norms[group] = 0;
    __syncthreads();
    raise_norms<V>(norms, Groups(0, shape.group_size), tile, values);
    bool finite = true;
#pragma unroll
    for (int e = 0; e < PER_THREAD; ++e) finite = finite && is_finite(values[e]);
    return __syncthreads_and(finite);
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
    const i64 per_row = shape.per_row();
    for (i64 index = blockIdx.x; index < shape.rows * per_row; index += gridDim.x) {
        const Tile tile = tile_at(index, per_row, shape.n, shape.size);
        u8* to = payload + tile.row * wire_bytes<BITS>(shape);
        float values[PER_THREAD];
        load_tile<Type>(chunks + tile.row * shape.n, tile, values);
        const u32* of_groups = norms_of_tile;
        i64 place = 0;  // of the tile's first element in its group
        bool finite;
        if (norms == nullptr) {
            finite = find_norms_of_tile<V>(norms_of_tile, shape, tile, values);
        } else {
            const i64 group = quotient(tile.start, shape.group_size);
            of_groups = norms + tile.row * shape.groups + group;
            place = tile.start - group * shape.group_size;
            finite = states[1 + tile.row].keys[0] < INFINITE;
        }
        write_norms(to, shape, tile, of_groups, finite);
        encode_tile<V, BITS>(
            to, shape, tile, values, of_groups, Groups(place, shape.group_size), finite,
            draws.of_row(tile.row), draws.first_of_row(tile.row, shape.n));
        if (norms == nullptr && per_row > 1) {
            RowState* state = &states[1 + tile.row];
            if (threadIdx.x == 0 && !finite) atomicMax(&state->keys[0], INFINITE);
            if (comes_last(&state->arrived, per_row)) {
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
    const i64 per_row = shape.per_row();
    for (i64 index = blockIdx.x; index < shape.rows * per_row; index += gridDim.x) {
        const Tile tile = tile_at(index, per_row, shape.n, shape.size);
        float values[PER_THREAD];
        load_tile<Type>(chunks + tile.row * shape.n, tile, values);
        const i64 group = quotient(tile.start, shape.group_size);
        const i64 place = tile.start - group * shape.group_size;
        u32* of_groups = norms + tile.row * shape.groups + group;
        u32 greatest[1] = {0};
#pragma unroll
        for (int e = 0; e < PER_THREAD; ++e) greatest[0] = max(greatest[0], magnitude(values[e]));
        block_max(greatest);
        if (threadIdx.x == 0) atomicMax(&states[1 + tile.row].keys[0], greatest[0]);
        if (place + tile.count > shape.group_size) {
            raise_norms<Type::PER_VECTOR>(of_groups, Groups(place, shape.group_size), tile, values);
        } else if (threadIdx.x == 0) {  // all of one group
            atomicMax(of_groups, greatest[0]);
        }
    }
}

#define COMPRESS(Type, type, bits) \
    KERNEL(2) compress_##type##_##bits( \
        const Type::Bits* chunks, u8* payload, const i64* streams, RowState* states, \
        const u32* norms, i64 rows, i64 n, i64 group_size, i64 size, i64 rows_of_worker, i64 key0, \
        i64 key1) { \
        const Draws draws{ \
            streams, rows_of_worker, {static_cast<u32>(key0), static_cast<u32>(key1)}}; \
        const Shape shape(rows, n, group_size, size); \
        encode_rows<Type, bits>(chunks, payload, shape, draws, states, norms); \
    }

#define KERNELS_OF(Type, type) \
    COMPRESS(Type, type, 2) \
    COMPRESS(Type, type, 4) \
    COMPRESS(Type, type, 8) \
    KERNEL(4) find_norms_##type( \
        const Type::Bits* chunks, u32* norms, RowState* states, i64 rows, i64 n, i64 group_size, \
        i64 size) { \
        find_norms_of_rows<Type>(chunks, norms, states, Shape(rows, n, group_size, size)); \
    }

#define DECOMPRESS(bits) \
    KERNEL(2) decompress_mean_##bits( \
        const u8* payloads, u32* chunks, i64 rows, i64 n, i64 group_size, i64 num_codes) { \
        const Shape shape(rows, n, group_size, tile_size()); \
        decode_means<decode_tile<bits>>( \
            payloads, chunks, rows, n, num_codes, wire_bytes<bits>(shape), shape); \
    }

KERNELS_OF(F32, f32)
KERNELS_OF(F16, f16)
KERNELS_OF(BF16, bf16)
DECOMPRESS(2)
DECOMPRESS(4)
DECOMPRESS(8)
