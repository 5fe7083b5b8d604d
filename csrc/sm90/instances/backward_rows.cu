// What the backward kernel needs of every query row before, and what becomes of its sums after.
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <cmath>

#include "../backward_args.h"

namespace fm3 {
namespace {

constexpr int kRows = 64;     // of a query tile; Backward::kM
constexpr int kThreads = 256;
constexpr int kTogether = 4;  // rows that a thread of `before` has on their way at a time
constexpr float kLog2E = 1.4426950408889634f;

__host__ __device__ __forceinline__ int64_t padded(int rows) { return (int64_t(rows) + kRows - 1) / kRows * kRows; }

__device__ __forceinline__ float2 floats(__nv_bfloat162 x) { return __bfloat1622float2(x); }
__device__ __forceinline__ float2 floats(__half2 x) { return __half22float2(x); }
__device__ __forceinline__ void narrow(float2 x, __nv_bfloat162* to) { *to = __float22bfloat162_rn(x); }
__device__ __forceinline__ void narrow(float2 x, __half2* to) { *to = __float22half2_rn(x); }

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
__global__ void __launch_bounds__(kThreads) before(const __grid_constant__ Fm3RowsArgs a, int64_t groups) {
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
    float4* zeros = reinterpret_cast<float4*>(a.dq_sums + at * kD);
#pragma unroll
    for (int i = 0; i < 2 * kTogether; ++i) zeros[i * kLanes + lane] = float4{0.f, 0.f, 0.f, 0.f};
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

// One block a query tile: sums in the order of the kernel's registers to rows of dq, by way of shared memory so that whole
// rows are written.
template <int kD, typename Pair>
__global__ void __launch_bounds__(kThreads) after(const __grid_constant__ Fm3RowsArgs a, int tiles) {
    constexpr int kHalf = kD / 2, kPitch = kD + 8;  // columns of a warpgroup; elements of a row in shared memory
    using Element = decltype(Pair::x);
    __shared__ __align__(16) Element rows[kRows * kPitch];
    const int head = int(blockIdx.x % a.heads), tile = int(blockIdx.x / a.heads % tiles), item = int(blockIdx.x / a.heads / tiles);
    const int warpgroup = threadIdx.x / 128, thread = threadIdx.x % 128;
    const float4* sums = reinterpret_cast<const float4*>(
        a.dq_sums + ((int64_t(item) * a.heads + head) * padded(a.rows) + int64_t(tile) * kRows) * kD + warpgroup * kRows * kHalf);
    float4 x[kHalf / 8];
#pragma unroll
    for (int i = 0; i < kHalf / 8; ++i) x[i] = __ldcs(sums + i * 128 + thread);
#pragma unroll
    for (int i = 0; i < kHalf / 8; ++i) {
        Element* to = rows + (thread / 32 * 16 + thread % 32 / 4) * kPitch + warpgroup * kHalf + 8 * i + thread % 4 * 2;
        narrow({x[i].x * a.scale, x[i].y * a.scale}, reinterpret_cast<Pair*>(to));
        narrow({x[i].z * a.scale, x[i].w * a.scale}, reinterpret_cast<Pair*>(to + 8 * kPitch));
    }
    __syncthreads();
    Element* dq = static_cast<Element*>(a.dq) + item * a.dq_strides[0] + head * a.dq_strides[2];
    constexpr int kLanes = kD / 8;
#pragma unroll
    for (int i = threadIdx.x; i < kRows * kLanes; i += kThreads) {
        const int row = i / kLanes, lane = i % kLanes;
        const int64_t to = int64_t(tile) * kRows + row;
        if (to < a.rows) {
            const uint4 value = *reinterpret_cast<const uint4*>(rows + row * kPitch + lane * 8);
            __stcs(reinterpret_cast<uint4*>(dq + to * a.dq_strides[1] + lane * 8), value);
        }
    }
}

template <int kD, typename Pair>
cudaError_t launch(const Fm3RowsArgs& a, bool is_before, cudaStream_t stream) {
    constexpr int kGroups = kThreads / (kD / 8);
    const int64_t heads = int64_t(a.batch) * a.heads, rows = padded(a.rows) * heads, groups = rows / kTogether;
    const int64_t blocks = is_before ? (groups + kGroups - 1) / kGroups : rows / kRows;
    if (blocks == 0) return cudaSuccess;
    if (blocks > INT32_MAX) return cudaErrorInvalidConfiguration;
    if (is_before) {
        before<kD, Pair><<<unsigned(blocks), kThreads, 0, stream>>>(a, groups);
    } else {
        after<kD, Pair><<<unsigned(blocks), kThreads, 0, stream>>>(a, int(padded(a.rows) / kRows));
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
