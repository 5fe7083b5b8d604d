// Tile sizes, what a warp does of a tile, and shared memory of the backward kernel.
#pragma once

#include "../sm90/row_runs.cuh"

namespace fm3::sm80 {

// A query tile of a head; head < 0: no more.
struct QueryTile {
    int head, tile, partial;
};

template <int kHeadDim, int kKeys, int kQueries>
struct Backward {
    static constexpr int kD = kHeadDim, kN = kKeys, kM = kQueries;
    static constexpr int kWarps = kN / 16, kThreads = 32 * kWarps;
    // Scores: 32 queries a warp, and of the keys what remains. dQ likewise, with columns in the place of keys.
    static constexpr int kRowWarps = kM / 32, kWarpKeys = kN / (kWarps / kRowWarps);
    static constexpr int kSumColumns = kD / (kWarps / kRowWarps), kSums = kSumColumns;
    // dK and dV: 32 keys a warp, and of the columns what remains.
    static constexpr int kKeyWarps = kN / 32, kKeyColumns = kD / (kWarps / kKeyWarps);
    static_assert(kM % 32 == 0 && kWarpKeys % 16 == 0 && kWarpKeys <= 32 && kSumColumns % 16 == 0 && kKeyColumns % 16 == 0);
    static_assert(kSums * kThreads == kM * kD);

    template <typename T>
    struct __align__(1024) Shared {
        T k[kN * kD], v[kN * kD];
        T q[2][kM * kD], dout[2][kM * kD];
        T p[kM * kN], ds[kM * kN];  // queries by keys
        float lse2[2][kM], delta[2][kM];
        int item, kv_head, column_tile;
        RowRuns<kM> runs;    // of the first warp
        QueryTile tiles[4];  // of a step and the two behind it
    };

    // Row and column of a thread's sums of dQ, which lie in memory as [kSums][kThreads].
    static __device__ __forceinline__ int sum_row(int thread, int i) {
        return thread / 32 % kRowWarps * 32 + i / (kSums / 2) * 16 + i % 4 / 2 * 8 + thread % 32 / 4;
    }
    static __device__ __forceinline__ int sum_column(int thread, int i) {
        return thread / 32 / kRowWarps * kSumColumns + i % (kSums / 2) / 4 * 8 + thread % 4 * 2 + i % 2;
    }
};

}  // namespace fm3::sm80
