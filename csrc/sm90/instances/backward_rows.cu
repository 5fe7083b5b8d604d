// What the backward kernel needs of every query row beforehand.
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <cmath>

#include "../backward_args.h"

namespace fm3 {
namespace {

constexpr int kRows = 64;  // whose order place_of_row says
constexpr int kThreads = 256;
constexpr int kTogether = 4;  // rows that a thread has on their way at a time
constexpr int kColumnsTogether = 64;
constexpr float kLog2E = 1.4426950408889634f;
constexpr float kSlack = 1.1f;  // for what rounding adds to P, out and dS
constexpr float kRange = 1073741824.f, kLargestBound = 1e30f, kLargestFactor = 1e37f;

__host__ __device__ __forceinline__ int64_t padded(int rows) { return (int64_t(rows) + kRowPadding - 1) / kRowPadding * kRowPadding; }

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

// The length of a row, 16 bytes a lane, whatever its size: squares of small numbers would vanish. NaN if something is not finite.
template <int kLanes, typename Pair>
__device__ __forceinline__ float length_of(const uint4& x) {
    const Pair* pairs = reinterpret_cast<const Pair*>(&x);
    float largest = 0.f, squares = 0.f;
#pragma unroll
    for (int i = 0; i < 4; ++i) largest = fmaxf(largest, fmaxf(fabsf(floats(pairs[i]).x), fabsf(floats(pairs[i]).y)));
#pragma unroll
    for (int lanes = kLanes / 2; lanes > 0; lanes /= 2) largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, lanes));
    const float to_one = largest > 0.f ? 1.f / largest : 0.f;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        const float2 y = {floats(pairs[i]).x * to_one, floats(pairs[i]).y * to_one};
        squares += y.x * y.x + y.y * y.y;
    }
#pragma unroll
    for (int lanes = kLanes / 2; lanes > 0; lanes /= 2) squares += __shfl_xor_sync(~0u, squares, lanes);
    return largest * sqrtf(squares < 1.f ? 1.f : squares);  // less only where `to_one` has vanished
}

// Groups of threads, 16 bytes of a row each, take kTogether rows of a head; neighbours take neighbouring heads, whose rows
// usually lie side by side. Rows that only pad the last tile are included. Bound by memory: what counts is bytes on their way.
template <int kD, typename Pair, bool kFixed>
__global__ void __launch_bounds__(kThreads, kFixed ? 2 : 4) rows(const __grid_constant__ Fm3RowsArgs a, int64_t groups) {
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
    // Of the row whose numbers this lane writes, if it is one of the first.
    const int64_t row = first + lane;
    float lse = -INFINITY, dlse = 0.f, sum = 0.f, size = 0.f;
    if (lane < kTogether && row < a.rows) {
        lse = a.lse[(int64_t(item) * a.heads + head) * a.rows + row];
        if (a.dlse != nullptr) dlse = a.dlse[item * a.dlse_strides[0] + row * a.dlse_strides[1] + head * a.dlse_strides[2]];
    }
#pragma unroll
    for (int i = 0; i < kTogether; ++i) {
        // Opaque: numbers of all rows converted at once would halve how many threads there are.
        for (uint4* x : {&out[i], &dout[i]}) asm volatile("" : "+r"(x->x), "+r"(x->y), "+r"(x->z), "+r"(x->w));
        float sum_of = dot<Pair>(out[i], dout[i]);
#pragma unroll
        for (int lanes = kLanes / 2; lanes > 0; lanes /= 2) sum_of += __shfl_xor_sync(~0u, sum_of, lanes);
        if (lane == i) sum = sum_of;
        if constexpr (kFixed) {
            const float size_of = length_of<kLanes, Pair>(dout[i]);
            if (lane == i) size = size_of;
        }
    }
    if (lane >= kTogether) return;
    // The exponent of a row that sees nothing becomes -inf, and nothing that arrives there goes further.
    const bool dead = lse == -INFINITY;
    const int64_t to = at - first % kRows + place_of_row(int(row % kRows));
    a.lse2[to] = dead ? INFINITY : lse * kLog2E;
    a.delta[to] = dead ? 0.f : sum - dlse;
    if constexpr (kFixed) {
        const int* maxima = a.maxima + 2 * (int64_t(item) * a.kv_heads + head / (a.heads / a.kv_heads));
        const float largest_key = __int_as_float(maxima[0]), longest_value = __int_as_float(maxima[1]);
        const float bound = kSlack * (2.f * size * longest_value + fabsf(dlse)) * largest_key;
        // What is not finite must not look like a number afterwards; nor must a row whose log-sum-exp is not one.
        const bool known = bound < kLargestBound && (dead || fabsf(lse) < INFINITY);
        a.fixed[at + lane] = !known ? NAN : bound > 0.f ? fminf(kRange / bound, kLargestFactor) : 0.f;
    }
}

// The largest element of K and the largest length of V over all columns of a KV head, as bits, which order like the
// numbers; a NaN is larger than all of them.
template <int kD, typename Pair>
__global__ void __launch_bounds__(kThreads) maxima(const __grid_constant__ Fm3RowsArgs a, int64_t groups) {
    constexpr int kLanes = kD / 8;
    using Element = decltype(Pair::x);
    const int lane = threadIdx.x % kLanes;
    const int64_t group = int64_t(blockIdx.x) * (kThreads / kLanes) + threadIdx.x / kLanes;
    const int64_t steps = (a.columns + kColumnsTogether - 1) / kColumnsTogether;
    const int head = int(group % a.kv_heads), item = int(group / a.kv_heads / steps);
    const int64_t first = group < groups ? group / a.kv_heads % steps * kColumnsTogether : a.columns;
    const auto load = [&](const void* data, const int64_t(&strides)[3], int64_t column) {
        const Element* x = static_cast<const Element*>(data) + item * strides[0] + column * strides[1] + head * strides[2] + lane * 8;
        return column < a.columns ? *reinterpret_cast<const uint4*>(x) : uint4{0, 0, 0, 0};
    };
    unsigned key = 0, value = 0;
#pragma unroll 4
    for (int i = 0; i < kColumnsTogether; ++i) {
        const uint4 k = load(a.k, a.k_strides, first + i), v = load(a.v, a.v_strides, first + i);
        const Pair* pairs = reinterpret_cast<const Pair*>(&k);
#pragma unroll
        for (int j = 0; j < 4; ++j) {
            const float2 x = floats(pairs[j]);
            key = max(key, max(__float_as_uint(x.x) & 0x7FFFFFFFu, __float_as_uint(x.y) & 0x7FFFFFFFu));
        }
        value = max(value, __float_as_uint(length_of<kLanes, Pair>(v)) & 0x7FFFFFFFu);
    }
#pragma unroll
    for (int lanes = kLanes / 2; lanes > 0; lanes /= 2) key = max(key, __shfl_xor_sync(~0u, key, lanes));
    if (lane == 0 && group < groups) {
        unsigned* to = reinterpret_cast<unsigned*>(a.maxima) + 2 * (int64_t(item) * a.kv_heads + head);
        atomicMax(to, key);
        atomicMax(to + 1, value);
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
    if (a.fixed != nullptr) {
        const int64_t columns = int64_t((a.columns + kColumnsTogether - 1) / kColumnsTogether) * a.kv_heads * a.batch;
        const int64_t column_blocks = (columns + kGroups - 1) / kGroups;
        if (column_blocks > INT32_MAX) return cudaErrorInvalidConfiguration;
        maxima<kD, Pair><<<unsigned(column_blocks), kThreads, 0, stream>>>(a, columns);
    }
    const auto kernel = a.fixed != nullptr ? rows<kD, Pair, true> : rows<kD, Pair, false>;
    kernel<<<unsigned(blocks), kThreads, 0, stream>>>(a, groups);
    return cudaGetLastError();
}

template <typename Pair>
cudaError_t by_head_dim(const Fm3RowsArgs& a, cudaStream_t stream) {
    switch (a.head_dim) {
        case 64: return launch<64, Pair>(a, stream);
        case 128: return launch<128, Pair>(a, stream);
        case 256: return launch<256, Pair>(a, stream);
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
