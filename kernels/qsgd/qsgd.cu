// QSGD on the GPU. `reference.py` specifies every bit, `shared/philox_reference.py` the random numbers;
// `cuda.py` chooses and launches these kernels.

#include "qsgd/decoding.cuh"
#include "qsgd/encoding.cuh"

#define COMPRESS(Type, type, bits) \
    KERNEL(4) compress_##type##_##bits( \
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

#define DECOMPRESS(bits, groups, Codec, blocks) \
    KERNEL(blocks) decompress_mean_##bits##_##groups( \
        const u8* payloads, u32* chunks, i64 rows, i64 n, i64 group_size, i64 num_codes) { \
        const Shape shape(rows, n, group_size, tile_size()); \
        decode_means_of_rows<Codec, bits>(payloads, chunks, shape, num_codes); \
    }

#define DECODERS_OF(bits) \
    DECOMPRESS(bits, of_vectors, CodecOfVectors, 3) \
    DECOMPRESS(bits, of_elements, CodecOfElements, 2)

KERNELS_OF(F32, f32)
KERNELS_OF(F16, f16)
KERNELS_OF(BF16, bf16)
DECODERS_OF(2)
DECODERS_OF(4)
DECODERS_OF(8)
