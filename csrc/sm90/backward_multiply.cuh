// The multiply role of the backward kernel: one warpgroup, 64 keys of every column tile of the block.
//
// Scores are computed transposed, keys by queries, so that probabilities and their gradients are the A operands of the
// products with dO and Q as they stand, and dK and dV stay in registers over all query tiles and all heads of the group.
// A thread then holds two keys: what is hidden of them is eight numbers in registers, whatever the mask is. Only dS goes
// through shared memory, where both warpgroups meet to multiply it with all keys of the tile.
#pragma once

#include "backward_args.h"
#include "backward_shape.cuh"
#include "fragments.cuh"
#include "hidden_bits.cuh"
#include "ptx/sync.cuh"
#include "ptx/wgmma.cuh"
#include "softmax.cuh"

namespace fm3 {

template <typename F, typename T>
struct BackwardMultiplyRole {
    using Shared = typename F::Shared;
    static constexpr int kD = F::kD, kM = F::kM, kN = F::kN;
    static constexpr int kSum = kD / F::kWarpgroups;  // columns of dQ of one warpgroup
    const Fm3BackwardArgs& args;
    const typename F::Maps& maps;
    Shared& shared;
    int warpgroup;
    float scale_log2;
    ptx::Ring<F::kQueryStages> query{};
    int heads = -1, items = 0, steps = 0;  // stages and parities of two follow from these

    // Scores and dP of one query tile. Not kept over steps: as an operand that is overwritten it would count as still in use.
    struct Tile {
        float s[kM / 2], dp[kM / 2];
    };

    struct State {
        float dk[kD / 2], dv[kD / 2];
        uint32_t ds[kM / 16][4];
    };

    // The stage of what is hidden moves on with the query heads.
    __device__ __forceinline__ void next_hidden() {
        if (heads >= 0) {
            __syncwarp();
            if (threadIdx.x % 32 == 0) ptx::arrive(&shared.hidden_empty[heads & 1]);
        }
        ++heads;
        ptx::wait(&shared.hidden_full[heads & 1], heads >> 1 & 1);
    }

    // Hides elements of a query tile: bit 8j + 2*(lane%4) + e of a key's 64 bits is its element (j, e).
    __device__ __forceinline__ void hide(float (&s)[kM / 2], int row_tile) const {
        const int r0 = row_tile * kM, shift = threadIdx.x % 4 * 2;
        const int key = warpgroup * 64 + threadIdx.x % 128 / 32 * 16 + threadIdx.x % 32 / 4;
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            const HiddenRows rows = shared.hidden[heads & 1][key + 8 * h];
            const Interval a = rows.lower, b = rows.upper;
#pragma unroll
            for (int word = 0; word < kM / 32; ++word) {
                const int r = r0 + 32 * word;
                const uint32_t bits = ((bits_below(a.end - r) & ~bits_below(a.start - r)) | (bits_below(b.end - r) & ~bits_below(b.start - r))) >> shift;
#pragma unroll
                for (int j = 0; j < 4; ++j) {
#pragma unroll
                    for (int e = 0; e < 2; ++e) {
                        float& x = s[4 * (4 * word + j) + 2 * h + e];
                        x = bits >> (8 * j + e) & 1 ? -INFINITY : x;
                    }
                }
            }
        }
    }

    // Keys by queries: A = rows of this warpgroup of a column tile, B = a query tile, both with the head dim contiguous.
    __device__ __forceinline__ void multiply_transposed(float (&s)[kM / 2], const T* keys, const T* rows) const {
        ptx::wgmma_fence();
#pragma unroll
        for (int step = 0; step < kD / 16; ++step) {
            const uint64_t a = ptx::descriptor(keys + (step / 4) * kN * 64 + warpgroup * 64 * 64, 0) + 2 * (step % 4);
            const uint64_t b = ptx::descriptor(rows + (step / 4) * kM * 64, 0) + 2 * (step % 4);
            ptx::Wgmma<kM, T, ptx::Major::kK>::shared(s, a, b, step > 0);
        }
        ptx::wgmma_commit();
    }

    // sums += x * rows, with x 64 keys by 64 queries in registers.
    __device__ __forceinline__ void add_product(float (&sums)[kD / 2], const uint32_t (&x)[kM / 16][4], const T* rows) const {
        const uint64_t b = ptx::descriptor(rows, kM * 128);
        ptx::wgmma_fence();
#pragma unroll
        for (int step = 0; step < kM / 16; ++step) ptx::Wgmma<kD, T, ptx::Major::kMN>::registers(sums, x[step], b + 128 * step, 1);
        ptx::wgmma_commit();
    }

    // This warpgroup's columns of dS * K.
    __device__ __forceinline__ void multiply_ds(float (&dq)[kSum / 2], const T* ds) const {
        const int column = warpgroup * kSum;
        const T* keys = shared.k + column / 64 * kN * 64 + column % 64;
        const uint64_t b = ptx::descriptor(keys, kN * 128);
        ptx::wgmma_fence();
#pragma unroll
        for (int step = 0; step < kN / 16; ++step) {
            const uint64_t a = ptx::descriptor(ds + (step / 4) * kM * 64, 0) + 2 * (step % 4);
            ptx::Wgmma<kSum, T, ptx::Major::kMN>::shared(dq, a, b + 128 * step, step > 0);
        }
        ptx::wgmma_commit();
    }

    // dS, keys by queries in registers, to queries by keys in the swizzle: one stmatrix turns 16 keys by 16 queries.
    __device__ __forceinline__ void store_ds(const uint32_t (&ds)[kM / 16][4], T* to) const {
        const int lane = threadIdx.x % 32, warp = threadIdx.x % 128 / 32;
        // Matrix lane/8 holds keys 8*(m%2) of this warp's 16 and queries 8*(m/2) of 16.
        const int unit = 2 * warp + lane / 8 % 2;  // of 8 keys, within this warpgroup's 64
#pragma unroll
        for (int i = 0; i < kM / 16; ++i) {
            const int row = 16 * i + lane / 16 * 8 + lane % 8;
            const T* address = to + warpgroup * kM * 64 + row * 64 + (unit ^ (row % 8)) * 8;
            asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(ptx::shared_address(address)),
                         "r"(ds[i][0]), "r"(ds[i][1]), "r"(ds[i][2]), "r"(ds[i][3])
                         : "memory");
        }
    }

    // A part of dQ goes to the adding thread in the order of the registers, 16 bytes a thread at a time.
    __device__ __forceinline__ void hand_over(const float (&dq)[kSum / 2], int64_t rows) {
        const int thread = threadIdx.x % 128;
        ptx::wait(&shared.dq_empty[warpgroup], steps & 1 ^ 1);
        float4* parts = reinterpret_cast<float4*>(shared.dq[warpgroup]);
#pragma unroll
        for (int i = 0; i < kSum / 8; ++i) parts[i * 128 + thread] = {dq[4 * i], dq[4 * i + 1], dq[4 * i + 2], dq[4 * i + 3]};
        if (thread == 0) shared.sums[warpgroup] = rows * kD + warpgroup * kM * kSum;
        ptx::fence_async_proxy();
        __syncwarp();
        if (thread % 32 == 0) ptx::arrive(&shared.dq_full[warpgroup]);
        ++steps;
    }

    // A gradient leaves through `tile`, 64 rows of this warpgroup; every warp stores its 16.
    __device__ __forceinline__ void store(const float (&x)[kD / 2], float factor, T* tile, const CUtensorMap* map, const typename F::Work& work) const {
        int thread = threadIdx.x % 128;
        asm volatile("" : "+r"(thread));  // opaque: addresses kept over the loop would spill
        const int warp = thread / 32, lane = thread % 32, part = lane / 8, first = 16 * warp;
        const int row = first + 8 * (part % 2) + lane % 8;
#pragma unroll
        for (int j = 0; j < kD / 8; j += 2) {
            uint32_t out[4];
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                const int from = 4 * (j + i / 2) + 2 * (i % 2);
                out[i] = ptx::packed(x[from] * factor, x[from + 1] * factor, T{});
            }
            const int column = 8 * (j + part / 2);
            const T* to = tile + (column / 64) * 64 * 64 + row * 64 + (((column % 64) / 8) ^ (row % 8)) * 8;
            asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(ptx::shared_address(to)),
                         "r"(out[0]), "r"(out[1]), "r"(out[2]), "r"(out[3])
                         : "memory");
        }
        ptx::fence_async_proxy();
        __syncwarp();
        if (lane == 0) {
#pragma unroll 1
            for (int chunk = 0; chunk < F::kChunks; ++chunk) {
                ptx::tma_store(
                    map, tile + chunk * 64 * 64 + first * 64, work.column_tile * kN + warpgroup * 64 + first, chunk, work.head, work.item);
            }
            ptx::store_commit();
        }
    }

    // The buffers that gradients left through can be written again, by both warpgroups.
    __device__ __forceinline__ void settle_stores() {
        if (threadIdx.x % 32 == 0) ptx::store_wait_read();
        __syncwarp();
        ptx::named_sync(F::kTogether, 128 * F::kWarpgroups);
    }

    __device__ __forceinline__ bool leads() const { return threadIdx.x % 128 == 0; }

    // Scores to probabilities and dP to dS, as A operand and for both warpgroups; dV takes its part. On entry the scores are
    // there and dP is in flight, on exit nothing is.
    __device__ __forceinline__ void soften(State& x, Tile& y, int flags) {
        const int at = query.stage, grads = steps & 1, lane = threadIdx.x % 32;
        if (flags & kNewHead) next_hidden();
        if (flags & kCut) hide(y.s, shared.row_tile[at]);
#pragma unroll
        for (int j = 0; j < kM / 8; ++j) {
            const float2 lse2 = *reinterpret_cast<const float2*>(&shared.lse2[at][8 * j + 2 * (lane % 4)]);
#pragma unroll
            for (int h = 0; h < 2; ++h) {
                y.s[4 * j + 2 * h] = exp2_fast(fmaf(y.s[4 * j + 2 * h], scale_log2, -lse2.x));
                y.s[4 * j + 2 * h + 1] = exp2_fast(fmaf(y.s[4 * j + 2 * h + 1], scale_log2, -lse2.y));
            }
        }
        uint32_t p[kM / 16][4];
        pack<T>(y.s, p);
        add_product(x.dv, p, shared.dout[grads]);
        ptx::wgmma_wait<1>();
        ptx::hold(y.dp);
        if (flags & kEndsItem && leads()) ptx::arrive(&shared.v_empty);
#pragma unroll
        for (int j = 0; j < kM / 8; ++j) {
            const float2 delta = *reinterpret_cast<const float2*>(&shared.delta[grads][8 * j + 2 * (lane % 4)]);
#pragma unroll
            for (int h = 0; h < 2; ++h) {
                const float2 prob = ptx::unpacked(p[j / 2][j % 2 * 2 + h], T{});
                x.ds[j / 2][j % 2 * 2 + h] = ptx::packed(
                    prob.x * (y.dp[4 * j + 2 * h] - delta.x), prob.y * (y.dp[4 * j + 2 * h + 1] - delta.y), T{});
            }
        }
        store_ds(x.ds, shared.ds[grads]);
        ptx::fence_async_proxy();
        ptx::named_sync(F::kTogether, 128 * F::kWarpgroups);
        ptx::wgmma_wait<0>();
        ptx::hold(x.dv);
        if (leads()) ptx::arrive(&shared.dout_empty[grads]);
    }

    __device__ __forceinline__ void multiply_scores(Tile& y) { multiply_transposed(y.s, shared.k, shared.q[query.stage]); }

    __device__ __forceinline__ void multiply_grads(Tile& y) {
        ptx::wait(&shared.dout_full[steps & 1], steps >> 1 & 1);
        multiply_transposed(y.dp, shared.v, shared.dout[steps & 1]);
    }

    __device__ __forceinline__ void release_queries(int at) {
        __syncwarp();
        if (threadIdx.x % 32 == 0) ptx::arrive(&shared.q_empty[at]);
    }

    // From one query tile to the next: dQ and dK of the one, scores and dP of the other. Returns the flags of the other.
    __device__ __forceinline__ int go_on(State& x, Tile& y) {
        const int at = query.stage;
        float dq[kSum / 2];
        multiply_ds(dq, shared.ds[steps & 1]);
        add_product(x.dk, x.ds, shared.q[at]);
        query.advance();
        ptx::wgmma_wait<1>();
        ptx::hold(dq);
        hand_over(dq, shared.rows[at]);
        ptx::wait(&shared.q_full[query.stage], query.parity);
        ptx::wgmma_wait<0>();
        ptx::hold(x.dk);
        multiply_scores(y);
        multiply_grads(y);
        ptx::wgmma_wait<1>();
        ptx::hold(y.s);
        release_queries(at);
        return shared.flags[query.stage];
    }

    // The products of both warpgroups are queued so that the matrix units have work while the warpgroups, which meet in every
    // step, do arithmetic: dP beside the exponentials, dV beside dS.
    __device__ __forceinline__ void run_item(State& x, int flags) {
        {
            Tile y;
            multiply_scores(y);
            multiply_grads(y);
            ptx::wgmma_wait<1>();
            ptx::hold(y.s);
            soften(x, y, flags);
        }
#pragma unroll 1
        while (!(flags & kEndsItem)) {
            Tile y;
            flags = go_on(x, y);
            soften(x, y, flags);
        }
        float dq[kSum / 2];
        multiply_ds(dq, shared.ds[steps & 1]);
        add_product(x.dk, x.ds, shared.q[query.stage]);
        ptx::wgmma_wait<1>();
        ptx::hold(dq);
        if (leads()) ptx::arrive(&shared.k_empty);
        hand_over(dq, shared.rows[query.stage]);
        ptx::wgmma_wait<0>();
        ptx::hold(x.dk);
        release_queries(query.stage);
        query.advance();
    }

    __device__ void run() {
        State x;
        for (;;) {
            ptx::wait(&shared.q_full[query.stage], query.parity);
            const int flags = shared.flags[query.stage];
            if (flags & kNoWork) break;
            ptx::wait(&shared.k_full, items & 1);
            ptx::wait(&shared.v_full, items & 1);
            const auto& work = shared.work[items & 1];
            ++items;
#pragma unroll
            for (int i = 0; i < kD / 2; ++i) x.dk[i] = x.dv[i] = 0.f;
            settle_stores();
            if (flags & kNoRows) {
                if (leads()) {
                    ptx::arrive(&shared.v_empty);
                    ptx::arrive(&shared.k_empty);
                }
                release_queries(query.stage);
                query.advance();
            } else {
                run_item(x, flags);
            }
            // Both have multiplied with the last dS, and the sums of dQ have left.
            ptx::named_sync(F::kTogether, 128 * F::kWarpgroups);
            ptx::wait(&shared.dq_empty[warpgroup], steps & 1 ^ 1);
            store(x.dv, 1.f, shared.ds[0] + warpgroup * 64 * kD, &maps.dv, work);
            store(x.dk, args.scale, reinterpret_cast<T*>(shared.dq[warpgroup]), &maps.dk, work);
        }
        if (threadIdx.x % 32 == 0) ptx::store_wait_read();
        ptx::wait(&shared.dq_empty[warpgroup], steps & 1 ^ 1);
        if (leads()) shared.sums[warpgroup] = -1;
        __syncwarp();
        if (threadIdx.x % 32 == 0) ptx::arrive(&shared.dq_full[warpgroup]);
    }
};

}  // namespace fm3
