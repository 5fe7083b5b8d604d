// The backward kernel of FlashMask as its first paper has it, for compute capability 8.0 and up.
//
// A block takes one column tile of a KV head and goes through the query tiles that it meets, in all query heads of the KV head,
// and adds up dK and dV in registers. A step has two halves, with all warps meeting before each: scores, P and dS, which every
// warp computes for 32 queries and a part of the keys and leaves in shared memory; then the three sums, for which every warp
// takes what it needs of them.
#pragma once

#include <cmath>
#include <cstddef>

#include "../sm90/softmax.cuh"
#include "hidden_words.cuh"
#include "product.cuh"
#include "query_tiles.cuh"
#include "tile_copy.cuh"

namespace fm3::sm80 {

// kFixed: dQ is summed in integers, whose sums do not depend on the order.
template <typename F, typename T, bool kFixed>
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

    // Of the numbers that are kept of rows.
    __device__ __forceinline__ int64_t row_index(const QueryTile& at) const {
        const int64_t padded = int64_t(ceil_div(args.mask.rows, kRowPadding)) * kRowPadding;
        return (int64_t(shared.item) * args.heads + at.head) * padded + int64_t(at.tile) * kM;
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
        const int64_t base = shared.item * args.mask.vector_strides[0] + mask_head(args, at.head) * args.mask.vector_strides[1];
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
        const int thread = ptx::opaque(int(threadIdx.x));
#pragma unroll
        for (int i = 0; i < F::kSums; ++i) {
            const float x = dq[i / (F::kSums / 2)][i % (F::kSums / 2)];
            if constexpr (kFixed) {
                const float factor = __ldg(args.fixed + row + F::sum_row(thread, i));
                atomicAdd(reinterpret_cast<int*>(to + i * F::kThreads), __float2int_rn(x * factor));
            } else {
                atomicAdd(to + i * F::kThreads, x);
            }
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
        QueryTiles<F, T> search{args, shared};
        if (threadIdx.x < 32) {
            QueryTile tile = search.start();
#pragma unroll 1
            for (int i = 0; i < 2; ++i) {
                tile = search.next(tile);
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
                const QueryTile tile = search.next(shared.tiles[(step + 1) % 4]);
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

template <typename F, typename T, bool kFixed>
__global__ void __launch_bounds__(F::kThreads, 1) backward(const __grid_constant__ Fm3BackwardArgs args) {
    extern __shared__ __align__(1024) unsigned char memory[];
    // Column tiles of a head one after another: what they share of queries, dO and sums stays in the L2 cache.
    const int column_tiles = ceil_div(args.mask.columns, F::kN), head = blockIdx.x / column_tiles;
    BackwardBlock<F, T, kFixed> block(args, *reinterpret_cast<typename F::template Shared<T>*>(memory));
    block.run(head / args.kv_heads, head % args.kv_heads, blockIdx.x % column_tiles);
}

}  // namespace fm3::sm80
