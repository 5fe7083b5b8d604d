// Two blocks in a cluster that take two neighbouring row tiles of a head together, and the mask role there.
//
// Each loads half of every key and value tile for both, so that these leave the L2 cache once, not twice. Both follow one list:
// the column tiles that either of their row tiles needs. What only the other one needs is passed over: its buffers are given
// back as they are. The first block draws the work and tells the second.
#pragma once

#include "ptx/cluster.cuh"
#include "tiles.cuh"

namespace fm3 {

constexpr int kMessages = 2;
constexpr unsigned kNoMoreWork = ~0u;

struct PairRing {
    unsigned passed[kPieces];  // of each piece of a list: which of its tiles only the other block needs, a bit each
    unsigned index[kMessages];  // of work, as it was drawn
    ptx::Barrier full[kMessages], empty[kMessages];
};

template <int kM, int kN, int kD, typename T>
struct PairMaskRole {
    MaskRole<kM, kN, kD, T> mask;
    PairRing& pair;
    int rank;
    ptx::Ring<kMessages> message{};

    // Opaque: what follows from the number would be kept in registers from one pair to the next.
    __device__ __forceinline__ unsigned count_row_tiles() const {
        unsigned row_tiles = ceil_div(mask.args.mask.rows, kM);
        asm volatile("" : "+r"(row_tiles));
        return row_tiles;
    }

    // The index of the next pair's even row tile.
    __device__ __forceinline__ unsigned draw() {
        const Fm3ForwardArgs& args = mask.args;
        const int lane = threadIdx.x % 32;
        const uint32_t distance = ptx::distance_to(&pair, 1 - rank);
        unsigned index = 0;
        if (rank == 0) {
            for (;;) {
                if (lane == 0) index = atomicAdd(reinterpret_cast<unsigned*>(args.work), 1u);
                index = __shfl_sync(~0u, index, 0);
                const unsigned row_tiles = count_row_tiles();
                if (index >= row_tiles * args.heads * args.batch) index = kNoMoreWork;
                if (index == kNoMoreWork || decode(args, index, row_tiles).row_tile % 2 == 0) break;
            }
            ptx::wait_for_cluster(&pair.empty[message.stage], message.parity ^ 1);
            if (lane == 0) ptx::send(&pair.index[message.stage], index, &pair.full[message.stage], distance);
        } else {
            if (lane == 0) ptx::arrive_expecting(&pair.full[message.stage], int(sizeof(unsigned)));
            ptx::wait_for_cluster(&pair.full[message.stage], message.parity);
            index = pair.index[message.stage];
            ptx::fence_cluster();
            __syncwarp();
            if (lane == 0) ptx::arrive_there(&pair.empty[message.stage], distance);
        }
        message.advance();
        return index;
    }

    // All column tiles that one of the two row tiles needs.
    __device__ __forceinline__ void list(const WorkItem& mine) {
        const Fm3ForwardArgs& args = mask.args;
        const int lane = threadIdx.x % 32;
        const int column_tiles = ceil_div(args.mask.columns, kN);
        const int64_t prepared = prepared_index(args.mask, mine.item, mask_head(args, mine));
        const int4* bounds = reinterpret_cast<const int4*>(args.mask.bounds) + prepared * ceil_div(args.mask.columns, kBlock) * 6;
        const int row_tiles = int(count_row_tiles());
        int count = 0;
        bool first = true, any = false;
#pragma unroll 1
        for (int base = 0; base < column_tiles; base += 32) {
            const int tile = base + lane;
            bool needed = false;
            TileClass kind = kSkipped;
#pragma unroll 1
            for (int turn = 0; turn < 2; ++turn) {  // the other block's, then mine
                const int row_tile = turn == 0 ? mine.row_tile + 1 - 2 * rank : mine.row_tile;
                kind = kSkipped;
                if (tile < column_tiles && row_tile < row_tiles) {
                    kind = mask.classify_tile({mine.item, mine.head, row_tile}, bounds, tile);
                }
                needed |= kind != kSkipped;
            }
            const bool passed = needed && kind == kSkipped;
            const unsigned live = __ballot_sync(~0u, needed);
            if (live == 0) continue;
            if (count > 0) {
                mask.close(mine, count, first, false);
                first = false;
            }
            mask.open();
            count = __popc(live);
            const int place = __popc(live & ((1u << lane) - 1));
            if (needed) mask.ring.tiles[mask.at.stage][place] = tile * 2 + (kind == kPartial);
            const unsigned all_passed = __reduce_or_sync(~0u, passed ? 1u << place : 0u);
            if (lane == 0) pair.passed[mask.at.stage] = all_passed;
            any |= __any_sync(~0u, kind != kSkipped);
        }
        if (count > 0) mask.close(mine, count, first, true);
        if (!any && mine.row_tile < int(count_row_tiles())) mask.fill_empty(mine);
    }

    __device__ void run() {
        const Fm3ForwardArgs& args = mask.args;
        for (;;) {
            const unsigned index = draw(), row_tiles = count_row_tiles();
            if (index == kNoMoreWork) break;
            WorkItem mine = decode(args, index, row_tiles);
            mine.row_tile += rank;
            list(mine);
        }
        mask.open();
        mask.close({0, 0, -1}, 0, true, true);
        // The last pair to come here leaves the counters as it found them.
        if (rank == 0 && threadIdx.x % 32 == 0 && atomicAdd(args.work + 1, 1) == int(gridDim.x / 2) - 1) {
            args.work[0] = 0;
            args.work[1] = 0;
        }
    }
};

}  // namespace fm3
