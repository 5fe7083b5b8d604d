// The instructions of this folder that the Hopper kernels have no use for (PTX ISA, "ldmatrix", "cp.async", "bmsk").
//
// By addresses in shared memory rather than pointers, so that distances known at compile time become part of the instruction.
#pragma once

#include "../sm90/ptx/copy.cuh"
#include "../sm90/ptx/mma.cuh"

namespace fm3::ptx {

// The same number, of which the compiler knows nothing: what follows from it is not kept in registers from step to step.
template <typename Integer>
__device__ __forceinline__ Integer opaque(Integer x) {
    static_assert(sizeof(Integer) == 4);
    asm volatile("" : "+r"(x));
    return x;
}

// Four 8 x 8 matrices of 16-bit elements; lane l gives the address of row l%8 of matrix l/8.
__device__ __forceinline__ void load_block(uint32_t (&x)[4], uint32_t row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3])
                 : "r"(row)
                 : "memory");
}

// The same with every matrix transposed.
__device__ __forceinline__ void load_block_transposed(uint32_t (&x)[4], uint32_t row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3])
                 : "r"(row)
                 : "memory");
}

// The lowest x bits: none for x <= 0, all for x >= 32.
__device__ __forceinline__ uint32_t lowest_bits(int x) {
    uint32_t mask;
    asm("bmsk.clamp.b32 %0, 0, %1;" : "=r"(mask) : "r"(max(x, 0)));
    return mask;
}

// 16 bytes past the L1 cache, or 16 zeros without reading anything.
__device__ __forceinline__ void copy16_or_zeros(uint32_t to, const void* from, bool exists) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(exists ? 16 : 0) : "memory");
}

}  // namespace fm3::ptx
