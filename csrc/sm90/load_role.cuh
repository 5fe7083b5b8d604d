// The load role: one warp that turns lists into TMA loads. Values run one tile behind keys, as the products do. In a pair it
// loads its half of every tile for both blocks, which is why a buffer must be free in both.
#pragma once

#include "forward_shape.cuh"

namespace fm3 {

template <typename F, typename T>
struct LoadRole {
    using Shared = typename F::Shared;
    const Fm3ForwardArgs& args;
    const typename F::Maps& maps;
    Shared& shared;
    bool paired;
    int rank;  // of this block in its pair
    ptx::Ring<kPieces> list{};
    ptx::Ring<F::kQueryStages> query{};
    ptx::Ring<F::kStages> key{}, value{};
    int pending = -1;  // column tile whose values are still to be loaded, of this head and batch item
    int pending_head = 0, pending_item = 0;

    // Keys or values of a column tile, by one lane.
    __device__ __forceinline__ void load(
        T* to, const CUtensorMap& whole, const CUtensorMap& half, ptx::Barrier* full, int column_tile, int head, int item) {
        ptx::arrive_expecting(full, F::kKeyBytes);
        if (paired) {
            const int row = column_tile * F::kN + (F::kHalfRows < F::kN ? rank * F::kHalfRows : 0);
            const int chunk = F::kHalfRows < F::kN ? 0 : rank * F::kHalfChunks;
            ptx::tma_load_for_both(to + rank * (F::kN * F::kD / 2), &half, full, row, chunk, head, item, ptx::kEvictLast);
        } else {
            ptx::tma_load(to, &whole, full, column_tile * F::kN, head, item, ptx::kEvictLast);
        }
    }

    __device__ __forceinline__ void load_pending_values() {
        if (pending < 0) return;
        ptx::wait(&shared.v_empty[value.stage], value.parity ^ 1);
        if (threadIdx.x % 32 == 0) {
            load(shared.v[value.stage], maps.v, maps.half_v, &shared.v_full[value.stage], pending, pending_head, pending_item);
        }
        value.advance();
        pending = -1;
    }

    __device__ __forceinline__ void load_tile(const WorkItem& work, int column_tile, int flags) {
        const int kv_head = work.head / (args.heads / args.kv_heads);
        ptx::wait(&shared.k_empty[key.stage], key.parity ^ 1);
        if (threadIdx.x % 32 == 0) {
            shared.tile[key.stage] = flags;
            load(shared.k[key.stage], maps.k, maps.half_k, &shared.k_full[key.stage], column_tile, kv_head, work.item);
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
            ptx::prefetch(paired ? &maps.half_k : &maps.k);
            ptx::prefetch(paired ? &maps.half_v : &maps.v);
            ptx::prefetch(&maps.out);
        }
        bool waiting = false;  // the queries of the row tile are still to be loaded: before its first tile that is not passed over
        for (;;) {
            ptx::wait(&shared.lists.full[list.stage], list.parity);
            const PieceHead piece = shared.lists.head[list.stage];
            const int mine = shared.lists.tiles[list.stage][lane];
            const unsigned passed = paired ? shared.pair.passed[list.stage] : 0;
            __syncwarp();
            if (lane == 0) ptx::arrive(&shared.lists.empty[list.stage]);
            list.advance();
            if (piece.work.row_tile < 0) return say_end();
            waiting |= piece.first != 0;
#pragma unroll 1
            for (int i = 0; i < piece.count; ++i) {
                const int entry = __shfl_sync(~0u, mine, i);
                const int flags = (piece.last && i == piece.count - 1 ? kIsLast : 0) + (passed >> i & 1) * kIsPassed;
                if (waiting && !(flags & kIsPassed)) {
                    load_queries(piece.work);
                    waiting = false;
                }
                load_tile(piece.work, entry / 2, entry % 2 * kIsPartial + flags);
            }
            if (piece.last) waiting = false;
        }
    }
};

}  // namespace fm3
