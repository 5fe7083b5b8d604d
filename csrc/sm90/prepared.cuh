// What is prepared of a mask, and where it lies.
//
// Bounds: for every 128 columns three records, of all of them and of either half; kernels whose key tiles have 128 or 64
// columns find theirs by `bounds_of`. Order: the row tiles of a mask, the one with the most work first.
#pragma once

#include "../common/tile_class.h"
#include "forward_args.h"

namespace fm3 {

constexpr int kBlock = 128;  // columns of a bounds record, rows of a row tile, both of a tile of a block mask
constexpr int kMostOrdered = 8192;  // row tiles up to which an order is made; beyond, the last row tile goes first

__host__ __device__ __forceinline__ int ceil_div(int a, int b) { return (a + b - 1) / b; }

// Index of the prepared mask that a head of a batch item uses.
__device__ __forceinline__ int64_t prepared_index(const Fm3Mask& mask, int item, int mask_head) {
    return item * mask.prepared_strides[0] + mask_head * mask.prepared_strides[1];
}

// Record of a column tile of kN columns, counted in records.
template <int kN>
__device__ __forceinline__ int64_t bounds_of(int tile) {
    static_assert(kN == kBlock || 2 * kN == kBlock);
    return kN == kBlock ? int64_t(tile) * 3 : int64_t(tile / 2) * 3 + 1 + tile % 2;
}

__device__ __forceinline__ BlockBounds load_bounds(const int4* record) {
    const int4 lower = __ldcg(record), upper = __ldcg(record + 1);
    return {lower.x, lower.y, lower.z, lower.w, upper.x, upper.y, upper.z, upper.w};
}

}  // namespace fm3
