// The mask role: which column tiles a row tile needs, written ahead of the loads into a ring of short lists.
//
// One warp looks at 32 column tiles at a time, a lane a tile, by their prepared bounds. The list of a row tile arrives in
// pieces of at most 32 tiles, so nothing here grows with the sequence. A row tile that sees nothing is finished here.
#pragma once

#include <cmath>

#include "prepared.cuh"
#include "ptx/mbarrier.cuh"

namespace fm3 {

constexpr int kPieces = 4;

// One row tile of one head; row_tile < 0: no more work.
struct WorkItem {
    int item, head, row_tile;
};

// A piece of a list: whose it is, how many tiles, whether it is the first or the last of its row tile.
struct PieceHead {
    WorkItem work;
    int count, first, last;
};

struct ListRing {
    ptx::Barrier full[kPieces], empty[kPieces];
    PieceHead head[kPieces];
    int tiles[kPieces][32];  // column tile * 2 + partial
};

__device__ __forceinline__ int mask_head(const Fm3ForwardArgs& args, const WorkItem& work) {
    return work.head / (args.heads / args.mask.heads);
}

// Batch outermost, then groups of heads whose keys and values fit the L2 cache together, in them the heaviest row tiles
// of all heads first.
__device__ __forceinline__ WorkItem decode(const Fm3ForwardArgs& args, unsigned index, unsigned row_tiles) {
    const unsigned per_item = row_tiles * args.heads, per_group = row_tiles * args.heads_together;
    const unsigned item = index / per_item, in_item = index - item * per_item;
    const unsigned group = in_item / per_group, in_group = in_item - group * per_group;
    const unsigned first_head = group * args.heads_together;
    const unsigned members = min(unsigned(args.heads_together), args.heads - first_head);
    const unsigned rank = in_group / members, head = first_head + in_group - rank * members;
    WorkItem work{int(item), int(head), int(row_tiles - 1 - rank)};
    if (args.mask.order != nullptr) {
        const int64_t mask = prepared_index(args.mask, work.item, mask_head(args, work));
        work.row_tile = __ldg(args.mask.order + mask * row_tiles + rank);
    }
    return work;
}

template <int kM, int kN, int kD, typename T>
struct MaskRole {
    const Fm3ForwardArgs& args;
    ListRing& ring;
    ptx::Ring<kPieces> at{};

    // A piece is written where it will be read, and handed over once it is known whether another one follows.
    __device__ __forceinline__ void open() { ptx::wait(&ring.empty[at.stage], at.parity ^ 1); }

    __device__ __forceinline__ void close(const WorkItem& work, int count, bool first, bool last) {
        if (threadIdx.x % 32 == 0) ring.head[at.stage] = {work, count, first, last};
        __syncwarp();
        if (threadIdx.x % 32 == 0) ptx::arrive(&ring.full[at.stage]);
        at.advance();
    }

    __device__ __forceinline__ TileClass classify_tile(const WorkItem& work, const int4* bounds, int tile) const {
        const int r0 = work.row_tile * kM, r1 = min(r0 + kM, args.mask.rows);
        const int c0 = tile * kN, c1 = min(c0 + kN, args.mask.columns);
        BlockBounds b{args.mask.rows, args.mask.rows, 0, 0, args.mask.rows, args.mask.rows, 0, 0};
        if (args.mask.bounds != nullptr) b = load_bounds(bounds + 2 * bounds_of<kN>(tile));
        TileClass kind = classify(b, r0, r1, c0, c1, args.mask.causal != 0, args.mask.columns - args.mask.rows);
        if (kind == kFull && c1 - c0 < kN) kind = kPartial;  // columns that do not exist must be hidden
        if (args.mask.block_mask != nullptr && kind != kSkipped && !kept(work, c0)) kind = kSkipped;
        return kind;
    }

    // All live tiles of one row tile.
    __device__ __forceinline__ void list(const WorkItem& work) {
        const int lane = threadIdx.x % 32;
        const int column_tiles = ceil_div(args.mask.columns, kN);
        const int64_t mask = prepared_index(args.mask, work.item, mask_head(args, work));
        const int4* bounds = reinterpret_cast<const int4*>(args.mask.bounds) + mask * ceil_div(args.mask.columns, kBlock) * 6;
        int count = 0;
        bool first = true;
#pragma unroll 1
        for (int base = 0; base < column_tiles; base += 32) {
            const int tile = base + lane;
            const TileClass kind = tile < column_tiles ? classify_tile(work, bounds, tile) : kSkipped;
            const unsigned live = __ballot_sync(~0u, kind != kSkipped);
            if (live == 0) continue;
            if (count > 0) {
                close(work, count, first, false);
                first = false;
            }
            open();
            count = __popc(live);
            const int place = __popc(live & ((1u << lane) - 1));
            if (kind != kSkipped) ring.tiles[at.stage][place] = tile * 2 + (kind == kPartial);
        }
        if (count > 0) {
            close(work, count, first, true);
        } else {
            fill_empty(work);
        }
    }

    // The keep bit of the block that holds (row tile, column c0).
    __device__ __forceinline__ bool kept(const WorkItem& work, int c0) const {
        const int bytes = (ceil_div(args.mask.columns, kBlock) + 7) / 8, tile = c0 / kBlock;
        const uint8_t* row = args.mask.block_mask + work.item * args.mask.block_strides[0] + mask_head(args, work) * args.mask.block_strides[1];
        return (row[int64_t(work.row_tile) * bytes + tile / 8] >> (tile % 8)) & 1;
    }

    // Rows without a key: output 0, LSE -inf.
    __device__ __forceinline__ void fill_empty(const WorkItem& work) const {
        const int lane = threadIdx.x % 32, r0 = work.row_tile * kM, r1 = min(r0 + kM, args.mask.rows);
        T* out = static_cast<T*>(args.out) + work.item * args.out_strides[0] + work.head * args.out_strides[2];
        constexpr int kUnits = kD / 8;  // of 16 bytes a row
        for (int i = lane; i < (r1 - r0) * kUnits; i += 32) {
            reinterpret_cast<int4*>(out + (r0 + i / kUnits) * args.out_strides[1])[i % kUnits] = int4{0, 0, 0, 0};
        }
        float* lse = args.lse + (int64_t(work.item) * args.heads + work.head) * args.mask.rows;
        for (int row = r0 + lane; row < r1; row += 32) lse[row] = -INFINITY;
    }

    __device__ void run() {
        const int lane = threadIdx.x % 32;
        const unsigned row_tiles = ceil_div(args.mask.rows, kM);
        const unsigned total = row_tiles * args.heads * args.batch;
        for (;;) {
            unsigned index = 0;
            if (lane == 0) index = atomicAdd(reinterpret_cast<unsigned*>(args.work), 1u);
            index = __shfl_sync(~0u, index, 0);
            if (index >= total) break;
            list(decode(args, index, row_tiles));
        }
        open();
        close({0, 0, -1}, 0, true, true);
        // The last block to come here leaves the counters as it found them.
        if (lane == 0 && atomicAdd(args.work + 1, 1) == int(gridDim.x) - 1) {
            args.work[0] = 0;
            args.work[1] = 0;
        }
    }
};

}  // namespace fm3
