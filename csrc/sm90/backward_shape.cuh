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
    kEndsHead = 64,  // the last of a query head
    kHiddenStage = 128, kHiddenParity = 256,  // where what is hidden lies
    kOddItem = 512,  // of the work items with rows or without
    kEndsItem = 4,   // the last of a column tile
    kNoRows = 8,     // not a tile: nobody sees this column tile
    kOnlySums = 16,  // not a tile: there is only dq to be made
    kNoWork = 32,    // not a tile: the block has no more work
};

// A warpgroup's part of dQ of one query tile.
struct SumsPart {
    int64_t to;  // index in floats; negative: there are no more
    int slot;
    bool ends;  // the last of a column tile
};

constexpr unsigned kNone = ~0u;

// Hidden rows of a key: at most two runs.
struct __align__(16) HiddenRows {
    Interval lower, upper;
};

struct BackwardWork {
    int item, head, column_tile;  // a KV head, where it is one of the items
    int slot;                     // number of the KV head over all batch items
};

struct BackwardMaps {
    CUtensorMap q, k, v, dout, dq, dk, dv;
};

// What is loaded and said of work items and query tiles: kN keys, kM queries.
template <int kD, int kM, int kN, int kQueryStages, int kGradStages, typename T>
struct __align__(1024) BackwardStages {
    T k[kN * kD];
    T v[kN * kD];
    T q[kQueryStages][kM * kD];
    T dout[kGradStages][kM * kD];
    HiddenRows hidden[2][kN];  // of the query head at hand and the next one
    alignas(16) float lse2[kQueryStages][kM];
    alignas(16) float delta[kGradStages][kM];
    // Of the last four tiles, since dQ may be a step late.
    alignas(16) float fixed[4][kM];  // of fixed sums only
    unsigned sums_tile[4];           // where dQ is summed, in tiles
    int sums_slot[4];                // and whose sums these are
    unsigned convert[kQueryStages];  // of an item's first: the item whose share of dq is to be made now, or kNone
    int row_tile[kQueryStages], flags[kQueryStages];
    BackwardWork work[2];   // the one at hand and the next one
    BackwardWork asked[2];  // for what is hidden; head < 0 is the end
    struct {
        BackwardWork work;          // the item that is loaded
        RowRuns<kM> runs;           // of the head whose tiles are looked for
        int head, row_tile, flags;  // the tile found last
        bool first;                 // of the item
        unsigned convert;           // of the item: see above
        int heads;                  // asked for what is hidden from them, so far
    } found;                        // of the loading warp alone, which has few registers
    ptx::Barrier k_full, k_empty, v_full, v_empty;
    ptx::Barrier q_full[kQueryStages], q_empty[kQueryStages], dout_full[kGradStages], dout_empty[kGradStages];
    ptx::Barrier hidden_asked[2], hidden_full[2], hidden_empty[2];
};

// Head dims up to 128. kFixed: dQ is summed in integers, so that its bits do not depend on the order.
template <int kHeadDim, typename T, bool kFixedSums>
struct Backward {
    static constexpr int kD = kHeadDim;
    static constexpr bool kFixed = kFixedSums, kWide = false;
    static constexpr int kM = 64;   // queries of a step
    static constexpr int kN = 128;  // keys of a work item
    static constexpr int kChunks = kD / 64;
    static constexpr int kQueryStages = 3;
    static constexpr int kGradStages = 2;  // dO
    static constexpr int kWarpgroups = kN / 64;
    static constexpr int kKeyReleases = kWarpgroups;  // arrivals that give keys or values back
    static constexpr int kThreads = 128 * (kWarpgroups + 1);
    static constexpr int kRowBytes = kM * kD * int(sizeof(T));
    static constexpr int kKeyBytes = kN * kD * int(sizeof(T));
    static constexpr int kSumBytes = kM * kD * int(sizeof(float)) / kWarpgroups;  // of one warpgroup's part of dQ

    static constexpr int kLightRegisters = 56;
    static constexpr int kMultiplyRegisters = 224;
    // More than the block was launched with is never there: the increase would wait for ever.
    static_assert(128 * (kLightRegisters + kWarpgroups * kMultiplyRegisters) <= kThreads * (65536 / kThreads / 8 * 8));

    struct Shared : BackwardStages<kD, kM, kN, kQueryStages, kGradStages, T> {
        alignas(1024) T ds[2][kM * kN];                // after the last step of an item: dV on its way out
        float dq[kWarpgroups][kM * kD / kWarpgroups];  // likewise dK
        SumsPart sums[kWarpgroups];
        ptx::Barrier ds_full[2], ds_empty[2];
        ptx::Barrier dq_full[kWarpgroups], dq_empty[kWarpgroups];
        ptx::Barrier staged;  // the gradients of the item before have been read out of ds and dq
    };
    static_assert(sizeof(Shared::ds) >= kKeyBytes && sizeof(Shared::dq) >= kKeyBytes);

    using Work = BackwardWork;
    using Maps = BackwardMaps;
};

}  // namespace fm3
