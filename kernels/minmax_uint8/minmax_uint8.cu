// MinMaxUInt8 on the GPU. `reference.py` specifies every bit; `cuda.py`
// chooses and launches these kernels.

#include "shared/codes.cuh"
#include "shared/two_passes.cuh"

constexpr int HEADER_BYTES = 8;

__device__ __forceinline__ i64 wire_bytes(i64 n) { return HEADER_BYTES + (n + 7) / 8 * 8; }

// Of a tile's codes and the padding behind them.
__device__ __forceinline__ int code_bytes(const Tile& tile) { return (tile.count + 7) / 8 * 8; }

struct Grid {
    float scale, upper, lower;
};

__device__ __forceinline__ Grid grid_of(float mn, float mx) {
    const float spread = ieee::add(ieee::subtract(mx, mn), 1e-7f);
    const float scale = ieee::divide(255.0f, spread);
    const float upper = ieee::round(ieee::multiply(mx, scale));
    return {scale, upper, ieee::subtract(upper, 255.0f)};
}

// --- one element ---

// An order-preserving integer: every NaN lies beyond the infinities, so it shows at an end of the
// range.
__device__ __forceinline__ u32 key_of(float x) {
    const u32 bits = __float_as_uint(x);
    return bits ^ (static_cast<u32>(static_cast<int>(bits) >> 31) | 0x80000000u);
}

__device__ __forceinline__ float value_of(u32 key) {
    return __uint_as_float(key >> 31 ? key ^ 0x80000000u : ~key);
}

// 0 where the grid is NaN: of NaN and 0, `greatest` is 0.
__device__ __forceinline__ u32 encode(float x, const Grid& grid) {
    const float rounded = ieee::round(ieee::multiply(x, grid.scale));
    const float level = ieee::subtract(ieee::least(rounded, grid.upper), grid.lower);
    return to_small(ieee::least(ieee::greatest(level, 0.0f), 255.0f));
}

// Levels over the scale. A level is 0 or at least 1, so `exact` says that nothing here comes near the
// denormals or infinity.
struct Decoder {
    float lower, scale;
    Divisor divisor;
    bool exact;

    explicit __device__ __forceinline__ Decoder(const Grid& grid)
        : lower(grid.lower), scale(grid.scale), divisor(grid.scale) {
        const u32 bits = __float_as_uint(scale);  // large where it is negative or NaN
        exact = bits >= power_of_two(-24) && bits < power_of_two(32) &&
            magnitude(lower) < power_of_two(64);
    }

    __device__ __forceinline__ float decode_exact(u32 code) const {
        return divisor.divide(ieee::add(from_small(code), lower));
    }

    __device__ __forceinline__ float decode(u32 code) const {
        return ieee::divide(ieee::add(from_small(code), lower), scale);
    }
};

// --- a tile ---

// Raise the keys to ~(the least element's) and the greatest element's; 0 is below every key.
template <int V>
__device__ __forceinline__ void raise_keys(
    u32 (&keys)[2], const Tile& tile, const float (&values)[PER_THREAD]) {
#pragma unroll
    for (int e = 0; e < PER_THREAD; ++e) {
        if (offset_of<V>(e / V) + e % V < tile.count) {
            const u32 key = key_of(values[e]);
            keys[0] = max(keys[0], ~key);
            keys[1] = max(keys[1], key);
        }
    }
}

// The grid of a row from its keys: NaN where the row cannot be encoded. One thread writes the header.
__device__ __forceinline__ Grid begin_row(u8* payload, const u32 (&keys)[2], bool writes) {
    float mn = ieee::add(value_of(~keys[0]), 0.0f);  // turns -0 into +0
    float mx = ieee::add(value_of(keys[1]), 0.0f);
    Grid grid = grid_of(mn, mx);
    if (!is_finite(ieee::divide(grid.lower, grid.scale)) ||
        !is_finite(ieee::divide(ieee::add(255.0f, grid.lower), grid.scale))) {
        mn = mx = grid.scale = grid.upper = grid.lower = __uint_as_float(NOT_A_NUMBER);
    }
    if (writes) {
        store_float(payload, mn);
        store_float(payload + 4, mx);
    }
    return grid;
}

template <int V>
__device__ __forceinline__ void encode_tile(
    u8* payload, const Tile& tile, const float (&values)[PER_THREAD], const Grid& grid) {
    Word<V> words[PER_THREAD / V];
#pragma unroll
    for (int k = 0; k < PER_THREAD / V; ++k) {
        words[k] = 0;
#pragma unroll
        for (int j = 0; j < V; ++j) {
            const u32 code = encode(values[k * V + j], grid);
            if (offset_of<V>(k) + j < tile.count) words[k] |= static_cast<Word<V>>(code) << 8 * j;
        }
    }
    store_codes<V>(payload + HEADER_BYTES + tile.start, code_bytes(tile), words);
}

// V elements a vector.
template <int V>
struct Codec {
    struct Codes {
        Word<V> words[PER_THREAD / V];
        float mn, mx;
    };

    static __device__ __forceinline__ bool is_aligned(const u8* payload) {
        return ::is_aligned<V>(payload);
    }

    template <bool ALIGNED>
    __device__ __forceinline__ void load(const u8* payload, const Tile& tile, Codes& codes) const {
        codes.mn = load_float<ALIGNED>(payload);
        codes.mx = load_float<ALIGNED>(payload + 4);
        load_codes<V, ALIGNED>(
            payload + HEADER_BYTES + tile.start, code_bytes(tile), codes.words);
    }

    __device__ __forceinline__ void decode(
        const Codes& codes, const Tile&, float (&values)[PER_THREAD]) const {
        const Decoder decoder(grid_of(codes.mn, codes.mx));
        if (decoder.exact) {  // the same for the whole block
#pragma unroll
            for (int e = 0; e < PER_THREAD; ++e) {
                values[e] = decoder.decode_exact(static_cast<u8>(codes.words[e / V] >> e % V * 8));
            }
        } else {
#pragma unroll
            for (int e = 0; e < PER_THREAD; ++e) {
                values[e] = decoder.decode(static_cast<u8>(codes.words[e / V] >> e % V * 8));
            }
        }
    }
};

// --- what is encoded ---

template <class Type>
struct Chunks {
    static constexpr int PER_VECTOR = Type::PER_VECTOR;
    const typename Type::Bits* chunks;
    i64 n;

    __device__ __forceinline__ void load(const Tile& tile, float (&values)[PER_THREAD]) const {
        load_tile<Type>(chunks + tile.row * n, tile, values);
    }
    __device__ __forceinline__ void keep(const Tile&, const float (&)[PER_THREAD]) const {}
    __device__ __forceinline__ void load_again(const Tile& tile, float (&values)[PER_THREAD]) const {
        load(tile, values);
    }
};

// The means of decoded payloads, which are computed once and kept for the second pass.
struct Means {
    static constexpr int PER_VECTOR = F32::PER_VECTOR;
    const u8* payloads;
    i64 num_codes;
    i64 n;
    u32* means;

    __device__ __forceinline__ void load(const Tile& tile, float (&values)[PER_THREAD]) const {
        decode_mean(Codec<PER_VECTOR>(), payloads, num_codes, wire_bytes(n), tile, values);
    }
    __device__ __forceinline__ void keep(const Tile& tile, const float (&values)[PER_THREAD]) const {
        store_tile<F32>(means + tile.row * n, tile, values);
    }
    __device__ __forceinline__ void load_again(const Tile& tile, float (&values)[PER_THREAD]) const {
        load_tile<F32>(means + tile.row * n, tile, values);
    }
};

// --- kernels ---

// Rows that a block holds in its registers.
template <class Source>
__device__ __forceinline__ void encode_rows(const Source& source, u8* payload, i64 rows, i64 n) {
    for (i64 row = blockIdx.x; row < rows; row += gridDim.x) {
        const Tile tile = tile_of_row(row, 0, n, tile_size());
        u8* to = payload + row * wire_bytes(n);
        float values[PER_THREAD];
        u32 keys[2] = {0, 0};
        source.load(tile, values);
        raise_keys<Source::PER_VECTOR>(keys, tile, values);
        block_max(keys);
        const Grid grid = begin_row(to, keys, threadIdx.x == 0);
        encode_tile<Source::PER_VECTOR>(to, tile, values, grid);
    }
}

template <class Source>
struct Encoding {
    Source source;
    u8* payload;
    RowState* states;
    i64 n;

    __device__ __forceinline__ void reduce(const Tile& piece) const {
        u32 keys[2] = {0, 0};
        for (int done = 0; done < piece.count; done += tile_size()) {
            const Tile tile = part_of(piece, done);
            float values[PER_THREAD];
            source.load(tile, values);
            source.keep(tile, values);
            raise_keys<Source::PER_VECTOR>(keys, tile, values);
        }
        block_max(keys);
        if (threadIdx.x == 0) {
            atomicMax(&states[1 + piece.row].keys[0], keys[0]);
            atomicMax(&states[1 + piece.row].keys[1], keys[1]);
        }
    }

    __device__ __forceinline__ void finish(i64 row) const {
        if (threadIdx.x == 0) {
            volatile RowState* state = &states[1 + row];
            const u32 keys[2] = {state->keys[0], state->keys[1]};
            const Grid grid = begin_row(payload + row * wire_bytes(n), keys, true);
            state->numbers[0] = grid.scale;
            state->numbers[1] = grid.upper;
            state->numbers[2] = grid.lower;
        }
    }

    __device__ __forceinline__ void encode(const Tile& piece) const {
        const volatile RowState* state = &states[1 + piece.row];
        const Grid grid = {state->numbers[0], state->numbers[1], state->numbers[2]};
        u8* to = payload + piece.row * wire_bytes(n);
        for (int done = 0; done < piece.count; done += tile_size()) {
            const Tile tile = part_of(piece, done);
            float values[PER_THREAD];
            source.load_again(tile, values);
            encode_tile<Source::PER_VECTOR>(to, tile, values, grid);
        }
    }
};

template <class Type>
__device__ __forceinline__ void decode_rows(
    const u8* payload, typename Type::Bits* chunks, i64 rows, i64 n) {
    const i64 per_row = tiles_of_row(n, tile_size());
    for (i64 index = blockIdx.x; index < rows * per_row; index += gridDim.x) {
        const Tile tile = tile_at(index, per_row, n, tile_size());
        const u8* from = payload + tile.row * wire_bytes(n);
        const Codec<Type::PER_VECTOR> codec;
        typename Codec<Type::PER_VECTOR>::Codes codes;
        float values[PER_THREAD];
        codec.template load<false>(from, tile, codes);
        codec.decode(codes, tile, values);
        if constexpr (Type::PER_VECTOR > 4) {  // 16 bits: what lies beyond mx could become infinite
#pragma unroll
            for (int e = 0; e < PER_THREAD; ++e) {
                if (magnitude(values[e]) <= INFINITE) {
                    values[e] = ieee::least(ieee::greatest(values[e], codes.mn), codes.mx);
                }
            }
        }
        store_tile<Type>(chunks + tile.row * n, tile, values);
    }
}

#define KERNELS_OF(Type, name) \
    KERNEL(4) compress_##name##_rows( \
        const Type::Bits* chunks, u8* payload, i64 rows, i64 n) { \
        encode_rows(Chunks<Type>{chunks, n}, payload, rows, n); \
    } \
    KERNEL(4) compress_##name##_tiles( \
        const Type::Bits* chunks, u8* payload, RowState* states, i64 rows, i64 n, i64 size, i64 lag) { \
        const Encoding<Chunks<Type>> work{{chunks, n}, payload, states, n}; \
        run_two_passes(work, states, rows, n, static_cast<int>(size), lag); \
    } \
    KERNEL(4) decompress_##name( \
        const u8* payload, Type::Bits* chunks, i64 rows, i64 n) { \
        decode_rows<Type>(payload, chunks, rows, n); \
    }

KERNELS_OF(F32, f32)
KERNELS_OF(F16, f16)
KERNELS_OF(BF16, bf16)

KERNEL(3) decompress_mean(
    const u8* payloads, u32* chunks, i64 rows, i64 n, i64 num_codes) {
    decode_means(Codec<4>(), payloads, chunks, rows, n, num_codes, wire_bytes(n));
}

KERNEL(3) average_rows(
    const u8* payloads, u8* payload, i64 rows, i64 n, i64 num_codes) {
    encode_rows(Means{payloads, num_codes, n, nullptr}, payload, rows, n);
}

KERNEL(3) average_tiles(
    const u8* payloads, u8* payload, u32* means, RowState* states, i64 rows, i64 n, i64 num_codes,
    i64 size, i64 lag) {
    const Encoding<Means> work{{payloads, num_codes, n, means}, payload, states, n};
    run_two_passes(work, states, rows, n, static_cast<int>(size), lag);
}
