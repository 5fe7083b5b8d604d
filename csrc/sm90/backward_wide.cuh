// The backward kernel at head dim 256: 64 keys a work item, and the two warpgroups divide what they make, not whom it is of.
//
// Each computes the scores of all 64 keys with 32 of the 64 queries of a step, and puts its P and dS into shared memory; then
// each makes half of the head dim of dQ, dK and dV. So dK and dV still stay in registers over all query tiles. There is no
// room to hand parts of dQ over: every thread adds its own to the sums, four at a time. Integers have no such instruction, so
// fixed sums leave by way of shared memory, a warp's rows in two halves, in the room of dO's second stage.
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

template <typename T, Order kOrder>
struct BackwardWide {
    static constexpr int kD = 256;
    static constexpr bool kFixed = kOrder == Order::kFixed, kJoins = kOrder == Order::kJoining, kWide = true;
    static constexpr int kM = 64;  // queries of a step
    static constexpr int kN = 64;  // keys of a work item
    static constexpr int kChunks = kD / 64;
    static constexpr int kQueryStages = 2, kGradStages = kFixed ? 1 : 2, kPieceStages = 1;
    static constexpr int kWarpgroups = 2;
    static constexpr int kSumRows = kM, kSumColumns = kD / kWarpgroups;  // of dQ, of a warpgroup
    static constexpr int kAdders = 4 * kWarpgroups;      // every warp
    static constexpr int kKeyReleases = 4 * kWarpgroups;  // every warp: gradients leave through the keys and the values
    static constexpr int kPart = 1024;                    // fixed sums that a warp hands over at a time
    static constexpr int kThreads = 128 * (kWarpgroups + 1);
    static constexpr int kRowBytes = kM * kD * int(sizeof(T));
    static constexpr int kKeyBytes = kN * kD * int(sizeof(T));

    static constexpr int kLightRegisters = 56;
    static constexpr int kMultiplyRegisters = 224;
    static_assert(128 * (kLightRegisters + kWarpgroups * kMultiplyRegisters) <= kThreads * (65536 / kThreads / 8 * 8));

    // Named barriers; 0 is __syncthreads.
    static constexpr int kStored = 1, kRead = 2;

    struct Shared : BackwardStages<kD, kM, kN, kQueryStages, kGradStages, kPieceStages, T> {
        alignas(1024) T p[kN * kM];  // keys by queries
        T ds[kN * kM];
        T ds_by_query[kM * kN];
        alignas(128) int dq[kFixed ? kAdders : 1][kFixed ? kPart : 1];
    };

    using Maps = BackwardMaps;
};

template <typename F, typename T>
struct WideMultiplyRole {
    using Shared = typename F::Shared;
    static constexpr int kD = F::kD, kM = F::kM, kN = F::kN;
    static constexpr int kHalf = kD / 2;           // columns of the gradients of one warpgroup
    static constexpr int kQueries = kM / 2;        // whose scores one warpgroup computes
    static constexpr int kCount = kHalf / 2;       // numbers of a gradient a thread holds
    const Fm3BackwardArgs& args;
    const typename F::Maps& maps;
    Shared& shared;
    int warpgroup;
    float scale_log2;
    ptx::Ring<F::kQueryStages> query{};
    unsigned steps = 0;  // stages and parities follow from it

    struct State {
        float dk[kCount], dv[kCount];
    };

    __device__ __forceinline__ bool leads() const { return threadIdx.x % 128 == 0; }
    static __device__ __forceinline__ int parity(int flags) { return flags & kOddItem ? 1 : 0; }
    __device__ __forceinline__ int second() const { return steps % F::kGradStages; }  // stage of dO
    static __device__ __forceinline__ void together(int barrier) { ptx::named_sync(barrier, 128 * F::kWarpgroups); }

    // All keys by this warpgroup's queries.
    __device__ __forceinline__ void multiply_transposed(float (&s)[kQueries / 2], const T* keys, const T* rows) const {
        ptx::wgmma_fence();
#pragma unroll
        for (int step = 0; step < kD / 16; ++step) {
            const uint64_t a = ptx::descriptor(keys + (step / 4) * kN * 64, 0) + 2 * (step % 4);
            const uint64_t b = ptx::descriptor(rows + (step / 4) * kM * 64 + warpgroup * kQueries * 64, 0) + 2 * (step % 4);
            ptx::Wgmma<kQueries, T, ptx::Major::kK>::shared(s, a, b, step > 0);
        }
        ptx::wgmma_commit();
    }

    // sums (+)= x * this warpgroup's columns of `rows`; both have 64 rows, x a single chunk.
    __device__ __forceinline__ void queue_product(float (&sums)[kCount], const T* x, const T* rows, bool adds) const {
        const uint64_t b = ptx::descriptor(rows + warpgroup * (kHalf / 64) * 64 * 64, 64 * 128);
        ptx::wgmma_fence();
#pragma unroll
        for (int step = 0; step < 4; ++step) {
            const uint64_t a = ptx::descriptor(x, 0) + 2 * step;
            ptx::Wgmma<kHalf, T, ptx::Major::kMN>::shared(sums, a, b + 128 * step, step > 0 || adds);
        }
        ptx::wgmma_commit();
    }

    // Hides elements: bit 8j + 2*(lane%4) + e of a key's 32 bits is its element (j, e).
    __device__ __forceinline__ void hide(float (&s)[kQueries / 2], int row_tile, int stage) const {
        const int r = row_tile * kM + warpgroup * kQueries, shift = threadIdx.x % 4 * 2;
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            const HiddenRows rows = shared.hidden[stage][threadIdx.x % 128 / 32 * 16 + threadIdx.x % 32 / 4 + 8 * h];
            const uint32_t bits = word_of(rows, r) >> shift;
#pragma unroll
            for (int i = 0; i < kQueries / 4; ++i) {
                float& x = s[4 * (i / 2) + 2 * h + i % 2];
                x = bits >> (8 * (i / 2) + i % 2) & 1 ? -INFINITY : x;
            }
        }
    }

    // 16 keys by 16 queries of a warp, as operand registers, into a tile of keys by queries, or turned round.
    __device__ __forceinline__ void store_operand(const uint32_t (&x)[4], int sixteen, T* by_key, T* by_query) const {
        int thread = threadIdx.x % 128;
        if (F::kFixed) asm volatile("" : "+r"(thread));  // opaque, as in add_sums
        const int lane = thread % 32, warp = thread / 32;
        const int first = warpgroup * kQueries + 16 * sixteen;  // query
        // Matrix m = lane/8 holds keys 8*(m%2) of this warp's 16 and queries 8*(m/2) of these 16.
        const int key = 16 * warp + 8 * (lane / 8 % 2) + lane % 8, queries = first / 8 + lane / 16;
        asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(
                         ptx::shared_address(by_key + key * 64 + (queries ^ (key % 8)) * 8)),
                     "r"(x[0]), "r"(x[1]), "r"(x[2]), "r"(x[3])
                     : "memory");
        if (by_query == nullptr) return;
        const int row = first + lane / 16 * 8 + lane % 8, keys = 2 * warp + lane / 8 % 2;
        asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(
                         ptx::shared_address(by_query + row * 64 + (keys ^ (row % 8)) * 8)),
                     "r"(x[0]), "r"(x[1]), "r"(x[2]), "r"(x[3])
                     : "memory");
    }

    // P and dS of this warpgroup's queries, into shared memory.
    __device__ __forceinline__ void make_operands(int flags) {
        const int at = query.stage, second = this->second(), lane = threadIdx.x % 32;
        float s[kQueries / 2], dp[kQueries / 2];
        multiply_transposed(s, shared.k, shared.q[at]);
        ptx::wait(&shared.dout_full[second], steps / F::kGradStages & 1);
        multiply_transposed(dp, shared.v, shared.dout[second]);
        const int hidden = flags & kHiddenStage ? 1 : 0;
        if (flags & kNewHead) ptx::wait(&shared.hidden_full[hidden], flags & kHiddenParity ? 1 : 0);
        ptx::wgmma_wait<1>();
        ptx::hold(s);
        if (flags & kCut) hide(s, shared.row_tile[at], hidden);
        if (flags & kEndsHead) {
            __syncwarp();
            if (lane == 0) ptx::arrive(&shared.hidden_empty[hidden]);
        }
        const float4* lse2 = reinterpret_cast<const float4*>(shared.lse2[at]) + warpgroup * kQueries / 4 + lane % 4;
        const float4* delta = reinterpret_cast<const float4*>(shared.delta[second]) + warpgroup * kQueries / 4 + lane % 4;
#pragma unroll
        for (int i = 0; i < kQueries / 16; ++i) {
            const float4 of = lse2[4 * i];
            const float subtract[4] = {of.x, of.y, of.z, of.w};
#pragma unroll
            for (int e = 0; e < 8; ++e) s[8 * i + e] = exp2_fast(fmaf(s[8 * i + e], scale_log2, -subtract[e / 4 * 2 + e % 2]));
        }
        ptx::wgmma_wait<0>();
        ptx::hold(dp);
#pragma unroll
        for (int i = 0; i < kQueries / 16; ++i) {
            const float4 of = delta[4 * i];
            const float subtract[4] = {of.x, of.y, of.z, of.w};
#pragma unroll
            for (int e = 0; e < 8; ++e) dp[8 * i + e] = s[8 * i + e] * (dp[8 * i + e] - subtract[e / 4 * 2 + e % 2]);
        }
        uint32_t p[kQueries / 16][4], ds[kQueries / 16][4];
        pack<T>(s, p);
        pack<T>(dp, ds);
        together(F::kRead);  // both have multiplied with what lies there
#pragma unroll
        for (int i = 0; i < kQueries / 16; ++i) {
            store_operand(p[i], i, shared.p, nullptr);
            store_operand(ds[i], i, shared.ds, shared.ds_by_query);
        }
        ptx::fence_async_proxy();
        together(F::kStored);
    }

    // This warpgroup's columns of dQ of a tile to the sums.
    __device__ __forceinline__ void add_sums(const float (&dq)[kCount]) const {
        int thread = threadIdx.x % 128;
        if (F::kFixed) asm volatile("" : "+r"(thread));  // opaque: addresses kept over the loop would spill
        const int lane = thread % 32;
        float* to = args.dq_sums + (int64_t(shared.sums_tile[steps & 3]) * kD + warpgroup * kHalf) * kM + thread / 32 * 16 * kHalf;
        if constexpr (F::kFixed) {
            const float* factors = shared.fixed[steps & 3] + thread / 32 * 16 + lane / 4;
            const float factor[2] = {factors[0], factors[8]};
            int* part = shared.dq[4 * warpgroup + thread / 32];
            constexpr int kFours = F::kPart / 128;  // of a lane
#pragma unroll
            for (int i = 0; i < kCount / 4; ++i) {
                if (i % kFours == 0) {
                    if (lane == 0) ptx::store_wait_read();  // the part before has left
                    __syncwarp();
                }
                reinterpret_cast<int4*>(part)[i % kFours * 32 + lane] = {
                    __float2int_rn(dq[4 * i] * factor[0]), __float2int_rn(dq[4 * i + 1] * factor[0]),
                    __float2int_rn(dq[4 * i + 2] * factor[1]), __float2int_rn(dq[4 * i + 3] * factor[1])};
                if ((i + 1) % kFours == 0) {
                    ptx::fence_async_proxy();
                    __syncwarp();
                    if (lane == 0) {
                        ptx::bulk_add(reinterpret_cast<int*>(to) + i / kFours * F::kPart, part, F::kPart * int(sizeof(int)));
                        ptx::store_commit();
                    }
                }
            }
        } else {
#pragma unroll
            for (int i = 0; i < kCount / 4; ++i) {
                asm volatile("red.relaxed.gpu.global.add.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(to + i * 128 + lane * 4),
                             "f"(dq[4 * i]), "f"(dq[4 * i + 1]), "f"(dq[4 * i + 2]), "f"(dq[4 * i + 3])
                             : "memory");
            }
        }
    }

    __device__ __forceinline__ void step(State& x, int flags) {
        const int at = query.stage, second = this->second();
        make_operands(flags);
        float dq[kCount];
        queue_product(dq, shared.ds_by_query, shared.k, false);
        queue_product(x.dv, shared.p, shared.dout[second], true);
        queue_product(x.dk, shared.ds, shared.q[at], true);
        ptx::wgmma_wait<2>();
        ptx::hold(dq);
        add_sums(dq);
        ptx::wgmma_wait<1>();
        ptx::hold(x.dv);
        if (leads()) ptx::arrive(&shared.dout_empty[second]);
        ptx::wgmma_wait<0>();
        ptx::hold(x.dk);
        __syncwarp();
        if (threadIdx.x % 32 == 0) ptx::arrive(&shared.q_empty[at]);
        query.advance();
        ++steps;
    }

    // This warpgroup's columns of 64 rows of a gradient leave through `tile`; every warp stores its 16 rows.
    __device__ __forceinline__ void store(const float (&x)[kCount], float factor, T* tile, const CUtensorMap* map, const BackwardWork& work) const {
        int thread = threadIdx.x % 128;
        asm volatile("" : "+r"(thread));  // opaque: addresses kept over the loop would spill
        const int warp = thread / 32, lane = thread % 32, part = lane / 8;
        store_rows(x, {factor, factor}, tile + warpgroup * (kHalf / 64) * kN * 64, kN, 16 * warp + 8 * (part % 2) + lane % 8, part);
        ptx::fence_async_proxy();
        __syncwarp();
        if (lane == 0) {
#pragma unroll 1
            for (int chunk = warpgroup * kHalf / 64; chunk < (warpgroup + 1) * kHalf / 64; ++chunk) {
                ptx::tma_store(map, tile + chunk * kN * 64 + 16 * warp * 64, work.column_tile * kN + 16 * warp, chunk, work.head, work.item);
            }
            ptx::store_commit();
        }
    }

    __device__ void run() {
        State x;
        for (;;) {
            ptx::wait(&shared.q_full[query.stage], query.parity);
            int flags = shared.flags[query.stage];
            if (flags & kNoWork) break;
            if (flags & kNoRows) {
                __syncwarp();
                if (threadIdx.x % 32 == 0) ptx::arrive(&shared.q_empty[query.stage]);
                query.advance();
            }
            ptx::wait(&shared.k_full, parity(flags));
            ptx::wait(&shared.v_full, parity(flags));
#pragma unroll
            for (int i = 0; i < kCount; ++i) x.dk[i] = x.dv[i] = 0.f;
            if (!(flags & kNoRows)) {
                if (F::kFixed) ptx::fence_async_proxy_everywhere();  // the sums' slot was cleaned by ordinary writes
#pragma unroll 1
                for (;;) {
                    step(x, flags);
                    if (flags & kEndsItem) break;
                    ptx::wait(&shared.q_full[query.stage], query.parity);
                    flags = shared.flags[query.stage];
                }
            }
            together(F::kRead);  // both have multiplied with the keys and the values, and added their parts of dQ
            const BackwardWork work = shared.work[parity(flags)];
            store(x.dv, 1.f, shared.v, &maps.dv, work);
            store(x.dk, args.scale, shared.k, &maps.dk, work);
            __threadfence();
            __syncwarp();
            if (threadIdx.x % 32 == 0) {
                if constexpr (F::kFixed) {
                    ptx::bulk_wait();
                    ptx::fence_async_proxy_everywhere();
                }
                if (!(flags & kNoRows)) count_added<F>(args, work.counted_head);
                ptx::store_wait_read();
                ptx::arrive(&shared.v_empty);
                ptx::arrive(&shared.k_empty);
            }
        }
    }
};

}  // namespace fm3
