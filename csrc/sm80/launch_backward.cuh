// Host side of the backward kernel: which tiles fit, launch, error codes.
#pragma once

#include "backward.cuh"
#include "backward_convert.cuh"

namespace fm3::sm80 {

template <typename F, typename T>
cudaError_t launch_tiles(const Fm3BackwardArgs& args, cudaStream_t stream) {
    constexpr int kBytes = int(sizeof(typename F::template Shared<T>));
    const auto kernel = args.fixed != nullptr ? backward<F, T, true> : backward<F, T, false>;
    const cudaError_t error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes);
    if (error != cudaSuccess) return error;
    const int64_t blocks = int64_t(ceil_div(args.mask.columns, F::kN)) * args.kv_heads * args.batch;
    const int64_t tiles = int64_t(ceil_div(args.mask.rows, F::kM)) * args.heads * args.batch;
    if (blocks > INT32_MAX || tiles > INT32_MAX) return cudaErrorInvalidConfiguration;
    kernel<<<unsigned(blocks), F::kThreads, kBytes, stream>>>(args);
    convert<F, T><<<unsigned(tiles), F::kThreads, F::kM * F::kD * sizeof(T), stream>>>(args);
    return cudaGetLastError();
}

// Large tiles where a block may have the shared memory for them, as on A100 and Hopper; small ones elsewhere.
template <typename T, typename Large, typename Small>
cudaError_t launch_backward(const Fm3BackwardArgs& args, cudaStream_t stream) {
    constexpr int kLarge = int(sizeof(typename Large::template Shared<T>)), kSmall = int(sizeof(typename Small::template Shared<T>));
    static_assert(kLarge <= 166912 && kSmall <= 101376, "more than a block's shared memory on A100, on Ada");
    int device, most;
    cudaError_t error = cudaGetDevice(&device);
    if (error == cudaSuccess) error = cudaDeviceGetAttribute(&most, cudaDevAttrMaxSharedMemoryPerBlockOptin, device);
    if (error != cudaSuccess) return error;
    if constexpr (kLarge > kSmall) {
        if (most < kLarge) return launch_tiles<Small, T>(args, stream);
    }
    return launch_tiles<Large, T>(args, stream);
}

}  // namespace fm3::sm80
