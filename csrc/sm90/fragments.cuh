// Accumulators of wgmma as they go on: packed to an A operand, as 16 rows of a warp into a swizzled tile, or to memory.
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

// A warp's 16 rows of an accumulator, each half times its factor, into a tile of chunks of 64 columns in the 128-byte swizzle.
// `row` is this lane's row of the tile: 8 * (lane/8 % 2) + lane%8 behind the warp's first. One stmatrix stores 16 columns: lane l
// gives the address of row l%8 of part l/8.
template <typename T, int kCount>
__device__ __forceinline__ void store_rows(const float (&x)[kCount], const float (&factor)[2], T* tile, int chunk_rows, int row, int part) {
#pragma unroll
    for (int j = 0; j < kCount / 4; j += 2) {
        uint32_t out[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const int at = 4 * (j + i / 2) + 2 * (i % 2);
            out[i] = ptx::packed(x[at] * factor[i % 2], x[at + 1] * factor[i % 2], T{});
        }
        const int column = 8 * (j + part / 2);
        const T* to = tile + (column / 64) * chunk_rows * 64 + row * 64 + (((column % 64) / 8) ^ (row % 8)) * 8;
        asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(ptx::shared_address(to)), "r"(out[0]),
                     "r"(out[1]), "r"(out[2]), "r"(out[3])
                     : "memory");
    }
}

// The four lanes of a quad exchange what they hold of 4 groups of 8 columns: afterwards lane l of it has the eight numbers of
// group l, so that a quad stores 64 bytes of a row side by side.
__device__ __forceinline__ uint4 exchanged(uint32_t x0, uint32_t x1, uint32_t x2, uint32_t x3) {
    const bool odd = threadIdx.x & 1, upper = threadIdx.x & 2;
    const uint32_t y0 = __shfl_xor_sync(~0u, odd ? x0 : x1, 1), y1 = __shfl_xor_sync(~0u, odd ? x2 : x3, 1);
    if (odd) {
        x0 = y0, x2 = y1;
    } else {
        x1 = y0, x3 = y1;
    }
    const uint32_t z0 = __shfl_xor_sync(~0u, upper ? x0 : x2, 2), z1 = __shfl_xor_sync(~0u, upper ? x1 : x3, 2);
    return upper ? uint4{z0, z1, x2, x3} : uint4{x0, x1, z0, z1};
}

}  // namespace fm3
