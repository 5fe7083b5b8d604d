// Which query tiles a column tile meets, in all query heads of its KV head: one after the other, found by one warp from the runs
// of ../sm90/row_runs.cuh, which it keeps in shared memory. A block mask is asked about 32 tiles at a time.
#pragma once

#include "../sm90/backward_args.h"
#include "backward_shape.cuh"

namespace fm3::sm80 {

__device__ __forceinline__ int mask_head(const Fm3BackwardArgs& args, int head) { return head / (args.heads / args.mask.heads); }

template <typename F, typename T>
struct QueryTiles {
    static constexpr int kM = F::kM, kN = F::kN;
    const Fm3BackwardArgs& args;
    typename F::template Shared<T>& shared;

    __device__ __forceinline__ int group() const { return args.heads / args.kv_heads; }

    // What `next` is given to find the first one.
    __device__ __forceinline__ QueryTile start() {
        find_runs(shared.kv_head * group());
        return {shared.kv_head * group(), -1, 0};
    }

    // Of the block's column tile, in the mask of a query head.
    __device__ __forceinline__ void find_runs(int head) {
        const int64_t first = int64_t(shared.column_tile) * kN;
        BlockBounds b{args.mask.rows, args.mask.rows, 0, 0, args.mask.rows, args.mask.rows, 0, 0};
        if (args.mask.bounds != nullptr) {
            const int64_t blocks = ceil_div(args.mask.columns, kBlock), mask = prepared_index(args.mask, shared.item, mask_head(args, head));
            b = load_bounds(reinterpret_cast<const int4*>(args.mask.bounds) + 2 * (mask * blocks * 3 + bounds_of<kN>(shared.column_tile)));
        }
        __syncwarp();
        if (threadIdx.x == 0) shared.runs = RowRuns<kM>(args.mask, b, first, first + kN);
        __syncwarp();
    }

    // Whether a block mask keeps the tile.
    __device__ __forceinline__ bool kept(int head, int tile) const {
        const int bytes = (ceil_div(args.mask.columns, kBlock) + 7) / 8, block = shared.column_tile * kN / kBlock;
        const uint8_t* rows = args.mask.block_mask + shared.item * args.mask.block_strides[0] + mask_head(args, head) * args.mask.block_strides[1];
        return rows[int64_t(tile * kM / kBlock) * bytes + block / 8] >> (block % 8) & 1;
    }

    // The live query tile after this one.
    __device__ __forceinline__ QueryTile next(const QueryTile& after) {
        const int lane = threadIdx.x % 32;
        QueryTile at = after;
        while (at.head >= 0) {
            at.tile = shared.runs.live_from(at.tile + 1);
            if (at.tile < shared.runs.tiles) {
                if (args.mask.block_mask != nullptr) {
                    const int mine = at.tile + lane;
                    const bool live = mine < shared.runs.tiles && shared.runs.live_from(mine) == mine && kept(at.head, mine);
                    const unsigned found = __ballot_sync(~0u, live);
                    at.tile += found != 0 ? __ffs(found) - 1 : 31;
                    if (found == 0) continue;
                }
                at.partial = shared.runs.is_partial(at.tile);
                break;
            }
            at.head = at.head + 1 < (shared.kv_head + 1) * group() ? at.head + 1 : -1;
            at.tile = -1;
            if (at.head >= 0 && args.mask.heads > args.kv_heads) find_runs(at.head);
        }
        return at;
    }
};

}  // namespace fm3::sm80
