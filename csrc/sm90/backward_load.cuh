// The two light roles of the backward kernel: loading, and adding to the sums of dQ.
#pragma once

#include "backward_args.h"
#include "backward_shape.cuh"

namespace fm3 {

// Padded length of the per-row scratch.
template <typename F>
__device__ __forceinline__ int64_t padded(int rows) {
    return int64_t(ceil_div(rows, F::kM)) * F::kM;
}

// One warp: takes column tiles from a counter, finds the query tiles that each meets in every head of its group, loads.
template <typename F>
struct BackwardLoadRole {
    using Shared = typename F::Shared;
    const Fm3BackwardArgs& args;
    const typename F::Maps& maps;
    Shared& shared;
    ptx::Ring<F::kStages> at{};
    int items = 0;

    __device__ __forceinline__ RowRuns<F::kM> runs(int item, int head, int column_tile) const {
        BlockBounds b{args.mask.rows, args.mask.rows, 0, 0, args.mask.rows, args.mask.rows, 0, 0};
        if (args.mask.bounds != nullptr) {
            const int64_t mask = prepared_index(args.mask, item, head / (args.heads / args.mask.heads));
            const int4* bounds = reinterpret_cast<const int4*>(args.mask.bounds) + mask * ceil_div(args.mask.columns, kBlock) * 6;
            b = load_bounds(bounds + 2 * bounds_of<F::kN>(column_tile));
        }
        const int64_t first = int64_t(column_tile) * F::kN;
        return RowRuns<F::kM>(args.mask, b, first, first + F::kN);
    }

    __device__ __forceinline__ bool kept(int item, int head, int row_tile, int column_tile) const {
        if (args.mask.block_mask == nullptr) return true;
        const int mask_head = head / (args.heads / args.mask.heads);
        const int bytes = (ceil_div(args.mask.columns, kBlock) + 7) / 8;
        const uint8_t* row = args.mask.block_mask + item * args.mask.block_strides[0] + mask_head * args.mask.block_strides[1];
        return (row[int64_t(row_tile * F::kM / kBlock) * bytes + column_tile / 8] >> (column_tile % 8)) & 1;
    }

    // The first query tile from (head, row_tile) on that the column tile meets, in order; head == end if there is none.
    struct Place {
        int head, row_tile;
        bool partial;
    };
    __device__ __forceinline__ Place next(int item, int head, int end, int row_tile, int column_tile) const {
        for (; head < end; ++head, row_tile = 0) {
            const RowRuns<F::kM> live = runs(item, head, column_tile);
            for (row_tile = live.live_from(row_tile); row_tile < live.tiles; row_tile = live.live_from(row_tile + 1)) {
                if (kept(item, head, row_tile, column_tile)) return {head, row_tile, live.is_partial(row_tile)};
            }
        }
        return {end, 0, false};
    }

    // A stage without rows; all its barriers turn as they do with rows.
    __device__ __forceinline__ void say(int flags) {
        ptx::wait(&shared.q_empty[at.stage], at.parity ^ 1);
        ptx::wait(&shared.dout_empty[at.stage], at.parity ^ 1);
        shared.flags[at.stage] = flags;
        ptx::arrive(&shared.q_full[at.stage]);
        ptx::arrive(&shared.dout_full[at.stage]);
        at.advance();
    }

    __device__ __forceinline__ void load_rows(int item, const Place& place, int flags) {
        const int64_t rows = (int64_t(item) * args.heads + place.head) * padded<F>(args.mask.rows) + int64_t(place.row_tile) * F::kM;
        constexpr int kBytes = F::kM * int(sizeof(float));
        const int stage = at.stage;
        ptx::wait(&shared.q_empty[stage], at.parity ^ 1);
        shared.row_tile[stage] = place.row_tile;
        shared.flags[stage] = flags;
        shared.head[stage] = place.head;
        ptx::arrive_expecting(&shared.q_full[stage], F::kRowBytes + kBytes);
        ptx::tma_load(
            shared.q[stage], &maps.q, &shared.q_full[stage], place.row_tile * F::kM, place.head, item, ptx::kEvictLast);
        ptx::bulk_load(shared.lse2[stage], args.lse2 + rows, kBytes, &shared.q_full[stage]);
        ptx::wait(&shared.dout_empty[stage], at.parity ^ 1);
        ptx::arrive_expecting(&shared.dout_full[stage], F::kRowBytes + kBytes);
        ptx::tma_load(
            shared.dout[stage], &maps.dout, &shared.dout_full[stage], place.row_tile * F::kM, place.head, item, ptx::kEvictLast);
        ptx::bulk_load(shared.delta[stage], args.delta + rows, kBytes, &shared.dout_full[stage]);
        at.advance();
    }

    // By one thread.
    __device__ void run() {
        const int column_tiles = ceil_div(args.mask.columns, F::kN), group = args.heads / args.kv_heads;
        const unsigned total = unsigned(column_tiles) * args.kv_heads * args.batch;
        for (;;) {
            const unsigned index = atomicAdd(reinterpret_cast<unsigned*>(args.work), 1u);
            if (index >= total) break;
            // Column tiles of one head one after another: neighbours in time add to the same sums of dQ.
            const int column_tile = index % column_tiles, kv_head = index / column_tiles % args.kv_heads;
            const int item = index / column_tiles / args.kv_heads, end = (kv_head + 1) * group;
            ptx::wait(&shared.kv_empty, items & 1 ^ 1);
            shared.item = item, shared.kv_head = kv_head, shared.column_tile = column_tile;
            ptx::arrive_expecting(&shared.kv_full, 2 * F::kKeyBytes);
            ptx::tma_load(shared.k, &maps.k, &shared.kv_full, column_tile * F::kN, kv_head, item, ptx::kEvictFirst);
            ptx::tma_load(shared.v, &maps.v, &shared.kv_full, column_tile * F::kN, kv_head, item, ptx::kEvictFirst);
            ++items;
            Place place{kv_head * group, -1, false};
            for (int last_head = -1;;) {
                const Place after = next(item, place.head, end, place.row_tile + 1, column_tile);
                const bool ends = after.head == end;
                if (place.row_tile >= 0) {
                    load_rows(item, place, (place.partial ? kCut : 0) | (place.head != last_head ? kNewHead : 0) | (ends ? kEndsItem : 0));
                    last_head = place.head;
                } else if (ends) {
                    say(kNoRows | kEndsItem);
                }
                if (ends) break;
                place = after;
            }
        }
        say(kNoWork);
        if (atomicAdd(args.work + 1, 1) == int(gridDim.x) - 1) {
            args.work[0] = 0;
            args.work[1] = 0;
        }
    }
};

// One thread: adds every part of dQ that a warpgroup has put down to the sums in global memory.
template <typename F>
struct SumRole {
    using Shared = typename F::Shared;
    const Fm3BackwardArgs& args;
    Shared& shared;

    __device__ void run() {
        int open = F::kWarpgroups, parity = 0;
        bool done[F::kWarpgroups] = {};
        for (; open > 0; parity ^= 1) {
#pragma unroll
            for (int w = 0; w < F::kWarpgroups; ++w) {
                if (done[w]) continue;
                ptx::wait(&shared.dq_full[w], parity);
                const int64_t to = shared.sums[w];
                if (to < 0) {
                    done[w] = true;
                    --open;
                    continue;
                }
                ptx::bulk_add(args.dq_sums + to, shared.dq[w], F::kSumBytes);
                ptx::store_commit();
                ptx::store_wait_read();
                ptx::arrive(&shared.dq_empty[w]);
            }
        }
        ptx::bulk_wait();
    }
};

}  // namespace fm3
