// Host side of the backward kernel: tensor maps, launch, error codes.
#pragma once

#include <type_traits>

#include "backward.cuh"
#include "tensor_map.h"

namespace fm3 {

// What the blocks of a KV head share is queries, dO and sums of dQ: more than L2 keeps, and nothing hidden?
inline bool joins(const Fm3BackwardArgs& args, int head_dim) {
    constexpr int64_t kKept = 40 << 20;  // bytes, of 50 MB
    const bool full = args.mask.lts == nullptr && args.mask.uts == nullptr && args.mask.block_mask == nullptr && !args.mask.causal;
    return full && int64_t(args.mask.rows) * (args.heads / args.kv_heads) * head_dim * 8 > kKept;
}

template <int kHeadDim, typename T, Order kOrder>
cudaError_t launch_backward(const Fm3BackwardArgs& args, cudaStream_t stream) {
    using F = std::conditional_t<kHeadDim == 256, BackwardWide<T, kOrder>, Backward<kHeadDim, T, kOrder>>;
    const bool bf16 = args.bf16 != 0;
    cudaError_t error = cudaSuccess;
    const auto make = [&](CUtensorMap* map, const void* data, const int64_t (&strides)[3], int rows, int heads, int box_rows, int chunks) {
        if (error != cudaSuccess) return;
        error = encode(map, {data, strides[0], strides[1], strides[2], args.batch, rows, heads, kHeadDim}, bf16, box_rows, chunks);
    };
    typename F::Maps maps;
    make(&maps.q, args.q, args.q_strides, args.mask.rows, args.heads, F::kM, F::kChunks);
    make(&maps.dout, args.dout, args.dout_strides, args.mask.rows, args.heads, F::kM, F::kChunks);
    make(&maps.k, args.k, args.k_strides, args.mask.columns, args.kv_heads, F::kN, F::kChunks);
    make(&maps.v, args.v, args.v_strides, args.mask.columns, args.kv_heads, F::kN, F::kChunks);
    make(&maps.dk, args.dk, args.dk_strides, args.mask.columns, args.kv_heads, 16, 1);
    make(&maps.dv, args.dv, args.dv_strides, args.mask.columns, args.kv_heads, 16, 1);
    if (error != cudaSuccess) return error;

    constexpr int kBytes = int(sizeof(typename F::Shared)) + 1024;
    static_assert(kBytes <= 232448, "more than a block's shared memory");
    const auto kernel = backward<F, T>;
    error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes);
    if (error != cudaSuccess) return error;
    const int64_t work = int64_t(ceil_div(args.mask.columns, F::kN)) * args.kv_heads * args.batch;
    const int blocks = int(work < args.multiprocessors ? work : args.multiprocessors);
    kernel<<<blocks, F::kThreads, kBytes, stream>>>(args, maps);
    return cudaGetLastError();
}

template <int kHeadDim, typename T>
cudaError_t launch_backward(const Fm3BackwardArgs& args, cudaStream_t stream) {
    if (args.fixed != nullptr) return launch_backward<kHeadDim, T, Order::kFixed>(args, stream);
    if (joins(args, kHeadDim)) return launch_backward<kHeadDim, T, Order::kJoining>(args, stream);
    return launch_backward<kHeadDim, T, Order::kFirstToLast>(args, stream);
}

template <int kHeadDim>
cudaError_t launch_backward(const Fm3BackwardArgs& args, cudaStream_t stream) {
    return args.bf16 ? launch_backward<kHeadDim, __nv_bfloat16>(args, stream) : launch_backward<kHeadDim, __half>(args, stream);
}

}  // namespace fm3
