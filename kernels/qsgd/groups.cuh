// A payload of QSGD, and the groups of a tile: elements that share a norm.

#ifndef KERNELS_QSGD_GROUPS_CUH
#define KERNELS_QSGD_GROUPS_CUH

#include "shared/tiles.cuh"

constexpr int NORM_BYTES = 4;

// In a tile, groups of 2^30 elements and of more are alike.
constexpr i64 MAX_GROUP = 1 << 30;

struct Shape {
    i64 rows, n, group_size, groups, per_row;
    int size;        // of a tile
    u32 reciprocal;  // of the group size, see `Groups`

    __device__ __forceinline__ Shape(i64 rows_, i64 n_, i64 group_size_, i64 size_)
        : rows(rows_),
          n(n_),
          group_size(group_size_),
          groups(quotient(n_ + group_size_ - 1, group_size_)),
          per_row(tiles_of_row(n_, static_cast<int>(size_))),
          size(static_cast<int>(size_)),
          reciprocal((1u << 31) / static_cast<u32>(min(group_size_, MAX_GROUP)) + 1) {}
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

// The groups of a tile, in 32 bits.
struct Groups {
    i64 of_row;      // the group of the tile's first element
    u32 size;        // elements
    u32 place;       // of the tile's first element in its group
    u32 reciprocal;  // 2^31 / size, rounded up
    int count;       // of those that lie in the tile, if only in part

    __device__ __forceinline__ Groups(const Shape& shape, const Tile& tile)
        : of_row(quotient(tile.start, shape.group_size)), reciprocal(shape.reciprocal) {
        const i64 begins = tile.start - of_row * shape.group_size;
        size = static_cast<u32>(min(shape.group_size, MAX_GROUP));
        place = size - static_cast<u32>(min(shape.group_size - begins, MAX_GROUP));
        count = static_cast<int>(group_of(tile.count - 1)) + 1;
    }

    // The group of element `i` of the tile, counted from the tile's first. With a tile of at most T
    // elements and a group of fewer, a < 2 T, and a / size is a * reciprocal / 2^31: the reciprocal
    // is too large by at most size / 2^31, and a * size < 2 T^2 = 2^25.
    __device__ __forceinline__ u32 group_of(int i) const {
        constexpr u32 T = PER_THREAD * MAX_THREADS;
        const u32 a = place + i;
        if (size >= T) return a >= size;
        return static_cast<u32>(static_cast<u64>(a) * reciprocal >> 31);
    }
};

// The group of element `i` of a tile, and the element's place in it.
struct Place {
    u32 size, index, group;

    __device__ __forceinline__ Place(const Groups& groups, int i)
        : size(groups.size), group(groups.group_of(i)) {
        index = groups.place + i - group * size;
    }

    // To the next element; whether that one begins a group.
    __device__ __forceinline__ bool advance() {
        if (++index < size) return false;
        index = 0;
        ++group;
        return true;
    }
};

#endif
