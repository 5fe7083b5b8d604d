// Whether neighbouring row tiles of a mask have enough column tiles in common to be worked on by two blocks together.
//
// In a pair, each block goes through the column tiles that either needs, and passes over those that only the other does. Down a
// column of tiles, each run of live ones that begins or ends in the middle of a pair costs one such tile. So they are counted from
// the runs (row_runs.cuh), a few a column, with no look at the tiles.
#pragma once

#include "row_runs.cuh"

namespace fm3 {

constexpr int kSampledMasks = 8;  // of the batch items and mask heads of a call

// Pairs pay while at most one tile is passed over for this many live ones (docs/kernel-log.md, line 22).
constexpr int kLiveForPassed = 16;

struct PairSums {
    unsigned long long live, passed;
};

// Of one column tile.
__device__ __forceinline__ void count_pairs(const RowRuns<kBlock>& runs, PairSums& sums) {
    int end = -1;  // of the live tiles so far
#pragma unroll 1
    for (int tile = runs.live_from(0); tile < runs.tiles; tile = runs.live_from(end)) {
        if (tile != end) sums.passed += tile % 2 + (end > 0 ? end % 2 : 0);
        end = runs.alike_until(tile);
        sums.live += end - tile;
    }
    if (end > 0) sums.passed += end % 2;
}

// Over all lanes of a warp.
__device__ __forceinline__ unsigned long long summed(unsigned long long x) {
#pragma unroll
    for (int lanes = 16; lanes > 0; lanes /= 2) x += __shfl_xor_sync(~0u, x, lanes);
    return x;
}

// By all threads of a block, which all get the same answer, as do those of all blocks. The mask has bounds. `sums`: shared.
__device__ __forceinline__ bool pairs_pay(const Fm3Mask& m, int batch, PairSums& sums) {
    if (threadIdx.x == 0) sums = {0, 0};
    __syncthreads();
    const int items = m.prepared_strides[0] != 0 ? batch : 1, heads = m.prepared_strides[1] != 0 ? m.heads : 1;
    const int blocks = ceil_div(m.columns, kBlock);
    const long long masks = (long long)(items) * heads;
    const int sampled = int(min(masks, (long long)(kSampledMasks)));
    PairSums found{0, 0};
#pragma unroll 1
    for (long long i = threadIdx.x; i < (long long)(sampled) * blocks; i += blockDim.x) {
        const long long mask = i / blocks * masks / sampled;
        const int block = int(i % blocks);
        const int64_t at = prepared_index(m, int(mask / heads), int(mask % heads));
        const int4* record = reinterpret_cast<const int4*>(m.bounds) + (at * blocks + block) * 6;
        const int64_t first = int64_t(block) * kBlock;
        count_pairs(RowRuns<kBlock>(m, load_bounds(record), first, first + kBlock), found);
    }
    // By warps first: hundreds of 64-bit additions to one place take as long as all else here.
    found = {summed(found.live), summed(found.passed)};
    if (threadIdx.x % 32 == 0) {
        atomicAdd(&sums.live, found.live);
        atomicAdd(&sums.passed, found.passed);
    }
    __syncthreads();
    return sums.passed * kLiveForPassed <= sums.live;
}

}  // namespace fm3
