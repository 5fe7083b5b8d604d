// Online softmax of a 64-row tile held in wgmma accumulators: two rows a thread, a row on a quad of lanes.
#pragma once

#include <cstdint>

namespace fm3 {

__device__ __forceinline__ float exp2_fast(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

__device__ __forceinline__ float quad_max(float x) {
    x = fmaxf(x, __shfl_xor_sync(~0u, x, 2));
    return fmaxf(x, __shfl_xor_sync(~0u, x, 1));
}

__device__ __forceinline__ float quad_sum(float x) {
    x += __shfl_xor_sync(~0u, x, 2);
    return x + __shfl_xor_sync(~0u, x, 1);
}

// Running maximum (of raw scores) and this thread's part of the running sum, for its two rows.
struct Softmax {
    float maximum[2] = {-INFINITY, -INFINITY};
    float sum[2] = {0.f, 0.f};

    // Scores to probabilities in place; returns by how much what was accumulated so far must shrink.
    template <int kCount>
    __device__ __forceinline__ void step(float (&s)[kCount], float scale_log2, float (&fade)[2]) {
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            float highest = s[2 * h];
#pragma unroll
            for (int i = 0; i < kCount / 4; ++i) highest = fmaxf(highest, fmaxf(s[4 * i + 2 * h], s[4 * i + 2 * h + 1]));
            const float now = fmaxf(maximum[h], quad_max(highest));
            // A row without a key so far: 0 instead of -inf keeps (-inf) - (-inf) out of the exponents.
            const float base = now == -INFINITY ? 0.f : now * scale_log2;
            fade[h] = exp2_fast(maximum[h] * scale_log2 - base);
            maximum[h] = now;
            float part = 0.f;
#pragma unroll
            for (int i = 0; i < kCount / 4; ++i) {
#pragma unroll
                for (int e = 0; e < 2; ++e) {
                    float& x = s[4 * i + 2 * h + e];
                    x = exp2_fast(fmaf(x, scale_log2, -base));
                    part += x;
                }
            }
            sum[h] = sum[h] * fade[h] + part;
        }
    }
};

// What is hidden of one column, as two intervals [start, start + length) of rows counted from the row tile's first.
struct ColumnHidden {
    int start_a, length_a, start_b, length_b;
};

// Hides elements of a partial tile. `row` is this thread's first row in the tile, its second is 8 further down.
template <int kCount>
__device__ __forceinline__ void hide(float (&s)[kCount], const ColumnHidden* columns, int row, int lane) {
#pragma unroll
    for (int j = 0; j < kCount / 4; ++j) {
#pragma unroll
        for (int e = 0; e < 2; ++e) {
            const ColumnHidden c = columns[8 * j + 2 * (lane % 4) + e];
#pragma unroll
            for (int h = 0; h < 2; ++h) {
                const unsigned r = unsigned(row + 8 * h);
                const bool hidden = r - unsigned(c.start_a) < unsigned(c.length_a) || r - unsigned(c.start_b) < unsigned(c.length_b);
                if (hidden) s[4 * j + 2 * h + e] = -INFINITY;
            }
        }
    }
}

}  // namespace fm3
