// Clusters of two blocks: each reaches the other's shared memory (PTX ISA, "mapa", "barrier.cluster", "st.async", multicast).
#pragma once

#include "tma.cuh"

namespace fm3::ptx {

__device__ __forceinline__ int cluster_rank() {
    int rank;
    asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    return rank;
}

// All threads of both blocks; what they wrote before is seen after.
__device__ __forceinline__ void cluster_sync() {
    asm volatile("barrier.cluster.arrive.release;\nbarrier.cluster.wait.acquire;" ::: "memory");
}

// What must be added to a shared address of this block for the same place in block `rank` of the cluster.
__device__ __forceinline__ uint32_t distance_to(const void* anything_shared, int rank) {
    uint32_t there;
    const uint32_t here = shared_address(anything_shared);
    asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(here), "r"(rank));
    return there - here;
}

// At the other block's barrier of the same name, unless the distance is 0: a predicate and no branch, since it stands in short
// loops. Nothing that this thread wrote is seen there by it: a release for the whole cluster takes hundreds of clocks.
__device__ __forceinline__ void arrive_there(Barrier* barrier, uint32_t distance) {
    asm volatile(
        "{\n.reg .pred there;\nsetp.ne.u32 there, %1, 0;\n@there mbarrier.arrive.shared::cluster.b64 _, [%0];\n}\n" ::"r"(
            shared_address(barrier) + distance),
        "r"(distance)
        : "memory");
}

__device__ __forceinline__ void fence_cluster() { asm volatile("fence.acq_rel.cluster;" ::: "memory"); }

// Writes a number of the other block, whose barrier of the same name counts its 4 bytes.
__device__ __forceinline__ void send(unsigned* to, unsigned number, Barrier* barrier, uint32_t distance) {
    asm volatile(
        "st.async.shared::cluster.mbarrier::complete_tx::bytes.u32 [%0], %1, [%2];" ::"r"(shared_address(to) + distance), "r"(number),
        "r"(shared_address(barrier) + distance)
        : "memory");
}

// As `wait`, for what threads of the other block wrote.
__device__ __forceinline__ void wait_for_cluster(Barrier* barrier, int parity) {
    asm volatile(
        "{\n"
        ".reg .pred done;\n"
        "again%=:\n"
        "mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 done, [%0], %1;\n"
        "@done bra.uni passed%=;\n"
        "bra.uni again%=;\n"
        "passed%=:\n"
        "}\n" ::"r"(shared_address(barrier)),
        "r"(parity)
        : "memory");
}

// As `tma_load` from chunk `chunk` on, into the same place of both blocks; the barriers of the same name of both count the bytes.
__device__ __forceinline__ void tma_load_for_both(
    void* to, const CUtensorMap* map, Barrier* barrier, int position, int chunk, int head, int item, uint64_t policy) {
    asm volatile(
        "cp.async.bulk.tensor.5d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster.L2::cache_hint"
        " [%0], [%1, {%3, %4, %5, %6, %7}], [%2], %8, %9;" ::"r"(shared_address(to)),
        "l"(reinterpret_cast<uint64_t>(map)), "r"(shared_address(barrier)), "r"(0), "r"(position), "r"(chunk), "r"(head), "r"(item),
        "h"(uint16_t(3)), "l"(policy)
        : "memory");
}

}  // namespace fm3::ptx
