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
    ptx::Ring<F::kStages> at{};
    int items = 0, steps = 0;

    // Hidden rows of this thread's two keys.
    struct Hidden {
        Interval lower[2], upper[2];
    };

    static __device__ __forceinline__ int load(const int* vector, int64_t at, int absent) {
        return vector != nullptr ? __ldg(vector + at) : absent;
    }

    __device__ __forceinline__ void load_hidden(Hidden& hidden, int item, int head, int column_tile) const {
        const Fm3Mask& m = args.mask;
        const int64_t* strides = m.vector_strides;
        const int64_t base = item * strides[0] + head / (args.heads / m.heads) * strides[1];
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            const int column = column_tile * kN + warpgroup * 64 + threadIdx.x % 128 / 32 * 16 + threadIdx.x % 32 / 4 + 8 * h;
            Interval a{0, m.rows}, b{0, 0};  // no such column: all rows
            if (column < m.columns) {
                const int64_t from = base + column * strides[2];
                a = {load(m.lts, from, 0), load(m.lte, from, m.lts != nullptr ? m.rows : 0)};
                b = {load(m.uts, from, 0), load(m.ute, from, 0)};
                if (m.causal) b.end = (column - m.columns) + m.rows;
            }
            hidden.lower[h] = clipped(a.start, a.end, m.rows);
            hidden.upper[h] = clipped(b.start, b.end, m.rows);
        }
    }

    // Hides elements of a query tile: bit 8j + 2*(lane%4) + e of a key's 64 bits is its element (j, e).
    __device__ __forceinline__ void hide(float (&s)[kM / 2], const Hidden& hidden, int row_tile) const {
        const int r0 = row_tile * kM, shift = threadIdx.x % 4 * 2;
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            const Interval &a = hidden.lower[h], &b = hidden.upper[h];
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
    __device__ __forceinline__ void hand_over(const float (&dq)[kSum / 2], int64_t to) {
        const int thread = threadIdx.x % 128;
        ptx::wait(&shared.dq_empty[warpgroup], steps & 1 ^ 1);
        float4* parts = reinterpret_cast<float4*>(shared.dq[warpgroup]);
#pragma unroll
        for (int i = 0; i < kSum / 8; ++i) parts[i * 128 + thread] = {dq[4 * i], dq[4 * i + 1], dq[4 * i + 2], dq[4 * i + 3]};
        if (thread == 0) shared.sums[warpgroup] = to;
        ptx::fence_async_proxy();
        __syncwarp();
        if (thread % 32 == 0) ptx::arrive(&shared.dq_full[warpgroup]);
        ++steps;
    }

    // A gradient leaves through this warp's 16 rows of a buffer that nobody reads any more.
    __device__ __forceinline__ void store(const float (&x)[kD / 2], float factor, T* tile, const CUtensorMap* map) const {
        int thread = threadIdx.x % 128;
        asm volatile("" : "+r"(thread));  // opaque: addresses kept over the loop would spill
        const int warp = thread / 32, lane = thread % 32, part = lane / 8, first = warpgroup * 64 + 16 * warp;
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
            const T* to = tile + (column / 64) * kN * 64 + row * 64 + (((column % 64) / 8) ^ (row % 8)) * 8;
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
                    map, tile + chunk * kN * 64 + first * 64, shared.column_tile * kN + first, chunk, shared.kv_head, shared.item);
            }
            ptx::store_commit();
        }
    }

    __device__ __forceinline__ void step(float (&dk)[kD / 2], float (&dv)[kD / 2], const Hidden& hidden, int flags) {
        const int stage = at.stage, lane = threadIdx.x % 32;
        float s[kM / 2], ds[kM / 2];
        multiply_transposed(s, shared.k, shared.q[stage]);
        ptx::wait(&shared.dout_full[stage], at.parity);
        multiply_transposed(ds, shared.v, shared.dout[stage]);
        ptx::wgmma_wait<1>();
        ptx::hold(s);
        if (flags & kCut) hide(s, hidden, shared.row_tile[stage]);
#pragma unroll
        for (int j = 0; j < kM / 8; ++j) {
            const float2 lse2 = *reinterpret_cast<const float2*>(&shared.lse2[stage][8 * j + 2 * (lane % 4)]);
#pragma unroll
            for (int h = 0; h < 2; ++h) {
                s[4 * j + 2 * h] = exp2_fast(fmaf(s[4 * j + 2 * h], scale_log2, -lse2.x));
                s[4 * j + 2 * h + 1] = exp2_fast(fmaf(s[4 * j + 2 * h + 1], scale_log2, -lse2.y));
            }
        }
        ptx::wgmma_wait<0>();
        ptx::hold(ds);
#pragma unroll
        for (int j = 0; j < kM / 8; ++j) {
            const float2 delta = *reinterpret_cast<const float2*>(&shared.delta[stage][8 * j + 2 * (lane % 4)]);
#pragma unroll
            for (int h = 0; h < 2; ++h) {
                ds[4 * j + 2 * h] = s[4 * j + 2 * h] * (ds[4 * j + 2 * h] - delta.x);
                ds[4 * j + 2 * h + 1] = s[4 * j + 2 * h + 1] * (ds[4 * j + 2 * h + 1] - delta.y);
            }
        }
        uint32_t p16[kM / 16][4], ds16[kM / 16][4];
        pack<T>(s, p16);
        pack<T>(ds, ds16);
        T* exchanged = shared.ds[steps & 1];
        store_ds(ds16, exchanged);
        add_product(dv, p16, shared.dout[stage]);
        ptx::fence_async_proxy();
        ptx::named_sync(F::kTogether, 128 * F::kWarpgroups);
        float dq[kSum / 2];
        multiply_ds(dq, exchanged);
        ptx::wgmma_wait<1>();
        ptx::hold(dv);
        if (threadIdx.x % 128 == 0) ptx::arrive(&shared.dout_empty[stage]);
        add_product(dk, ds16, shared.q[stage]);
        ptx::wgmma_wait<1>();
        ptx::hold(dq);
        const int64_t rows = (int64_t(shared.item) * args.heads + shared.head[stage]) * (int64_t(ceil_div(args.mask.rows, kM)) * kM);
        hand_over(dq, (rows + int64_t(shared.row_tile[stage]) * kM) * kD + warpgroup * kM * kSum);
        ptx::wgmma_wait<0>();
        ptx::hold(dk);
    }

    __device__ void run() {
        Hidden hidden;
        for (;;) {
            ptx::wait(&shared.q_full[at.stage], at.parity);
            int flags = shared.flags[at.stage];
            if (flags & kNoWork) break;
            ptx::wait(&shared.kv_full, items & 1);
            ++items;
            float dk[kD / 2], dv[kD / 2];
#pragma unroll
            for (int i = 0; i < kD / 2; ++i) dk[i] = dv[i] = 0.f;
            for (;;) {
                if (!(flags & kNoRows)) {
                    if (flags & kNewHead) load_hidden(hidden, shared.item, shared.head[at.stage], shared.column_tile);
                    step(dk, dv, hidden, flags);
                }
                // Every warp has read what the stage says of itself.
                __syncwarp();
                if (threadIdx.x % 32 == 0) ptx::arrive(&shared.q_empty[at.stage]);
                if (flags & kNoRows && threadIdx.x % 128 == 0) ptx::arrive(&shared.dout_empty[at.stage]);
                at.advance();
                if (flags & kEndsItem) break;
                ptx::wait(&shared.q_full[at.stage], at.parity);
                flags = shared.flags[at.stage];
            }
            store(dv, 1.f, shared.v, &maps.dv);
            ptx::named_sync(F::kTogether, 128 * F::kWarpgroups);  // both have multiplied with all keys
            store(dk, args.scale, shared.k, &maps.dk);
            if (threadIdx.x % 32 == 0) {
                ptx::store_wait_read();
                ptx::arrive(&shared.kv_empty);
            }
        }
        ptx::wait(&shared.dq_empty[warpgroup], steps & 1 ^ 1);
        if (threadIdx.x % 128 == 0) shared.sums[warpgroup] = -1;
        __syncwarp();
        if (threadIdx.x % 32 == 0) ptx::arrive(&shared.dq_full[warpgroup]);
    }
};

}  // namespace fm3
