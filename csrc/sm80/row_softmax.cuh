// Online softmax of kRows rows a thread, a row on a quad of lanes.
//
// As in ../sm90/softmax.cuh the base that exponents are taken from need only be near a row's maximum: it moves, and what was summed
// shrinks, when the maximum has outgrown it.
#pragma once

#include <cmath>

#include "../sm90/softmax.cuh"

namespace fm3::sm80 {

template <int kRows>
struct RowSoftmax {
    static constexpr float kSlack = 8.f;  // powers of 2 above the base: P in fp16 stays far from its largest number
    float base[kRows], sum[kRows];        // raw scores; this thread's part

    __device__ __forceinline__ RowSoftmax() {
#pragma unroll
        for (int r = 0; r < kRows; ++r) base[r] = -INFINITY, sum[r] = 0.f;
    }

    // Scores to probabilities in place, rows 2i and 2i+1 being those of s[i]; `out` in the same order follows the base.
    template <int kSubtiles, int kScores, int kOut>
    __device__ __forceinline__ void add(float (&s)[kSubtiles][kScores], float (&out)[kSubtiles][kOut], float scale_log2, float slack) {
        static_assert(kRows == 2 * kSubtiles);
        float high[kRows];
        bool risen = false;
#pragma unroll
        for (int r = 0; r < kRows; ++r) {
            const float(&row)[kScores] = s[r / 2];
            const int h = r % 2 * 2;
            high[r] = fmaxf(row[h], row[h + 1]);
#pragma unroll
            for (int j = 4; j < kScores; j += 4) high[r] = fmaxf(high[r], fmaxf(row[j + h], row[j + h + 1]));
            high[r] = fmaxf(high[r], __shfl_xor_sync(~0u, high[r], 2));
            high[r] = fmaxf(high[r], __shfl_xor_sync(~0u, high[r], 1));
            risen |= high[r] > base[r] + slack;
        }
        if (__any_sync(~0u, risen)) {
#pragma unroll
            for (int r = 0; r < kRows; ++r) {
                const float top = fmaxf(base[r], high[r]);
                // Both products rounded the same way: a base that stays fades by exactly 1. No column seen so far: by 0.
                const float fade = base[r] == -INFINITY ? 0.f : exp2_fast(__fmul_rn(base[r], scale_log2) - __fmul_rn(top, scale_log2));
                base[r] = top;
                sum[r] *= fade;
#pragma unroll
                for (int j = 0; j < kOut; j += 4) {
                    out[r / 2][j + r % 2 * 2] *= fade;
                    out[r / 2][j + r % 2 * 2 + 1] *= fade;
                }
            }
        }
#pragma unroll
        for (int r = 0; r < kRows; ++r) {
            // A row without a column so far: 0 instead of -inf keeps (-inf) - (-inf) out of the exponents.
            const float shift = base[r] == -INFINITY ? 0.f : base[r] * scale_log2;
            float part[2] = {};
#pragma unroll
            for (int j = r % 2 * 2; j < kScores; j += 4) {
#pragma unroll
                for (int e = 0; e < 2; ++e) {
                    float& x = s[r / 2][j + e];
                    x = exp2_fast(fmaf(x, scale_log2, -shift));
                    part[e] += x;
                }
            }
            sum[r] += part[0] + part[1];
        }
    }
};

}  // namespace fm3::sm80
