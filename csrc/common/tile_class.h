// Classes of the tiles of a column mask, from the minima and maxima of the vectors over a block of columns.
//
// The same rule as masks/tiles.py, for kernels and for plain g++ (tests compare the two). Nothing here reads memory.
#pragma once

#if defined(__CUDACC__)
#define FM3_HOST_DEVICE __host__ __device__ __forceinline__
#else
#define FM3_HOST_DEVICE inline
#endif

namespace fm3 {

enum TileClass : int { kSkipped = 0, kPartial = 1, kFull = 2 };

// Minimum and maximum of each clipped vector over the columns of a block. An empty interval counts as (rows, 0): a start
// that no row reaches, an end that every row has passed.
struct BlockBounds {
    int lts_min, lts_max, lte_min, lte_max;
    int uts_min, uts_max, ute_min, ute_max;
};

// One interval of one column, clipped to [0, rows], an empty one in the form that BlockBounds expects.
struct Interval {
    int start, end;
};

FM3_HOST_DEVICE int clip(int value, int low, int high) { return value < low ? low : (value > high ? high : value); }

FM3_HOST_DEVICE Interval clipped(int start, int end, int rows) {
    Interval x{clip(start, 0, rows), clip(end, 0, rows)};
    return x.start < x.end ? x : Interval{rows, 0};
}

// Class of rows [r0, r1) by columns [c0, c1). `diagonal` is seqlen_k - seqlen_q: causal row i sees columns <= i + diagonal.
// Skipped is exact for a single cause; full is conservative (a full tile may be called partial, never the reverse).
FM3_HOST_DEVICE TileClass classify(const BlockBounds& b, int r0, int r1, int c0, int c1, bool causal, int diagonal) {
    const bool by_lower = r0 >= b.lts_max && r1 <= b.lte_min;
    const bool by_upper = r0 >= b.uts_max && r1 <= b.ute_min;
    // r1 - 1 + diagonal is the last column that the last row sees; 64 bits, since lengths may be near 2^31.
    const bool above = causal && (long long)r1 - 1 + diagonal < c0;
    if (by_lower || by_upper || above) return kSkipped;
    const bool clear_lower = r1 <= b.lts_min || r0 >= b.lte_max;
    const bool clear_upper = r1 <= b.uts_min || r0 >= b.ute_max;
    const bool below = !causal || (long long)c1 - 1 <= (long long)r0 + diagonal;
    return clear_lower && clear_upper && below ? kFull : kPartial;
}

}  // namespace fm3
