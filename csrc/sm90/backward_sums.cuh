// The sums of dQ. Column tiles add their parts in fp32; when all of a KV head have, the sums become dq.
//
// The sums of a KV head are needed only while its column tiles are worked on, and so they live in a few slots that the KV heads
// take in turn: what fits in the L2 cache seldom goes to memory. Whoever starts on a work item first makes the share of dq of
// the item `lag` before it: it reads sums, leaves zeros for the slot's next user, and writes dq. Two counters a KV head say when
// its sums are complete and when its slot is clean. An item waits only for items with smaller numbers, which blocks that run
// have taken before: nobody waits for ever.
//
// Fixed sums: a row of dQ is a sum of P * (dP - delta) * K over its columns, and with P adding up to 1 no part of it is larger
// than twice |dO| times the longest V, times the largest K. So every row has a factor, made beforehand, that brings it into 31
// bits: rounded to integers its parts add up to the same bits in any order, and nobody has to wait for a turn.
#pragma once

#include "backward_args.h"
#include "backward_shape.cuh"

namespace fm3 {

// The counter has come to `target`; by one thread. Sees what those wrote who counted.
__device__ __forceinline__ void wait_for_count(const int* counter, int target) {
    for (int count;;) {
        asm volatile("ld.acquire.gpu.global.s32 %0, [%1];" : "=r"(count) : "l"(counter) : "memory");
        if (count >= target) break;
        __nanosleep(100);
    }
}

__device__ __forceinline__ void count(int* counter) {
    __threadfence();
    atomicAdd(counter, 1);
}

// What the two counters of a KV head come to: a count of every adder and column tile, one adder a warpgroup or, in the wide
// kernel, a warp; a count of every warp that made a share of dq.
template <typename F>
__device__ __forceinline__ int clean(const Fm3BackwardArgs& args) {
    return ceil_div(args.mask.columns, F::kN) * 4 * F::kWarpgroups;
}
template <typename F>
__device__ __forceinline__ int complete(const Fm3BackwardArgs& args) {
    return F::kWide ? clean<F>(args) : clean<F>(args) / 4;
}

// One thread a warpgroup: adds every part of dQ that it has put down to the sums.
template <typename F>
struct SumRole {
    using Shared = typename F::Shared;
    const Fm3BackwardArgs& args;
    Shared& shared;
    int warpgroup;

    __device__ void run() {
        int slot = -1;
        for (int parity = 0;; parity ^= 1) {
            ptx::wait(&shared.dq_full[warpgroup], parity);
            const SumsPart part = shared.sums[warpgroup];
            if (part.to < 0) break;
            if (part.slot != slot) {
                slot = part.slot;
                if (slot >= args.slots) wait_for_count(args.counters + 2 * (slot - args.slots) + 1, clean<F>(args));
                ptx::fence_async_proxy_everywhere();
            }
            if constexpr (F::kFixed) {
                ptx::bulk_add(reinterpret_cast<int*>(args.dq_sums) + part.to, shared.dq[warpgroup], F::kSumBytes);
            } else {
                ptx::bulk_add(args.dq_sums + part.to, shared.dq[warpgroup], F::kSumBytes);
            }
            ptx::store_commit();
            ptx::store_wait_read();
            ptx::arrive(&shared.dq_empty[warpgroup]);
            if (part.ends) {
                ptx::bulk_wait();
                ptx::fence_async_proxy_everywhere();
                count(args.counters + 2 * slot);
            }
        }
    }
};

}  // namespace fm3
