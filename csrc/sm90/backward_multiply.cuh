// The multiply role of the backward kernel: one warpgroup, 64 keys of every column tile of the block.
//
// Scores are computed transposed, keys by queries, so that probabilities and their gradients are the A operands of the
// products with dO and Q as they stand, and dK and dV stay in registers over all query tiles and all heads of the group.
// A thread then holds two keys: what is hidden of them is eight numbers, whatever the mask is. Only dS goes through shared
// memory, so that both warpgroups can multiply it with all keys of the tile, half of the head dim each.
#pragma once

#include "backward_args.h"
#include "backward_shape.cuh"
#include "backward_sums.cuh"
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
    static constexpr int kSum = F::kSumColumns;  // of dQ, of one warpgroup
    const Fm3BackwardArgs& args;
    Shared& shared;
    int warpgroup;
    float scale_log2;
    ptx::Ring<F::kQueryStages> query{};
    int steps = 0;  // stages and parities of two and four follow from it

    struct State {
        float dk[kD / 2], dv[kD / 2];
    };

    // Hides elements of a query tile: bit 8j + 2*(lane%4) + e of a key's 64 bits is its element (j, e).
    __device__ __forceinline__ void hide(float (&s)[kM / 2], int row_tile, int stage) const {
        const int r0 = row_tile * kM, shift = threadIdx.x % 4 * 2;
        const int key = warpgroup * 64 + threadIdx.x % 128 / 32 * 16 + threadIdx.x % 32 / 4;
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            const HiddenRows rows = shared.hidden[stage][key + 8 * h];
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

    // This warpgroup's rows or columns of dS * K.
    __device__ __forceinline__ void multiply_ds(float (&dq)[kSum / 2], const T* ds) const {
        constexpr bool kByRows = F::kSumRows < kM;
        const int column = kByRows ? 0 : warpgroup * kSum;
        const T* keys = shared.k + column / 64 * kN * 64 + column % 64;
        if (kByRows) ds += warpgroup * F::kSumRows * 64;
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

    // A part of dQ goes to the adding thread as a warp's rows, 16 bytes a thread at a time in the order of its registers.
    __device__ __forceinline__ void hand_over(float (&dq)[kSum / 2], int of, bool ends) {
        const int thread = threadIdx.x % 128;
        if constexpr (F::kFixed) {
            const int first = F::kSumRows < kM ? warpgroup * F::kSumRows : 0;
            const float* factor = shared.fixed[of & 3] + first + thread / 32 * 16 + thread % 32 / 4;
#pragma unroll
            for (int i = 0; i < kSum / 2; ++i) dq[i] = __int_as_float(__float2int_rn(dq[i] * factor[i / 2 % 2 * 8]));
        }
        ptx::wait(&shared.dq_empty[warpgroup], of & 1 ^ 1);
        float4* parts = reinterpret_cast<float4*>(shared.dq[warpgroup]) + thread / 32 * (4 * kSum) + thread % 32;
#pragma unroll
        for (int i = 0; i < kSum / 8; ++i) parts[i * 32] = {dq[4 * i], dq[4 * i + 1], dq[4 * i + 2], dq[4 * i + 3]};
        if (thread == 0) shared.sums[warpgroup] = {int64_t(shared.sums_tile[of & 3]) * (kM * kD) + warpgroup * (F::kSumRows * kSum), shared.sums_head[of & 3], ends};
        ptx::fence_async_proxy();
        __syncwarp();
        if (thread % 32 == 0) ptx::arrive(&shared.dq_full[warpgroup]);
    }

    // A gradient of the item's keys, 64 rows of this warpgroup, straight to memory: there is no buffer that it would not wait for.
    __device__ __forceinline__ void store(const float (&x)[kD / 2], float factor, void* gradient, const int64_t (&strides)[3], const BackwardWork& work) const {
        int thread = threadIdx.x - 128;  // of both warpgroups
        asm volatile("" : "+r"(thread));  // opaque: addresses kept over the loop would spill
        const int lane = thread % 32, row = work.column_tile * kN + thread / 32 * 16 + lane / 4;
        T* to = static_cast<T*>(gradient) + work.item * strides[0] + row * strides[1] + work.head * strides[2] + lane % 4 * 8;
#pragma unroll
        for (int h = 0; h < 2; ++h) {
#pragma unroll
            for (int i = 0; i < kD / 8; i += 4) {
                const auto pair = [&](int j) { return ptx::packed(x[4 * j + 2 * h] * factor, x[4 * j + 2 * h + 1] * factor, T{}); };
                const uint4 eight = exchanged(pair(i), pair(i + 1), pair(i + 2), pair(i + 3));
                // Not a branch: the compiler would think the warp divided from here on, and keep what is uniform in every lane.
                asm volatile("{.reg .pred there; setp.ne.s32 there, %5, 0; @there st.global.v4.b32 [%0], {%1, %2, %3, %4};}" ::"l"(to + 8 * h * strides[1] + 8 * i),
                             "r"(eight.x), "r"(eight.y), "r"(eight.z), "r"(eight.w), "r"(int(row + 8 * h < args.mask.columns))
                             : "memory");
            }
        }
    }

    __device__ __forceinline__ bool leads() const { return threadIdx.x % 128 == 0; }

    // Of the item.
    static __device__ __forceinline__ int parity(int flags) { return flags & kOddItem ? 1 : 0; }

    // The second warpgroup starts an item when the first has its dS, so that from then on one multiplies while the other does
    // arithmetic.
    __device__ __forceinline__ void let_follow() {
        if (warpgroup == 0) {
            __syncwarp();
            if (threadIdx.x % 32 == 0) ptx::arrive(&shared.ahead);
        }
    }

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
        if constexpr (kFirst) {
            if (warpgroup == 1) ptx::wait(&shared.ahead, parity(flags));
            // The item's values come before its keys.
            ptx::wait(&shared.v_full, parity(flags));
            ptx::wait(&shared.dout_full[second], steps >> 1 & 1);
            multiply_transposed(dp, shared.v, shared.dout[second]);
            ptx::wait(&shared.k_full, parity(flags));
            multiply_transposed(s, shared.k, shared.q[at]);
        } else {
            multiply_transposed(s, shared.k, shared.q[at]);
            ptx::wait(&shared.dout_full[second], steps >> 1 & 1);
            multiply_transposed(dp, shared.v, shared.dout[second]);
        }
        const int hidden = flags & kHiddenStage ? 1 : 0;
        if (flags & kNewHead) ptx::wait(&shared.hidden_full[hidden], flags & kHiddenParity ? 1 : 0);
        ptx::wgmma_wait<kFirst ? 0 : 1>();
        ptx::hold(s);
        if (flags & kCut) hide(s, shared.row_tile[at], hidden);
        if (flags & kEndsHead) {
            __syncwarp();
            if (lane == 0) ptx::arrive(&shared.hidden_empty[hidden]);
        }
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
        if constexpr (kFirst) let_follow();
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

    __device__ __forceinline__ void finish_sums(float (&dq)[kSum / 2], int of, bool ends) {
        if (leads()) ptx::arrive(&shared.ds_empty[of & 1]);
        hand_over(dq, of, ends);
    }

    // One query tile. dQ is that of the tile before: by then the other warpgroup has its part of dS ready, so that the two never
    // wait for each other as long as they are less than a step apart, and one multiplies while the other does arithmetic.
    template <bool kFirst>
    __device__ __forceinline__ void step(State& x, int flags) {
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
            finish_sums(dq, steps - 1, false);
        }
        ptx::wgmma_wait<1>();
        ptx::hold(x.dv);
        // The next dO but one is waited for sooner than the next queries but two: it may come while dK is under way.
        if (leads()) ptx::arrive(&shared.dout_empty[second]);
        ptx::wgmma_wait<0>();
        ptx::hold(x.dk);
        release_queries();
        ++steps;
    }

    // All query tiles of an item.
    __device__ __forceinline__ void run_item(State& x, int flags) {
        step<true>(x, flags);
        asm volatile("" : "+r"(warpgroup));  // opaque: addresses kept from the first step for the loop would spill
#pragma unroll 1
        while (!(flags & kEndsItem)) {
            ptx::wait(&shared.q_full[query.stage], query.parity);
            flags = shared.flags[query.stage];
            step<false>(x, flags);
        }
        // While the other warpgroup makes the last dS.
        const BackwardWork& work = shared.work[parity(flags)];
        store(x.dv, 1.f, args.dv, args.dv_strides, work);
        float dq[kSum / 2];
        queue_sums(dq, steps - 1);
        ptx::wgmma_wait<0>();
        ptx::hold(dq);
        if (leads()) ptx::arrive(&shared.k_empty);
        finish_sums(dq, steps - 1, true);
        // While the next keys are on their way.
        store(x.dk, args.scale, args.dk, args.dk_strides, work);
    }

    __device__ void run() {
        State x;
        for (;;) {
            ptx::wait(&shared.q_full[query.stage], query.parity);
            const int flags = shared.flags[query.stage];
            if (flags & kNoWork) break;
#pragma unroll
            for (int i = 0; i < kD / 2; ++i) x.dk[i] = x.dv[i] = 0.f;
            if (flags & kNoRows) {
                ptx::wait(&shared.v_full, parity(flags));
                ptx::wait(&shared.k_full, parity(flags));
                const BackwardWork& work = shared.work[parity(flags)];
                store(x.dv, 1.f, args.dv, args.dv_strides, work);
                store(x.dk, 1.f, args.dk, args.dk_strides, work);
                let_follow();
                // Products keep the warps of a warpgroup together, and here are none: without this a slow warp would still wait
                // for these keys when the next ones are there, and the phase of a barrier after that looks like the one before.
                ptx::named_sync(F::kThrough + warpgroup, 128);
                if (leads()) {
                    ptx::arrive(&shared.v_empty);
                    ptx::arrive(&shared.k_empty);
                }
                release_queries();
            } else {
                run_item(x, flags);
            }
        }
        ptx::wait(&shared.dq_empty[warpgroup], steps & 1 ^ 1);
        if (leads()) shared.sums[warpgroup].to = -1;
        __syncwarp();
        if (threadIdx.x % 32 == 0) ptx::arrive(&shared.dq_full[warpgroup]);
    }
};

}  // namespace fm3
