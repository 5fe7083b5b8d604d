// What the backward kernel needs of every query row before, and what becomes of its sums after.
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <cmath>

#include "../backward_args.h"

namespace fm3 {
namespace {

constexpr int kRows = 64;  // of a query tile; Backward::kM
constexpr int kWarps = 8;
constexpr float kLog2E = 1.4426950408889634f;

__host__ __device__ __forceinline__ int64_t padded(int rows) { return (int64_t(rows) + kRows - 1) / kRows * kRows; }

__device__ __forceinline__ float2 floats(__nv_bfloat162 x) { return __bfloat1622float2(x); }
__device__ __forceinline__ float2 floats(__half2 x) { return __half22float2(x); }
__device__ __forceinline__ void narrow(float2 x, __nv_bfloat162* to) { *to = __float22bfloat162_rn(x); }
__device__ __forceinline__ void narrow(float2 x, __half2* to) { *to = __float22half2_rn(x); }

// One warp a row, rows that only pad the last tile included.
template <int kD, typename Pair>
__global__ void __launch_bounds__(32 * kWarps) before(const __grid_constant__ Fm3RowsArgs a, int64_t all_rows) {
    const int lane = threadIdx.x % 32;
    const int64_t at = int64_t(blockIdx.x) * kWarps + threadIdx.x / 32;
    if (at >= all_rows) return;
    const int64_t length = padded(a.rows), row = at % length;
    const int head = int(at / length % a.heads), item = int(at / length / a.heads);
    float sum = 0.f, lse = -INFINITY, dlse = 0.f;
    if (row < a.rows) {
        using Element = decltype(Pair::x);
        const auto from = [&](const void* data, const int64_t(&strides)[3]) {
            return reinterpret_cast<const Pair*>(
                static_cast<const Element*>(data) + item * strides[0] + row * strides[1] + head * strides[2]);
        };
        const Pair *out = from(a.out, a.out_strides), *dout = from(a.dout, a.dout_strides);
#pragma unroll
        for (int i = lane; i < kD / 2; i += 32) {
            const float2 x = floats(out[i]), y = floats(dout[i]);
            sum += x.x * y.x + x.y * y.y;
        }
        lse = a.lse[(int64_t(item) * a.heads + head) * a.rows + row];
        if (a.dlse != nullptr) dlse = a.dlse[item * a.dlse_strides[0] + row * a.dlse_strides[1] + head * a.dlse_strides[2]];
    }
#pragma unroll
    for (int lanes = 16; lanes > 0; lanes /= 2) sum += __shfl_xor_sync(~0u, sum, lanes);
    if (lane == 0) {
        // The exponent of a row that sees nothing becomes -inf, and nothing that arrives there goes further.
        const bool dead = lse == -INFINITY;
        a.lse2[at] = dead ? INFINITY : lse * kLog2E;
        a.delta[at] = dead ? 0.f : sum - dlse;
    }
#pragma unroll
    for (int i = lane; i < kD / 4; i += 32) reinterpret_cast<float4*>(a.dq_sums + at * kD)[i] = float4{0.f, 0.f, 0.f, 0.f};
}

// One block a query tile: sums in the order of the kernel's registers to rows of dq.
template <int kD, typename Pair>
__global__ void __launch_bounds__(256) after(const __grid_constant__ Fm3RowsArgs a, int tiles) {
    constexpr int kHalf = kD / 2;  // columns of a warpgroup
    const int tile = int(blockIdx.x % tiles), head = int(blockIdx.x / tiles % a.heads), item = int(blockIdx.x / tiles / a.heads);
    const int warpgroup = threadIdx.x / 128, thread = threadIdx.x % 128;
    const float4* sums = reinterpret_cast<const float4*>(
        a.dq_sums + ((int64_t(item) * a.heads + head) * padded(a.rows) + int64_t(tile) * kRows) * kD + warpgroup * kRows * kHalf);
    using Element = decltype(Pair::x);
    Element* dq = static_cast<Element*>(a.dq) + item * a.dq_strides[0] + head * a.dq_strides[2];
    const int64_t first = int64_t(tile) * kRows + thread / 32 * 16 + thread % 32 / 4;
#pragma unroll
    for (int i = 0; i < kHalf / 8; ++i) {
        const float4 x = sums[i * 128 + thread];
        const int column = warpgroup * kHalf + 8 * i + thread % 4 * 2;
        if (first < a.rows) narrow({x.x * a.scale, x.y * a.scale}, reinterpret_cast<Pair*>(dq + first * a.dq_strides[1] + column));
        if (first + 8 < a.rows) {
            narrow({x.z * a.scale, x.w * a.scale}, reinterpret_cast<Pair*>(dq + (first + 8) * a.dq_strides[1] + column));
        }
    }
}

template <int kD, typename Pair>
cudaError_t launch(const Fm3RowsArgs& a, bool is_before, cudaStream_t stream) {
    const int64_t heads = int64_t(a.batch) * a.heads, rows = padded(a.rows) * heads;
    const int64_t blocks = is_before ? (rows + kWarps - 1) / kWarps : rows / kRows;
    if (blocks == 0) return cudaSuccess;
    if (blocks > INT32_MAX) return cudaErrorInvalidConfiguration;
    if (is_before) {
        before<kD, Pair><<<unsigned(blocks), 32 * kWarps, 0, stream>>>(a, rows);
    } else {
        after<kD, Pair><<<unsigned(blocks), 256, 0, stream>>>(a, int(padded(a.rows) / kRows));
    }
    return cudaGetLastError();
}

template <typename Pair>
cudaError_t by_head_dim(const Fm3RowsArgs& a, bool is_before, cudaStream_t stream) {
    switch (a.head_dim) {
        case 64: return launch<64, Pair>(a, is_before, stream);
        case 128: return launch<128, Pair>(a, is_before, stream);
        default: return cudaErrorInvalidValue;
    }
}

}  // namespace
}  // namespace fm3

// Return a cudaError_t.
extern "C" __attribute__((visibility("default"))) int fm3_backward_rows(const Fm3RowsArgs* args, int is_before, void* stream) {
    const auto on = static_cast<cudaStream_t>(stream);
    return int(args->bf16 ? fm3::by_head_dim<__nv_bfloat162>(*args, is_before != 0, on)
                          : fm3::by_head_dim<__half2>(*args, is_before != 0, on));
}
