// The mask-aware forward kernel.
//
// A persistent block computes row tiles of 128 queries, one after another, in three roles. The mask role (one warp)
// lists the live column tiles of the coming row tiles (tiles.cuh). The load role (one warp) follows the list with TMA:
// queries, keys, values, and for partial tiles what is hidden of every column. Two warpgroups of 64 rows each multiply,
// and run the softmax of one column tile beside the second product of the tile before; they take turns at the matrix
// units. Full tiles cost no mask work at all.
#pragma once

#include <cmath>

#include "ptx/sync.cuh"
#include "ptx/tma.cuh"
#include "ptx/wgmma.cuh"
#include "softmax.cuh"
#include "tiles.cuh"

namespace fm3 {

template <int kHeadDim, typename T>
struct Forward {
    static constexpr int kD = kHeadDim;
    static constexpr int kM = 128;
    static constexpr int kN = kD <= 128 ? 128 : 64;
    static constexpr int kChunks = kD / 64;
    static constexpr int kStages = 2;
    static constexpr int kQueryStages = kD <= 128 ? 2 : 1;
    static constexpr int kWarpgroups = kM / 64;
    static constexpr int kThreads = 128 * (kWarpgroups + 1);
    static constexpr int kQueryBytes = kM * kD * int(sizeof(T));
    static constexpr int kKeyBytes = kN * kD * int(sizeof(T));

    // The split at which no role spills (ptxas 13.0); 128 * (first + warpgroups * second) must fit 65,536 registers.
    static constexpr int kLoadRegisters = kD == 64 ? 80 : 72;
    static constexpr int kMultiplyRegisters = kD == 64 ? 208 : 216;

    // Named barriers; 0 is __syncthreads.
    static constexpr int kTurn = 1;                      // + warpgroup: its turn at the matrix units
    static constexpr int kTogether = 1 + kWarpgroups;    // + warpgroup: its own 128 threads

    struct __align__(1024) Shared {
        T q[kQueryStages][kM * kD];
        T k[kStages][kN * kD];
        T v[kStages][kN * kD];
        ColumnHidden hidden[kStages][kN];
        int tile[kStages];  // partial + 2 * last
        WorkItem work[kQueryStages];
        int empty_list[kQueryStages];
        ListRing lists;
        ptx::Barrier q_full[kQueryStages], q_empty[kQueryStages];
        ptx::Barrier k_full[kStages], k_empty[kStages], v_full[kStages], v_empty[kStages];
    };

    struct Maps {
        CUtensorMap q, k, v, out;
    };
};

// The load role: one warp that turns lists into loads. Values run one tile behind keys.
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

    // What is hidden of each column of a partial tile, counted from the row tile's first row. Causal masks have no upper
    // interval of their own, so the diagonal takes its place.
    __device__ __forceinline__ void load_hidden(const PieceHead& piece, int column_tile, int stage) {
        constexpr int kFar = 1 << 30;  // further than any row
        const int mask_head = piece.head / (args.heads / args.mask_heads);
        const int64_t base = piece.item * args.vector_batch_stride + mask_head * args.vector_head_stride;
        const int r0 = piece.row_tile * F::kM;
#pragma unroll 1
        for (int c = threadIdx.x % 32; c < F::kN; c += 32) {
            const int column = column_tile * F::kN + c;
            ColumnHidden hidden{-kFar, 2 * (kFar - 1), 0, 0};  // no such column: all rows
            if (column < args.columns) {
                const int start = args.lts != nullptr ? __ldg(args.lts + base + column) : 0;
                const int end = args.lte != nullptr ? __ldg(args.lte + base + column) : (args.lts != nullptr ? args.rows : 0);
                const Interval lower = clipped(start, end, args.rows);
                hidden = {lower.start - r0, max(0, lower.end - lower.start), 0, 0};
                if (args.causal) {
                    const int first_seen = column - (args.columns - args.rows) - r0;
                    hidden.start_b = -kFar;
                    hidden.length_b = max(0, first_seen + kFar);
                } else if (args.ute != nullptr) {
                    const int from = args.uts != nullptr ? __ldg(args.uts + base + column) : 0;
                    const Interval upper = clipped(from, __ldg(args.ute + base + column), args.rows);
                    hidden.start_b = upper.start - r0;
                    hidden.length_b = max(0, upper.end - upper.start);
                }
            }
            shared.hidden[stage][c] = hidden;
        }
    }

    __device__ __forceinline__ void load_tile(const PieceHead& piece, int entry, bool last) {
        const int lane = threadIdx.x % 32, column_tile = entry / 2, partial = entry % 2;
        const int kv_head = piece.head / (args.heads / args.kv_heads);
        const int stage = key.stage;
        ptx::wait(&shared.k_empty[stage], key.parity ^ 1);
        if (lane == 0) {
            ptx::tma_load(
                shared.k[stage], &maps.k, &shared.k_full[stage], column_tile * F::kN, kv_head, piece.item, ptx::kEvictLast);
            shared.tile[stage] = partial + 2 * int(last);
        }
        if (partial) load_hidden(piece, column_tile, stage);
        __syncwarp();
        // The arrival comes after everything written above, so who waits for the keys sees it too.
        if (lane == 0) ptx::arrive_expecting(&shared.k_full[stage], F::kKeyBytes);
        key.advance();
        load_pending_values();
        pending = column_tile;
        pending_head = kv_head;
        pending_item = piece.item;
    }

    __device__ __forceinline__ void begin_row_tile(const PieceHead& piece) {
        // With one buffer the queries of this row tile wait for the last product of the one before, which needs its values.
        if (F::kQueryStages == 1 || piece.row_tile < 0) load_pending_values();
        ptx::wait(&shared.q_empty[query.stage], query.parity ^ 1);
        if (threadIdx.x % 32 == 0) {
            shared.work[query.stage] = {piece.item, piece.head, piece.row_tile};
            shared.empty_list[query.stage] = piece.count == 0;
            if (piece.count > 0) {
                ptx::arrive_expecting(&shared.q_full[query.stage], F::kQueryBytes);
                ptx::tma_load(
                    shared.q[query.stage], &maps.q, &shared.q_full[query.stage], piece.row_tile * F::kM, piece.head, piece.item,
                    ptx::kEvictFirst);
            } else {
                ptx::arrive(&shared.q_full[query.stage]);
            }
        }
        query.advance();
    }

    __device__ void run() {
        const int lane = threadIdx.x % 32;
        for (;;) {
            ptx::wait(&shared.lists.full[list.stage], list.parity);
            const PieceHead piece = shared.lists.head[list.stage];
            const int mine = shared.lists.tiles[list.stage][lane];
            __syncwarp();
            if (lane == 0) ptx::arrive(&shared.lists.empty[list.stage]);
            list.advance();
            if (piece.first) begin_row_tile(piece);
            if (piece.row_tile < 0) return;
#pragma unroll 1
            for (int i = 0; i < piece.count; ++i) {
                load_tile(piece, __shfl_sync(~0u, mine, i), piece.last && i == piece.count - 1);
            }
        }
    }
};

// The multiply role: one warpgroup, 64 rows of every row tile of the block.
template <typename F, typename T>
struct MultiplyRole {
    using Shared = typename F::Shared;
    static constexpr int kD = F::kD, kN = F::kN;
    const Fm3ForwardArgs& args;
    const typename F::Maps& maps;
    Shared& shared;
    int warpgroup;
    ptx::Ring<F::kQueryStages> query{};
    ptx::Ring<F::kStages> key{}, value{};

    __device__ __forceinline__ void scores(float (&s)[kN / 2]) {
        const T* q = shared.q[query.stage] + warpgroup * 64 * 64;
        const T* k = shared.k[key.stage];
        ptx::wgmma_fence();
#pragma unroll
        for (int step = 0; step < kD / 16; ++step) {
            const uint64_t a = ptx::descriptor(q + (step / 4) * F::kM * 64, 0) + 2 * (step % 4);
            const uint64_t b = ptx::descriptor(k + (step / 4) * kN * 64, 0) + 2 * (step % 4);
            ptx::Wgmma<kN, T, ptx::Major::kK>::shared(s, a, b, step > 0);
        }
        ptx::wgmma_commit();
    }

    __device__ __forceinline__ void add_values(float (&o)[kD / 2], const uint32_t (&p)[kN / 16][4]) {
        const uint64_t v = ptx::descriptor(shared.v[value.stage], kN * 128);
        ptx::wgmma_fence();
#pragma unroll
        for (int step = 0; step < kN / 16; ++step) {
            ptx::Wgmma<kD, T, ptx::Major::kMN>::registers(o, p[step], v + 128 * step, 1);
        }
        ptx::wgmma_commit();
    }

    static __device__ __forceinline__ void pack(const float (&s)[kN / 2], uint32_t (&p)[kN / 16][4]) {
#pragma unroll
        for (int i = 0; i < kN / 16; ++i) {
#pragma unroll
            for (int j = 0; j < 4; ++j) p[i][j] = ptx::packed(s[8 * i + 2 * j], s[8 * i + 2 * j + 1], T{});
        }
    }

    // Scores of a key tile that has arrived: what is partial gets its mask, then the keys' buffer goes back.
    __device__ __forceinline__ int finish_scores(float (&s)[kN / 2], int row, int lane) {
        const int tile = shared.tile[key.stage];
        // Softmax knows positive factors only: a negative one turns the scores' sign, and zero makes all scores zero.
        if (args.scale <= 0.f) {
#pragma unroll
            for (int i = 0; i < kN / 2; ++i) s[i] = args.scale == 0.f ? 0.f : -s[i];
        }
        if (tile & 1) hide(s, shared.hidden[key.stage], row, lane);
        // Warps drift apart, and each has read the tile's facts for itself: each of them gives the buffer back.
        __syncwarp();
        if (lane == 0) ptx::arrive(&shared.k_empty[key.stage]);
        key.advance();
        return tile & 2;
    }

    __device__ __forceinline__ float positive_scale() const { return args.scale == 0.f ? 1.f : fabsf(args.scale); }

    // The output leaves through the queries' own buffer, which this warpgroup has finished reading.
    __device__ __forceinline__ void store(float (&o)[kD / 2], const Softmax& softmax, const WorkItem& work) {
        int thread = threadIdx.x % 128;
        // Opaque on purpose: the addresses below are the same for every row tile, and kept in registers they would spill.
        asm volatile("" : "+r"(thread));
        const int warp = thread / 32, lane = thread % 32;
        float inverse[2];
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            const float sum = quad_sum(softmax.sum[h]);
            inverse[h] = sum > 0.f ? 1.f / sum : 0.f;
            const int row = work.row_tile * F::kM + warpgroup * 64 + 16 * warp + lane / 4 + 8 * h;
            if (lane % 4 == 0 && row < args.rows) {
                const float lse = sum > 0.f ? softmax.maximum[h] * positive_scale() + logf(sum) : -INFINITY;
                args.lse[((int64_t)work.item * args.heads + work.head) * args.rows + row] = lse;
            }
        }
        T* tile = shared.q[query.stage];
        // One stmatrix stores 16 rows of 16 columns of a warp: lane l gives the address of row l%8 of part l/8.
        const int part = lane / 8, row = warpgroup * 64 + 16 * warp + 8 * (part % 2) + lane % 8;
#pragma unroll
        for (int j = 0; j < kD / 8; j += 2) {
            uint32_t out[4];
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                const int at = 4 * (j + i / 2) + 2 * (i % 2);
                out[i] = ptx::packed(o[at] * inverse[i % 2], o[at + 1] * inverse[i % 2], T{});
            }
            const int column = 8 * (j + part / 2);
            const T* to = tile + (column / 64) * F::kM * 64 + row * 64 + (((column % 64) / 8) ^ (row % 8)) * 8;
            asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(ptx::shared_address(to)),
                         "r"(out[0]), "r"(out[1]), "r"(out[2]), "r"(out[3])
                         : "memory");
        }
        ptx::fence_async_proxy();
        ptx::named_sync(F::kTogether + warpgroup, 128);
        if (thread == 0) {
#pragma unroll 1
            for (int chunk = 0; chunk < F::kChunks; ++chunk) {
                const T* from = tile + chunk * F::kM * 64 + warpgroup * 64 * 64;
                ptx::tma_store(&maps.out, from, work.row_tile * F::kM + warpgroup * 64, chunk, work.head, work.item);
            }
            ptx::store_commit();
            ptx::store_wait_read();
            ptx::arrive(&shared.q_empty[query.stage]);
        }
    }

    __device__ void run() {
        const int thread = threadIdx.x % 128, warp = thread / 32, lane = thread % 32;
        const int row = warpgroup * 64 + 16 * warp + lane / 4;
        const float scale_log2 = positive_scale() * 1.4426950408889634f;
        if (warpgroup == 1) ptx::named_arrive(F::kTurn, 128 * F::kWarpgroups);  // the first turn is warpgroup 0's

        for (;;) {
            ptx::wait(&shared.q_full[query.stage], query.parity);
            const WorkItem work = shared.work[query.stage];
            if (work.row_tile < 0) return;
            float o[kD / 2];
#pragma unroll
            for (int i = 0; i < kD / 2; ++i) o[i] = 0.f;
            Softmax softmax;
            if (!shared.empty_list[query.stage]) {
                float s[kN / 2], fade[2];
                uint32_t p[kN / 16][4];
                ptx::wait(&shared.k_full[key.stage], key.parity);
                scores(s);
                ptx::wgmma_wait<0>();
                ptx::hold(s);
                bool last = finish_scores(s, row, lane);
                softmax.step(s, scale_log2, fade);
                pack(s, p);
                while (!last) {
                    ptx::wait(&shared.k_full[key.stage], key.parity);
                    ptx::wait(&shared.v_full[value.stage], value.parity);
                    ptx::named_sync(F::kTurn + warpgroup, 128 * F::kWarpgroups);
                    scores(s);
                    add_values(o, p);
                    ptx::named_arrive(F::kTurn + (warpgroup ^ 1), 128 * F::kWarpgroups);
                    ptx::wgmma_wait<1>();
                    ptx::hold(s);
                    last = finish_scores(s, row, lane);
                    softmax.step(s, scale_log2, fade);
                    // Never true, and the compiler cannot know: without it, it waits for the second product before the
                    // exponentials instead of after them.
                    if (softmax.sum[0] + softmax.sum[1] < 0.f) shared.tile[0] = -1;
                    ptx::wgmma_wait<0>();
                    ptx::hold(o);
                    if (thread == 0) ptx::arrive(&shared.v_empty[value.stage]);
                    value.advance();
#pragma unroll
                    for (int i = 0; i < kD / 2; ++i) o[i] *= fade[(i / 2) % 2];
                    pack(s, p);
                }
                ptx::wait(&shared.v_full[value.stage], value.parity);
                add_values(o, p);
                ptx::wgmma_wait<0>();
                ptx::hold(o);
                if (thread == 0) ptx::arrive(&shared.v_empty[value.stage]);
                value.advance();
            }
            store(o, softmax, work);
            query.advance();
        }
    }
};

template <int kHeadDim, typename T>
__global__ void __launch_bounds__(Forward<kHeadDim, T>::kThreads, 1)
    forward(const __grid_constant__ Fm3ForwardArgs args, const __grid_constant__ typename Forward<kHeadDim, T>::Maps maps) {
    using F = Forward<kHeadDim, T>;
    extern __shared__ uint8_t memory[];
    // The base of dynamic shared memory is aligned to 16 bytes only; the swizzle needs 1024.
    auto& shared = *reinterpret_cast<typename F::Shared*>((reinterpret_cast<uintptr_t>(memory) + 1023) & ~uintptr_t(1023));

    if (threadIdx.x == 0) {
        for (int i = 0; i < F::kQueryStages; ++i) {
            ptx::barrier_init(&shared.q_full[i], 1);
            ptx::barrier_init(&shared.q_empty[i], F::kWarpgroups);
        }
        for (int i = 0; i < F::kStages; ++i) {
            ptx::barrier_init(&shared.k_full[i], 1);
            ptx::barrier_init(&shared.v_full[i], 1);
            ptx::barrier_init(&shared.k_empty[i], 4 * F::kWarpgroups);
            ptx::barrier_init(&shared.v_empty[i], F::kWarpgroups);
        }
        for (int i = 0; i < kPieces; ++i) {
            ptx::barrier_init(&shared.lists.full[i], 1);
            ptx::barrier_init(&shared.lists.empty[i], 1);
        }
        ptx::fence_barrier_init();
    }
    __syncthreads();

    if (threadIdx.x < 128) {
        ptx::registers_down<F::kLoadRegisters>();
        if (threadIdx.x < 32) {
            if (threadIdx.x == 0) {
                ptx::prefetch(&maps.q);
                ptx::prefetch(&maps.k);
                ptx::prefetch(&maps.v);
                ptx::prefetch(&maps.out);
            }
            LoadRole<F>{args, maps, shared}.run();
        } else if (threadIdx.x < 64) {
            MaskRole<F::kM, F::kN>{args, shared.lists}.run();
        }
    } else {
        ptx::registers_up<F::kMultiplyRegisters>();
        MultiplyRole<F, T>{args, maps, shared, int(threadIdx.x / 128) - 1}.run();
    }
}

}  // namespace fm3
