// Bulk copies without a tensor map: contiguous bytes, multiples of 16, both ends aligned to 16 (PTX ISA, "cp.async.bulk",
// "cp.reduce.async.bulk").
#pragma once

#include "mbarrier.cuh"

namespace fm3::ptx {

__device__ __forceinline__ void bulk_load(void* to, const void* from, int bytes, Barrier* barrier) {
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(shared_address(to)),
        "l"(from), "r"(bytes), "r"(shared_address(barrier))
        : "memory");
}

// Adds float32 numbers in shared memory to those in global memory; part of a bulk group (store_commit in tma.cuh).
__device__ __forceinline__ void bulk_add(float* to, const void* from, int bytes) {
    asm volatile("cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [%0], [%1], %2;" ::"l"(to),
                 "r"(shared_address(from)), "r"(bytes)
                 : "memory");
}

// The same of integers, whose sums do not depend on the order.
__device__ __forceinline__ void bulk_add(int* to, const void* from, int bytes) {
    asm volatile("cp.reduce.async.bulk.global.shared::cta.bulk_group.add.s32 [%0], [%1], %2;" ::"l"(to),
                 "r"(shared_address(from)), "r"(bytes)
                 : "memory");
}

// fence_async_proxy (tma.cuh) of all memory, and in both directions.
__device__ __forceinline__ void fence_async_proxy_everywhere() { asm volatile("fence.proxy.async;" ::: "memory"); }

// The memory of all committed groups may be written again, and what they wrote can be seen by everybody.
__device__ __forceinline__ void bulk_wait() { asm volatile("cp.async.bulk.wait_group 0;" ::: "memory"); }

}  // namespace fm3::ptx
