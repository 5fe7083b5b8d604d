// Asynchronous copies by threads, from global to shared memory (PTX ISA, "cp.async"): in groups, which a thread waits for. They
// do not queue behind the bulk copies of the block.
#pragma once

#include "mbarrier.cuh"

namespace fm3::ptx {

// 16 bytes, past the L1 cache.
__device__ __forceinline__ void copy16(void* to, const void* from) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(shared_address(to)), "l"(from) : "memory");
}

__device__ __forceinline__ void copy4(void* to, const void* from) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(shared_address(to)), "l"(from) : "memory");
}

__device__ __forceinline__ void copy_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }

// This thread's groups have landed, but for the kLeft newest.
template <int kLeft>
__device__ __forceinline__ void copy_wait() {
    asm volatile("cp.async.wait_group %0;" ::"n"(kLeft) : "memory");
}

}  // namespace fm3::ptx
