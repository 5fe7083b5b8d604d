// Which row tiles a column tile meets, without a list: the skipped ones are at most three runs (see masks/tiles.py).
#pragma once

#include "prepared.cuh"

namespace fm3 {

// Of row tiles of kRows rows, for one block of columns.
template <int kRows>
struct RowRuns {
    int tiles;                              // all of them
    int lower_from, lower_to;               // skipped: hidden by the lower interval
    int upper_from, upper_to;               // skipped: hidden by the upper interval
    int above;                              // skipped: those before this one, by the diagonal
    int cut_lower_from, cut_lower_to;       // touched by the lower interval of some column
    int cut_upper_from, cut_upper_to;       // touched by the upper interval of some column
    int below;                              // touched by the diagonal: those before this one

    RowRuns() = default;

    __device__ __forceinline__ int starting_at(int64_t row) const {
        return int(min((row + kRows - 1) / kRows, int64_t(tiles)));
    }
    __device__ __forceinline__ int ending_by(int64_t row, int rows) const { return row >= rows ? tiles : int(row / kRows); }

    // Columns [first, end) of a mask; `b` are their bounds. Columns that do not exist make every tile a touched one.
    __device__ __forceinline__ RowRuns(const Fm3Mask& m, const BlockBounds& b, int64_t first, int64_t end) {
        tiles = (m.rows + kRows - 1) / kRows;
        lower_from = starting_at(b.lts_max), lower_to = ending_by(b.lte_min, m.rows);
        upper_from = starting_at(b.uts_max), upper_to = ending_by(b.ute_min, m.rows);
        cut_lower_from = ending_by(b.lts_min, m.rows), cut_lower_to = starting_at(b.lte_max);
        cut_upper_from = ending_by(b.uts_min, m.rows), cut_upper_to = starting_at(b.ute_max);
        above = below = 0;
        if (m.causal) {
            int columns = m.columns;
            asm volatile("" : "+r"(columns));  // opaque: what follows from it would be kept in registers over all heads
            const int64_t diagonal = int64_t(columns) - m.rows;
            above = ending_by(max(first - diagonal, int64_t(0)), m.rows);
            below = starting_at(max(min(end, int64_t(columns)) - 1 - diagonal, int64_t(0)));
        }
        if (end > m.columns) below = tiles;
    }

    // The first row tile from `tile` on that is not skipped; `tiles` if there is none.
    __device__ __forceinline__ int live_from(int tile) const {
        tile = max(tile, above);
        // Two runs can follow on each other in either order, so one of them is asked twice.
        if (tile >= lower_from && tile < lower_to) tile = lower_to;
        if (tile >= upper_from && tile < upper_to) tile = upper_to;
        if (tile >= lower_from && tile < lower_to) tile = lower_to;
        return min(tile, tiles);
    }

    // The end of the run of tiles from `tile` on, a live one, that are all live, and all touched or none.
    __device__ __forceinline__ int alike_until(int tile) const {
        int end = tiles;
        for (int change : {lower_from, upper_from, cut_lower_from, cut_lower_to, cut_upper_from, cut_upper_to, below}) {
            if (change > tile) end = min(end, change);
        }
        return end;
    }

    __device__ __forceinline__ bool is_partial(int tile) const {
        const bool cut = (tile >= cut_lower_from && tile < cut_lower_to) || (tile >= cut_upper_from && tile < cut_upper_to);
        return cut || tile < below;
    }
};

}  // namespace fm3
