// TMA: bulk tensor copies between global and shared memory (PTX ISA, "cp.async.bulk.tensor").
//
// Every tensor is seen as five axes (64 elements, position, chunk of the head, head, batch item). One load of `rows`
// positions lands as [chunk][rows][64] in the 128-byte swizzle, which is what wgmma reads. Positions outside the tensor
// read as zero and are not written.
#pragma once

#include <cuda.h>

#include "mbarrier.cuh"

namespace fm3::ptx {

// Cache policies of the copy engine, as the hardware encodes them.
constexpr uint64_t kEvictFirst = 0x12F0000000000000ull;
constexpr uint64_t kEvictLast = 0x14F0000000000000ull;

__device__ __forceinline__ void prefetch(const CUtensorMap* map) {
    asm volatile("prefetch.tensormap [%0];" ::"l"(reinterpret_cast<uint64_t>(map)) : "memory");
}

__device__ __forceinline__ void tma_load(
    void* to, const CUtensorMap* map, Barrier* barrier, int position, int head, int item, uint64_t policy) {
    asm volatile(
        "cp.async.bulk.tensor.5d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint"
        " [%0], [%1, {%3, %4, %3, %5, %6}], [%2], %7;" ::"r"(shared_address(to)),
        "l"(reinterpret_cast<uint64_t>(map)), "r"(shared_address(barrier)), "r"(0), "r"(position), "r"(head), "r"(item), "l"(policy)
        : "memory");
}

__device__ __forceinline__ void tma_store(const CUtensorMap* map, const void* from, int position, int chunk, int head, int item) {
    asm volatile(
        "cp.async.bulk.tensor.5d.global.shared::cta.bulk_group [%0, {%2, %3, %4, %5, %6}], [%1];" ::"l"(
            reinterpret_cast<uint64_t>(map)),
        "r"(shared_address(from)), "r"(0), "r"(position), "r"(chunk), "r"(head), "r"(item)
        : "memory");
}

__device__ __forceinline__ void store_commit() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }

// The shared memory of all committed stores may be written again.
__device__ __forceinline__ void store_wait_read() { asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory"); }

// Ordinary writes to shared memory become visible to TMA and wgmma; by every writer, before the barrier.
__device__ __forceinline__ void fence_async_proxy() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

}  // namespace fm3::ptx
