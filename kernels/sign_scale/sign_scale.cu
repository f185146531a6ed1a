// SignScale on the GPU. `reference.py` specifies every bit, but for the order of the sum in
// float64; `cuda.py` chooses and launches these kernels.

#include "shared/codes.cuh"
#include "shared/two_passes.cuh"

constexpr int HEADER_BYTES = 4;

__device__ __forceinline__ i64 wire_bytes(i64 n) { return HEADER_BYTES + (n + 31) / 32 * 4; }

// Of a tile's codes and the padding behind them.
__device__ __forceinline__ int code_bytes(const Tile& tile) { return (tile.count + 31) / 32 * 4; }

__device__ __forceinline__ u8* codes_of(u8* payload, const Tile& tile) {
    return payload + HEADER_BYTES + tile.start / 8;
}

// --- a tile ---

// This thread's; the elements beyond a tile's end are zeros, and add nothing.
__device__ __forceinline__ double sum_of_magnitudes(const float (&values)[PER_THREAD]) {
    double sum = 0.0;
#pragma unroll
    for (int e = 0; e < PER_THREAD; ++e) {
        sum += ieee::to_double(__uint_as_float(magnitude(values[e])));
    }
    return sum;
}

template <int V>
__device__ __forceinline__ void encode_tile(
    u8* codes, const Tile& tile, const float (&values)[PER_THREAD]) {
#pragma unroll
    for (int k = 0; k < PER_THREAD / V; ++k) {
        const int i = offset_of<V>(k);
        u32 signs = 0;
#pragma unroll
        for (int j = 0; j < V; ++j) {
            // >= 0, or -0, or a NaN, whose row gets no codes
            const bool positive = __float_as_uint(values[k * V + j]) <= 0x80000000u;
            if (i + j < tile.count && positive) signs |= 1u << j;
        }
        if constexpr (V == 4) signs |= __shfl_down_sync(ALL_LANES, signs, 1) << 4;
        if (i % 8 == 0 && i / 8 < code_bytes(tile)) codes[i / 8] = static_cast<u8>(signs);
    }
}

__device__ __forceinline__ void clear_codes(u8* codes, i64 num_bytes) {
    for (i64 b = threadIdx.x; b < num_bytes; b += blockDim.x) codes[b] = 0;
}

// The row's scale, NaN where the row cannot be encoded. One thread writes the header.
__device__ __forceinline__ float begin_row(u8* payload, double sum, i64 n, bool writes) {
    float scale = ieee::from_double(sum / static_cast<double>(n));
    if (!is_finite(scale)) scale = __uint_as_float(NOT_A_NUMBER);
    if (writes) store_float(payload, scale);
    return scale;
}

struct Codec {
    static constexpr int V = F32::PER_VECTOR;

    struct Codes {
        u32 signs[PER_THREAD / V];  // of a vector, from the lowest bit
        float scale;
    };

    static __device__ __forceinline__ bool is_aligned(const u8* payload) {
        return ::is_aligned<4>(payload);
    }

    template <bool ALIGNED>
    __device__ __forceinline__ void load(const u8* payload, const Tile& tile, Codes& codes) const {
        codes.scale = load_float<ALIGNED>(payload);
        const u8* from = payload + HEADER_BYTES + tile.start / 8;
#pragma unroll
        for (int k = 0; k < PER_THREAD / V; ++k) {
            const int i = offset_of<V>(k);
            codes.signs[k] = i < tile.count ? from[i / 8] : 0;
        }
    }

    __device__ __forceinline__ void decode(
        const Codes& codes, const Tile&, float (&values)[PER_THREAD]) const {
        const int shift = offset_of<V>(0) % 8;  // that of every vector
        const u32 scale = __float_as_uint(codes.scale);
#pragma unroll
        for (int e = 0; e < PER_THREAD; ++e) {
            const u32 negative = ~(codes.signs[e / V] >> shift) >> e % V & 1;
            values[e] = __uint_as_float(scale ^ negative << 31);
        }
    }
};

// What the code of r leaves out, r being the residual and the chunk together.
__device__ __forceinline__ void subtract_decoded(float (&values)[PER_THREAD], float scale) {
#pragma unroll
    for (int e = 0; e < PER_THREAD; ++e) {
        const u32 negative = __float_as_uint(values[e]) > 0x80000000u ? 0x80000000u : 0;
        const float left = ieee::subtract(
            values[e], __uint_as_float(__float_as_uint(scale) ^ negative));
        values[e] = is_finite(left) ? left : 0.0f;
    }
}

// --- kernels ---

// Shared by the codes with feedback and without: the sums of the pieces, and a row's scale from them.
struct Sums {
    double* of_pieces;
    RowState* states;
    u8* payload;
    i64 n;
    int size;  // of a piece

    __device__ __forceinline__ i64 per_row() const { return tiles_of_row(n, size); }

    __device__ __forceinline__ void set(const Tile& piece, double sum_of_thread) const {
        const double sum = block_sum(sum_of_thread);
        if (threadIdx.x == 0) {
            of_pieces[piece.row * per_row() + quotient(piece.start, size)] = sum;
        }
    }

    __device__ __forceinline__ float finish(i64 row) const {
        const volatile double* of_row = of_pieces + row * per_row();
        double sum = 0.0;
        for (i64 i = threadIdx.x; i < per_row(); i += blockDim.x) sum += of_row[i];
        const float scale =
            begin_row(payload + row * wire_bytes(n), block_sum(sum), n, threadIdx.x == 0);
        if (threadIdx.x == 0) {
            *const_cast<volatile float*>(&states[1 + row].numbers[0]) = scale;
        }
        return scale;
    }
};

// One pass: the codes hold no scale. Should it turn out NaN, the last block clears the row's codes.
template <class Type>
__device__ __forceinline__ void encode_rows(
    const typename Type::Bits* chunks, const Sums& sums, i64 rows) {
    const i64 n = sums.n, per_row = sums.per_row();
    for (i64 index = blockIdx.x; index < rows * per_row; index += gridDim.x) {
        const Tile piece = tile_at(index, per_row, n, sums.size);
        u8* payload = sums.payload + piece.row * wire_bytes(n);
        double sum = 0.0;
        for (int done = 0; done < piece.count; done += tile_size()) {
            const Tile tile = part_of(piece, done);
            float values[PER_THREAD];
            load_tile<Type>(chunks + piece.row * n, tile, values);
            encode_tile<Type::PER_VECTOR>(codes_of(payload, tile), tile, values);
            sum += sum_of_magnitudes(values);
        }
        sums.set(piece, sum);
        if (comes_last(&sums.states[1 + piece.row].arrived, per_row)) {
            if (!is_finite(sums.finish(piece.row))) {
                clear_codes(payload + HEADER_BYTES, wire_bytes(n) - HEADER_BYTES);
            }
        }
    }
}

template <class Type>
__device__ __forceinline__ void add_residual(
    const typename Type::Bits* chunk, const u32* residual, const Tile& tile,
    float (&values)[PER_THREAD]) {
    float kept[PER_THREAD];
    load_tile<Type>(chunk, tile, values);
    load_tile<F32, Type::PER_VECTOR>(residual, tile, kept);
#pragma unroll
    for (int e = 0; e < PER_THREAD; ++e) values[e] = ieee::add(kept[e], values[e]);
}

// Rows that a block holds in its registers.
template <class Type>
__device__ __forceinline__ void feed_back_rows(
    const typename Type::Bits* chunks, u32* residual, u8* payload, i64 rows, i64 n) {
    constexpr int V = Type::PER_VECTOR;
    for (i64 row = blockIdx.x; row < rows; row += gridDim.x) {
        const Tile tile = tile_of_row(row, 0, n, tile_size());
        u8* to = payload + row * wire_bytes(n);
        float values[PER_THREAD];
        add_residual<Type>(chunks + row * n, residual + row * n, tile, values);
        const double sum = block_sum(sum_of_magnitudes(values));
        const float scale = begin_row(to, sum, n, threadIdx.x == 0);
        if (is_finite(scale)) {  // the same for the whole block
            encode_tile<V>(codes_of(to, tile), tile, values);
        } else {
            clear_codes(codes_of(to, tile), code_bytes(tile));
        }
        subtract_decoded(values, scale);
        store_tile<F32, V>(residual + row * n, tile, values);
    }
}

template <class Type>
struct Feedback {
    const typename Type::Bits* chunks;
    u32* residual;
    Sums sums;

    static constexpr int V = Type::PER_VECTOR;

    __device__ __forceinline__ void reduce(const Tile& piece) const {
        const i64 begin = piece.row * sums.n;
        double sum = 0.0;
        for (int done = 0; done < piece.count; done += tile_size()) {
            const Tile tile = part_of(piece, done);
            float values[PER_THREAD];
            add_residual<Type>(chunks + begin, residual + begin, tile, values);
            store_tile<F32, V>(residual + begin, tile, values);
            sum += sum_of_magnitudes(values);
        }
        sums.set(piece, sum);
    }

    __device__ __forceinline__ void finish(i64 row) const { sums.finish(row); }

    __device__ __forceinline__ void encode(const Tile& piece) const {
        const float scale =
            *const_cast<const volatile float*>(&sums.states[1 + piece.row].numbers[0]);
        u8* payload = sums.payload + piece.row * wire_bytes(sums.n);
        u32* left = residual + piece.row * sums.n;
        for (int done = 0; done < piece.count; done += tile_size()) {
            const Tile tile = part_of(piece, done);
            float values[PER_THREAD];
            load_tile<F32, V>(left, tile, values);
            if (is_finite(scale)) {
                encode_tile<V>(codes_of(payload, tile), tile, values);
            } else {
                clear_codes(codes_of(payload, tile), code_bytes(tile));
            }
            subtract_decoded(values, scale);
            store_tile<F32, V>(left, tile, values);
        }
    }
};

#define KERNELS_OF(Type, name) \
    KERNEL(3) compress_##name( \
        const Type::Bits* chunks, u8* payload, double* sums, RowState* states, i64 rows, i64 n, \
        i64 size) { \
        encode_rows<Type>( \
            chunks, Sums{sums, states, payload, n, static_cast<int>(size)}, rows); \
    } \
    KERNEL(3) feedback_##name##_rows( \
        const Type::Bits* chunks, u32* residual, u8* payload, i64 rows, i64 n) { \
        feed_back_rows<Type>(chunks, residual, payload, rows, n); \
    } \
    KERNEL(2) feedback_##name##_tiles( \
        const Type::Bits* chunks, u32* residual, u8* payload, double* sums, RowState* states, \
        i64 rows, i64 n, i64 size, i64 lag) { \
        const Sums of_pieces{sums, states, payload, n, static_cast<int>(size)}; \
        const Feedback<Type> work{chunks, residual, of_pieces}; \
        run_two_passes(work, states, rows, n, of_pieces.size, lag); \
    }

KERNELS_OF(F32, f32)
KERNELS_OF(F16, f16)
KERNELS_OF(BF16, bf16)

KERNEL(4) decompress_mean(
    const u8* payloads, u32* chunks, i64 rows, i64 n, i64 num_codes) {
    decode_means(Codec(), payloads, chunks, rows, n, num_codes, wire_bytes(n));
}
