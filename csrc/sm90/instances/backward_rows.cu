// What the backward kernel needs of every query row beforehand.
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <cmath>

#include "../backward_args.h"

namespace fm3 {
namespace {

constexpr int kRows = 64;     // of a query tile; Backward::kM
constexpr int kThreads = 256;
constexpr int kTogether = 4;  // rows that a thread has on their way at a time
constexpr float kLog2E = 1.4426950408889634f;

__host__ __device__ __forceinline__ int64_t padded(int rows) { return (int64_t(rows) + kRows - 1) / kRows * kRows; }

__device__ __forceinline__ float2 floats(__nv_bfloat162 x) { return __bfloat1622float2(x); }
__device__ __forceinline__ float2 floats(__half2 x) { return __half22float2(x); }

template <typename Pair>
__device__ __forceinline__ float dot(const uint4& x, const uint4& y) {
    const Pair *a = reinterpret_cast<const Pair*>(&x), *b = reinterpret_cast<const Pair*>(&y);
    float sum = 0.f;
#pragma unroll
    for (int i = 0; i < 4; ++i) sum += floats(a[i]).x * floats(b[i]).x + floats(a[i]).y * floats(b[i]).y;
    return sum;
}

// Groups of threads, 16 bytes of a row each, take kTogether rows of a head; neighbours take neighbouring heads, whose rows
// usually lie side by side. Rows that only pad the last tile are included. Bound by memory: what counts is bytes on their way.
template <int kD, typename Pair>
__global__ void __launch_bounds__(kThreads) rows(const __grid_constant__ Fm3RowsArgs a, int64_t groups) {
    constexpr int kLanes = kD / 8;
    const int lane = threadIdx.x % kLanes;
    const int64_t group = int64_t(blockIdx.x) * (kThreads / kLanes) + threadIdx.x / kLanes;
    if (group >= groups) return;
    const int64_t length = padded(a.rows), steps = length / kTogether;
    const int head = int(group % a.heads), item = int(group / a.heads / steps);
    const int64_t first = group / a.heads % steps * kTogether, at = (int64_t(item) * a.heads + head) * length + first;
    using Element = decltype(Pair::x);
    const auto load = [&](const void* data, const int64_t(&strides)[3], int64_t row) {
        const Element* x = static_cast<const Element*>(data) + item * strides[0] + row * strides[1] + head * strides[2] + lane * 8;
        return *reinterpret_cast<const uint4*>(x);
    };
    uint4 out[kTogether] = {}, dout[kTogether] = {};
#pragma unroll
    for (int i = 0; i < kTogether; ++i) {
        if (first + i < a.rows) {
            out[i] = load(a.out, a.out_strides, first + i);
            dout[i] = load(a.dout, a.dout_strides, first + i);
        }
    }
#pragma unroll
    for (int i = 0; i < kTogether; ++i) {
        float sum = dot<Pair>(out[i], dout[i]);
#pragma unroll
        for (int lanes = kLanes / 2; lanes > 0; lanes /= 2) sum += __shfl_xor_sync(~0u, sum, lanes);
        if (lane != i) continue;
        const int64_t row = first + i;
        float lse = -INFINITY, dlse = 0.f;
        if (row < a.rows) {
            lse = a.lse[(int64_t(item) * a.heads + head) * a.rows + row];
            if (a.dlse != nullptr) dlse = a.dlse[item * a.dlse_strides[0] + row * a.dlse_strides[1] + head * a.dlse_strides[2]];
        }
        // The exponent of a row that sees nothing becomes -inf, and nothing that arrives there goes further.
        const bool dead = lse == -INFINITY;
        const int64_t to = at - first % kRows + place_of_row(int(row % kRows));
        a.lse2[to] = dead ? INFINITY : lse * kLog2E;
        a.delta[to] = dead ? 0.f : sum - dlse;
    }
}

template <int kD, typename Pair>
cudaError_t launch(const Fm3RowsArgs& a, cudaStream_t stream) {
    constexpr int kGroups = kThreads / (kD / 8);
    const int64_t groups = padded(a.rows) / kTogether * a.heads * a.batch, blocks = (groups + kGroups - 1) / kGroups;
    if (blocks == 0) return cudaSuccess;
    if (blocks > INT32_MAX) return cudaErrorInvalidConfiguration;
    const cudaError_t error = cudaMemsetAsync(a.zeros, 0, size_t(a.zeroed), stream);
    if (error != cudaSuccess) return error;
    rows<kD, Pair><<<unsigned(blocks), kThreads, 0, stream>>>(a, groups);
    return cudaGetLastError();
}

template <typename Pair>
cudaError_t by_head_dim(const Fm3RowsArgs& a, cudaStream_t stream) {
    switch (a.head_dim) {
        case 64: return launch<64, Pair>(a, stream);
        case 128: return launch<128, Pair>(a, stream);
        default: return cudaErrorInvalidValue;
    }
}

}  // namespace
}  // namespace fm3

// Returns a cudaError_t.
extern "C" __attribute__((visibility("default"))) int fm3_backward_rows(const Fm3RowsArgs* args, void* stream) {
    const auto on = static_cast<cudaStream_t>(stream);
    return int(args->bf16 ? fm3::by_head_dim<__nv_bfloat162>(*args, on) : fm3::by_head_dim<__half2>(*args, on));
}
