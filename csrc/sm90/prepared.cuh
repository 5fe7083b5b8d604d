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

// Hidden rows of a column: at most two runs. Causal masks have no upper interval of their own, so the diagonal takes its place.
struct __align__(16) HiddenRows {
    Interval lower, upper;
};

// `base`: where the vectors of the batch item and mask head begin. A column that does not exist is hidden from all rows.
__device__ __forceinline__ HiddenRows hidden_rows(const Fm3Mask& mask, int64_t base, int column, bool exists = true) {
    const auto load = [](const int* vector, int64_t at, int absent) { return vector != nullptr ? __ldg(vector + at) : absent; };
    Interval a{0, mask.rows}, b{0, 0};
    if (exists && column < mask.columns) {
        const int64_t from = base + column * mask.vector_strides[2];
        a = {load(mask.lts, from, 0), load(mask.lte, from, mask.lts != nullptr ? mask.rows : 0)};
        b = {load(mask.uts, from, 0), load(mask.ute, from, 0)};
        if (mask.causal) b.end = (column - mask.columns) + mask.rows;
    }
    return {clipped(a.start, a.end, mask.rows), clipped(b.start, b.end, mask.rows)};
}

}  // namespace fm3
