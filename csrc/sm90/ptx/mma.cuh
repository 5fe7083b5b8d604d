// mma.sync: the product of one warp, m16 x n8 x k16, operands in registers (PTX ISA, "mma.sync", "ldmatrix").
//
// Its accumulator has the layout of a warp's part of a wgmma accumulator, so the two can stand in for each other.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "mbarrier.cuh"

namespace fm3::ptx {

// Four 8x8 matrices of 16-bit elements; lane l gives the address of row l%8 of matrix l/8.
__device__ __forceinline__ void load_matrices(uint32_t (&x)[4], const void* row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3])
                 : "r"(shared_address(row))
                 : "memory");
}

#define FM3_MMA(T, NAME)                                                                                               \
    __device__ __forceinline__ void mma(float* d, const uint32_t (&a)[4], uint32_t b0, uint32_t b1, T) {               \
        asm volatile("mma.sync.aligned.m16n8k16.row.col.f32." NAME "." NAME                                            \
                     ".f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"                            \
                     : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])                                                  \
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));                                  \
    }

FM3_MMA(__nv_bfloat16, "bf16")
FM3_MMA(__half, "f16")

#undef FM3_MMA

}  // namespace fm3::ptx
