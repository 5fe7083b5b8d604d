// The bit role: for every partial tile, one bit an element, made ahead of its use by warps of their own.
//
// A column of a tile hides at most two runs of rows, so 32 rows of it are one word of a few instructions. A warp makes
// such words for 32 columns and transposes them, so that each thread of the multiplying warps finds the bits of its two
// rows in two words: one predicate an element, moved seven at a time, and one select, whatever the mask is.
#pragma once

#include "tiles.cuh"

namespace fm3 {

constexpr int kBitStages = 4;

constexpr int kBitWarps = 2;  // they take partial tiles in turn

// Bits of the hidden elements of a tile of 128 rows and kN columns. A thread of a wgmma accumulator holds the columns
// 8j + 2*(lane%4) + e of a row: word (row, lane%4), bit 2j + e.
template <int kN>
struct HiddenBits {
    uint32_t words[128][4];
};

template <int kN>
struct BitRing {
    HiddenBits<kN> tile[kBitStages];
    ptx::Barrier full[kBitStages], empty[kBitStages];
};

// The lowest x bits, none for x <= 0, all for x >= 32.
__device__ __forceinline__ uint32_t bits_below(int x) {
    uint32_t mask;
    asm("bmsk.clamp.b32 %0, 0, %1;" : "=r"(mask) : "r"(max(x, 0)));
    return mask;
}

// The hidden ones of the 32 rows from r on.
__device__ __forceinline__ uint32_t word_of(const HiddenRows& x, int r) {
    const Interval &a = x.lower, &b = x.upper;
    return (bits_below(a.end - r) & ~bits_below(a.start - r)) | (bits_below(b.end - r) & ~bits_below(b.start - r));
}

// Transposes a 32 x 32 bit matrix, a row a lane: afterwards bit i of lane r is what bit r of lane i was.
__device__ __forceinline__ uint32_t transposed(uint32_t x) {
    const int lane = threadIdx.x % 32;
    uint32_t low = 0x0000FFFFu;  // bits whose index does not have `step` in it
#pragma unroll
    for (int step = 16; step > 0; step /= 2) {
        const bool upper = lane & step;
        const uint32_t other = __shfl_xor_sync(~0u, x, step);
        const uint32_t kept = upper ? ~low : low;
        x = (x & kept) | (__funnelshift_l(other, other, upper ? 32 - step : step) & ~kept);
        low ^= low << (step / 2);
    }
    return x;
}

template <int kM, int kN>
struct BitRole {
    const Fm3ForwardArgs& args;
    ListRing& lists;
    BitRing<kN>& ring;
    int which;  // of the bit warps
    ptx::Ring<kPieces> list{};
    ptx::Ring<kBitStages> at{};

    __device__ __forceinline__ void write(const WorkItem& work, int column_tile) {
        static_assert(kM == 128);
        const int lane = threadIdx.x % 32, r0 = work.row_tile * kM;
        const int64_t* strides = args.mask.vector_strides;
        const int64_t base = work.item * strides[0] + mask_head(args, work) * strides[1];
        ptx::wait(&ring.empty[at.stage], at.parity ^ 1);
        auto& words = ring.tile[at.stage].words;
#pragma unroll 1
        for (int quarter = 0; quarter < 4; ++quarter) {
            const int column = column_tile * kN + lane / 2 * 8 + quarter * 2 + lane % 2;
            const HiddenRows hidden = hidden_rows(args.mask, base, column, lane < kN / 4);
#pragma unroll
            for (int g = 0; g < kM / 32; ++g) {
                words[32 * g + lane][quarter] = transposed(word_of(hidden, r0 + 32 * g));
            }
        }
        __syncwarp();
        if (lane == 0) ptx::arrive(&ring.full[at.stage]);
    }

    __device__ void run() {
        const int lane = threadIdx.x % 32;
        for (;;) {
            ptx::wait(&lists.full[list.stage], list.parity);
            const PieceHead piece = lists.head[list.stage];
            const int mine = lists.tiles[list.stage][lane];
            __syncwarp();
            if (lane == 0) ptx::arrive(&lists.empty[list.stage]);
            list.advance();
            if (piece.work.row_tile < 0) return;
            unsigned partial = __ballot_sync(~0u, lane < piece.count && mine % 2 == 1);
#pragma unroll 1
            for (; partial != 0; partial &= partial - 1) {
                if (at.stage % kBitWarps == which) write(piece.work, __shfl_sync(~0u, mine, __ffs(partial) - 1) / 2);
                at.advance();
            }
        }
    }
};

// Hides elements of a partial tile; `row` is this thread's first row in the tile, its second is 8 further down.
template <int kN>
__device__ __forceinline__ void hide(float (&s)[kN / 2], const HiddenBits<kN>& bits, int row, int lane) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
        const uint32_t hidden = bits.words[row + 8 * h][lane % 4];
#pragma unroll
        for (int i = 0; i < kN / 4; ++i) {
            float& x = s[4 * (i / 2) + 2 * h + i % 2];
            x = (hidden >> i) & 1 ? -INFINITY : x;
        }
    }
}

}  // namespace fm3
