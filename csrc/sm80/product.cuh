// The product of one warp, operands in shared memory: blocks of 16 x 16 by ldmatrix, multiplied by mma.
#pragma once

#include "ptx.cuh"
#include "swizzle.h"

namespace fm3::sm80 {

// A matrix in a swizzled tile whose rows are kPitch bytes, as an operand. `first`: where this lane's row of the first block lies.
// As stored, what is summed over lies along the tile's rows; transposed, along its columns.
template <bool kTransposed, uint32_t kPitch>
struct Operand {
    uint32_t first;

    // Block `outer` of the product's rows or columns, block `inner` of what is summed over.
    __device__ __forceinline__ void load(uint32_t (&x)[4], int outer, int inner) const {
        if constexpr (kTransposed) {
            ptx::load_block_transposed(x, address_across(first, outer) + inner * 16 * kPitch);
        } else {
            ptx::load_block(x, address_across(first, inner) + outer * 16 * kPitch);
        }
    }
};

// Adds a block of 16 rows times a block of 16 columns to an accumulator.
template <typename T>
__device__ __forceinline__ void add_block(float* d, const uint32_t (&a)[4], const uint32_t (&b)[4]) {
    ptx::mma(d, a, b[0], b[1], T{});
    ptx::mma(d + 4, a, b[2], b[3], T{});
}

// Adds a product, a sum of kInner blocks, to 16 rows a part of an accumulator; kCount numbers a thread are 2 * kCount columns.
template <int kInner, typename T, int kParts, int kCount, typename A, typename B>
__device__ __forceinline__ void add_product(float (&d)[kParts][kCount], const A& a, const B& b) {
#pragma unroll
    for (int k = 0; k < kInner; ++k) {
        uint32_t rows[kParts][4];
#pragma unroll
        for (int i = 0; i < kParts; ++i) a.load(rows[i], i, k);
#pragma unroll
        for (int j = 0; j < kCount / 8; ++j) {
            uint32_t columns[4];
            b.load(columns, j, k);
#pragma unroll
            for (int i = 0; i < kParts; ++i) add_block<T>(d[i] + 8 * j, rows[i], columns);
        }
    }
}

}  // namespace fm3::sm80
