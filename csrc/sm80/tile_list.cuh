// Which column tiles a row tile needs: found by their prepared bounds, a thread a tile, and listed in shared memory, those with
// hidden elements first. So there is one loop that masks and one that does not, and nothing of either lies in the other.
//
// A list covers kListed column tiles at a time, so nothing grows with the sequence.
#pragma once

#include "../sm90/prepared.cuh"
#include "ptx.cuh"

namespace fm3::sm80 {

constexpr int kListed = 1024;

struct TileList {
    int partial, all;               // how many tiles
    int first;                      // tile that was looked at
    unsigned short tiles[kListed];  // counted from there
    int counts[32];                 // of every 32 tiles looked at: partial ones, and full ones times 2^16

    __device__ __forceinline__ int tile(int at) const { return first + tiles[at]; }
};

// Of rows [r0, r1) of a batch item and mask head, against column tiles of kN columns, which lie in one half of a block.
template <int kN>
struct TileSearch {
    const Fm3Mask& mask;
    const int4* bounds;          // of the prepared mask, or null
    const uint8_t* block_row;    // keep bits of the row tile, or null
    int r0, r1;

    __device__ __forceinline__ TileSearch(const Fm3Mask& mask, int item, int mask_head, int r0, int r1)
        : mask(mask), bounds(nullptr), block_row(nullptr), r0(r0), r1(r1) {
        const int blocks = ceil_div(ptx::opaque(mask.columns), kBlock);
        if (mask.bounds != nullptr) {
            bounds = reinterpret_cast<const int4*>(mask.bounds) + prepared_index(mask, item, mask_head) * blocks * 6;
        }
        if (mask.block_mask != nullptr) {
            block_row = mask.block_mask + item * mask.block_strides[0] + mask_head * mask.block_strides[1] +
                        int64_t(r0 / kBlock) * ((blocks + 7) / 8);
        }
    }

    __device__ __forceinline__ TileClass class_of(int tile) const {
        const int64_t c0 = int64_t(tile) * kN;
        if (c0 >= mask.columns) return kSkipped;
        const int c1 = int(min(c0 + kN, int64_t(mask.columns)));
        if (block_row != nullptr) {
            const int block = int(c0 / kBlock);
            if (!(block_row[block / 8] >> (block % 8) & 1)) return kSkipped;
        }
        BlockBounds b{mask.rows, mask.rows, 0, 0, mask.rows, mask.rows, 0, 0};
        if (bounds != nullptr) b = load_bounds(bounds + 2 * bounds_of<kBlock / 2>(int(c0 / (kBlock / 2))));
        const TileClass kind = classify(b, r0, r1, int(c0), c1, mask.causal != 0, mask.columns - mask.rows);
        return kind == kFull && c1 - c0 < kN ? kPartial : kind;  // columns that do not exist must be hidden
    }

    // Lists the live ones among tiles [first, first + kListed). By all kThreads threads, which meet before and after.
    template <int kThreads>
    __device__ __forceinline__ void write(TileList& list, int first) const {
        constexpr int kRounds = kListed / kThreads, kWarps = kThreads / 32;
        static_assert(kRounds * kWarps == 32, "a lane sums up the count of each");
        const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
        const int rounds = min(kRounds, ceil_div(ceil_div(ptx::opaque(mask.columns), kN) - first, kThreads));
        __syncthreads();  // the last list has been read
        if (threadIdx.x < 32) list.counts[lane] = 0;
        if (threadIdx.x == 0) list.first = first;
        __syncthreads();
        unsigned kinds = 0;  // two bits a round
#pragma unroll 1
        for (int round = 0; round < rounds; ++round) {
            const TileClass kind = class_of(first + round * kThreads + int(threadIdx.x));
            kinds |= unsigned(kind) << (2 * round);
            const unsigned partial = __ballot_sync(~0u, kind == kPartial), full = __ballot_sync(~0u, kind == kFull);
            if (lane == 0) list.counts[round * kWarps + warp] = __popc(partial) | __popc(full) << 16;
        }
        __syncthreads();
        int sum = list.counts[lane];  // up to and with this lane's 32 tiles
#pragma unroll
        for (int d = 1; d < 32; d *= 2) {
            const int left = __shfl_up_sync(~0u, sum, d);
            if (lane >= d) sum += left;
        }
        const int total = __shfl_sync(~0u, sum, 31), partials = total & 0xFFFF;
        const int before = sum - list.counts[lane];
#pragma unroll 1
        for (int round = 0; round < rounds; ++round) {
            const int from = __shfl_sync(~0u, before, round * kWarps + warp);
            const unsigned kind = kinds >> (2 * round) & 3, below = (1u << lane) - 1;
            const unsigned partial = __ballot_sync(~0u, kind == kPartial), full = __ballot_sync(~0u, kind == kFull);
            const auto tile = static_cast<unsigned short>(round * kThreads + threadIdx.x);
            if (kind == kPartial) list.tiles[(from & 0xFFFF) + __popc(partial & below)] = tile;
            if (kind == kFull) list.tiles[partials + (from >> 16) + __popc(full & below)] = tile;
        }
        if (threadIdx.x == 0) list.partial = partials, list.all = partials + (total >> 16);
        __syncthreads();
    }
};

}  // namespace fm3::sm80
