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
    kEndsHead = 4,   // the last of a query head
    kHiddenStage = 8, kHiddenParity = 16,  // where what is hidden lies
    kEndsItem = 32,  // the last of a column tile
    kOddItem = 64,   // the parity of work items, with rows or without
    kNoRows = 128,   // not a tile: nobody sees this column tile
    kNoWork = 256,   // not a tile: the block has no more work
};

// A warpgroup's part of dQ of one query tile.
struct SumsPart {
    int64_t to;  // index in floats; negative: there are no more
    int head;    // a KV head, counted over all batch items
    bool ends;   // the last of a column tile
};

constexpr int kPiece = 512;  // sums that are made into dq at a time: 16 rows of 32 columns
constexpr int kMostSlots = 64;

struct BackwardWork {
    int item, head, column_tile;  // a KV head, where it is one of the items
    int counted_head;             // the same over all batch items
};

// kRowPadding rows that are made into dq.
struct ShareOfSums {
    float* sums;
    void* dq;
    int64_t rows;   // where their numbers lie
    int end, head;  // rows that there are; the KV head, counted over all batch items
};

// Of a warp that makes sums into dq: its share and the next one; pieces on their way; of fixed sums, the factors of every
// lane's rows.
template <int kPieceStages>
struct Converted {
    alignas(16) float pieces[kPieceStages][kPiece];
    float factors[kPieceStages][2][32];
    ShareOfSums shares[2];
};

struct BackwardMaps {
    CUtensorMap q, k, v, dout, dk, dv;
};

// Of the query head whose tiles are loaded, what is needed for each.
struct __align__(16) LoadedHead {
    int64_t rows;  // where its numbers begin
    int head, item;
    unsigned sums;  // where its sums begin, in tiles
    int front;      // tiles of its group before it
};

// What is loaded and said of work items and query tiles: kN keys, kM queries.
template <int kD, int kM, int kN, int kQueryStages, int kGradStages, int kPieceStages, typename T>
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
    int sums_head[4];                // and whose sums these are
    int row_tile[kQueryStages], flags[kQueryStages];
    BackwardWork work[2];   // the one at hand and the next one
    BackwardWork asked[2];  // for what is hidden; head < 0 is the end
    Converted<kPieceStages> converted[2];
    struct {
        BackwardWork work;  // the item that is loaded
        RowRuns<kM> runs;   // of the head whose tiles are looked for
        LoadedHead at;
        int heads;          // asked for what is hidden from them, so far
        int slot;           // of the item's sums
        int start_head, start;  // the tile that the item begins with, in a head counted in its group: see find_start
        int* front;             // where it is said how far the item is
    } found;                        // of the loading warp alone, which has few registers
    ptx::Barrier k_full, k_empty, v_full, v_empty;
    ptx::Barrier q_full[kQueryStages], q_empty[kQueryStages], dout_full[kGradStages], dout_empty[kGradStages];
    ptx::Barrier hidden_asked[2], hidden_full[2], hidden_empty[2];
};

// How a block goes through its items and sums dQ.
enum class Order {
    kFirstToLast,  // of the query tiles
    kJoining,      // from a tile on where another block is, and around: see find_start
    kFixed,        // as the first, and dQ is summed in integers, so that its bits do not depend on the order
};

// Head dims up to 128.
template <int kHeadDim, typename T, Order kOrder>
struct Backward {
    static constexpr int kD = kHeadDim;
    static constexpr bool kFixed = kOrder == Order::kFixed, kJoins = kOrder == Order::kJoining, kWide = false;
    // Queries of a step. What a step costs beside its products does not depend on the head dim: at 64, twice as many.
    static constexpr int kM = kHeadDim == 64 ? 128 : 64;
    static constexpr int kN = 128;  // keys of a work item
    static constexpr int kChunks = kD / 64;
    static constexpr int kQueryStages = kM == 64 ? 3 : 2;
    static constexpr int kGradStages = 2;  // dO
    static constexpr int kPieceStages = 2;  // of sums, on their way to dq
    static constexpr int kAdders = 1;       // that count an item when they have added all its parts of dQ
    static constexpr int kWarpgroups = kN / 64;
    // Each warpgroup makes 64 rows of dQ, or of 64 rows half the head dim.
    static constexpr int kSumRows = 64, kSumColumns = kM / 64 * kD / kWarpgroups;
    static constexpr int kKeyReleases = kWarpgroups;  // arrivals that give keys or values back
    static constexpr int kThreads = 128 * (kWarpgroups + 1);
    static constexpr int kRowBytes = kM * kD * int(sizeof(T));
    static constexpr int kKeyBytes = kN * kD * int(sizeof(T));
    static constexpr int kSumBytes = kM * kD * int(sizeof(float)) / kWarpgroups;  // of one warpgroup's part of dQ

    static constexpr int kLightRegisters = 56;
    static constexpr int kMultiplyRegisters = 224;
    // More than the block was launched with is never there: the increase would wait for ever.
    static_assert(128 * (kLightRegisters + kWarpgroups * kMultiplyRegisters) <= kThreads * (65536 / kThreads / 8 * 8));

    // Named barrier of the first warpgroup, and of the second the next one; 0 is __syncthreads.
    static constexpr int kThrough = 1;

    struct Shared : BackwardStages<kD, kM, kN, kQueryStages, kGradStages, kPieceStages, T> {
        alignas(1024) T ds[2][kM * kN];
        float dq[kWarpgroups][kM * kD / kWarpgroups];
        SumsPart sums[kWarpgroups];
        ptx::Barrier ds_full[2], ds_empty[2];
        ptx::Barrier dq_full[kWarpgroups], dq_empty[kWarpgroups];
        ptx::Barrier ahead;  // the first warpgroup has its first dS of an item
    };

    using Maps = BackwardMaps;
};

}  // namespace fm3
