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

}  // namespace fm3
