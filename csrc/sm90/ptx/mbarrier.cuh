// mbarrier: the shared-memory barriers that TMA signals (PTX ISA, "mbarrier").
#pragma once

#include <cstdint>

namespace fm3::ptx {

using Barrier = uint64_t;

__device__ __forceinline__ uint32_t shared_address(const void* pointer) {
    return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
}

// One thread, before a __syncthreads; followed once by fence_barrier_init.
__device__ __forceinline__ void barrier_init(Barrier* barrier, int arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(barrier)), "r"(arrivals));
}

__device__ __forceinline__ void fence_barrier_init() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }

__device__ __forceinline__ void arrive(Barrier* barrier) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(barrier)) : "memory");
}

// Arrives and announces how many bytes the phase waits for. Bytes may have landed before this: the phase cannot end without it.
__device__ __forceinline__ void arrive_expecting(Barrier* barrier, int bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(barrier)), "r"(bytes) : "memory");
}

// Returns when the phase of this parity has ended. A fresh barrier lets parity 1 pass and holds parity 0.
__device__ __forceinline__ void wait(Barrier* barrier, int parity) {
    asm volatile(
        "{\n"
        ".reg .pred done;\n"
        "again%=:\n"
        "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
        "@done bra.uni passed%=;\n"
        "bra.uni again%=;\n"
        "passed%=:\n"
        "}\n" ::"r"(shared_address(barrier)),
        "r"(parity)
        : "memory");
}

// Whether that phase has ended. Does not wait: try_wait may for longer than anybody would like, whatever it is told.
__device__ __forceinline__ bool has_ended(Barrier* barrier, int parity) {
    uint32_t ended;
    asm volatile(
        "{\n"
        ".reg .pred ended;\n"
        "mbarrier.test_wait.parity.shared::cta.b64 ended, [%1], %2;\n"
        "selp.u32 %0, 1, 0, ended;\n"
        "}\n"
        : "=r"(ended)
        : "r"(shared_address(barrier)), "r"(parity)
        : "memory");
    return ended != 0;
}

// Position in a ring of stages, with the parity that goes with it.
template <int kStages>
struct Ring {
    int stage = 0;
    int parity = 0;

    __device__ __forceinline__ void advance() {
        if (++stage == kStages) {
            stage = 0;
            parity ^= 1;
        }
    }
};

}  // namespace fm3::ptx
