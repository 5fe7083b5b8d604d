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
    static constexpr int kQueryStages = 3;
    static constexpr int kGradStages = 2;  // dO
    static constexpr int kWarpgroups = kN / 64;
    static constexpr int kThreads = 128 * (kWarpgroups + 1);
    static constexpr int kRowBytes = kM * kD * int(sizeof(T));
    static constexpr int kKeyBytes = kN * kD * int(sizeof(T));
    static constexpr int kSumBytes = kM * kD * int(sizeof(float)) / kWarpgroups;  // of one warpgroup's part of dQ

    static constexpr int kLightRegisters = 56;
    static constexpr int kMultiplyRegisters = 224;
    // More than the block was launched with is never there: the increase would wait for ever.
    static_assert(128 * (kLightRegisters + kWarpgroups * kMultiplyRegisters) <= kThreads * (65536 / kThreads / 8 * 8));

    struct Work {
        int item, head, column_tile;  // a KV head, where it is one of the items
    };

    struct __align__(1024) Shared {
        T k[kN * kD];
        T v[kN * kD];
        T q[kQueryStages][kM * kD];
        T dout[kGradStages][kM * kD];
        T ds[2][kM * kN];                             // after the last step of an item: dV on its way out
        float dq[kWarpgroups][kM * kD / kWarpgroups];  // likewise dK
        HiddenRows hidden[2][kN];                      // of the query head at hand and the next one
        alignas(16) float lse2[kQueryStages][kM];
        alignas(16) float delta[kGradStages][kM];
        unsigned tile[kQueryStages];  // its number in the scratch of all rows
        int row_tile[kQueryStages], flags[kQueryStages];
        Work work[2];               // the one at hand and the next one
        Work asked[2];              // for what is hidden; head < 0 is the end
        struct {
            RowRuns<kM> runs;  // of the head whose tiles are looked for
            unsigned tile;     // the tile found last: its number in the scratch of all rows
            int head, row_tile, flags;
            bool first;  // of the item
        } found;                    // of the loading warp alone, which has few registers
        int64_t sums[kWarpgroups];  // where a warpgroup's part of dQ goes: index in floats, -1 for the end
        ptx::Barrier k_full, k_empty, v_full, v_empty;
        ptx::Barrier q_full[kQueryStages], q_empty[kQueryStages], dout_full[kGradStages], dout_empty[kGradStages];
        ptx::Barrier hidden_asked[2], hidden_full[2], hidden_empty[2];
        ptx::Barrier ds_full[2], ds_empty[2];
        ptx::Barrier dq_full[kWarpgroups], dq_empty[kWarpgroups];
        ptx::Barrier staged;  // the gradients of the item before have been read out of ds and dq
    };
    static_assert(sizeof(Shared::ds) >= kKeyBytes && sizeof(Shared::dq) >= kKeyBytes);

    struct Maps {
        CUtensorMap q, k, v, dout, dk, dv;
    };
};

}  // namespace fm3
