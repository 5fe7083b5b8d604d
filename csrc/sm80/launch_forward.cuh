// Host side of the forward kernel: launch, error codes.
#pragma once

#include "forward.cuh"

namespace fm3::sm80 {

template <int kHeadDim, typename T>
cudaError_t launch_forward(const Fm3ForwardArgs& args, cudaStream_t stream) {
    using F = Forward<kHeadDim>;
    constexpr int kBytes = int(sizeof(typename F::template Shared<T>));
    static_assert(kBytes <= 101376, "more than a block's shared memory on Ada");
    const auto kernel = forward<kHeadDim, T>;
    const cudaError_t error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes);
    if (error != cudaSuccess) return error;
    const int64_t blocks = int64_t(ceil_div(args.mask.rows, kBlock)) * F::kRowTiles * args.heads * args.batch;
    if (blocks > INT32_MAX) return cudaErrorInvalidConfiguration;
    kernel<<<unsigned(blocks), F::kThreads, kBytes, stream>>>(args);
    return cudaGetLastError();
}

}  // namespace fm3::sm80
