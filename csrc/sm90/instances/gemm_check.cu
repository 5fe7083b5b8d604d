// One-tile products through the wrappers of ptx/, for tests: every form of wgmma that the attention kernels use.
//
// A is 64 rows, B is N rows of K elements (K-major) or K rows of N elements (MN-major), C = A * B^T or A * B in float32.
// N = 32 MN-major is the right half of 64 elements: an operand that starts in the middle of a swizzled row.
#include "../ptx/sync.cuh"
#include "../ptx/tma.cuh"
#include "../ptx/wgmma.cuh"
#include "../tensor_map.h"

namespace fm3 {
namespace {

using namespace ptx;

template <int kN, int kK, typename T, Major kMajorB, bool kFromRegisters>
__global__ void __launch_bounds__(128, 1) gemm_check(
    const __grid_constant__ CUtensorMap map_a, const __grid_constant__ CUtensorMap map_b, float* c) {
    extern __shared__ __align__(1024) uint8_t memory[];
    constexpr int kRowsB = kMajorB == Major::kK ? kN : kK;
    constexpr int kWidthB = kMajorB == Major::kK ? kK : (kN < 64 ? 64 : kN);
    T* a = reinterpret_cast<T*>(memory);
    T* b = a + 64 * kK;
    __shared__ Barrier full;
    if (threadIdx.x == 0) {
        barrier_init(&full, 1);
        fence_barrier_init();
    }
    __syncthreads();
    if (threadIdx.x == 0) {
        arrive_expecting(&full, (64 * kK + kRowsB * kWidthB) * int(sizeof(T)));
        tma_load(a, &map_a, &full, 0, 0, 0, kEvictFirst);
        tma_load(b, &map_b, &full, 0, 0, 0, kEvictLast);
    }
    wait(&full, 0);

    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int row = 16 * warp + lane / 4;
    float d[kN / 2];
    wgmma_fence();
#pragma unroll
    for (int k = 0; k < kK / 16; ++k) {
        // K-major: 16 elements are 32 bytes inside a chunk of 64. MN-major: 16 rows of 128 bytes.
        const uint64_t at_b = kMajorB == Major::kK ? descriptor(b + (k / 4) * kRowsB * 64, 0) + 2 * (k % 4)
                                                   : descriptor(b + (kWidthB - kN), kRowsB * 128) + 128 * k;
        if constexpr (kFromRegisters) {
            // The swizzle moves 16-byte pieces of a row by the row's number modulo 8.
            uint32_t fragment[4];
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                const int r = row + 8 * (i % 2), column = (k % 4) * 16 + 8 * (i / 2) + 2 * (lane % 4);
                const int piece = (column / 8) ^ (r % 8);
                const T* from = a + (k / 4) * 64 * 64 + r * 64 + piece * 8 + column % 8;
                fragment[i] = *reinterpret_cast<const uint32_t*>(from);
            }
            wgmma_fence();
            Wgmma<kN, T, kMajorB>::registers(d, fragment, at_b, k > 0);
            wgmma_commit();
            wgmma_wait<0>();
        } else {
            const uint64_t at_a = descriptor(a + (k / 4) * 64 * 64, 0) + 2 * (k % 4);
            Wgmma<kN, T, kMajorB>::shared(d, at_a, at_b, k > 0);
        }
    }
    wgmma_commit();
    wgmma_wait<0>();
#pragma unroll
    for (int i = 0; i < kN / 2; ++i) {
        const int column = 8 * (i / 4) + 2 * (lane % 4) + i % 2;
        c[(row + 8 * ((i / 2) % 2)) * kN + column] = d[i];
    }
}

template <int kN, int kK, typename T, Major kMajorB, bool kFromRegisters>
cudaError_t launch(const void* a, const void* b, float* c, bool bf16, cudaStream_t stream) {
    constexpr int kRowsB = kMajorB == Major::kK ? kN : kK;
    constexpr int kWidthB = kMajorB == Major::kK ? kK : (kN < 64 ? 64 : kN);
    CUtensorMap map_a, map_b;
    cudaError_t error = encode(&map_a, {a, 64 * kK, kK, kK, 1, 64, 1, kK}, bf16, 64, kK / 64);
    if (error != cudaSuccess) return error;
    error = encode(&map_b, {b, kRowsB * kWidthB, kWidthB, kWidthB, 1, kRowsB, 1, kWidthB}, bf16, kRowsB, kWidthB / 64);
    if (error != cudaSuccess) return error;
    const auto kernel = gemm_check<kN, kK, T, kMajorB, kFromRegisters>;
    const int bytes = (64 * kK + kRowsB * kWidthB) * int(sizeof(T));
    error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
    if (error != cudaSuccess) return error;
    kernel<<<1, 128, bytes, stream>>>(map_a, map_b, c);
    return cudaGetLastError();
}

template <int kN, typename T>
cudaError_t pick(const void* a, const void* b, float* c, bool mn_major, bool registers, bool bf16, cudaStream_t stream) {
    constexpr int kK = 128;
    if (mn_major && registers) return launch<kN, kK, T, Major::kMN, true>(a, b, c, bf16, stream);
    if (mn_major) return launch<kN, kK, T, Major::kMN, false>(a, b, c, bf16, stream);
    if (registers) return launch<kN, kK, T, Major::kK, true>(a, b, c, bf16, stream);
    return launch<kN, kK, T, Major::kK, false>(a, b, c, bf16, stream);
}

template <typename T>
cudaError_t pick_n(int n, const void* a, const void* b, float* c, bool mn_major, bool registers, bool bf16, cudaStream_t stream) {
    if (n == 32) return pick<32, T>(a, b, c, mn_major, registers, bf16, stream);
    if (n == 64) return pick<64, T>(a, b, c, mn_major, registers, bf16, stream);
    if (n == 128) return pick<128, T>(a, b, c, mn_major, registers, bf16, stream);
    if (n == 256) return pick<256, T>(a, b, c, mn_major, registers, bf16, stream);
    return cudaErrorInvalidValue;
}

}  // namespace
}  // namespace fm3

// A [64, 128] and B contiguous on the device, C float32 [64, n]. B is [n, 128], or [128, n] when mn_major (n = 32:
// [128, 64], of which the right half counts). Returns a cudaError_t.
extern "C" __attribute__((visibility("default"))) int fm3_gemm_check(int n, const void* a, const void* b, float* c, int mn_major, int registers, int bf16, void* stream) {
    const auto on = static_cast<cudaStream_t>(stream);
    return int(
        bf16 ? fm3::pick_n<__nv_bfloat16>(n, a, b, c, mn_major != 0, registers != 0, true, on)
             : fm3::pick_n<__half>(n, a, b, c, mn_major != 0, registers != 0, false, on));
}
