// The sums of dQ. Column tiles add their parts; when all of a KV head have, the sums become dq (backward_convert.cuh).
//
// The sums of a KV head are needed only while its column tiles are worked on, and so they live in slots that the KV heads take
// in turn, always the first one that is free: what is used again soon seldom goes to memory. A query tile has kM * kD sums: of
// each warpgroup's columns, of each warp's 16 rows, of each 8 columns the four numbers that every lane holds in an accumulator.
//
// KV heads get their slots in the order in which blocks take their items. So whoever waits for a slot waits for KV heads all of
// whose items are taken, by blocks that do not wait for it: nobody waits for ever.
//
// Fixed sums: a row of dQ is a sum of P * (dP - delta) * K over its columns, and with P adding up to 1 no part of it is larger
// than twice |dO| times the longest V, times the largest K. So every row has a factor, made beforehand, that brings it into 31
// bits: rounded to integers its parts add up to the same bits in any order, and nobody has to wait for a turn.
#pragma once

#include "backward_args.h"
#include "backward_shape.cuh"

namespace fm3 {

// What is known of the sums: `args.ledger`, all zero before a call. KV heads are counted over all batch items.
struct Ledger {
    unsigned long long* used;  // a bit of every slot
    int* complete;             // KV heads whose sums are complete
    unsigned* taken;           // shares that somebody makes into dq
    int* added;                // of every KV head: how often its items were counted
    unsigned* made;            // of every KV head: how many of its shares are made
    int* slot;                 // of every KV head: 1 + its slot
    int64_t* completed;        // in order: 1 + kMostSlots * the KV head + its slot
    int* front;                // of every KV head: the query tile that one of its blocks was at not long ago

    __device__ __forceinline__ Ledger(const Fm3BackwardArgs& args) {
        int batch = args.batch;
        asm volatile("" : "+r"(batch));  // opaque: addresses would be kept in registers over all items
        const int64_t heads = int64_t(batch) * args.kv_heads;
        used = reinterpret_cast<unsigned long long*>(args.ledger);
        complete = args.ledger + 2, taken = reinterpret_cast<unsigned*>(args.ledger + 3);
        added = args.ledger + 4, made = reinterpret_cast<unsigned*>(added + heads), slot = added + 2 * heads;
        completed = reinterpret_cast<int64_t*>(slot + heads + heads % 2);
        front = reinterpret_cast<int*>(completed + heads);
    }
};

// The number at `at`, and what was written before it was published.
__device__ __forceinline__ int number_at(const int* at) {
    int found;
    asm volatile("ld.acquire.gpu.global.s32 %0, [%1];" : "=r"(found) : "l"(at) : "memory");
    return found;
}
__device__ __forceinline__ int64_t number_at(const int64_t* at) {
    int64_t found;
    asm volatile("ld.acquire.gpu.global.s64 %0, [%1];" : "=l"(found) : "l"(at) : "memory");
    return found;
}

// The same once it is not zero; by one thread.
__device__ __forceinline__ int wait_for_number(const int* at) {
    for (;;) {
        const int found = number_at(at);
        if (found != 0) return found;
        __nanosleep(100);
    }
}

// The same, where nothing depends on when it was written.
__device__ __forceinline__ int glance(const int* at) {
    int found;
    asm volatile("ld.relaxed.gpu.global.s32 %0, [%1];" : "=r"(found) : "l"(at) : "memory");
    return found;
}
__device__ __forceinline__ void note(int* at, int number) {
    asm volatile("st.relaxed.gpu.global.s32 [%0], %1;" ::"l"(at), "r"(number) : "memory");
}

__device__ __forceinline__ void publish(int* at, int number) {
    asm volatile("st.release.gpu.global.s32 [%0], %1;" ::"l"(at), "r"(number) : "memory");
}
__device__ __forceinline__ void publish(int64_t* at, int64_t number) {
    asm volatile("st.release.gpu.global.s64 [%0], %1;" ::"l"(at), "l"(number) : "memory");
}

// The slot of a KV head, which is clean; by one thread. `first`: of the one that took its first item.
__device__ __forceinline__ int slot_of(const Fm3BackwardArgs& args, int head, bool first) {
    const Ledger ledger(args);
    if (!first) return wait_for_number(ledger.slot + head) - 1;
    if (head > 0) wait_for_number(ledger.slot + head - 1);
    for (;;) {
        const int slot = __ffsll(~number_at(reinterpret_cast<const int64_t*>(ledger.used))) - 1;
        if (slot >= 0 && slot < args.slots) {
            atomicOr(ledger.used, 1ull << slot);  // nobody else takes one now
            publish(ledger.slot + head, slot + 1);
            return slot;
        }
        __nanosleep(100);
    }
}

// Counts an item of a KV head; by one thread, after all that it added. F::kAdders count every item.
template <typename F>
__device__ __forceinline__ void count_added(const Fm3BackwardArgs& args, int head, int times = 1) {
    const Ledger ledger(args);
    const int all = ceil_div(args.mask.columns, F::kN) * F::kAdders;
    __threadfence();
    if (atomicAdd(ledger.added + head, times) + times == all) {
        __threadfence();
        publish(ledger.completed + atomicAdd(ledger.complete, 1), int64_t(head) * kMostSlots + number_at(ledger.slot + head));
    }
}

// Adds the parts of dQ that the warpgroups put down, in turn, to the sums. Of a warp that has other things to do as well; one
// lane is enough.
template <typename F>
struct SumRole {
    using Shared = typename F::Shared;
    const Fm3BackwardArgs& args;
    Shared& shared;
    int parts = 0, head = -1;

    // The next part, if it is there; false if there are no more.
    __device__ __forceinline__ bool serve() {
        const int warpgroup = parts % F::kWarpgroups;
        if (!__all_sync(~0u, ptx::has_ended(&shared.dq_full[warpgroup], parts / F::kWarpgroups & 1))) return true;
        ++parts;
        const SumsPart part = shared.sums[warpgroup];
        if (part.to < 0) return false;
        if (threadIdx.x % 32 == 0) {
            if (part.head != head) ptx::fence_async_proxy_everywhere();  // its slot was cleaned by ordinary writes
            if constexpr (F::kFixed) {
                ptx::bulk_add(reinterpret_cast<int*>(args.dq_sums) + part.to, shared.dq[warpgroup], F::kSumBytes);
            } else {
                ptx::bulk_add(args.dq_sums + part.to, shared.dq[warpgroup], F::kSumBytes);
            }
            ptx::store_commit();
            ptx::store_wait_read();
            ptx::arrive(&shared.dq_empty[warpgroup]);
            if (part.ends && warpgroup == F::kWarpgroups - 1) {
                ptx::bulk_wait();
                ptx::fence_async_proxy_everywhere();
                count_added<F>(args, part.head);
            }
        }
        head = part.head;
        __syncwarp();
        return true;
    }
};

}  // namespace fm3
