// Two light roles of the backward kernel: loading, and saying what is hidden.
#pragma once

#include "backward_args.h"
#include "backward_shape.cuh"
#include "backward_sums.cuh"
#include "ptx/elect.cuh"

namespace fm3 {

// One warp: takes column tiles from a counter, finds the query tiles that each meets in every head of its group, loads.
template <typename F>
struct BackwardLoadRole {
    using Shared = typename F::Shared;
    const Fm3BackwardArgs& args;
    const typename F::Maps& maps;
    Shared& shared;
    ptx::Ring<F::kQueryStages> query{};
    int items = 0;
    unsigned steps = 0;  // stages and parities follow from these

    __device__ __forceinline__ const BackwardWork& work() const { return shared.found.work; }
    __device__ __forceinline__ bool leads() const { return threadIdx.x % 32 == 0; }

    // The query tiles of a head that the item meets.
    __device__ __forceinline__ void find_runs(int head) {
        BlockBounds b{args.mask.rows, args.mask.rows, 0, 0, args.mask.rows, args.mask.rows, 0, 0};
        if (args.mask.bounds != nullptr) {
            const int64_t mask = prepared_index(args.mask, work().item, head / (args.heads / args.mask.heads));
            const int4* bounds = reinterpret_cast<const int4*>(args.mask.bounds) + mask * ceil_div(args.mask.columns, kBlock) * 6;
            b = load_bounds(bounds + 2 * bounds_of<F::kN>(work().column_tile));
        }
        const int64_t begin = int64_t(work().column_tile) * F::kN;
        __syncwarp();
        if (leads()) shared.found.runs = RowRuns<F::kM>(args.mask, b, begin, begin + F::kN);
        __syncwarp();
    }

    __device__ __forceinline__ bool kept(int head, int row_tile) const {
        if (args.mask.block_mask == nullptr) return true;
        int columns = args.mask.columns;
        asm volatile("" : "+r"(columns));  // opaque, as below
        const int mask_head = head / (args.heads / args.mask.heads);
        const int bytes = (ceil_div(columns, kBlock) + 7) / 8, block = work().column_tile / (kBlock / F::kN);
        const uint8_t* row = args.mask.block_mask + work().item * args.mask.block_strides[0] + mask_head * args.mask.block_strides[1];
        return (row[int64_t(row_tile * F::kM / kBlock) * bytes + block / 8] >> (block % 8)) & 1;
    }

    // Asks for what is hidden of the item's keys from a query head; a negative one: the end.
    __device__ __forceinline__ void ask_hidden(int head) {
        const int heads = shared.found.heads;
        ptx::wait(&shared.hidden_empty[heads & 1], heads >> 1 & 1 ^ 1);
        __syncwarp();
        if (leads()) {
            shared.asked[heads & 1] = {work().item, head, work().column_tile};
            ptx::arrive(&shared.hidden_asked[heads & 1]);
            shared.found.heads = heads + 1;
        }
        __syncwarp();
    }

    // The item's values and keys; they become free in this order.
    __device__ __forceinline__ void load_values() {
        ptx::wait(&shared.v_empty, items & 1 ^ 1);
        if (leads()) {
            ptx::arrive_expecting(&shared.v_full, F::kKeyBytes);
            ptx::tma_load(shared.v, &maps.v, &shared.v_full, work().column_tile * F::kN, work().head, work().item, ptx::kEvictFirst);
        }
    }

    __device__ __forceinline__ void load_keys() {
        ptx::wait(&shared.k_empty, items & 1 ^ 1);
        if (leads()) {
            shared.work[items & 1] = work();
            ptx::arrive_expecting(&shared.k_full, F::kKeyBytes);
            ptx::tma_load(shared.k, &maps.k, &shared.k_full, work().column_tile * F::kN, work().head, work().item, ptx::kEvictFirst);
        }
    }

    // Of a query head, what is needed for every tile.
    __device__ __forceinline__ void begin_head(int head) const {
        int all_rows = args.mask.rows, kv_heads = args.kv_heads;
        asm volatile("" : "+r"(all_rows), "+r"(kv_heads));  // opaque: what follows from them would be kept in registers
        const int row_tiles = ceil_div(all_rows, kRowPadding) * (kRowPadding / F::kM), group = args.heads / kv_heads;
        const int in_group = head - work().head * group;
        if (leads()) {
            shared.found.at = {(int64_t(work().item) * args.heads + head) * row_tiles * F::kM, head, work().item,
                               unsigned(shared.found.slot * group + in_group) * row_tiles, in_group * shared.found.runs.tiles};
        }
        __syncwarp();
    }

    // Loads a tile, copies before all else; of the item's first one its keys and values as well.
    __device__ __forceinline__ void load_rows(int row_tile, int flags, bool first) {
        const LoadedHead x = shared.found.at;
        constexpr int kBytes = F::kM * int(sizeof(float));
        const int at = query.stage, grads = steps % F::kGradStages;
        const int64_t rows = x.rows + row_tile * F::kM;
        ptx::wait(&shared.q_empty[at], query.parity ^ 1);
        if (ptx::elected()) {
            ptx::tma_load(shared.q[at], &maps.q, &shared.q_full[at], row_tile * F::kM, x.head, x.item, ptx::kEvictLast);
            ptx::bulk_load(shared.lse2[at], args.lse2 + rows, kBytes, &shared.q_full[at]);
            shared.row_tile[at] = row_tile;
            shared.flags[at] = flags;
            shared.sums_head[steps & 3] = work().counted_head;
            shared.sums_tile[steps & 3] = x.sums + row_tile;
            ptx::arrive_expecting(&shared.q_full[at], F::kRowBytes + kBytes);
            if (F::kJoins && row_tile % 8 == 0) note(shared.found.front, x.front + row_tile);
        }
        if (first) load_values();
        ptx::wait(&shared.dout_empty[grads], steps / F::kGradStages & 1 ^ 1);
        if (ptx::elected()) {
            ptx::tma_load(shared.dout[grads], &maps.dout, &shared.dout_full[grads], row_tile * F::kM, x.head, x.item, ptx::kEvictLast);
            ptx::bulk_load(shared.delta[grads], args.delta + rows, kBytes, &shared.dout_full[grads]);
            if constexpr (F::kFixed) ptx::bulk_load(shared.fixed[steps & 3], args.fixed + rows, kBytes, &shared.dout_full[grads]);
            ptx::arrive_expecting(&shared.dout_full[grads], F::kRowBytes + kBytes * (F::kFixed ? 2 : 1));
        }
        if (first) load_keys();
        query.advance();
        ++steps;
    }

    // Instead of the rows of an item that has none.
    __device__ __forceinline__ void say(int flags) {
        ptx::wait(&shared.q_empty[query.stage], query.parity ^ 1);
        if (leads()) {
            shared.flags[query.stage] = flags | (items & 1 ? kOddItem : 0);
            ptx::arrive(&shared.q_full[query.stage]);
        }
        query.advance();
    }

    __device__ __forceinline__ unsigned take() const {
        unsigned index = 0;
        if (leads()) index = atomicAdd(reinterpret_cast<unsigned*>(args.work), 1u);
        return __shfl_sync(~0u, index, 0);
    }

    // Where an item begins that joins others. Blocks drift apart, and after a few long items every one is somewhere else: what
    // they share of a KV head then has to stay in L2 as a whole. Where that is too large and nothing of it skipped, a block
    // begins where another one is, and goes around. The order decides the last bits of dK and dV, which is why not everyone does.
    __device__ __forceinline__ void find_start() {
        if (leads()) {
            int* front = Ledger(args).front + work().counted_head;
            const int at = glance(front), tiles = shared.found.runs.tiles;
            shared.found.front = front;
            shared.found.start_head = at / tiles, shared.found.start = at % tiles;
        }
        __syncwarp();
    }

    // The query head of a visit. Visits count on from the first head of the group; whoever joins comes back to where he began.
    __device__ __forceinline__ int head_of(int visit, int group) const {
        return F::kJoins && visit >= (work().head + 1) * group ? visit - group : visit;
    }

    // The first tile from `row_tile` on that the item meets, in this visit or, from their first tile on, in later ones; `visit`
    // is `end` if there is none.
    __device__ __forceinline__ void look(int& visit, int& row_tile, int end, int group) {
#pragma unroll 1
        for (;; ++row_tile) {
            row_tile = shared.found.runs.live_from(row_tile);
            if (row_tile < end_of(visit, group)) {
                if (kept(head_of(visit, group), row_tile)) return;
            } else {
                if (++visit == end) return;
                find_runs(head_of(visit, group));
                row_tile = -1;
            }
        }
    }

    // The end of a visit's tiles.
    __device__ __forceinline__ int end_of(int visit, int group) const {
        const bool back = F::kJoins && visit - shared.found.start_head == (work().head + 1) * group;
        return back ? shared.found.start : shared.found.runs.tiles;
    }

    // All query tiles of the item. Runs of tiles that are alike need no looking but at their end: the last one is loaded when it
    // is known what comes next, or that nothing does.
    __device__ __forceinline__ void load_item() {
        const int group = args.heads / args.kv_heads;
        int visit = work().head * group, end = visit + group, row_tile = 0;
        find_runs(visit);
        if constexpr (F::kJoins) {
            find_start();
            visit += shared.found.start_head, row_tile = shared.found.start;
            end = visit + group + (row_tile > 0 ? 1 : 0);
        }
        look(visit, row_tile, end, group);
        const bool any = visit < end;
        bool first = true, fresh = true;  // of the item; of a head
#pragma unroll 1
        while (visit < end) {
            int until = row_tile + 1;
            if (args.mask.block_mask == nullptr) until = min(shared.found.runs.alike_until(row_tile), end_of(visit, group));
            if (fresh) {
                begin_head(head_of(visit, group));
                ask_hidden(head_of(visit, group));
            }
            const int hidden = shared.found.heads - 1;
            const int flags = (shared.found.runs.is_partial(row_tile) ? kCut : 0) | (hidden & 1 ? kHiddenStage : 0) |
                              (hidden & 2 ? kHiddenParity : 0) | (items & 1 ? kOddItem : 0);
#pragma unroll 1
            for (bool more = true; more; first = false) {
                const int tile = row_tile++;
                int now = flags | (fresh ? kNewHead : 0);
                fresh = false;
                if (row_tile == until) {
                    const int before = visit;
                    look(visit, row_tile, end, group);
                    fresh = visit != before, more = false;
                    now |= (visit == end ? kEndsItem : 0) | (fresh ? kEndsHead : 0);
                }
                load_rows(tile, now, first);
            }
        }
        if (!any) {
            if (leads()) count_added<F>(args, work().counted_head, F::kAdders);
            say(kNoRows | kEndsItem);
            load_values();
            load_keys();
        }
    }

    __device__ void run() {
        if (leads()) shared.found.heads = 0;
        __syncwarp();
        const int column_tiles = ceil_div(args.mask.columns, F::kN);
        const unsigned total = unsigned(column_tiles) * args.kv_heads * args.batch;
        for (unsigned index = take(); index < total; index = take()) {
            // Column tiles of one head one after another: neighbours in time read the same queries and add to the same sums.
            const int head = int(index / column_tiles), column_tile = int(index % column_tiles);
            if (leads()) {
                shared.found.work = {head / args.kv_heads, head % args.kv_heads, column_tile, head};
                shared.found.slot = slot_of(args, head, column_tile == 0);
            }
            __syncwarp();
            load_item();
            ++items;
        }
        say(kNoWork);
        ask_hidden(-1);
        if (leads() && atomicAdd(args.work + 1, 1) == int(gridDim.x) - 1) {
            args.work[0] = 0;
            args.work[1] = 0;
        }
    }
};

// What is hidden of the keys of an item from a query head. Of a warp that has other things to do as well.
template <typename F>
struct HiddenRole {
    using Shared = typename F::Shared;
    const Fm3BackwardArgs& args;
    Shared& shared;
    int heads = 0;

    // The next question, if there is one; false if there are no more.
    __device__ __forceinline__ bool serve() {
        const Fm3Mask& m = args.mask;
        const int stage = heads & 1;
        if (!__all_sync(~0u, ptx::has_ended(&shared.hidden_asked[stage], heads >> 1 & 1))) return true;
        ++heads;
        const auto asked = shared.asked[stage];
        if (asked.head < 0) return false;
        const int64_t base = asked.item * m.vector_strides[0] + asked.head / (args.heads / m.heads) * m.vector_strides[1];
#pragma unroll
        for (int i = 0; i < F::kN / 32; ++i) {
            const int key = 32 * i + threadIdx.x % 32;
            shared.hidden[stage][key] = hidden_rows(m, base, asked.column_tile * F::kN + key);
        }
        __syncwarp();
        if (threadIdx.x % 32 == 0) ptx::arrive(&shared.hidden_full[stage]);
        return true;
    }
};

}  // namespace fm3
