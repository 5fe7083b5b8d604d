// The backward kernel of FlashMask as its first paper has it, for compute capability 8.0 and up.
//
// A block takes one column tile of a KV head and goes through the query tiles that it meets, in all query heads of the KV head,
// and adds up dK and dV in registers. A step has two halves, with all warps meeting before each: scores, P and dS, which every
// warp computes for 32 queries and a part of the keys and leaves in shared memory; then the three sums, for which every warp
// takes what it needs of them.
#pragma once

#include <cmath>
#include <cstddef>

#include "../sm90/backward_args.h"
#include "../sm90/fragments.cuh"
#include "../sm90/row_runs.cuh"
#include "../sm90/softmax.cuh"
#include "hidden_words.cuh"
#include "product.cuh"
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
    // Scores: 32 queries a warp, and of the keys what remains. dQ likewise, with columns in the place of keys.
    static constexpr int kRowWarps = kM / 32, kWarpKeys = kN / (kWarps / kRowWarps);
    static constexpr int kSumColumns = kD / (kWarps / kRowWarps), kSums = kSumColumns;
    // dK and dV: 32 keys a warp, and of the columns what remains.
    static constexpr int kKeyWarps = kN / 32, kKeyColumns = kD / (kWarps / kKeyWarps);
    static_assert(kM % 32 == 0 && kWarpKeys % 16 == 0 && kWarpKeys <= 32 && kSumColumns % 16 == 0 && kKeyColumns % 16 == 0);
    static_assert(kSums * kThreads == kM * kD);

    template <typename T>
    struct __align__(1024) Shared {
        T k[kN * kD], v[kN * kD];
        T q[2][kM * kD], dout[2][kM * kD];
        T p[kM * kN], ds[kM * kN];  // queries by keys
        float lse2[2][kM], delta[2][kM];
        int item, kv_head, column_tile;
        RowRuns<kM> runs;    // of the first warp
        QueryTile tiles[4];  // of a step and the two behind it
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
    static constexpr uint32_t kPitch = kD * sizeof(T), kScorePitch = kN * sizeof(T), kStage = kM * kPitch;
    using Shared = typename F::template Shared<T>;
    using Rows = Operand<false, kPitch>;
    using Columns = Operand<true, kPitch>;
    using Scores = Operand<true, kScorePitch>;
    static constexpr uint32_t kToValues = offsetof(Shared, v) - offsetof(Shared, k), kToDout = offsetof(Shared, dout) - offsetof(Shared, q);
    static constexpr uint32_t kToDs = offsetof(Shared, ds) - offsetof(Shared, p);

    const Fm3BackwardArgs& args;
    Shared& shared;
    // Where this lane's rows of operands begin. Few, since registers are scarce; what lies at a fixed distance is found from them.
    uint32_t query;         // A of scores: the warp's 32 queries
    uint32_t key;           // B of scores: the warp's keys
    uint32_t score;         // A of sums over queries: P of the warp's 32 keys, transposed
    uint32_t query_column;  // B of sums over queries: the warp's columns of q, transposed
    uint32_t ds;            // A of dQ: dS of the warp's 32 queries
    uint32_t key_column;    // B of dQ: the warp's columns of k, transposed

    float dk[2][F::kKeyColumns / 2] = {}, dv[2][F::kKeyColumns / 2] = {};

    __device__ __forceinline__ BackwardBlock(const Fm3BackwardArgs& args, Shared& shared) : args(args), shared(shared) {
        const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
        const int down = row_of_lane_rows_first(lane), right = unit_of_lane_rows_first(lane);
        const int second_down = row_of_lane_columns_first(lane), second_right = unit_of_lane_columns_first(lane);
        const auto at = [](const T* tile, int row, int unit) {
            return ptx::shared_address(tile) + uint32_t(sizeof(T)) * place_of_unit<kD>(row, unit);
        };
        const auto score_at = [](const T* tile, int row, int unit) {
            return ptx::shared_address(tile) + uint32_t(sizeof(T)) * place_of_unit<kN>(row, unit);
        };
        query = at(shared.q[0], warp % F::kRowWarps * 32 + down, right);
        key = at(shared.k, warp / F::kRowWarps * F::kWarpKeys + second_down, second_right);
        score = address_across(score_at(shared.p, second_down, second_right), warp % F::kKeyWarps * 2);
        query_column = address_across(at(shared.q[0], down, right), warp / F::kKeyWarps * (F::kKeyColumns / 16));
        ds = score_at(shared.ds, warp % F::kRowWarps * 32 + down, right);
        key_column = address_across(at(shared.k, down, right), warp / F::kRowWarps * (F::kSumColumns / 16));
    }

    __device__ __forceinline__ int group() const { return args.heads / args.kv_heads; }
    __device__ __forceinline__ int mask_head(int head) const { return head / (args.heads / args.mask.heads); }
    // Of the numbers that are kept of rows.
    __device__ __forceinline__ int64_t row_index(const QueryTile& at) const {
        const int64_t padded = int64_t(ceil_div(args.mask.rows, kRowPadding)) * kRowPadding;
        return (int64_t(shared.item) * args.heads + at.head) * padded + int64_t(at.tile) * kM;
    }

    // By the warp that looks for tiles.
    __device__ __forceinline__ void find_runs(int head) {
        const int64_t first = int64_t(shared.column_tile) * kN;
        BlockBounds b{args.mask.rows, args.mask.rows, 0, 0, args.mask.rows, args.mask.rows, 0, 0};
        if (args.mask.bounds != nullptr) {
            const int64_t blocks = ceil_div(args.mask.columns, kBlock), mask = prepared_index(args.mask, shared.item, mask_head(head));
            b = load_bounds(reinterpret_cast<const int4*>(args.mask.bounds) + 2 * (mask * blocks * 3 + bounds_of<kN>(shared.column_tile)));
        }
        __syncwarp();
        if (threadIdx.x == 0) shared.runs = RowRuns<kM>(args.mask, b, first, first + kN);
        __syncwarp();
    }

    __device__ __forceinline__ bool kept(int head, int tile) const {
        if (args.mask.block_mask == nullptr) return true;
        const int bytes = (ceil_div(args.mask.columns, kBlock) + 7) / 8, block = shared.column_tile * kN / kBlock;
        const uint8_t* rows = args.mask.block_mask + shared.item * args.mask.block_strides[0] + mask_head(head) * args.mask.block_strides[1];
        return rows[int64_t(tile * kM / kBlock) * bytes + block / 8] >> (block % 8) & 1;
    }

    // The live query tile after this one. By one warp, which asks a block mask about 32 tiles at a time.
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

    // The hidden ones of the warp's queries, in lane l for its key l. Read anew for every tile that needs it: there are no
    // registers to keep it in.
    __device__ __forceinline__ uint32_t find_word(const QueryTile& at) const {
        const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
        const int64_t base = shared.item * args.mask.vector_strides[0] + mask_head(at.head) * args.mask.vector_strides[1];
        const int column = shared.column_tile * kN + warp / F::kRowWarps * F::kWarpKeys + lane % F::kWarpKeys;
        return hidden_word(hidden_rows(args.mask, base, column), at.tile * kM + warp % F::kRowWarps * 32);
    }

    __device__ __forceinline__ void hide(float (&s)[2][F::kWarpKeys / 2], uint32_t word) {
        const int lane = threadIdx.x % 32;
#pragma unroll
        for (int j = 0; j < F::kWarpKeys / 8; ++j) {
#pragma unroll
            for (int e = 0; e < 2; ++e) {
                const uint32_t hidden = __shfl_sync(~0u, word, 8 * j + 2 * (lane % 4) + e) >> (lane / 4);
#pragma unroll
                for (int i = 0; i < 2; ++i) {
#pragma unroll
                    for (int h = 0; h < 2; ++h) {
                        if (hidden >> (16 * i + 8 * h) & 1) s[i][4 * j + 2 * h + e] = -INFINITY;
                    }
                }
            }
        }
    }

    // The warp's P or dS to where all warps find it.
    __device__ __forceinline__ void put(T* tile, const float (&x)[2][F::kWarpKeys / 2]) {
        const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
#pragma unroll
        for (int i = 0; i < 2; ++i) {
#pragma unroll
            for (int h = 0; h < 2; ++h) {
                const int row = warp % F::kRowWarps * 32 + 16 * i + 8 * h + lane / 4;
#pragma unroll
                for (int j = 0; j < F::kWarpKeys / 8; ++j) {
                    const int unit = warp / F::kRowWarps * (F::kWarpKeys / 8) + j;
                    reinterpret_cast<uint32_t*>(tile + place_of_unit<kN>(row, unit))[lane % 4] =
                        ptx::packed(x[i][4 * j + 2 * h], x[i][4 * j + 2 * h + 1], T{});
                }
            }
        }
    }

    // P and dS of a tile.
    __device__ __forceinline__ void differentiate(const QueryTile& at, int stage, float scale_log2) {
        const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
        float s[2][F::kWarpKeys / 2] = {}, dp[2][F::kWarpKeys / 2] = {};
        uint32_t word = 0;
        if (at.partial) word = find_word(at);
        const uint32_t queries = ptx::opaque(query) + stage * kStage, keys = ptx::opaque(key);
        add_product<kD / 16, T>(s, Rows{queries}, Rows{keys});
        if (at.partial) hide(s, word);
        const int place = warp % F::kRowWarps * 32 + place_of_row(lane / 4);  // of the first of this lane's rows
#pragma unroll
        for (int i = 0; i < 2; ++i) {
#pragma unroll
            for (int h = 0; h < 2; ++h) {
                const float lse2 = shared.lse2[stage][place + 16 * i + 2 * h];
#pragma unroll
                for (int j = 0; j < F::kWarpKeys / 2; j += 4) {
#pragma unroll
                    for (int e = 0; e < 2; ++e) s[i][j + 2 * h + e] = exp2_fast(fmaf(s[i][j + 2 * h + e], scale_log2, -lse2));
                }
            }
        }
        put(shared.p, s);
        add_product<kD / 16, T>(dp, Rows{queries + kToDout}, Rows{keys + kToValues});
#pragma unroll
        for (int i = 0; i < 2; ++i) {
#pragma unroll
            for (int h = 0; h < 2; ++h) {
                const float delta = shared.delta[stage][place + 16 * i + 2 * h];
#pragma unroll
                for (int j = 0; j < F::kWarpKeys / 2; j += 4) {
#pragma unroll
                    for (int e = 0; e < 2; ++e) s[i][j + 2 * h + e] *= dp[i][j + 2 * h + e] - delta;
                }
            }
        }
        put(shared.ds, s);
    }

    // dQ of a tile, added to the sums.
    __device__ __forceinline__ void add_dq(const QueryTile& at) {
        float dq[2][F::kSums / 2] = {};
        add_product<kN / 16, T>(dq, Operand<false, kScorePitch>{ptx::opaque(ds)}, Columns{ptx::opaque(key_column)});
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
        if (threadIdx.x < 32) {
            find_runs(shared.kv_head * group());
            QueryTile tile{shared.kv_head * group(), -1, 0};
#pragma unroll 1
            for (int i = 0; i < 2; ++i) {
                tile = next(tile);
                if (threadIdx.x == 0) shared.tiles[i] = tile;
            }
        }
        __syncthreads();
        ask(shared.tiles[0], 0);
        int step = 0;
#pragma unroll 1
        for (; shared.tiles[step % 4].head >= 0; ++step) {
            const int stage = step % 2;
            // The tile has landed for everybody, and nobody needs anything of the one before.
            ptx::copy_wait<0>();
            __syncthreads();
            ask(shared.tiles[(step + 1) % 4], stage ^ 1);
            if (threadIdx.x < 32) {
                const QueryTile tile = next(shared.tiles[(step + 1) % 4]);
                if (threadIdx.x == 0) shared.tiles[(step + 2) % 4] = tile;
            }
            differentiate(shared.tiles[step % 4], stage, scale_log2);
            __syncthreads();
            add_dq(shared.tiles[step % 4]);
            const uint32_t scores = ptx::opaque(score), queries = ptx::opaque(query_column) + stage * kStage;
            add_product<kM / 16, T>(dv, Scores{scores}, Columns{queries + kToDout});
            add_product<kM / 16, T>(dk, Scores{scores + kToDs}, Columns{queries});
        }
        ptx::copy_wait<0>();
        __syncthreads();
        finish();
    }

    // dK and dV take the places of keys and values, for stores of whole rows.
    __device__ __forceinline__ void finish() {
        const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, first = shared.column_tile * kN;
        const auto fill = [&](const float(&x)[2][F::kKeyColumns / 2], float factor, T* tile) {
#pragma unroll
            for (int i = 0; i < 2; ++i) {
#pragma unroll
                for (int j = 0; j < F::kKeyColumns / 8; ++j) {
#pragma unroll
                    for (int h = 0; h < 2; ++h) {
                        const int row = warp % F::kKeyWarps * 32 + 16 * i + 8 * h + lane / 4;
                        const int unit = warp / F::kKeyWarps * (F::kKeyColumns / 8) + j;
                        reinterpret_cast<uint32_t*>(tile + place_of_unit<kD>(row, unit))[lane % 4] =
                            ptx::packed(x[i][4 * j + 2 * h] * factor, x[i][4 * j + 2 * h + 1] * factor, T{});
                    }
                }
            }
        };
        fill(dk, args.scale, shared.k);
        fill(dv, 1.f, shared.v);
        __syncthreads();
        const auto store = [&](T* tile, void* data, const int64_t(&strides)[3]) {
            T* head = static_cast<T*>(data) + shared.item * strides[0] + shared.kv_head * strides[2];
            store_tile<16, kD>(tile, head, strides[1], warp * 16, first, args.mask.columns);
        };
        store(shared.k, args.dk, args.dk_strides);
        store(shared.v, args.dv, args.dv_strides);
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
