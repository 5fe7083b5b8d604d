// The hidden elements of a partial tile in the forward pass: a word of 32 rows a column.
//
// What the vectors say of the tile's columns is copied to shared memory along with its keys. Every warp makes the words of its
// own rows, a lane a column, and each thread then finds the bits of its rows in them, whatever the mask is.
#pragma once

#include "../sm90/prepared.cuh"
#include "ptx.cuh"

namespace fm3::sm80 {

// The hidden ones of the 32 rows from `row` on.
__device__ __forceinline__ uint32_t hidden_word(const HiddenRows& x, int row) {
    const Interval &a = x.lower, &b = x.upper;
    return (ptx::lowest_bits(a.end - row) & ~ptx::lowest_bits(a.start - row)) | (ptx::lowest_bits(b.end - row) & ~ptx::lowest_bits(b.start - row));
}

// Vectors of the columns of a tile, as given: lts, lte, uts, ute.
template <int kN>
struct TileVectors {
    int values[4][kN];
};

// What stands for vectors that a mask does not have, and is not overwritten.
template <int kN, int kThreads>
__device__ __forceinline__ void set_absent(TileVectors<kN>& to, const Fm3Mask& mask) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        if (threadIdx.x < kN) to.values[i][threadIdx.x] = i == 1 && mask.lts != nullptr ? mask.rows : 0;
    }
}

// Part of the thread's current group of copies. `base`: where the vectors of the batch item and mask head begin.
template <int kN, int kThreads>
__device__ __forceinline__ void copy_vectors(TileVectors<kN>& to, const Fm3Mask& mask, int64_t base, int first) {
    constexpr int kAtOnce = kThreads / kN;  // vectors
    static_assert(kAtOnce == 2 || kAtOnce == 4);
    const int column = threadIdx.x % kN;
    const int64_t from = base + (first + column) * mask.vector_strides[2];
#pragma unroll
    for (int i = 0; i < 4; i += kAtOnce) {
        const int which = i + int(threadIdx.x) / kN;
        const int* vector = which < 2 ? (which == 0 ? mask.lts : mask.lte) : which == 2 ? mask.uts : mask.ute;
        if (vector != nullptr && first + column < mask.columns) ptx::copy4(&to.values[which][column], vector + from);
    }
}

// Words of rows [row, row + 32) for the kN columns from `first` on. By one warp, for itself.
template <int kN>
__device__ __forceinline__ void make_words(uint32_t (&words)[kN], const TileVectors<kN>& from, const Fm3Mask& mask, int first, int row) {
#pragma unroll
    for (int c = threadIdx.x % 32; c < kN; c += 32) {
        const int column = first + c;
        const int end = mask.causal ? (column - mask.columns) + mask.rows : from.values[3][c];
        const HiddenRows hidden{clipped(from.values[0][c], from.values[1][c], mask.rows), clipped(from.values[2][c], end, mask.rows)};
        words[c] = column < mask.columns ? hidden_word(hidden, row) : ~0u;
    }
    __syncwarp();
}

}  // namespace fm3::sm80
