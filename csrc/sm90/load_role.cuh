// The load role: one warp that turns lists into TMA loads. Values run one tile behind keys, as the products do.
#pragma once

#include "forward_shape.cuh"

namespace fm3 {

template <typename F>
struct LoadRole {
    using Shared = typename F::Shared;
    const Fm3ForwardArgs& args;
    const typename F::Maps& maps;
    Shared& shared;
    ptx::Ring<kPieces> list{};
    ptx::Ring<F::kQueryStages> query{};
    ptx::Ring<F::kStages> key{}, value{};
    int pending = -1;  // column tile whose values are still to be loaded, of this head and batch item
    int pending_head = 0, pending_item = 0;

    __device__ __forceinline__ void load_pending_values() {
        if (pending < 0) return;
        ptx::wait(&shared.v_empty[value.stage], value.parity ^ 1);
        if (threadIdx.x % 32 == 0) {
            ptx::arrive_expecting(&shared.v_full[value.stage], F::kKeyBytes);
            ptx::tma_load(
                shared.v[value.stage], &maps.v, &shared.v_full[value.stage], pending * F::kN, pending_head, pending_item,
                ptx::kEvictLast);
        }
        value.advance();
        pending = -1;
    }

    __device__ __forceinline__ void load_tile(const WorkItem& work, int column_tile, int flags) {
        const int kv_head = work.head / (args.heads / args.kv_heads);
        ptx::wait(&shared.k_empty[key.stage], key.parity ^ 1);
        if (threadIdx.x % 32 == 0) {
            shared.tile[key.stage] = flags;
            ptx::arrive_expecting(&shared.k_full[key.stage], F::kKeyBytes);
            ptx::tma_load(
                shared.k[key.stage], &maps.k, &shared.k_full[key.stage], column_tile * F::kN, kv_head, work.item,
                ptx::kEvictLast);
        }
        key.advance();
        load_pending_values();
        pending = column_tile;
        pending_head = kv_head;
        pending_item = work.item;
    }

    __device__ __forceinline__ void load_queries(const WorkItem& work) {
        // With one buffer the queries of this row tile wait for the last product of the one before, which needs its values.
        if (F::kQueryStages == 1) load_pending_values();
        ptx::wait(&shared.q_empty[query.stage], query.parity ^ 1);
        if (threadIdx.x % 32 == 0) {
            shared.work[query.stage] = work;
            ptx::arrive_expecting(&shared.q_full[query.stage], F::kQueryBytes);
            ptx::tma_load(
                shared.q[query.stage], &maps.q, &shared.q_full[query.stage], work.row_tile * F::kM, work.head, work.item,
                ptx::kEvictFirst);
        }
        query.advance();
    }

    __device__ __forceinline__ void say_end() {
        ptx::wait(&shared.k_empty[key.stage], key.parity ^ 1);
        if (threadIdx.x % 32 == 0) {
            shared.tile[key.stage] = kEnd;
            ptx::arrive(&shared.k_full[key.stage]);
        }
        load_pending_values();
    }

    __device__ void run() {
        const int lane = threadIdx.x % 32;
        if (lane == 0) {
            ptx::prefetch(&maps.q);
            ptx::prefetch(&maps.k);
            ptx::prefetch(&maps.v);
            ptx::prefetch(&maps.out);
        }
        for (;;) {
            ptx::wait(&shared.lists.full[list.stage], list.parity);
            const PieceHead piece = shared.lists.head[list.stage];
            const int mine = shared.lists.tiles[list.stage][lane];
            __syncwarp();
            if (lane == 0) ptx::arrive(&shared.lists.empty[list.stage]);
            list.advance();
            if (piece.work.row_tile < 0) return say_end();
            if (piece.first) load_queries(piece.work);
#pragma unroll 1
            for (int i = 0; i < piece.count; ++i) {
                const int entry = __shfl_sync(~0u, mine, i);
                const int last = piece.last && i == piece.count - 1 ? kIsLast : 0;
                load_tile(piece.work, entry / 2, entry % 2 * kIsPartial + last);
            }
        }
    }
};

}  // namespace fm3
