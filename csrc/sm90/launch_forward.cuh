// Host side of the forward kernel: tensor maps, launch, error codes.
#pragma once

#include <atomic>

#include "forward.cuh"
#include "tensor_map.h"

namespace fm3 {

template <int kHeadDim, typename T>
cudaError_t launch_forward(const Fm3ForwardArgs& args, cudaStream_t stream) {
    using F = Forward<kHeadDim, T>;
    const auto view = [&](const void* data, const int64_t (&strides)[3], int rows, int heads) {
        return TensorView{data, strides[0], strides[1], strides[2], args.batch, rows, heads, kHeadDim};
    };
    typename F::Maps maps;
    const bool bf16 = args.bf16 != 0;
    cudaError_t error = encode(&maps.q, view(args.q, args.q_strides, args.mask.rows, args.heads), bf16, F::kM, F::kChunks);
    if (error == cudaSuccess) error = encode(&maps.k, view(args.k, args.k_strides, args.mask.columns, args.kv_heads), bf16, F::kN, F::kChunks);
    if (error == cudaSuccess) error = encode(&maps.v, view(args.v, args.v_strides, args.mask.columns, args.kv_heads), bf16, F::kN, F::kChunks);
    if (error == cudaSuccess) error = encode(&maps.out, view(args.out, args.out_strides, args.mask.rows, args.heads), bf16, 16, 1);
    if (error != cudaSuccess) return error;

    constexpr int kBytes = int(sizeof(typename F::Shared)) + 1024;
    static_assert(kBytes <= 232448, "more than a block's shared memory");
    const auto kernel = forward<kHeadDim, T>;
    int device;
    error = cudaGetDevice(&device);
    if (error != cudaSuccess) return error;
    static std::atomic<uint64_t> allowed{0};  // devices on which the kernel may use that much, a bit each
    if (device >= 64 || !(allowed >> device & 1)) {
        error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes);
        if (error != cudaSuccess) return error;
        if (device < 64) allowed |= uint64_t(1) << device;
    }
    const long long work = (long long)((args.mask.rows + F::kM - 1) / F::kM) * args.heads * args.batch;
    const int blocks = int(work < args.multiprocessors ? work : args.multiprocessors);
    kernel<<<blocks, F::kThreads, kBytes, stream>>>(args, maps);
    return cudaGetLastError();
}

}  // namespace fm3
