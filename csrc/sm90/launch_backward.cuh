// Host side of the backward kernel: tensor maps, launch, error codes.
#pragma once

#include "backward.cuh"
#include "tensor_map.h"

namespace fm3 {

template <int kHeadDim, typename T>
cudaError_t launch_backward(const Fm3BackwardArgs& args, cudaStream_t stream) {
    using F = Backward<kHeadDim, T>;
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
    const auto kernel = backward<kHeadDim, T>;
    error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes);
    if (error != cudaSuccess) return error;
    const int64_t work = int64_t(ceil_div(args.mask.columns, F::kN)) * args.kv_heads * args.batch;
    const int blocks = int(work < args.multiprocessors ? work : args.multiprocessors);
    kernel<<<blocks, F::kThreads, kBytes, stream>>>(args, maps);
    return cudaGetLastError();
}

}  // namespace fm3
