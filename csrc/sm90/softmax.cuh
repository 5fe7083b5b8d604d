// Online softmax of a 64-row tile held in wgmma accumulators: two rows a thread, a row on a quad of lanes.
#pragma once

#include <cstdint>

namespace fm3 {

__device__ __forceinline__ float exp2_fast(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

__device__ __forceinline__ float quad_sum(float x) {
    x += __shfl_xor_sync(~0u, x, 2);
    return x + __shfl_xor_sync(~0u, x, 1);
}

// Running maximum (of raw scores) and this thread's part of the running sum, for its two rows.
struct Softmax {
    float maximum[2] = {-INFINITY, -INFINITY};
    float sum[2] = {0.f, 0.f};

    // Scores to probabilities in place; returns by how much what was accumulated so far must shrink. One warp has its
    // scheduler almost to itself here, so what counts is how long the chains are: both rows go side by side.
    template <int kCount>
    __device__ __forceinline__ void step(float (&s)[kCount], float scale_log2, float (&fade)[2]) {
        float high[2][2];
#pragma unroll
        for (int i = 0; i < kCount / 4; ++i) {
#pragma unroll
            for (int h = 0; h < 2; ++h) {
                const float pair = fmaxf(s[4 * i + 2 * h], s[4 * i + 2 * h + 1]);
                high[h][i % 2] = i < 2 ? pair : fmaxf(high[h][i % 2], pair);
            }
        }
        float now[2], base[2];
#pragma unroll
        for (int h = 0; h < 2; ++h) now[h] = fmaxf(high[h][0], high[h][1]);
#pragma unroll
        for (int lanes = 2; lanes > 0; lanes /= 2) {
#pragma unroll
            for (int h = 0; h < 2; ++h) now[h] = fmaxf(now[h], __shfl_xor_sync(~0u, now[h], lanes));
        }
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            now[h] = fmaxf(maximum[h], now[h]);
            // A row without a key so far: 0 instead of -inf keeps (-inf) - (-inf) out of the exponents.
            base[h] = now[h] == -INFINITY ? 0.f : now[h] * scale_log2;
            fade[h] = exp2_fast(maximum[h] * scale_log2 - base[h]);
            maximum[h] = now[h];
        }
        float part[2][2] = {};
#pragma unroll
        for (int i = 0; i < kCount; ++i) {
            s[i] = exp2_fast(fmaf(s[i], scale_log2, -base[i / 2 % 2]));
            part[i / 2 % 2][i % 2] += s[i];
        }
#pragma unroll
        for (int h = 0; h < 2; ++h) sum[h] = sum[h] * fade[h] + (part[h][0] + part[h][1]);
    }
};

}  // namespace fm3
