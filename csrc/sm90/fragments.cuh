// Accumulators of wgmma as they go on: packed to an A operand, or as 16 rows of a warp into a swizzled tile.
#pragma once

#include "ptx/wgmma.cuh"

namespace fm3 {

// Two neighbouring groups of 8 columns become one A operand of 16, as they stand.
template <typename T, int kCount>
__device__ __forceinline__ void pack(const float (&s)[kCount], uint32_t (&p)[kCount / 8][4]) {
#pragma unroll
    for (int i = 0; i < kCount / 8; ++i) {
#pragma unroll
        for (int j = 0; j < 4; ++j) p[i][j] = ptx::packed(s[8 * i + 2 * j], s[8 * i + 2 * j + 1], T{});
    }
}

}  // namespace fm3
