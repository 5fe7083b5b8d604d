// wgmma: the warpgroup matrix product, m64 x N x k16, 16-bit inputs, float32 accumulators in registers (PTX ISA,
// "wgmma.mma_async").
//
// Accumulator register 4j+2h+e of a thread is row 16*warp + lane/4 + 8h, column 8j + 2*(lane%4) + e: two rows a thread, a
// row on a quad. Two neighbouring column groups of an accumulator, packed to 16 bits, are an A operand as they stand.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "mbarrier.cuh"

namespace fm3::ptx {

__device__ __forceinline__ void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }

// At most `kPending` committed groups are still running.
template <int kPending>
__device__ __forceinline__ void wgmma_wait() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}

// Keeps the compiler from moving reads or writes of accumulators across this point.
template <int kCount>
__device__ __forceinline__ void hold(float (&x)[kCount]) {
#pragma unroll
    for (int i = 0; i < kCount; ++i) asm volatile("" : "+f"(x[i])::"memory");
}

// Descriptor of a tile of [rows][64] 16-bit elements in the 128-byte swizzle, 1024-byte aligned: 8 rows are 1024 bytes.
// `chunk_bytes` is the distance of the next 64 elements; it matters only when the 64-element axis is M or N and longer.
__device__ __forceinline__ uint64_t descriptor(const void* tile, int chunk_bytes) {
    const uint64_t address = (shared_address(tile) & 0x3FFFF) >> 4;
    return address | (uint64_t(chunk_bytes >> 4) << 16) | (uint64_t(1024 >> 4) << 32) | (1ull << 62);
}

enum class Major : int { kK = 0, kMN = 1 };

// clang-format off
#define FM3_R8(b)  "%" #b "0, %" #b "1, %" #b "2, %" #b "3, %" #b "4, %" #b "5, %" #b "6, %" #b "7, %" #b "8, %" #b "9"
#define FM3_REGS_0_9   "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9"
#define FM3_LIST_16  FM3_REGS_0_9 ", %10, %11, %12, %13, %14, %15"
#define FM3_LIST_32  FM3_REGS_0_9 ", " FM3_R8(1) ", " FM3_R8(2) ", %30, %31"
#define FM3_LIST_64  FM3_REGS_0_9 ", " FM3_R8(1) ", " FM3_R8(2) ", " FM3_R8(3) ", " FM3_R8(4) ", " FM3_R8(5) ", %60, %61, %62, %63"
#define FM3_LIST_128 FM3_REGS_0_9 ", " FM3_R8(1) ", " FM3_R8(2) ", " FM3_R8(3) ", " FM3_R8(4) ", " FM3_R8(5) ", " FM3_R8(6) ", " \
    FM3_R8(7) ", " FM3_R8(8) ", " FM3_R8(9) ", " FM3_R8(10) ", " FM3_R8(11) ", %120, %121, %122, %123, %124, %125, %126, %127"

#define FM3_D4(i)  "+f"(d[i]), "+f"(d[(i) + 1]), "+f"(d[(i) + 2]), "+f"(d[(i) + 3])
#define FM3_D16(i) FM3_D4(i), FM3_D4((i) + 4), FM3_D4((i) + 8), FM3_D4((i) + 12)
#define FM3_D32(i) FM3_D16(i), FM3_D16((i) + 16)
#define FM3_D64(i) FM3_D32(i), FM3_D32((i) + 32)
#define FM3_D128(i) FM3_D64(i), FM3_D64((i) + 64)
// clang-format on

// D = A * B (+ D): `shared` takes A (K-major) and B from shared memory, `registers` takes A from registers. `add` = 0
// overwrites D. Which axis of B is contiguous is part of the type.
template <int kN, typename T, Major kMajorB>
struct Wgmma;

// REGS = N/2 accumulators; the operands behind them are numbered from REGS on.
#define FM3_WGMMA(N, REGS, LIST, OUT, T, NAME, P0, P1, P2, P3, P4, P5, P6)                                              \
    template <Major kMajorB>                                                                                            \
    struct Wgmma<N, T, kMajorB> {                                                                                       \
        static __device__ __forceinline__ void shared(float (&d)[REGS], uint64_t a, uint64_t b, int add) {              \
            asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %" #P2 ", 0;\n"                                              \
                         "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32." NAME "." NAME                                \
                         " {" LIST "}, %" #P0 ", %" #P1 ", p, 1, 1, 0, %" #P3 ";\n}\n"                                  \
                         : OUT(0)                                                                                       \
                         : "l"(a), "l"(b), "r"(add), "n"(int(kMajorB)));                                                \
        }                                                                                                               \
        static __device__ __forceinline__ void registers(float (&d)[REGS], const uint32_t (&a)[4], uint64_t b, int add) { \
            asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %" #P5 ", 0;\n"                                              \
                         "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32." NAME "." NAME                                \
                         " {" LIST "}, {%" #P0 ", %" #P1 ", %" #P2 ", %" #P3 "}, %" #P4 ", p, 1, 1, %" #P6 ";\n}\n"     \
                         : OUT(0)                                                                                       \
                         : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add), "n"(int(kMajorB)));            \
        }                                                                                                               \
    };

FM3_WGMMA(32, 16, FM3_LIST_16, FM3_D16, __nv_bfloat16, "bf16", 16, 17, 18, 19, 20, 21, 22)
FM3_WGMMA(32, 16, FM3_LIST_16, FM3_D16, __half, "f16", 16, 17, 18, 19, 20, 21, 22)
FM3_WGMMA(64, 32, FM3_LIST_32, FM3_D32, __nv_bfloat16, "bf16", 32, 33, 34, 35, 36, 37, 38)
FM3_WGMMA(64, 32, FM3_LIST_32, FM3_D32, __half, "f16", 32, 33, 34, 35, 36, 37, 38)
FM3_WGMMA(128, 64, FM3_LIST_64, FM3_D64, __nv_bfloat16, "bf16", 64, 65, 66, 67, 68, 69, 70)
FM3_WGMMA(128, 64, FM3_LIST_64, FM3_D64, __half, "f16", 64, 65, 66, 67, 68, 69, 70)
FM3_WGMMA(256, 128, FM3_LIST_128, FM3_D128, __nv_bfloat16, "bf16", 128, 129, 130, 131, 132, 133, 134)
FM3_WGMMA(256, 128, FM3_LIST_128, FM3_D128, __half, "f16", 128, 129, 130, 131, 132, 133, 134)

#undef FM3_WGMMA

// Two accumulator values as one packed register, the first in the lower half.
__device__ __forceinline__ uint32_t packed(float low, float high, __nv_bfloat16) {
    uint32_t out;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(out) : "f"(high), "f"(low));
    return out;
}

__device__ __forceinline__ uint32_t packed(float low, float high, __half) {
    uint32_t out;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(out) : "f"(high), "f"(low));
    return out;
}

// The other way round, for values that are used again.
__device__ __forceinline__ float2 unpacked(uint32_t x, __nv_bfloat16) {
    return {__uint_as_float(x << 16), __uint_as_float(x & 0xFFFF0000u)};
}

__device__ __forceinline__ float2 unpacked(uint32_t x, __half) { return __half22float2(reinterpret_cast<const __half2&>(x)); }

}  // namespace fm3::ptx
