// Rows of a tensor to a tile in shared memory and back. Rows that do not exist become zeros, and are not written.
#pragma once

#include "../sm90/ptx/wgmma.cuh"
#include "ptx.cuh"
#include "swizzle.h"

namespace fm3::sm80 {

// By all threads of a block. `head`: row 0 of the batch item and head; `first`: of the rows to copy. Part of the thread's current
// group of copies.
template <int kRows, int kD, int kThreads, typename T>
__device__ __forceinline__ void copy_tile(uint32_t tile, const T* head, int64_t stride, int first, int rows) {
    constexpr int kUnits = kD / 8, kAtOnce = kThreads / kUnits;
    static_assert(kThreads % kUnits == 0 && kRows % kAtOnce == 0);
    const int unit = threadIdx.x % kUnits, row = threadIdx.x / kUnits;
    const T* from = head + int64_t(first + row) * stride + unit * 8;
#pragma unroll
    for (int i = 0; i < kRows / kAtOnce; ++i) {
        const uint32_t to = tile + uint32_t(sizeof(T)) * place_of_unit<kD>(row + i * kAtOnce, unit);
        ptx::copy16_or_zeros(to, from, first + row + i * kAtOnce < rows);
        from += kAtOnce * stride;
    }
}

// 16 rows of a warp's accumulator, the upper and the lower eight times their factors, into a tile from row `top` on.
template <int kD, typename T>
__device__ __forceinline__ void put_rows(const float (&x)[kD / 2], float upper, float lower, T* tile, int top) {
    const int lane = threadIdx.x % 32, row = top + lane / 4;
#pragma unroll
    for (int j = 0; j < kD / 8; ++j) {
        const uint32_t high = ptx::packed(x[4 * j] * upper, x[4 * j + 1] * upper, T{});
        const uint32_t low = ptx::packed(x[4 * j + 2] * lower, x[4 * j + 3] * lower, T{});
        reinterpret_cast<uint32_t*>(tile + place_of_unit<kD>(row, j))[lane % 4] = high;
        reinterpret_cast<uint32_t*>(tile + place_of_unit<kD>(row + 8, j))[lane % 4] = low;
    }
}

// Rows [top, top + kRows) of a tile to rows first + top and on of a tensor. By one warp, which has put them there.
template <int kRows, int kD, typename T>
__device__ __forceinline__ void store_tile(const T* tile, T* head, int64_t stride, int top, int first, int rows) {
    constexpr int kUnits = kD / 8, kAtOnce = 32 / kUnits;
    const int unit = threadIdx.x % kUnits;
#pragma unroll
    for (int i = 0; i < kRows; i += kAtOnce) {
        const int row = top + i + threadIdx.x % 32 / kUnits;
        if (first + row >= rows) break;
        *reinterpret_cast<uint4*>(head + int64_t(first + row) * stride + unit * 8) =
            *reinterpret_cast<const uint4*>(tile + place_of_unit<kD>(row, unit));
    }
}

}  // namespace fm3::sm80
