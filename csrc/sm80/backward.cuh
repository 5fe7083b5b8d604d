// The backward kernel of FlashMask as its first paper has it, for compute capability 8.0 and up.
//
// A block takes one column tile of a KV head and goes through the query tiles that it meets, in all query heads of the KV head,
// and adds up dK and dV in registers. Scores are computed transposed, keys by queries: P and dS then are A operands as they
// stand. Only dS goes through shared memory, for dQ, which sums over the keys of all warps. A step computes the dQ of the step
// before, so that its warps meet once.
#pragma once

#include <cmath>
#include <cstddef>

#include "../sm90/backward_args.h"
#include "../sm90/fragments.cuh"
#include "../sm90/row_runs.cuh"
#include "../sm90/softmax.cuh"
#include "hidden_words.cuh"
#include "tile_copy.cuh"

namespace fm3::sm80 {

// A query tile of a head; head < 0: no more.
struct QueryTile {
    int head, tile, partial;
};

template <int kHeadDim, int kKeys, int kQueries>
struct Backward {
    static constexpr int kD = kHeadDim, kN = kKeys, kM = kQueries;
    static constexpr int kWarps = kN / 16, kThreads = 32 * kWarps;
    // dQ of a query tile: 32 rows a warp, and of the columns what remains.
    static constexpr int kRowWarps = kM / 32, kSumColumns = kD / (kWarps / kRowWarps), kSums = kSumColumns;
    static constexpr int kScorePitch = 64;
    static_assert(kM <= kScorePitch && kM % 32 == 0 && kSumColumns % 16 == 0);
    static_assert(kSums * kThreads == kM * kD);

    template <typename T>
    struct __align__(1024) Shared {
        T k[kN * kD], v[kN * kD];
        T q[2][kM * kD], dout[2][kM * kD];
        T ds[2][kN * kScorePitch];  // keys by queries
        float lse2[2][kM], delta[2][kM];
        int item, kv_head, column_tile;
        RowRuns<kM> runs;    // of the first thread
        QueryTile tiles[4];  // of a step, the two behind it and the one before
    };

    // Row and column of a thread's sums of dQ, which lie in memory as [kSums][kThreads].
    static __device__ __forceinline__ int sum_row(int thread, int i) {
        return thread / 32 % kRowWarps * 32 + i / (kSums / 2) * 16 + i % 4 / 2 * 8 + thread % 32 / 4;
    }
    static __device__ __forceinline__ int sum_column(int thread, int i) {
        return thread / 32 / kRowWarps * kSumColumns + i % (kSums / 2) / 4 * 8 + thread % 4 * 2 + i % 2;
    }
};

template <typename F, typename T>
struct BackwardBlock {
    static constexpr int kD = F::kD, kM = F::kM, kN = F::kN;
    static constexpr uint32_t kPitch = kD * sizeof(T), kScorePitch = F::kScorePitch * sizeof(T);
    static constexpr uint32_t kStage = kM * kPitch, kScoreStage = kN * kScorePitch;
    using Shared = typename F::template Shared<T>;
    static constexpr uint32_t kToValues = offsetof(Shared, v) - offsetof(Shared, k), kToQueries = offsetof(Shared, q) - offsetof(Shared, k);
    static constexpr uint32_t kToDout = offsetof(Shared, dout) - offsetof(Shared, q);

    const Fm3BackwardArgs& args;
    Shared& shared;
    // Where this lane's rows of operands begin. Few, since registers are scarce; what lies at a fixed distance is found from them.
    uint32_t key;            // A of scores: the warp's rows of k
    uint32_t query;          // B of scores, as stored
    uint32_t query_of_sums;  // B of sums over queries, transposed; those of keys for dQ lie alike
    uint32_t score;          // A of dQ, transposed

    float dk[kD / 2] = {}, dv[kD / 2] = {};

    __device__ __forceinline__ BackwardBlock(const Fm3BackwardArgs& args, Shared& shared) : args(args), shared(shared) {
        const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
        const int down = row_of_lane_rows_first(lane), right = unit_of_lane_rows_first(lane);
        const int second_down = row_of_lane_columns_first(lane), second_right = unit_of_lane_columns_first(lane);
        const auto at = [](const T* tile, int row, int unit) {
            return ptx::shared_address(tile) + uint32_t(sizeof(T)) * place_of_unit<kD>(row, unit);
        };
        key = at(shared.k, 16 * warp + down, right);
        query = at(shared.q[0], second_down, second_right);
        query_of_sums = at(shared.q[0], down, right);
        score = ptx::shared_address(shared.ds[0]) + uint32_t(sizeof(T)) * place_of_unit<F::kScorePitch>(second_down, second_right);
        score = address_across(score, warp % F::kRowWarps * 2);
    }

    __device__ __forceinline__ int group() const { return args.heads / args.kv_heads; }
    __device__ __forceinline__ int mask_head(int head) const { return head / (args.heads / args.mask.heads); }
    // Of the numbers that are kept of rows.
    __device__ __forceinline__ int64_t row_index(const QueryTile& at) const {
        const int64_t padded = int64_t(ceil_div(args.mask.rows, kRowPadding)) * kRowPadding;
        return (int64_t(shared.item) * args.heads + at.head) * padded + int64_t(at.tile) * kM;
    }

    __device__ __forceinline__ void find_runs(int head) {
        const int64_t first = int64_t(shared.column_tile) * kN;
        BlockBounds b{args.mask.rows, args.mask.rows, 0, 0, args.mask.rows, args.mask.rows, 0, 0};
        if (args.mask.bounds != nullptr) {
            const int64_t blocks = ceil_div(args.mask.columns, kBlock), mask = prepared_index(args.mask, shared.item, mask_head(head));
            b = load_bounds(reinterpret_cast<const int4*>(args.mask.bounds) + 2 * (mask * blocks * 3 + bounds_of<kN>(shared.column_tile)));
        }
        shared.runs = RowRuns<kM>(args.mask, b, first, first + kN);
    }

    __device__ __forceinline__ bool kept(int head, int tile) const {
        if (args.mask.block_mask == nullptr) return true;
        const int bytes = (ceil_div(args.mask.columns, kBlock) + 7) / 8, block = shared.column_tile * kN / kBlock;
        const uint8_t* rows = args.mask.block_mask + shared.item * args.mask.block_strides[0] + mask_head(head) * args.mask.block_strides[1];
        return rows[int64_t(tile * kM / kBlock) * bytes + block / 8] >> (block % 8) & 1;
    }

    // The live query tile after this one.
    __device__ __forceinline__ QueryTile next(QueryTile at) {
        while (at.head >= 0) {
            do {
                at.tile = shared.runs.live_from(at.tile + 1);
            } while (at.tile < shared.runs.tiles && !kept(at.head, at.tile));
            if (at.tile < shared.runs.tiles) {
                at.partial = shared.runs.is_partial(at.tile);
                break;
            }
            at.head = at.head + 1 < (shared.kv_head + 1) * group() ? at.head + 1 : -1;
            at.tile = -1;
            if (at.head >= 0 && args.mask.heads > args.kv_heads) find_runs(at.head);
        }
        return at;
    }

    __device__ __forceinline__ void ask(const QueryTile& at, int stage) {
        if (at.head >= 0) {
            const int first = at.tile * kM;
            const auto copy = [&](T* tile, const void* data, const int64_t(&strides)[3]) {
                const T* head = static_cast<const T*>(data) + shared.item * strides[0] + at.head * strides[2];
                copy_tile<kM, kD, F::kThreads>(ptx::shared_address(tile), head, strides[1], first, args.mask.rows);
            };
            copy(shared.q[stage], args.q, args.q_strides);
            copy(shared.dout[stage], args.dout, args.dout_strides);
            const int thread = threadIdx.x % (kM / 4), which = threadIdx.x / (kM / 4);
            if (which < 2) {
                const float* from = (which == 0 ? args.lse2 : args.delta) + row_index(at) + 4 * thread;
                ptx::copy16((which == 0 ? shared.lse2 : shared.delta)[stage] + 4 * thread, from);
            }
        }
        ptx::copy_commit();
    }

    // The warp's 16 rows of k or v times the queries or dO of a tile.
    __device__ __forceinline__ void multiply_rows(float (&s)[kM / 2], uint32_t rows, uint32_t columns) {
#pragma unroll
        for (int k = 0; k < kD / 16; ++k) {
            uint32_t a[4];
            ptx::load_block(a, address_across(rows, k));
#pragma unroll
            for (int j = 0; j < kM / 16; ++j) {
                uint32_t b[4];
                ptx::load_block(b, address_across(columns, k) + j * 16 * kPitch);
                ptx::mma(&s[8 * j], a, b[0], b[1], T{});
                ptx::mma(&s[8 * j + 4], a, b[2], b[3], T{});
            }
        }
    }

    // Sums over the queries of a tile: dV from P and dO, dK from dS and the queries.
    __device__ __forceinline__ void add_over_queries(float (&sum)[kD / 2], const uint32_t (&p)[kM / 16][4], uint32_t rows) {
#pragma unroll
        for (int k = 0; k < kM / 16; ++k) {
#pragma unroll
            for (int j = 0; j < kD / 16; ++j) {
                uint32_t b[4];
                ptx::load_block_transposed(b, address_across(rows, j) + k * 16 * kPitch);
                ptx::mma(&sum[8 * j], p[k], b[0], b[1], T{});
                ptx::mma(&sum[8 * j + 4], p[k], b[2], b[3], T{});
            }
        }
    }

    // Of this lane's two keys. Read anew for every tile that needs them: there are no registers to keep them in.
    __device__ __forceinline__ void find_hidden(HiddenRows (&hidden)[2], const QueryTile& at) const {
        const int64_t base = shared.item * args.mask.vector_strides[0] + mask_head(at.head) * args.mask.vector_strides[1];
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            hidden[h] = hidden_rows(args.mask, base, shared.column_tile * kN + int(threadIdx.x) / 32 * 16 + 8 * h + int(threadIdx.x) % 32 / 4);
        }
    }

    __device__ __forceinline__ void hide(float (&s)[kM / 2], const HiddenRows (&hidden)[2], const QueryTile& at) {
        const int lane = threadIdx.x % 32;
#pragma unroll
        for (int h = 0; h < 2; ++h) {
#pragma unroll
            for (int w = 0; w < kM / 32; ++w) {
                const uint32_t word = hidden_word(hidden[h], at.tile * kM + 32 * w) >> (2 * (lane % 4));
#pragma unroll
                for (int i = 0; i < 8; ++i) {
                    if (word >> (8 * (i / 2) + i % 2) & 1) s[16 * w + 4 * (i / 2) + 2 * h + i % 2] = -INFINITY;
                }
            }
        }
    }

    // P and dS of a tile, as A operands; dS also to shared memory.
    __device__ __forceinline__ void differentiate(
        const QueryTile& at, int stage, float scale_log2, uint32_t (&p)[kM / 16][4], uint32_t (&ds)[kM / 16][4]) {
        const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
        float s[kM / 2] = {}, dp[kM / 2] = {};
        HiddenRows hidden[2] = {};
        if (at.partial) find_hidden(hidden, at);
        multiply_rows(s, ptx::opaque(key), ptx::opaque(query) + stage * kStage);
        if (at.partial) hide(s, hidden, at);
        // A thread's queries are 16i + 2t, 16i + 2t + 1, 16i + 8 + 2t, 16i + 9 + 2t: their numbers lie side by side.
#pragma unroll
        for (int i = 0; i < kM / 16; ++i) {
            const float4 lse2 = reinterpret_cast<const float4*>(shared.lse2[stage])[4 * i + lane % 4];
            const float of[4] = {lse2.x, lse2.y, lse2.z, lse2.w};
#pragma unroll
            for (int x = 0; x < 8; ++x) s[8 * i + x] = exp2_fast(fmaf(s[8 * i + x], scale_log2, -of[x / 4 * 2 + x % 2]));
        }
        multiply_rows(dp, ptx::opaque(key) + kToValues, ptx::opaque(query) + kToDout + stage * kStage);
        T* rows = shared.ds[stage];
#pragma unroll
        for (int i = 0; i < kM / 16; ++i) {
            const float4 delta = reinterpret_cast<const float4*>(shared.delta[stage])[4 * i + lane % 4];
            const float of[4] = {delta.x, delta.y, delta.z, delta.w};
#pragma unroll
            for (int x = 0; x < 4; ++x) {  // two queries of one key
                const int at = 8 * i + 2 * x, query = x / 2 * 2, row = 16 * warp + lane / 4 + x % 2 * 8, unit = 2 * i + x / 2;
                p[i][x] = ptx::packed(s[at], s[at + 1], T{});
                ds[i][x] = ptx::packed(s[at] * (dp[at] - of[query]), s[at + 1] * (dp[at + 1] - of[query + 1]), T{});
                reinterpret_cast<uint32_t*>(rows + place_of_unit<F::kScorePitch>(row, unit))[lane % 4] = ds[i][x];
            }
        }
    }

    // dQ of a tile from the dS of all warps, added to the sums.
    __device__ __forceinline__ void add_dq(const QueryTile& at, int stage) {
        float dq[2][F::kSums / 2] = {};
        const uint32_t scores = ptx::opaque(score) + stage * kScoreStage, warp = threadIdx.x / 32;
        const uint32_t keys = address_across(ptx::opaque(query_of_sums) - kToQueries, warp / F::kRowWarps * (F::kSumColumns / 16));
#pragma unroll
        for (int k = 0; k < kN / 16; ++k) {
            uint32_t a[2][4];
#pragma unroll
            for (int i = 0; i < 2; ++i) ptx::load_block_transposed(a[i], address_across(scores, i) + k * 16 * kScorePitch);
#pragma unroll
            for (int j = 0; j < F::kSumColumns / 16; ++j) {
                uint32_t b[4];
                ptx::load_block_transposed(b, address_across(keys, j) + k * 16 * kPitch);
#pragma unroll
                for (int i = 0; i < 2; ++i) {
                    ptx::mma(&dq[i][8 * j], a[i], b[0], b[1], T{});
                    ptx::mma(&dq[i][8 * j + 4], a[i], b[2], b[3], T{});
                }
            }
        }
        const int64_t row = row_index(at);
        float* to = args.dq_sums + row * kD + threadIdx.x;
        if (args.fixed == nullptr) {
#pragma unroll
            for (int i = 0; i < F::kSums; ++i) atomicAdd(to + i * F::kThreads, dq[i / (F::kSums / 2)][i % (F::kSums / 2)]);
            return;
        }
        // Integers, whose sums do not depend on the order.
        const int thread = ptx::opaque(int(threadIdx.x));
#pragma unroll
        for (int i = 0; i < F::kSums; ++i) {
            const float factor = __ldg(args.fixed + row + F::sum_row(thread, i));
            atomicAdd(reinterpret_cast<int*>(to + i * F::kThreads), __float2int_rn(dq[i / (F::kSums / 2)][i % (F::kSums / 2)] * factor));
        }
    }

    __device__ __forceinline__ void run(int item, int kv_head, int column_tile) {
        if (threadIdx.x == 0) shared.item = item, shared.kv_head = kv_head, shared.column_tile = column_tile;
        __syncthreads();
        constexpr float kLog2E = 1.4426950408889634f;
        const float scale_log2 = args.scale * kLog2E;
        const T* keys = static_cast<const T*>(args.k) + shared.item * args.k_strides[0] + shared.kv_head * args.k_strides[2];
        const T* values = static_cast<const T*>(args.v) + shared.item * args.v_strides[0] + shared.kv_head * args.v_strides[2];
        copy_tile<kN, kD, F::kThreads>(ptx::shared_address(shared.k), keys, args.k_strides[1], shared.column_tile * kN, args.mask.columns);
        copy_tile<kN, kD, F::kThreads>(ptx::shared_address(shared.v), values, args.v_strides[1], shared.column_tile * kN, args.mask.columns);
        if (threadIdx.x == 0) {
            find_runs(shared.kv_head * group());
            QueryTile tile{shared.kv_head * group(), -1, 0};
#pragma unroll 1
            for (int i = 0; i < 2; ++i) shared.tiles[i] = tile = next(tile);
        }
        __syncthreads();
        ask(shared.tiles[0], 0);
        int step = 0;
#pragma unroll 1
        for (; shared.tiles[step % 4].head >= 0; ++step) {
            const int stage = step % 2;
            // The tile has landed for everybody; nobody needs the one before, and its dS is there.
            ptx::copy_wait<0>();
            __syncthreads();
            ask(shared.tiles[(step + 1) % 4], stage ^ 1);
            if (threadIdx.x == 0) shared.tiles[(step + 2) % 4] = next(shared.tiles[(step + 1) % 4]);
            uint32_t p[kM / 16][4], ds[kM / 16][4];
            differentiate(shared.tiles[step % 4], stage, scale_log2, p, ds);
            add_over_queries(dv, p, ptx::opaque(query_of_sums) + kToDout + stage * kStage);
            add_over_queries(dk, ds, ptx::opaque(query_of_sums) + stage * kStage);
            if (step > 0) add_dq(shared.tiles[(step - 1) % 4], stage ^ 1);
        }
        ptx::copy_wait<0>();
        __syncthreads();
        if (step > 0) add_dq(shared.tiles[(step - 1) % 4], (step - 1) % 2);
        __syncthreads();
        finish();
    }

    __device__ __forceinline__ void finish() {
        const int top = threadIdx.x / 32 * 16, first = shared.column_tile * kN;
        const auto store = [&](const float(&x)[kD / 2], float factor, T* tile, void* data, const int64_t(&strides)[3]) {
            put_rows<kD>(x, factor, factor, tile, top);
            __syncwarp();
            T* head = static_cast<T*>(data) + shared.item * strides[0] + shared.kv_head * strides[2];
            store_tile<16, kD>(tile, head, strides[1], top, first, args.mask.columns);
        };
        store(dk, args.scale, shared.k, args.dk, args.dk_strides);
        store(dv, 1.f, shared.v, args.dv, args.dv_strides);
    }
};

template <typename F, typename T>
__global__ void __launch_bounds__(F::kThreads, 1) backward(const __grid_constant__ Fm3BackwardArgs args) {
    extern __shared__ __align__(1024) unsigned char memory[];
    // Column tiles of a head one after another: what they share of queries, dO and sums stays in the L2 cache.
    const int column_tiles = ceil_div(args.mask.columns, F::kN), head = blockIdx.x / column_tiles;
    BackwardBlock<F, T> block(args, *reinterpret_cast<typename F::template Shared<T>*>(memory));
    block.run(head / args.kv_heads, head % args.kv_heads, blockIdx.x % column_tiles);
}

// From sums to dq, a block a query tile.
template <typename F, typename T>
__global__ void __launch_bounds__(F::kThreads) convert(const __grid_constant__ Fm3BackwardArgs args) {
    constexpr int kD = F::kD, kM = F::kM;
    extern __shared__ __align__(1024) unsigned char memory[];
    T* rows = reinterpret_cast<T*>(memory);
    const int tiles = ceil_div(args.mask.rows, kM), tile = blockIdx.x % tiles, of = blockIdx.x / tiles;
    const int64_t row = int64_t(of) * ceil_div(args.mask.rows, kRowPadding) * kRowPadding + int64_t(tile) * kM;
    const float* from = args.dq_sums + row * kD + threadIdx.x;
    float x[F::kSums];
#pragma unroll
    for (int i = 0; i < F::kSums; ++i) x[i] = __ldcs(from + i * F::kThreads);
#pragma unroll
    for (int i = 0; i < F::kSums; i += 2) {
        const int thread = threadIdx.x, at = F::sum_row(thread, i), column = F::sum_column(thread, i);
        float factor = args.dq_scale;
        if (args.fixed != nullptr) {
            const float to_integers = __ldg(args.fixed + row + at);
            factor = to_integers == 0.f ? 0.f : factor / to_integers;  // NaN stays NaN
            for (int e = 0; e < 2; ++e) x[i + e] = float(__float_as_int(x[i + e]));
        }
        reinterpret_cast<uint32_t*>(rows + place_of_unit<kD>(at, column / 8))[column % 8 / 2] =
            ptx::packed(x[i] * factor, x[i + 1] * factor, T{});
    }
    __syncthreads();
    constexpr int kWarpRows = kM / F::kWarps;
    T* head = static_cast<T*>(args.dq) + of / args.heads * args.dq_strides[0] + of % args.heads * args.dq_strides[2];
    store_tile<kWarpRows, kD>(rows, head, args.dq_strides[1], threadIdx.x / 32 * kWarpRows, tile * kM, args.mask.rows);
}

}  // namespace fm3::sm80
