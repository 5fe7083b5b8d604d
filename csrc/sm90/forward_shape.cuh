// Tile sizes, stages, register split and shared memory of the forward kernel.
#pragma once

#include "hidden_bits.cuh"
#include "pair_rule.cuh"
#include "pairs.cuh"
#include "ptx/tma.cuh"
#include "tiles.cuh"

namespace fm3 {

// What the multiplying warpgroups must know of a key tile beside its data.
enum TileFlags : int {
    kIsPartial = 1,  // its hidden elements are in the bit ring
    kIsLast = 2,     // the last one of its row tile
    kEnd = 4,        // not a tile: the block has no more work
    kIsPassed = 8,   // only the other block of the pair needs it
};

template <int kHeadDim, typename T>
struct Forward {
    static constexpr int kD = kHeadDim;
    static constexpr int kM = 128;
    static constexpr int kN = kD <= 128 ? 128 : 64;
    static constexpr int kChunks = kD / 64;
    static constexpr int kStages = 2;
    static constexpr int kQueryStages = kD <= 128 ? 2 : 1;
    static constexpr int kWarpgroups = kM / 64;
    static constexpr int kThreads = 128 * (kWarpgroups + 1);
    static constexpr int kQueryBytes = kM * kD * int(sizeof(T));
    static constexpr int kKeyBytes = kN * kD * int(sizeof(T));
    // Half of a key or value tile, as a block of a pair loads it: half of the head's chunks, or of the one chunk's rows.
    static constexpr int kHalfRows = kChunks > 1 ? kN : kN / 2;
    static constexpr int kHalfChunks = kChunks > 1 ? kChunks / 2 : 1;

    // The split at which no role spills (ptxas 13.0).
    static constexpr int kLoadRegisters = 72;
    static constexpr int kMultiplyRegisters = 216;
    // More than the block was launched with is never there: the increase would wait for ever.
    static_assert(128 * (kLoadRegisters + kWarpgroups * kMultiplyRegisters) <= kThreads * (65536 / kThreads / 8 * 8));

    struct __align__(1024) Shared {
        T q[kQueryStages][kM * kD];
        T k[kStages][kN * kD];
        T v[kStages][kN * kD];
        BitRing<kN> bits;
        int tile[kStages];  // TileFlags of the key tile in this stage
        WorkItem work[kQueryStages];
        ListRing lists;
        PairRing pair;
        PairSums pair_sums;
        ptx::Barrier q_full[kQueryStages], q_empty[kQueryStages];
        ptx::Barrier k_full[kStages], k_empty[kStages], v_full[kStages], v_empty[kStages];
    };

    struct Maps {
        CUtensorMap q, k, v, out, half_k, half_v;
    };
};

}  // namespace fm3
