// The multiply role of the backward kernel: one warpgroup, 64 keys of every column tile of the block.
//
// Scores are computed transposed, keys by queries, so that probabilities and their gradients are the A operands of the
// products with dO and Q as they stand, and dK and dV stay in registers over all query tiles and all heads of the group.
// A thread then holds two keys: what is hidden of them is eight numbers, whatever the mask is. Only dS goes through shared
// memory, so that both warpgroups can multiply it with all keys of the tile, half of the head dim each.
#pragma once

#include "backward_args.h"
#include "backward_shape.cuh"
#include "fragments.cuh"
#include "hidden_bits.cuh"
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

    struct State {
        float dk[kD / 2], dv[kD / 2];
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
#pragma unroll
            for (int word = 0; word < kM / 32; ++word) {
                const uint32_t bits = word_of(rows, r0 + 32 * word) >> shift;
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
    __device__ __forceinline__ void hand_over(const float (&dq)[kSum / 2], int of, unsigned tile) {
        const int thread = threadIdx.x % 128;
        ptx::wait(&shared.dq_empty[warpgroup], of & 1 ^ 1);
        float4* parts = reinterpret_cast<float4*>(shared.dq[warpgroup]);
#pragma unroll
        for (int i = 0; i < kSum / 8; ++i) parts[i * 128 + thread] = {dq[4 * i], dq[4 * i + 1], dq[4 * i + 2], dq[4 * i + 3]};
        if (thread == 0) shared.sums[warpgroup] = (int64_t(tile) * kD + warpgroup * kSum) * kM;
        ptx::fence_async_proxy();
        __syncwarp();
        if (thread % 32 == 0) ptx::arrive(&shared.dq_full[warpgroup]);
    }

    // A gradient leaves through `tile`, 64 rows of this warpgroup; every warp stores its 16.
    __device__ __forceinline__ void store(const float (&x)[kD / 2], float factor, T* tile, const CUtensorMap* map, const typename F::Work& work) const {
        int thread = threadIdx.x % 128;
        asm volatile("" : "+r"(thread));  // opaque: addresses kept over the loop would spill
        const int warp = thread / 32, lane = thread % 32, part = lane / 8, first = 16 * warp;
        store_rows(x, {factor, factor}, tile, 64, first + 8 * (part % 2) + lane % 8, part);
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

    __device__ __forceinline__ bool leads() const { return threadIdx.x % 128 == 0; }

    // The gradients of the item before have left the buffers of dS and dQ.
    __device__ __forceinline__ void wait_for_staging() { ptx::wait(&shared.staged, items & 1 ^ 1); }

    __device__ __forceinline__ void release_queries() {
        __syncwarp();
        if (threadIdx.x % 32 == 0) ptx::arrive(&shared.q_empty[query.stage]);
        query.advance();
    }

    // Scores and dP to P and dS, both as A operands; dS also for both warpgroups.
    template <bool kFirst>
    __device__ __forceinline__ void make_operands(uint32_t (&p)[kM / 16][4], uint32_t (&ds)[kM / 16][4], int flags) {
        const int at = query.stage, second = steps & 1, lane = threadIdx.x % 32;
        float s[kM / 2], dp[kM / 2];
        multiply_transposed(s, shared.k, shared.q[at]);
        ptx::wait(&shared.dout_full[second], steps >> 1 & 1);
        multiply_transposed(dp, shared.v, shared.dout[second]);
        if (flags & kNewHead) next_hidden();
        ptx::wgmma_wait<1>();
        ptx::hold(s);
        if (flags & kCut) hide(s, shared.row_tile[at]);
        const float4* lse2 = reinterpret_cast<const float4*>(shared.lse2[at]) + lane % 4;
        const float4* delta = reinterpret_cast<const float4*>(shared.delta[second]) + lane % 4;
#pragma unroll
        for (int i = 0; i < kM / 16; ++i) {
            const float4 of = lse2[4 * i];
            const float subtract[4] = {of.x, of.y, of.z, of.w};
#pragma unroll
            for (int e = 0; e < 8; ++e) s[8 * i + e] = exp2_fast(fmaf(s[8 * i + e], scale_log2, -subtract[e / 4 * 2 + e % 2]));
        }
        pack<T>(s, p);
        ptx::wgmma_wait<0>();
        ptx::hold(dp);
        if (flags & kEndsItem && leads()) ptx::arrive(&shared.v_empty);
#pragma unroll
        for (int i = 0; i < kM / 16; ++i) {
            const float4 of = delta[4 * i];
            const float subtract[4] = {of.x, of.y, of.z, of.w};
#pragma unroll
            for (int e = 0; e < 4; ++e) {
                // P as it was rounded: its registers are all that is left of it.
                const float2 prob = ptx::unpacked(p[i][e], T{});
                const float* gradient = dp + 8 * i + 2 * e;
                ds[i][e] = ptx::packed(
                    prob.x * (gradient[0] - subtract[e / 2 * 2]), prob.y * (gradient[1] - subtract[e / 2 * 2 + 1]), T{});
            }
        }
        ptx::wait(&shared.ds_empty[second], steps >> 1 & 1 ^ 1);
        if constexpr (kFirst) wait_for_staging();
        store_ds(ds, shared.ds[second]);
        ptx::fence_async_proxy();
        __syncwarp();
        if (lane == 0) ptx::arrive(&shared.ds_full[second]);
    }

    // Queues this warpgroup's part of dQ of a step.
    __device__ __forceinline__ void queue_sums(float (&dq)[kSum / 2], int of) {
        ptx::wait(&shared.ds_full[of & 1], of >> 1 & 1);
        multiply_ds(dq, shared.ds[of & 1]);
    }

    __device__ __forceinline__ void finish_sums(const float (&dq)[kSum / 2], int of, unsigned tile) {
        if (leads()) ptx::arrive(&shared.ds_empty[of & 1]);
        hand_over(dq, of, tile);
    }

    // One query tile. dQ is that of the tile before: by then the other warpgroup has its part of dS ready, so that the two never
    // wait for each other as long as they are less than a step apart, and one multiplies while the other does arithmetic.
    template <bool kFirst>
    __device__ __forceinline__ unsigned step(State& x, int flags, unsigned tile_before) {
        uint32_t p[kM / 16][4], ds[kM / 16][4];
        make_operands<kFirst>(p, ds, flags);
        const int second = steps & 1;
        float dq[kSum / 2];
        if constexpr (!kFirst) queue_sums(dq, steps - 1);
        add_product(x.dv, p, shared.dout[second]);
        add_product(x.dk, ds, shared.q[query.stage]);
        if constexpr (!kFirst) {
            ptx::wgmma_wait<2>();
            ptx::hold(dq);
            finish_sums(dq, steps - 1, tile_before);
        }
        ptx::wgmma_wait<0>();
        ptx::hold(x.dv);
        ptx::hold(x.dk);
        if (leads()) ptx::arrive(&shared.dout_empty[second]);
        const unsigned tile = shared.tile[query.stage];
        release_queries();
        ++steps;
        return tile;
    }

    __device__ __forceinline__ void run_item(State& x, int flags) {
        unsigned tile = step<true>(x, flags, 0);
        asm volatile("" : "+r"(warpgroup));  // opaque: addresses kept from the first step for the loop would spill
#pragma unroll 1
        while (!(flags & kEndsItem)) {
            ptx::wait(&shared.q_full[query.stage], query.parity);
            flags = shared.flags[query.stage];
            tile = step<false>(x, flags, tile);
        }
        float dq[kSum / 2];
        queue_sums(dq, steps - 1);
        ptx::wgmma_wait<0>();
        ptx::hold(dq);
        if (leads()) ptx::arrive(&shared.k_empty);
        finish_sums(dq, steps - 1, tile);
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
            if (threadIdx.x % 32 == 0) {
                ptx::store_wait_read();
                ptx::arrive(&shared.staged);
            }
            ++items;
#pragma unroll
            for (int i = 0; i < kD / 2; ++i) x.dk[i] = x.dv[i] = 0.f;
            if (flags & kNoRows) {
                wait_for_staging();
                if (leads()) {
                    ptx::arrive(&shared.v_empty);
                    ptx::arrive(&shared.k_empty);
                }
                release_queries();
            } else {
                run_item(x, flags);
            }
            // Both warpgroups have multiplied with the dS in the buffer that dV leaves through.
            const int next = steps + (steps + warpgroup) % 2;  // the step that would use it
            ptx::wait(&shared.ds_empty[warpgroup], next >> 1 & 1 ^ 1);
            store(x.dv, 1.f, shared.ds[warpgroup], &maps.dv, work);
            ptx::wait(&shared.dq_empty[warpgroup], steps & 1 ^ 1);
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
