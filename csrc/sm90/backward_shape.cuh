// Tile sizes, stages, register split and shared memory of the backward kernel.
#pragma once

#include "ptx/bulk.cuh"
#include "ptx/tma.cuh"
#include "row_runs.cuh"

namespace fm3 {

// What the multiplying warpgroups must know of a query tile beside its data.
enum RowFlags : int {
    kCut = 1,        // some of its elements are hidden
    kNewHead = 2,    // the first of a query head: another mask, perhaps
    kEndsItem = 4,   // the last of a column tile
    kNoRows = 8,     // not a tile: nobody sees this column tile
    kNoWork = 16,    // not a tile: the block has no more work
};

template <int kHeadDim, typename T>
struct Backward {
    static constexpr int kD = kHeadDim;
    static constexpr int kM = 64;   // queries of a step
    static constexpr int kN = 128;  // keys of a work item
    static constexpr int kChunks = kD / 64;
    static constexpr int kStages = 2;
    static constexpr int kWarpgroups = kN / 64;
    static constexpr int kThreads = 128 * (kWarpgroups + 1);
    static constexpr int kRowBytes = kM * kD * int(sizeof(T));
    static constexpr int kKeyBytes = kN * kD * int(sizeof(T));
    static constexpr int kSumBytes = kM * kD * int(sizeof(float)) / kWarpgroups;  // of one warpgroup's part of dQ

    static constexpr int kLightRegisters = 56;
    static constexpr int kMultiplyRegisters = 224;
    // More than the block was launched with is never there: the increase would wait for ever.
    static_assert(128 * (kLightRegisters + kWarpgroups * kMultiplyRegisters) <= kThreads * (65536 / kThreads / 8 * 8));

    // Named barriers; 0 is __syncthreads.
    static constexpr int kTogether = 1;  // both warpgroups

    struct __align__(1024) Shared {
        T k[kN * kD];
        T v[kN * kD];
        T q[kStages][kM * kD];
        T dout[kStages][kM * kD];
        T ds[2][kM * kN];
        float dq[kWarpgroups][kM * kD / kWarpgroups];
        alignas(16) float lse2[kStages][kM];
        alignas(16) float delta[kStages][kM];
        int row_tile[kStages], flags[kStages], head[kStages];
        int item, kv_head, column_tile;  // of the work at hand
        int64_t sums[kWarpgroups];       // where a warpgroup's part of dQ goes: index in floats, -1 for the end
        ptx::Barrier kv_full, kv_empty;
        ptx::Barrier q_full[kStages], q_empty[kStages], dout_full[kStages], dout_empty[kStages];
        ptx::Barrier dq_full[kWarpgroups], dq_empty[kWarpgroups];
    };

    struct Maps {
        CUtensorMap q, k, v, dout, dk, dv;
    };
};

}  // namespace fm3
