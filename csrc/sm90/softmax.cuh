// Online softmax of a 64-row tile held in wgmma accumulators: two rows a thread, a row on a quad of lanes.
//
// The exponents are taken from a base per row: its maximum at the time when the base was set. The base need not be the
// maximum of all columns seen; it must only be near it. So most tiles need no maximum at all (`add_near`): they use the
// base as it is, and their sums tell whether that was near enough. Only where it was not, and on the first columns of a
// row, the maximum is found and everything so far is rescaled (`add_exact`).
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

// A thread's part of a tile's sum up to which the base counts as near. No probability is then above it either, so in fp16
// none overflows; and no row's base is further than this below its maximum.
constexpr float kNear = 1024.f;

struct Softmax {
    float base[2] = {-INFINITY, -INFINITY};  // raw scores; -inf: no column seen yet
    float sum[2] = {0.f, 0.f};               // this thread's part

    // Every row of this warp has a base.
    __device__ __forceinline__ bool seen() const { return __all_sync(~0u, fminf(base[0], base[1]) > -INFINITY); }

    // Scores to probabilities in place. False if they are too large for the base in any row of the warp; the scores are
    // lost then, and nothing is added.
    template <int kCount>
    __device__ __forceinline__ bool add_near(float (&s)[kCount], float scale_log2) {
        const float shift[2] = {base[0] * scale_log2, base[1] * scale_log2};
        float part[2][2] = {};
#pragma unroll
        for (int i = 0; i < kCount; ++i) {
            s[i] = exp2_fast(fmaf(s[i], scale_log2, -shift[i / 2 % 2]));
            part[i / 2 % 2][i % 2] += s[i];
        }
        const float top = part[0][0] + part[0][1], bottom = part[1][0] + part[1][1];
        // NaN counts as near: it is the same NaN either way.
        if (__any_sync(~0u, fmaxf(top, bottom) > kNear)) return false;
        sum[0] += top;
        sum[1] += bottom;
        return true;
    }

    // Scores to probabilities in place with the base moved to the maximum; returns by how much what was accumulated so
    // far must shrink.
    template <int kCount>
    __device__ __forceinline__ void add_exact(float (&s)[kCount], float scale_log2, float (&fade)[2]) {
        float high[2] = {base[0], base[1]}, shift[2];
#pragma unroll
        for (int i = 0; i < kCount; i += 2) high[i / 2 % 2] = fmaxf(high[i / 2 % 2], fmaxf(s[i], s[i + 1]));
#pragma unroll
        for (int lanes = 2; lanes > 0; lanes /= 2) {
#pragma unroll
            for (int h = 0; h < 2; ++h) high[h] = fmaxf(high[h], __shfl_xor_sync(~0u, high[h], lanes));
        }
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            // A row without a key so far: 0 instead of -inf keeps (-inf) - (-inf) out of the exponents.
            // Both products rounded the same way, so that a base that stays fades by exactly 1: contracted to one operation
            // the difference would be a rounding error, the same in every tile, and add up.
            shift[h] = high[h] == -INFINITY ? 0.f : __fmul_rn(high[h], scale_log2);
            fade[h] = exp2_fast(__fmul_rn(base[h], scale_log2) - shift[h]);
            base[h] = high[h];
            sum[h] *= fade[h];
        }
        // Summed apart first: one by one, small ones would vanish beside what is there.
        float part[2] = {};
#pragma unroll
        for (int i = 0; i < kCount; ++i) {
            s[i] = exp2_fast(fmaf(s[i], scale_log2, -shift[i / 2 % 2]));
            part[i / 2 % 2] += s[i];
        }
        sum[0] += part[0];
        sum[1] += part[1];
    }
};

}  // namespace fm3
