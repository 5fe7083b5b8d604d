// The forward kernel of FlashMask as its first paper has it, for compute capability 8.0 and up.
//
// A block takes one row tile of a head and goes through the column tiles that it sees, four warps with rows of their own. Keys
// and values take turns in a ring of buffers: while the products of one are under way, the copies of the next ones are.
#pragma once

#include <cmath>

#include "../sm90/fragments.cuh"
#include "../sm90/tiles.cuh"
#include "hidden_words.cuh"
#include "product.cuh"
#include "row_softmax.cuh"
#include "tile_copy.cuh"
#include "tile_list.cuh"

namespace fm3::sm80 {

template <int kHeadDim>
struct Forward {
    static constexpr int kD = kHeadDim;
    static constexpr int kM = kD <= 128 ? 128 : 64;
    static constexpr int kN = kD <= 128 ? 64 : 32;
    static constexpr int kWarps = 4, kThreads = 32 * kWarps;
    static constexpr int kWarpRows = kM / kWarps, kSubtiles = kWarpRows / 16;
    static constexpr int kRing = 2;                      // buffers of keys and values
    static constexpr int kBlocks = 2;                    // a multiprocessor
    static constexpr int kRowTiles = kBlock / kM;        // of a row tile of the prepared order

    template <typename T>
    struct __align__(1024) Shared {
        T q[kM * kD];
        T ring[kRing][kN * kD];
        TileVectors<kN> vectors[2];
        uint32_t words[kWarps][kN];
        TileList list;
        WorkItem work;         // its row tile counted in tiles of kM; here, like all that follows, since registers are scarce
        int mask_head;
        const T* heads[2];     // row 0 of the keys and of the values
        int64_t vectors_from;  // where the mask's vectors begin
    };
};

template <typename F, typename T>
struct ForwardBlock {
    static constexpr int kD = F::kD, kM = F::kM, kN = F::kN, kSubtiles = F::kSubtiles;
    static constexpr uint32_t kPitch = kD * sizeof(T), kTileBytes = kN * kPitch;
    using Shared = typename F::template Shared<T>;
    using Rows = Operand<false, kPitch>;

    const Fm3ForwardArgs& args;
    Shared& shared;
    uint32_t query, key, value;  // where this lane's rows of operands begin, in the first buffer of the ring

    RowSoftmax<2 * kSubtiles> softmax;
    float out[kSubtiles][kD / 2];

    __device__ __forceinline__ ForwardBlock(const Fm3ForwardArgs& args, Shared& shared) : args(args), shared(shared) {
        const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
        const auto at = [](const T* tile, int row, int unit) {
            return ptx::shared_address(tile) + uint32_t(sizeof(T)) * place_of_unit<kD>(row, unit);
        };
        query = at(shared.q, warp * F::kWarpRows + row_of_lane_rows_first(lane), unit_of_lane_rows_first(lane));
        key = at(shared.ring[0], row_of_lane_columns_first(lane), unit_of_lane_columns_first(lane));
        value = at(shared.ring[0], row_of_lane_rows_first(lane), unit_of_lane_rows_first(lane));
#pragma unroll
        for (int i = 0; i < kSubtiles; ++i) {
#pragma unroll
            for (int j = 0; j < kD / 2; ++j) out[i][j] = 0.f;
        }
    }

    // Buffer of the keys (which = 0) or values (1) of a step.
    static __device__ __forceinline__ uint32_t buffer(int step, int which) {
        if constexpr (F::kRing % 2 == 0) return uint32_t(step % (F::kRing / 2) * 2 + which) * kTileBytes;
        return uint32_t((2 * step + which) % F::kRing) * kTileBytes;
    }

    // Starts the copy of the tile that is `ahead` turns behind the keys (which = 0) or values (1) of a step. Where no step ahead
    // can be a partial one, it is not asked whether it is.
    template <bool kPartial>
    __device__ __forceinline__ void ask(int step, int which, int ahead) {
        const int turn = which + ahead, of = step + turn / 2;
        if (of < shared.list.all) {
            const int first = shared.list.tile(of) * kN;
            const int64_t stride = turn % 2 == 0 ? args.k_strides[1] : args.v_strides[1];
            copy_tile<kN, kD, F::kThreads>(ptx::shared_address(shared.ring) + buffer(of, turn % 2), shared.heads[turn % 2], stride, first,
                                           args.mask.columns);
            if (kPartial && turn % 2 == 0 && of < shared.list.partial && args.mask.lts != nullptr) {
                copy_vectors<kN, F::kThreads>(shared.vectors[of % 2], args.mask, shared.vectors_from, first);
            }
        }
        ptx::copy_commit();
    }

    // The tile of this turn has landed for everybody, and nobody needs the one before: its buffer is filled anew.
    template <bool kPartial>
    __device__ __forceinline__ void turn(int step, int which) {
        ptx::copy_wait<F::kRing - 2>();
        __syncthreads();
        ask<kPartial>(step, which, F::kRing - 1);
    }

    __device__ __forceinline__ void multiply_values(int step, const float (&p)[kSubtiles][kN / 2]) {
        const Operand<true, kPitch> values{ptx::opaque(value) + buffer(step, 1)};
        uint32_t a[kSubtiles][kN / 16][4];
#pragma unroll
        for (int i = 0; i < kSubtiles; ++i) pack<T>(p[i], a[i]);
#pragma unroll
        for (int k = 0; k < kN / 16; ++k) {
#pragma unroll
            for (int j = 0; j < kD / 16; ++j) {
                uint32_t b[4];
                values.load(b, j, k);
#pragma unroll
                for (int i = 0; i < kSubtiles; ++i) add_block<T>(&out[i][8 * j], a[i][k], b);
            }
        }
    }

    __device__ __forceinline__ void hide(int step, float (&s)[kSubtiles][kN / 2]) {
        const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
        uint32_t(&words)[kN] = shared.words[warp];
        make_words<kN>(words, shared.vectors[step % 2], args.mask, shared.list.tile(step) * kN,
                       shared.work.row_tile * kM + warp * F::kWarpRows);
#pragma unroll
        for (int j = 0; j < kN / 8; ++j) {
            const uint2 two = reinterpret_cast<const uint2*>(words)[4 * j + lane % 4];
            const uint32_t hidden[2] = {two.x >> (lane / 4), two.y >> (lane / 4)};
#pragma unroll
            for (int i = 0; i < kSubtiles; ++i) {
#pragma unroll
                for (int x = 0; x < 4; ++x) {
                    if (hidden[x % 2] >> (16 * i + 8 * (x / 2)) & 1) s[i][4 * j + x] = -INFINITY;
                }
            }
        }
    }

    template <bool kPartial>
    __device__ __forceinline__ void step(int step, float scale_log2, float slack) {
        float s[kSubtiles][kN / 2] = {};
        turn<kPartial>(step, 0);
        add_product<kD / 16, T>(s, Rows{ptx::opaque(query)}, Rows{ptx::opaque(key) + buffer(step, 0)});
        turn<kPartial>(step, 1);
        if constexpr (kPartial) hide(step, s);
        softmax.add(s, out, scale_log2, slack);
        multiply_values(step, s);
    }

    __device__ __forceinline__ void begin(const WorkItem& work) {
        const int r0 = work.row_tile * kM;
        const T* head = static_cast<const T*>(args.q) + work.item * args.q_strides[0] + work.head * args.q_strides[2];
        copy_tile<kM, kD, F::kThreads>(ptx::shared_address(shared.q), head, args.q_strides[1], r0, args.mask.rows);
        ptx::copy_commit();
        for (TileVectors<kN>& vectors : shared.vectors) set_absent<kN, F::kThreads>(vectors, args.mask);
        if (threadIdx.x == 0) {
            const int kv_head = work.head / (args.heads / args.kv_heads);
            shared.work = work;
            shared.mask_head = mask_head(args, work);
            shared.heads[0] = static_cast<const T*>(args.k) + work.item * args.k_strides[0] + kv_head * args.k_strides[2];
            shared.heads[1] = static_cast<const T*>(args.v) + work.item * args.v_strides[0] + kv_head * args.v_strides[2];
            shared.vectors_from = work.item * args.mask.vector_strides[0] + shared.mask_head * args.mask.vector_strides[1];
        }
        __syncthreads();
    }

    __device__ __forceinline__ void run() {
        constexpr float kLog2E = 1.4426950408889634f;
        const float scale_log2 = args.scale * kLog2E, slack = softmax.kSlack / scale_log2;
#pragma unroll 1
        for (int first = 0; int64_t(first) * kN < args.mask.columns; first = shared.list.first + kListed) {
            const WorkItem work = shared.work;
            const int r0 = work.row_tile * kM;
            const TileSearch<kN> search(args.mask, work.item, shared.mask_head, r0, min(r0 + kM, args.mask.rows));
            search.template write<F::kThreads>(shared.list, first);
            if (shared.list.all == 0) continue;
#pragma unroll
            for (int i = 0; i < F::kRing - 1; ++i) ask<true>(0, 0, i);
            int at = 0;
#pragma unroll 1
            for (; at < shared.list.partial; ++at) step<true>(at, scale_log2, slack);
#pragma unroll 1
            for (; at < shared.list.all; ++at) step<false>(at, scale_log2, slack);
        }
        finish(scale_log2);
    }

    // Every warp brings its rows through the buffer of its queries, for stores of whole rows.
    __device__ __forceinline__ void finish(float scale_log2) {
        constexpr float kLn2 = 0.6931471805599453f;
        const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, top = warp * F::kWarpRows;
        const WorkItem work = shared.work;
        const int r0 = work.row_tile * kM;
        ptx::copy_wait<0>();
        __syncthreads();  // without a step, copies of queries may have been under way
        float* lse = args.lse + (int64_t(work.item) * args.heads + work.head) * args.mask.rows;
        float factor[2 * kSubtiles];
#pragma unroll
        for (int r = 0; r < 2 * kSubtiles; ++r) {
            const int row = r0 + top + r * 8 + lane / 4;
            const float sum = quad_sum(softmax.sum[r]);
            factor[r] = sum == 0.f ? 0.f : 1.f / sum;
            if (lane % 4 == 0 && row < args.mask.rows) {
                lse[row] = sum == 0.f ? -INFINITY : fmaf(softmax.base[r], scale_log2, log2f(sum)) * kLn2;
            }
        }
#pragma unroll
        for (int i = 0; i < kSubtiles; ++i) put_rows<kD>(out[i], factor[2 * i], factor[2 * i + 1], shared.q, top + 16 * i);
        __syncwarp();
        T* head = static_cast<T*>(args.out) + work.item * args.out_strides[0] + work.head * args.out_strides[2];
        store_tile<F::kWarpRows, kD>(shared.q, head, args.out_strides[1], top, r0, args.mask.rows);
    }
};

// One block a row tile of a head, in the order of `decode` (../sm90/tiles.cuh).
template <int kHeadDim, typename T>
__global__ void __launch_bounds__(Forward<kHeadDim>::kThreads, Forward<kHeadDim>::kBlocks)
    forward(const __grid_constant__ Fm3ForwardArgs args) {
    using F = Forward<kHeadDim>;
    extern __shared__ __align__(1024) unsigned char memory[];
    WorkItem work = decode(args, blockIdx.x / F::kRowTiles, ceil_div(args.mask.rows, kBlock));
    work.row_tile = (work.row_tile + 1) * F::kRowTiles - 1 - blockIdx.x % F::kRowTiles;
    if (work.row_tile * F::kM >= args.mask.rows) return;
    ForwardBlock<F, T> block(args, *reinterpret_cast<typename F::template Shared<T>*>(memory));
    block.begin(work);
    block.run();
}

}  // namespace fm3::sm80
