// Rows larger than a block holds, in one launch: reduce every piece of a row, then encode them all.
//
// Blocks draw tickets, and the tickets' order keeps a row's encoding close behind its reduction, so
// that the second reading finds it in the L2 cache. A block that encodes waits for the row's
// reduction. This cannot block for ever, however few blocks run at a time: each piece of that
// row was given out with an earlier ticket, to a block that runs already and waits for nobody.

#ifndef KERNELS_TWO_PASSES_CUH
#define KERNELS_TWO_PASSES_CUH

#include "shared/blocks.cuh"

// What blocks tell each other about a row: all zeros before the launch. Element 0 of an array of
// them holds the tickets, element 1 + row is the row's.
struct RowState {
    u64 arrived;       // pieces reduced, and one more when the row is finished
    u32 keys[2];       // greatest keys
    float numbers[4];  // what the row's finisher found
};

struct Turn {
    bool encodes;
    i64 piece;
};

// Reductions 0 .. lag - 1; then in turn a reduction and the encoding `lag` pieces behind it;
// then the last encodings. The lag is at least a row.
__device__ __forceinline__ Turn turn_of(i64 ticket, i64 pieces, i64 lag) {
    if (ticket < lag) return {false, ticket};
    const i64 step = ticket - lag;
    if (step >= 2 * (pieces - lag)) return {true, step - (pieces - lag)};
    return {step % 2 == 1, step % 2 == 1 ? step / 2 : lag + step / 2};
}

__device__ __forceinline__ i64 draw_ticket(u64* tickets) {
    __shared__ u64 ticket;
    __syncthreads();  // the last one has been read by all
    if (threadIdx.x == 0) ticket = atomicAdd(tickets, 1ull);
    __syncthreads();
    return static_cast<i64>(ticket);
}

__device__ __forceinline__ void announce(u64* arrived) {
    __syncthreads();
    if (threadIdx.x == 0) {
        __threadfence();
        atomicAdd(arrived, 1ull);
    }
}

__device__ __forceinline__ void wait_for(const u64* arrived, u64 count) {
    if (threadIdx.x == 0) {
        while (*const_cast<const volatile u64*>(arrived) < count) __nanosleep(100);
        __threadfence();
    }
    __syncthreads();
}

// `Work` has reduce(piece), finish(row) by the block that reduced a row's last piece, encode(piece).
// Pieces have `size` elements, but for a row's last.
template <class Work>
__device__ __forceinline__ void run_two_passes(
    const Work& work, RowState* states, i64 rows, i64 n, int size, i64 lag) {
    const i64 per_row = tiles_of_row(n, size), pieces = rows * per_row;
    for (;;) {
        const i64 ticket = draw_ticket(&states[0].arrived);
        if (ticket >= 2 * pieces) return;
        const Turn turn = turn_of(ticket, pieces, lag);
        const i64 row = quotient(turn.piece, per_row), index = turn.piece - row * per_row;
        u64* arrived = &states[1 + row].arrived;
        if (turn.encodes) {
            wait_for(arrived, per_row + 1);
            // The latest first: of a row larger than the L2 cache they are what it still holds.
            work.encode(tile_of_row(row, per_row - 1 - index, n, size));
        } else {
            work.reduce(tile_of_row(row, index, n, size));
            if (comes_last(arrived, per_row)) {
                work.finish(row);
                announce(arrived);
            }
        }
    }
}

#endif
