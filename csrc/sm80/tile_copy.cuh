// Rows of a tensor into a tile in shared memory, by all threads of a block; rows that do not exist become zeros.
#pragma once

#include "ptx.cuh"
#include "swizzle.h"

namespace fm3::sm80 {

// `head`: row 0 of the batch item and head; `first`: of the rows to copy. Part of the thread's current group of copies.
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

}  // namespace fm3::sm80
