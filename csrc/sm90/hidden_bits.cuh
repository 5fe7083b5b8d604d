// The bit role: for every partial tile, one bit an element, made ahead of its use by a warp of its own.
//
// A column of a tile hides at most two runs of rows, so its 128 bits are four words of a few instructions each; the
// multiplying warps, which have no time to spare, then need one test and one select an element, whatever the mask is.
#pragma once

#include "../common/tile_class.h"
#include "forward_args.h"
#include "ptx/mbarrier.cuh"
#include "tiles.cuh"

namespace fm3 {

constexpr int kBitStages = 4;

// Bits of the hidden elements of a tile of 128 rows and kN columns: word (rows/32, column), bit row%32. A thread of a
// wgmma accumulator holds columns 8j + 2*(lane%4) + e, so the columns of one lane%4 lie together; the padding keeps the
// four groups in different banks.
template <int kN>
struct HiddenBits {
    static constexpr int kGroup = kN / 4 + 4;
    alignas(16) uint32_t words[4][4 * kGroup];

    static __device__ __forceinline__ int place(int column) { return column % 8 / 2 * kGroup + column / 8 * 2 + column % 2; }
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

template <int kM, int kN>
struct BitRole {
    const Fm3ForwardArgs& args;
    ListRing& lists;
    BitRing<kN>& ring;
    ptx::Ring<kPieces> list{};
    ptx::Ring<kBitStages> at{};

    static __device__ __forceinline__ int load(const int* vector, int64_t at, int absent) {
        return vector != nullptr ? __ldg(vector + at) : absent;
    }

    // Hidden rows of a column as two intervals counted from row r0. Causal masks have no upper interval of their own, so
    // the diagonal takes its place.
    __device__ __forceinline__ void write(const WorkItem& work, int column_tile) {
        static_assert(kM == 128);
        constexpr int kColumns = kN / 32;
        const int lane = threadIdx.x % 32, r0 = work.row_tile * kM, c0 = column_tile * kN;
        const int mask_head = work.head / (args.heads / args.mask_heads);
        const int64_t base = work.item * args.vector_batch_stride + mask_head * args.vector_head_stride;
        Interval lower[kColumns], upper[kColumns];
#pragma unroll
        for (int i = 0; i < kColumns; ++i) {  // all loads at once
            const int column = min(c0 + lane + 32 * i, args.columns - 1);
            const int64_t from = base + column;
            lower[i] = {load(args.lts, from, 0), load(args.lte, from, args.lts != nullptr ? args.rows : 0)};
            upper[i] = {load(args.uts, from, 0), load(args.ute, from, 0)};
            if (args.causal) upper[i] = {0, (column - args.columns) + args.rows};
            if (c0 + lane + 32 * i >= args.columns) upper[i] = {0, args.rows};  // no such column
        }
        ptx::wait(&ring.empty[at.stage], at.parity ^ 1);
        auto& words = ring.tile[at.stage].words;
#pragma unroll
        for (int i = 0; i < kColumns; ++i) {
            const Interval a = clipped(lower[i].start, lower[i].end, args.rows), b = clipped(upper[i].start, upper[i].end, args.rows);
            const int place = HiddenBits<kN>::place(lane + 32 * i);
#pragma unroll
            for (int g = 0; g < 4; ++g) {
                const int r = r0 + 32 * g;
                words[g][place] = (bits_below(a.end - r) & ~bits_below(a.start - r)) | (bits_below(b.end - r) & ~bits_below(b.start - r));
            }
        }
        __syncwarp();
        if (lane == 0) ptx::arrive(&ring.full[at.stage]);
        at.advance();
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
            for (; partial != 0; partial &= partial - 1) write(piece.work, __shfl_sync(~0u, mine, __ffs(partial) - 1) / 2);
        }
    }
};

// Hides elements of a partial tile; `row` is this thread's first row in the tile, its second is 8 further down.
template <int kN>
__device__ __forceinline__ void hide(float (&s)[kN / 2], const HiddenBits<kN>& bits, int row, int lane) {
    const uint4* words = reinterpret_cast<const uint4*>(&bits.words[row / 32][lane % 4 * HiddenBits<kN>::kGroup]);
    const uint32_t first = 1u << (row % 32), second = first << 8;
#pragma unroll
    for (int j = 0; j < kN / 16; ++j) {
        const uint4 w = words[j];
        const uint32_t column[4] = {w.x, w.y, w.z, w.w};
#pragma unroll
        for (int c = 0; c < 4; ++c) {
            float& top = s[8 * j + 4 * (c / 2) + c % 2];
            float& bottom = s[8 * j + 4 * (c / 2) + 2 + c % 2];
            if (column[c] & first) top = -INFINITY;
            if (column[c] & second) bottom = -INFINITY;
        }
    }
}

}  // namespace fm3
