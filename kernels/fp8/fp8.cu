// Fp8 with a scale a chunk on the GPU. `reference.py` specifies every bit; `cuda.py` chooses
// and launches these kernels. The conversions are integer arithmetic, because sm_80 has none.

#include "shared/codes.cuh"
#include "shared/two_passes.cuh"

constexpr int HEADER_BYTES = 4;
constexpr float SMALLEST_NORMAL = 1.17549435e-38f;

__device__ __forceinline__ i64 wire_bytes(i64 n) { return HEADER_BYTES + (n + 3) / 4 * 4; }

// Of a tile's codes and the padding behind them.
__device__ __forceinline__ int code_bytes(const Tile& tile) { return (tile.count + 3) / 4 * 4; }

// --- one element ---

// x to an 8-bit float with MANTISSA bits behind the point, half to even. Not for x that overflows: a
// quotient by the scale exceeds the greatest number by rounding errors only, which round back.
template <int MANTISSA, int BIAS>
__device__ __forceinline__ u32 to_fp8(float x) {
    constexpr u32 SMALLEST = (128u - BIAS) << 23;  // normal number of the type
    constexpr u32 DROPPED = 23 - MANTISSA;
    constexpr u32 UNIT = (128u - BIAS + DROPPED) << 23;  // its ulp is the type's denormals' step
    const u32 sign = __float_as_uint(x) >> 31 << 7, bits = magnitude(x);
    if (bits < SMALLEST) {
        return sign | (__float_as_uint(ieee::add(__uint_as_float(bits), __uint_as_float(UNIT))) - UNIT);
    }
    const u32 odd = bits >> DROPPED & 1;
    return sign | (bits - ((127u - BIAS) << 23) + (1u << (DROPPED - 1)) - 1 + odd) >> DROPPED;
}

struct E4M3 {
    static constexpr float GREATEST = 448.0f;
    static __device__ __forceinline__ u32 encode(float x) { return to_fp8<3, 7>(x); }
    // The bits of a half whose exponent is too small by 8.
    static __device__ __forceinline__ float decode(u32 code) {
        if ((code & 0x7F) == 0x7F) return __uint_as_float(NOT_A_NUMBER);
        const u32 half = (code & 0x80) << 8 | (code & 0x7F) << 7;
        return ieee::multiply(ieee::from_half(static_cast<u16>(half)), 256.0f);
    }
};

struct E5M2 {
    static constexpr float GREATEST = 57344.0f;
    static __device__ __forceinline__ u32 encode(float x) { return to_fp8<2, 15>(x); }
    static __device__ __forceinline__ float decode(u32 code) {
        return ieee::from_half(static_cast<u16>(code << 8));
    }
};

// --- a tile ---

__device__ __forceinline__ void raise_greatest(
    u32 (&greatest)[1], const float (&values)[PER_THREAD]) {
#pragma unroll
    for (int e = 0; e < PER_THREAD; ++e) greatest[0] = max(greatest[0], magnitude(values[e]));
}

// The row's scale, NaN where the row cannot be encoded. One thread writes the header.
template <class Wire>
__device__ __forceinline__ float begin_row(u8* payload, u32 greatest, bool writes) {
    float scale = __uint_as_float(NOT_A_NUMBER);
    if (greatest < INFINITE) {
        scale = ieee::divide(__uint_as_float(greatest), Wire::GREATEST);
        scale = ieee::greatest(scale, SMALLEST_NORMAL);
    }
    if (writes) store_float(payload, scale);
    return scale;
}

template <class Wire, int V>
__device__ __forceinline__ void encode_tile(
    u8* payload, const Tile& tile, const float (&values)[PER_THREAD], float scale) {
    const bool encodable = is_finite(scale);
    Word<V> words[PER_THREAD / V];
#pragma unroll
    for (int k = 0; k < PER_THREAD / V; ++k) {
        words[k] = 0;
#pragma unroll
        for (int j = 0; j < V; ++j) {
            // Elements beyond the end are zeros, and so are their codes.
            const u32 code = encodable ? Wire::encode(ieee::divide(values[k * V + j], scale)) : 0;
            words[k] |= static_cast<Word<V>>(code) << 8 * j;
        }
    }
    store_codes<V>(payload + HEADER_BYTES + tile.start, code_bytes(tile), words);
}

template <class Wire>
struct Codec {
    static constexpr int V = F32::PER_VECTOR;

    struct Codes {
        Word<V> words[PER_THREAD / V];
        float scale;
    };

    static __device__ __forceinline__ bool is_aligned(const u8* payload) {
        return ::is_aligned<V>(payload);
    }

    template <bool ALIGNED>
    __device__ __forceinline__ void load(const u8* payload, const Tile& tile, Codes& codes) const {
        codes.scale = load_float<ALIGNED>(payload);
        load_codes<V, ALIGNED>(
            payload + HEADER_BYTES + tile.start, code_bytes(tile), codes.words);
    }

    __device__ __forceinline__ void decode(
        const Codes& codes, const Tile&, float (&values)[PER_THREAD]) const {
#pragma unroll
        for (int e = 0; e < PER_THREAD; ++e) {
            const u32 code = codes.words[e / V] >> e % V * 8 & 0xFF;
            values[e] = ieee::multiply(Wire::decode(code), codes.scale);
        }
    }
};

// --- kernels ---

// Rows that a block holds in its registers.
template <class Type, class Wire>
__device__ __forceinline__ void encode_rows(
    const typename Type::Bits* chunks, u8* payload, i64 rows, i64 n) {
    for (i64 row = blockIdx.x; row < rows; row += gridDim.x) {
        const Tile tile = tile_of_row(row, 0, n, tile_size());
        u8* to = payload + row * wire_bytes(n);
        float values[PER_THREAD];
        u32 greatest[1] = {0};
        load_tile<Type>(chunks + row * n, tile, values);
        raise_greatest(greatest, values);
        block_max(greatest);
        const float scale = begin_row<Wire>(to, greatest[0], threadIdx.x == 0);
        encode_tile<Wire, Type::PER_VECTOR>(to, tile, values, scale);
    }
}

template <class Type, class Wire>
struct Encoding {
    const typename Type::Bits* chunks;
    u8* payload;
    RowState* states;
    i64 n;

    __device__ __forceinline__ void reduce(const Tile& piece) const {
        u32 greatest[1] = {0};
        for (int done = 0; done < piece.count; done += tile_size()) {
            float values[PER_THREAD];
            load_tile<Type>(chunks + piece.row * n, part_of(piece, done), values);
            raise_greatest(greatest, values);
        }
        block_max(greatest);
        if (threadIdx.x == 0) atomicMax(&states[1 + piece.row].keys[0], greatest[0]);
    }

    __device__ __forceinline__ void finish(i64 row) const {
        if (threadIdx.x == 0) {
            volatile RowState* state = &states[1 + row];
            state->numbers[0] = begin_row<Wire>(payload + row * wire_bytes(n), state->keys[0], true);
        }
    }

    __device__ __forceinline__ void encode(const Tile& piece) const {
        const float scale = const_cast<const volatile RowState*>(&states[1 + piece.row])->numbers[0];
        u8* to = payload + piece.row * wire_bytes(n);
        for (int done = 0; done < piece.count; done += tile_size()) {
            const Tile tile = part_of(piece, done);
            float values[PER_THREAD];
            load_tile<Type>(chunks + piece.row * n, tile, values);
            encode_tile<Wire, Type::PER_VECTOR>(to, tile, values, scale);
        }
    }
};

#define COMPRESS(Type, type, Wire, wire) \
    KERNEL(4) compress_##wire##_##type##_rows( \
        const Type::Bits* chunks, u8* payload, i64 rows, i64 n) { \
        encode_rows<Type, Wire>(chunks, payload, rows, n); \
    } \
    KERNEL(4) compress_##wire##_##type##_tiles( \
        const Type::Bits* chunks, u8* payload, RowState* states, i64 rows, i64 n, i64 size, i64 lag) { \
        const Encoding<Type, Wire> work{chunks, payload, states, n}; \
        run_two_passes(work, states, rows, n, static_cast<int>(size), lag); \
    }

#define KERNELS_OF(Wire, wire) \
    COMPRESS(F32, f32, Wire, wire) \
    COMPRESS(F16, f16, Wire, wire) \
    COMPRESS(BF16, bf16, Wire, wire) \
    KERNEL(4) decompress_mean_##wire( \
        const u8* payloads, u32* chunks, i64 rows, i64 n, i64 num_codes) { \
        decode_means(Codec<Wire>(), payloads, chunks, rows, n, num_codes, wire_bytes(n)); \
    }

KERNELS_OF(E4M3, fp8_e4m3)
KERNELS_OF(E5M2, fp8_e5m2)
